"""`divevlm eval --engine ray`: Ray Data actors, each with a model of its own, on one machine or a cluster (extra ray)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from divevlm.checks import require
from divevlm.experiments.answering import Answerer
from divevlm.experiments.journal import Journal, Record
from divevlm.experiments.sweep import answered
from divevlm.experiments.sweep import batches as sweep_batches
from divevlm.experiments.tasks import Item

if TYPE_CHECKING:
    from divevlm.experiments.lmms.suite import Suite
    from divevlm.experiments.runner import Run

Row = dict[str, str]  # JSON inside: Arrow would retype what it holds


class Asks:
    """Questions of our own sweep. The model is loaded once; a row says which questions to answer under which settings."""

    def __init__(self, run: Run) -> None:
        self.run, self.items = run, run.items()
        self.answerer = Answerer(*run.load(), shared=run.shared)
        self.settings = [
            (setting, setting.ready(self.answerer.model, self.answerer.processor)) for setting in run.settings
        ]

    def __call__(self, row: Row) -> list[Row]:
        """All settings of a batch, so that what is shared is computed once."""
        todo: list[tuple[int, list[int]]] = json.loads(row["todo"])
        return [{"record": json.dumps(one)} for number, wanted in todo for one in self.records(number, wanted)]

    def records(self, number: int, wanted: list[int]) -> list[Record]:
        setting, method = self.settings[number]
        some = [self.items[i] for i in wanted]
        return answered(self.answerer, some, setting, method, self.run.mode, self.run.new_tokens)


class Benchmarks(Asks):
    """Requests of lmms-eval, which every actor builds for itself: they do not travel."""

    def __init__(self, run: Run) -> None:
        from divevlm.experiments.lmms.sweep import models, suite

        asked = suite(run)
        self.requests = asked.requests()
        self.models = models(run, asked, Answerer(*run.load(), shared=False), None)

    def records(self, number: int, wanted: list[int]) -> list[Record]:
        records: list[Record] = self.models[number].records([self.requests[i] for i in wanted])
        return records


def work(
    run: Run, journal: Journal, places: Sequence[tuple[str, str]], batches: Iterable[Sequence[int]]
) -> list[list[tuple[int, list[int]]]]:
    """What is not done yet, by batch: numbers of a setting and of its questions. places: task and sample of each question"""
    work_of_batches = []
    for batch in batches:
        todo = [
            (number, [i for i in batch if (setting.method, setting.keep, *places[i]) not in journal])
            for number, setting in enumerate(run.settings)
        ]
        work_of_batches.append([(number, wanted) for number, wanted in todo if wanted])
    return [todo for todo in work_of_batches if todo]


def ray_sweep(run: Run, journal: Journal, items: Sequence[Item], suite: Suite | None = None) -> None:
    """Answers go to the journal as the actors hand them over. suite: lmms-eval's tasks, if it shall ask too"""
    require(run.workers >= 1, "workers", run.workers, "at least 1")
    if run.asked:
        numbers = iter(range(len(items)))
        batches = [[next(numbers) for _ in some] for some in sweep_batches(items, run.batch)]
        todo = work(run, journal, [(item.task, item.sample) for item in items], batches)
        spread(Asks, run, run.workers, journal, todo, questions_of(todo))
    if suite is not None:
        from divevlm.experiments.lmms import requests as lmms_requests

        asked = suite.requests()
        places = [lmms_requests.place(one, suite.numbers) for one in asked]
        todo = work(run, journal, places, lmms_requests.batches(asked, run.batch))
        spread(Benchmarks, run, run.workers, journal, todo, questions_of(todo))


def questions_of(batches: list[list[tuple[int, list[int]]]]) -> int:
    return sum(len(wanted) for some in batches for _, wanted in some)


def spread(kind: Any, given: Any, workers: int, journal: Journal, todo: Sequence[Any], total: int) -> None:
    """One item a batch, to actors of this kind, each made with what is given. total: records that will come back"""
    if not todo:
        return
    try:
        import ray
    except ImportError:
        raise ValueError("engine ray needs Ray: pip install 'divevlm[ray]'") from None
    from divevlm.experiments.runner import bar

    ray.init(ignore_reinit_error=True)
    gpus = gpus_each(workers, ray.cluster_resources().get("GPU", 0))
    rows = [{"todo": json.dumps(some)} for some in todo]
    data = ray.data.from_items(rows, override_num_blocks=len(rows)).flat_map(
        kind, fn_constructor_args=(given,), concurrency=workers, num_gpus=gpus
    )
    with bar(total) as tick:
        for row in _handed_over(data):
            journal.add([json.loads(row["record"])])
            tick(1, "ray")


def _handed_over(data: Any) -> Iterator[Row]:
    """Rows as they come; an actor's error ends in the line that says what is wrong."""
    try:
        yield from data.iter_rows()
    except Exception as error:  # Ray wraps what an actor raises in several ways
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise ValueError(f"engine ray: an actor failed: {last}") from None


def gpus_each(workers: int, there: float) -> float:
    """A whole GPU of the cluster, or an equal part of one where actors outnumber them."""
    return 1 / ceil(workers / there) if there else 0
