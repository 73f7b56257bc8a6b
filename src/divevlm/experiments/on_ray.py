"""`divevlm eval --engine ray`: Ray Data actors, each with a model of its own, on one machine or a cluster (extra ray)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from divevlm.core.rule import require
from divevlm.experiments.answering import Answerer
from divevlm.experiments.journal import Journal
from divevlm.experiments.loading import load
from divevlm.experiments.sweep import answered

if TYPE_CHECKING:
    from divevlm.experiments.runner import Run


class Worker:
    """Loads the model once; a row says which questions to answer under which setting."""

    def __init__(self, run: Run) -> None:
        self.run, self.items = run, run.items()
        self.answerer = Answerer(*load(run.model, dtype=run.dtype), shared=run.shared)
        self.settings = [(setting, setting.ready(self.answerer.model)) for setting in run.settings]

    def __call__(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """All settings of a batch of questions, so that what is shared is computed once."""
        found: list[dict[str, Any]] = []
        for number, wanted in row["todo"].items():
            some = [self.items[i] for i in wanted]
            setting, method = self.settings[int(number)]
            found += answered(self.answerer, some, setting, method, self.run.mode, self.run.new_tokens)
        return [{"record": record} for record in found]


def work(run: Run, journal: Journal) -> list[dict[str, Any]]:
    """What is not done yet: one row a batch, setting number -> question numbers."""
    items, rows = run.items(), []
    for at in range(0, len(items), run.batch):
        todo: dict[str, list[int]] = {}
        for number, setting in enumerate(run.settings):
            wanted = [
                i
                for i in range(at, min(at + run.batch, len(items)))
                if (setting.method, setting.keep, items[i].task, items[i].sample) not in journal
            ]
            if wanted:
                todo[str(number)] = wanted
        if todo:
            rows.append({"todo": todo})
    return rows


def ray_sweep(run: Run, journal: Journal) -> None:
    """Answers go to the journal as the actors hand them over."""
    require(run.workers >= 1, "workers", run.workers, "at least 1")
    try:
        import ray
    except ImportError:
        raise ValueError("engine ray needs Ray: pip install 'divevlm[ray]'") from None
    rows = work(run, journal)
    if not rows:
        return
    import torch

    from divevlm.experiments.runner import bar

    gpus = 1 if torch.cuda.is_available() else 0
    data = ray.data.from_items(rows, override_num_blocks=len(rows)).flat_map(
        Worker, fn_constructor_args=(run,), concurrency=run.workers, num_gpus=gpus
    )
    total = sum(len(wanted) for row in rows for wanted in row["todo"].values())
    with bar(total) as tick:
        for row in data.iter_rows():
            journal.add([row["record"]])
            tick(1, "ray")
