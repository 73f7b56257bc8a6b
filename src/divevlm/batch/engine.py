"""Engines answer a batch of rows. One record a row comes back, whatever is wrong with some of them."""

from __future__ import annotations

import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from divevlm.batch.rows import Row
from divevlm.checks import require
from divevlm.experiments.answering import Answerer
from divevlm.experiments.journal import Record
from divevlm.experiments.settings import Setting
from divevlm.experiments.tasks import Item
from divevlm.media import read_clip, read_picture
from divevlm.models import family_of
from divevlm.prompts import Prompt
from divevlm.viz.asking import GREEDY

if TYPE_CHECKING:
    from divevlm.batch.job import Job

LONGEST = 400  # letters of a reason
# after one of these a card answers nothing any more
DEAD: tuple[type[Exception], ...] = (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()


class Engine(ABC):
    """dead: errors after which no row can be answered; they stop the run instead of failing the rest of it."""

    dead: tuple[type[Exception], ...] = ()

    def __init__(self, job: Job) -> None:
        self.job = job

    @abstractmethod
    def answers(self, items: Sequence[Item], keep: int | float | None, length: int) -> list[Record]:
        """answer, kept, visual and seconds of each item. keep: instead of the job's"""

    def __call__(self, rows: Sequence[Row]) -> list[Record]:
        """Of rows with one budget and one length."""
        found: dict[int, Record] = {}
        ready: list[tuple[Row, Item]] = []
        for row in rows:
            try:
                if row.error is not None:
                    raise ValueError(row.error)
                ready.append((row, self._item(row)))
            except ImportError:  # of this machine, not of the row
                raise
            except Exception as error:  # files can be wrong in any way
                found[row.line] = self._failed(row, error)
        if ready:
            found |= self._asked(ready)
        return [found[row.line] for row in rows]

    def _asked(self, some: Sequence[tuple[Row, Item]]) -> dict[int, Record]:
        """A batch that fails is asked in halves, until those that fail stand alone."""
        first = some[0][0]
        try:
            made = self.answers([item for _, item in some], first.keep, first.max_new_tokens or self.job.max_new_tokens)
            return {row.line: self._record(row, **one) for (row, _), one in zip(some, made, strict=True)}
        except self.dead as error:
            raise ValueError(f"the engine died at line {first.line}, start again to go on: {told(error)}") from error
        except Exception as error:
            if len(some) == 1:
                return {first.line: self._failed(first, error)}
        half = len(some) // 2
        return self._asked(some[:half]) | self._asked(some[half:])

    def _item(self, row: Row) -> Item:
        """With its files read."""
        shown: list[Any] = [read_picture(_there("image", path)) for path in row.images]
        if row.video is not None:
            shown.append(read_clip(_there("video", row.video), self.job.frames))
        item = Item("batch", str(row.line), row.question, "", partial(list, shown))
        if self.job.system is None:
            return item
        return replace(item, turns=list(Prompt.of(row.question, shown, self.job.system).turns))

    def _failed(self, row: Row, error: Exception) -> Record:
        return self._record(row, error=told(error))

    def _record(self, row: Row, **more: Any) -> Record:
        empty = dict.fromkeys(("answer", "kept", "visual", "seconds", "error"))
        worker = {"worker": f"{platform.node()}:{os.getpid()}"}
        return {**self.job.key(row), "id": row.id, **empty, **more, **worker}


class Local(Engine):
    """The transformers engine of this process."""

    dead = DEAD

    def __init__(self, job: Job, loaded: tuple[Any, Any] | None = None) -> None:
        super().__init__(job)
        model, processor = loaded or job.load()
        self.answerer = Answerer(model, processor, shared=False)
        self.methods: dict[str, Any] = {}
        self.marks = torch.tensor(sorted(family_of(model).token_ids(model.config).values()))

    def _method(self, keep: int | float | None) -> Any:
        if repr(keep) not in self.methods:  # 1 keeps one token, 1.0 all of them
            setting = Setting(self.job.method, self.job.keep if keep is None else keep)
            found = setting.ready(self.answerer.model, self.answerer.processor)
            require(found is not None or keep is None, "keep", keep, f"left out for {self.job.method}, which keeps all")
            self.methods[repr(keep)] = found
        return self.methods[repr(keep)]

    def answers(self, items: Sequence[Item], keep: int | float | None, length: int) -> list[Record]:
        method = self._method(keep)
        ids = self.answerer.inputs(items)["input_ids"].cpu()
        visual = torch.isin(ids, self.marks).sum(dim=1).tolist()
        made = self.answerer.generate(items, method, length, **GREEDY)
        return [
            {
                "answer": one.prediction,
                "kept": count if one.kept is None else one.kept,
                "visual": count,
                "seconds": one.seconds,
            }
            for one, count in zip(made, visual, strict=True)
        ]


def _there(name: str, path: str) -> Path:
    require(Path(path).is_file(), name, path, "a file that is there")
    return Path(path)


def told(error: Exception) -> str:
    """In one line; the kind of an error that is not ours belongs to it."""
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
    return " ".join(f"{kind}{error}".split())[:LONGEST]
