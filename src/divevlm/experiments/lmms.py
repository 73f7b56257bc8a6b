"""lmms-eval: our models registered with it, and its benchmarks swept by `divevlm eval` (extra eval)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from divevlm.core.rule import require
from divevlm.experiments.answering import Answerer
from divevlm.experiments.journal import Journal
from divevlm.experiments.tasks import Item

if TYPE_CHECKING:
    from divevlm.experiments.runner import Run


def manifests() -> list[Any]:
    """For the entry point `lmms_eval.models`: --model divevlm, with chat templates or (--force_simple) plain prompts."""
    from lmms_eval.models.registry_v2 import ModelManifest

    where = "divevlm.experiments.lmms_model"
    return [ModelManifest("divevlm", simple_class_path=f"{where}.Simple", chat_class_path=f"{where}.Chat")]


def _manager(run: Run) -> Any:
    """lmms-eval's tasks and those of the run's own folder."""
    try:
        from lmms_eval.tasks import TaskManager
    except ImportError as error:
        raise ValueError(
            f"tasks {', '.join(run.benchmarks)} need lmms-eval: pip install 'divevlm[eval]' ({error})"
        ) from None
    include = None if run.include is None else str(run.include)
    manager = TaskManager("ERROR", include_path=include, model_name="divevlm")
    unknown = [name for name in run.benchmarks if name not in manager.all_tasks]
    require(
        not unknown, "tasks", ",".join(unknown), "embedded ones or names that `python -m lmms_eval --tasks list` shows"
    )
    return manager


def items(run: Run) -> list[Item]:
    """Documents of lmms-eval tasks as questions with one gold answer, for teacher forcing. Groups are refused."""
    manager = _manager(run)
    from lmms_eval.tasks import get_task_dict

    found: list[Item] = []
    for name, task in get_task_dict(list(run.benchmarks), manager, "simple").items():
        require(isinstance(name, str), "tasks", str(name), "single tasks, not groups, for teacher forcing")
        documents = task.eval_docs
        for number in range(len(documents) if run.limit is None else min(run.limit, len(documents))):
            document = documents[number]
            gold = task.doc_to_target(document)
            require(isinstance(gold, str), "tasks", name, "tasks whose answer is one text, for teacher forcing")
            draw = partial(_pictures, task, number)
            found.append(Item(name, str(number), task.doc_to_text(document), gold, draw))
    return found


def _pictures(task: Any, number: int) -> list[Any]:
    return [one.convert("RGB") for one in task.doc_to_visual(task.eval_docs[number]) or []]


def benchmarks(run: Run, model: Any, processor: Any, journal: Journal) -> dict[str, Any]:
    """Metrics of every setting and task, by lmms-eval; answers that the journal has are not generated again.

    setting -> method, keep, tasks -> metric -> value
    """
    manager = _manager(run)
    from lmms_eval.evaluator import simple_evaluate

    from divevlm.experiments.lmms_model import Chat, Simple

    kind = Simple if run.simple else Chat
    found: dict[str, Any] = {}
    for setting in run.settings:
        lm = kind.around(Answerer(model, processor, shared=False), setting, run.batch, journal)
        made = simple_evaluate(
            model=lm,
            tasks=list(run.benchmarks),
            limit=run.limit,
            batch_size=run.batch,
            task_manager=manager,
            force_simple=run.simple,
            random_seed=run.seed,
            numpy_random_seed=run.seed,
            torch_random_seed=run.seed,
            distributed_executor_backend="torchrun",
            bootstrap_iters=0,
            verbosity="ERROR",
        )
        if made is not None:  # None in all processes but the first
            scores = {name: metrics(made, name) for name in run.benchmarks}
            found[str(setting)] = {"method": setting.method, "keep": setting.keep, "tasks": scores}
    return found


def metrics(made: dict[str, Any], name: str) -> dict[str, float]:
    """Numbers of one task; of a group whose members have them only, their mean. Durations of Video-MME by themselves."""
    whole = _numbers(made["results"].get(name, {}))
    if not whole:
        members = [_numbers(made["results"][one]) for one in made.get("group_subtasks", {}).get(name, [])]
        members = [one for one in members if one]
        require(bool(members), "tasks", name, "one that lmms-eval computes numbers for")
        shared = set.intersection(*(set(one) for one in members))
        whole = {metric: sum(one[metric] for one in members) / len(members) for metric in sorted(shared)}
    for duration in ("short", "medium", "long"):
        some = [
            s["videomme_perception_score"] for s in made["samples"].get(name, []) if "videomme_perception_score" in s
        ]
        right = [float(one["pred_answer"] == one["answer"]) for one in some if one["duration"] == duration]
        if right:
            whole[duration] = sum(right) / len(right)
    return whole


def _numbers(results: dict[str, Any]) -> dict[str, float]:
    """ "exact_match,none" -> "exact_match"; standard errors and texts are left out."""
    return {
        key.split(",")[0]: float(value)
        for key, value in results.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and "stderr" not in key and key != "samples"
    }
