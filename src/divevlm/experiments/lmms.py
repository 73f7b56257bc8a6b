"""lmms-eval: our models registered with it, and its benchmarks swept by `divevlm eval` (extra eval)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from divevlm.core.rule import require
from divevlm.experiments.answering import Answerer
from divevlm.experiments.journal import Journal
from divevlm.experiments.lmms_scores import metrics, sample_lines
from divevlm.experiments.tasks import Item

if TYPE_CHECKING:
    from divevlm.experiments.runner import Run


def manifests() -> list[Any]:
    """For the entry point `lmms_eval.models`: --model divevlm, with chat templates or (--force_simple) plain prompts."""
    from lmms_eval.models.registry_v2 import ModelManifest

    where = "divevlm.experiments.lmms_model"
    return [ModelManifest("divevlm", simple_class_path=f"{where}.Simple", chat_class_path=f"{where}.Chat")]


def kind(run: Run) -> Any:
    from divevlm.experiments.lmms_model import Chat, Simple

    return Simple if run.simple else Chat


def manager_of(run: Run) -> Any:
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


def single(names: list[str], manager: Any, style: str = "simple") -> Iterator[tuple[str, Any]]:
    """Tasks by name; of a group, those in it."""
    from lmms_eval.tasks import get_task_dict

    def flat(tree: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
        for name, task in tree.items():
            if isinstance(task, dict):
                yield from flat(task)
            else:
                yield name, task

    return flat(get_task_dict(names, manager, style))


def items(run: Run) -> list[Item]:
    """Documents of lmms-eval tasks as questions with one gold answer, for teacher forcing; a group's bear its name."""
    manager = manager_of(run)
    from divevlm.experiments.lmms_requests import gold

    found: list[Item] = []
    for asked in run.benchmarks:
        for name, task in single([asked], manager):
            documents = task.eval_docs
            for number in range(len(documents) if run.limit is None else min(run.limit, len(documents))):
                document = documents[number]
                sample = str(number) if name == asked else f"{name}/{number}"
                draw = partial(_media, task, number)
                found.append(Item(asked, sample, task.doc_to_text(document), gold(task, name, document), draw))
    return found


def _media(task: Any, number: int) -> list[Any]:
    from divevlm.experiments.lmms_requests import shown

    return [shown(one) for one in task.doc_to_visual(task.eval_docs[number]) or []]


def requests(run: Run, manager: Any) -> tuple[list[Any], dict[str, Any]]:
    """What lmms-eval asks a model, the same in every process; and its data by task."""
    asked, data = [], {}
    for name, task in single(run.benchmarks, manager, "simple" if run.simple else "chat"):
        require(task.OUTPUT_TYPE == "generate_until", "tasks", name, "of output_type generate_until")
        task.set_fewshot_seed(seed=1234)  # as simple_evaluate does
        task.build_all_requests(limit=run.limit)
        asked += task.instances
        data[name] = task.dataset
    return asked, data


def benchmarks(run: Run, answerer: Answerer | None, journal: Journal, manager: Any) -> dict[str, Any]:
    """Metrics of every setting and task, by lmms-eval; what each sample got is in `scores.jsonl`.

    Answers that the journal has are not generated again; without an answerer it has all of them.
    setting -> method, keep, tasks -> metric -> value
    """
    from lmms_eval.evaluator import simple_evaluate

    found: dict[str, Any] = {}
    lines: list[str] = []
    for lm in [kind(run).around(answerer, setting, run.batch, journal) for setting in run.settings]:
        made = simple_evaluate(
            model=lm,
            tasks=run.benchmarks,
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
            setting, scores = lm.setting, {name: metrics(made, name) for name in run.benchmarks}
            found[str(setting)] = {"method": setting.method, "keep": setting.keep, "tasks": scores}
            lines += sample_lines(made, setting)
    if lines:
        (run.out / "scores.jsonl").write_text("\n".join(lines) + "\n")
    return found
