"""One loaded model, every method and budget, every question: each finished answer is on disk before the next batch begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Literal

from divevlm.experiments.answering import Answerer
from divevlm.experiments.journal import Journal, Record
from divevlm.experiments.settings import Setting
from divevlm.experiments.tasks import Item
from divevlm.methods import Method

Mode = Literal["generate", "forced"]


def answered(
    answerer: Answerer, items: Sequence[Item], setting: Setting, method: Method | None, mode: Mode, new_tokens: int = 16
) -> list[Record]:
    """Records of one batch under one setting."""
    answers = answerer.generate(items, method, new_tokens) if mode == "generate" else answerer.forced(items, method)
    where = {"method": setting.method, "keep": setting.keep}
    return [
        {**where, "task": item.task, "sample": item.sample, "gold": item.gold, **asdict(answer)}
        for item, answer in zip(items, answers, strict=True)
    ]


def sweep(
    answerer: Answerer,
    items: Sequence[Item],
    settings: Sequence[Setting],
    journal: Journal,
    batch: int = 16,
    mode: Mode = "generate",
    new_tokens: int = 16,
    tick: Callable[[int, str], object] = lambda count, text: None,
) -> None:
    """What the journal does not have yet. tick: told how many samples are done now, and what comes."""
    methods = {setting: setting.ready(answerer.model, answerer.processor) for setting in settings}
    if answerer.once is None and items:  # times count: compile and allocate before them
        for setting, method in methods.items():
            answered(answerer, next(batches(items, batch)), setting, method, mode, new_tokens)
    for some in batches(items, batch):
        for setting, method in methods.items():
            todo = [one for one in some if (setting.method, setting.keep, one.task, one.sample) not in journal]
            if todo:
                journal.add(answered(answerer, todo, setting, method, mode, new_tokens))
            tick(len(some), str(setting))


def batches(items: Sequence[Item], size: int) -> Iterator[list[Item]]:
    """In their order; those of a batch are asked in one way."""
    for _, alike in groupby(items, key=lambda item: item.stock):
        some = list(alike)
        for at in range(0, len(some), size):
            yield some[at : at + size]


def shard(items: Sequence[Item], rank: int, world: int) -> list[Item]:
    """The questions of one of several processes; together they are all, none is in two."""
    return list(items[rank::world])
