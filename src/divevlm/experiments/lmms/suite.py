"""lmms-eval's benchmarks as a run asks them: loaded once, cut to the samples that are asked."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from torch import distributed

from divevlm.checks import require
from divevlm.experiments.limits import chosen, spread
from divevlm.experiments.loading import rank
from divevlm.experiments.paper.recipe import benchmarks

if TYPE_CHECKING:
    from divevlm.experiments.runner import Run


@dataclass
class Suite:
    """trees: by the name that was asked for, as lmms-eval's evaluate() takes them; tasks: those in them, of groups too;
    numbers: of their documents in the whole data set; group: which of the names asked for a task belongs to."""

    trees: dict[str, Any]
    tasks: dict[str, Any]
    numbers: dict[str, list[int]]
    group: dict[str, str]

    @property
    def data(self) -> dict[str, Any]:
        return {name: task.dataset for name, task in self.tasks.items()}

    def requests(self) -> list[Any]:
        """What lmms-eval asks a model, the same in every process."""
        instances: list[Any] = []
        for name, task in self.tasks.items():
            require(task.OUTPUT_TYPE == "generate_until", "tasks", name, "of output_type generate_until")
            task.build_all_requests()
            instances += task.instances
        return instances


def check(run: Run) -> None:
    """Are the tasks there? Told before a model is loaded."""
    try:
        import lmms_eval  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"tasks {', '.join(run.benchmarks)} need lmms-eval: pip install 'divevlm[eval]' ({error})"
        ) from None
    known = manager(_include(run)).all_tasks
    unknown = [name for name in run.benchmarks if name not in known]
    require(
        not unknown, "tasks", ",".join(unknown), "embedded ones or names that `python -m lmms_eval --tasks list` shows"
    )


def suite(run: Run) -> Suite:
    """The run's benchmarks, each with its limit."""
    check(run)
    whole = Suite({}, {}, {}, {})
    hints = {entry["task"]: entry for entry in benchmarks().values()}
    for asked in run.benchmarks:
        tree = loaded(asked, _include(run), run.stock_name, "simple" if run.inputs != "chat" else "chat")
        members = list(flat(tree))
        limits = spread(run.limit_of(asked), len(members))
        fresh = {}
        for (name, task), limit in zip(members, limits, strict=True):
            fresh[name], whole.numbers[name] = cut(task, limit, run.seed, hints.get(asked, {}))
            if run.ocr and "ocr" in (task.lmms_eval_specific_kwargs or {}):
                fresh[name].lmms_eval_specific_kwargs = {**task.lmms_eval_specific_kwargs, "ocr": True}
            whole.group[name] = asked
        whole.trees[asked] = _replaced(tree, fresh)
        whole.tasks |= fresh
    return whole


def cut(task: Any, limit: int | None, seed: int, hints: dict[str, Any]) -> tuple[Any, list[int]]:
    """A copy of the task with the chosen documents alone, and their numbers."""
    split = task.config.test_split if task.has_test_docs() else task.config.validation_split
    plain = task.dataset_no_image[split]

    def column(kind: str) -> list[Any] | None:
        name = hints.get(kind)
        return list(plain[name]) if name in plain.column_names else None

    numbers = chosen(len(plain), limit, seed, column("category"), column("unit"))
    same, same._config = copy(task), copy(task._config)
    same.dataset = {**task.dataset, split: task.dataset[split].select(numbers)}
    same.dataset_no_image = {**task.dataset_no_image, split: plain.select(numbers)}
    same._config.generation_kwargs = (
        {**{"max_new_tokens": hints["new_tokens"]}, **task.config.generation_kwargs}
        if "new_tokens" in hints
        else task.config.generation_kwargs
    )
    if same.config.num_fewshot is None:  # as simple_evaluate does
        same.set_config(key="num_fewshot", value=0)
    same.set_fewshot_seed(seed=1234)
    return same, numbers


@cache
def manager(include: str | None) -> Any:
    """lmms-eval's tasks and those of a folder of one's own."""
    from lmms_eval.tasks import TaskManager

    return TaskManager("ERROR", include_path=include)


@cache
def loaded(asked: str, include: str | None, name: str, style: str) -> Any:
    """A benchmark with its data, read once a process. name: of the model whose prompts and settings it has"""
    from lmms_eval import evaluator
    from lmms_eval.tasks import get_task_dict

    evaluator._enable_reentrant_filelocks()  # this and the next: what simple_evaluate does before it loads data
    if not hasattr(ssl.SSLContext, "_orig_reduce"):
        ssl.SSLContext._orig_reduce = True  # type: ignore[attr-defined]
        ssl.SSLContext.__reduce__ = lambda self: (ssl.SSLContext, (self.protocol,))  # type: ignore[attr-defined,method-assign]
    named = copy(manager(include))
    named.model_name = name  # tasks have prompts and settings of their own for some models
    with _in_turn():
        return get_task_dict([asked], named, style)


@contextmanager
def _in_turn() -> Iterator[None]:
    """The first process first: the others then find the data on disk."""
    several = distributed.is_available() and distributed.is_initialized()
    if several and rank()[0]:
        distributed.barrier()
    yield
    if several and not rank()[0]:
        distributed.barrier()


def flat(tree: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Tasks by name; of a group, those in it."""
    for name, task in tree.items():
        if isinstance(task, dict):
            yield from flat(task)
        else:
            yield name, task


def _replaced(tree: dict[Any, Any], fresh: dict[str, Any]) -> dict[Any, Any]:
    return {
        name: _replaced(task, fresh) if isinstance(task, dict) else fresh[name]  # groups are not names but objects
        for name, task in tree.items()
    }


def _include(run: Run) -> str | None:
    return None if run.include is None else str(run.include)
