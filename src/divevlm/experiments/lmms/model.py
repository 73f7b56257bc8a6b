"""The models that lmms-eval drives: `--model divevlm --model_args pretrained=...,method=dive,keep=64`.

Every family of the engine, images and videos, batches; a sample that fails ends the run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from lmms_eval.api.model import lmms
from lmms_eval.protocol import ChatMessages
from lmms_eval.utils import simple_parse_args_string
from tqdm import tqdm

from divevlm.checks import require
from divevlm.experiments import stock
from divevlm.experiments.answering import Answerer
from divevlm.experiments.journal import Journal, Record
from divevlm.experiments.lmms.requests import FRAMES, batches, cut, decoding, media, options, place, shown
from divevlm.experiments.settings import Setting
from divevlm.experiments.tasks import Item
from divevlm.loading import load
from divevlm.methods import Method
from divevlm.methods.mmtok import MMTok


class _Base(lmms):  # type: ignore[misc]
    """Answers requests in batches of equal generation settings; what a journal has is not generated again."""

    def __init__(
        self,
        pretrained: str = "llava",
        method: str = "dive",
        keep: int | float = 64,
        batch_size: int | str = 1,
        device: str | None = None,
        dtype: str | None = None,
        max_frames: int = FRAMES,
        **unknown: Any,
    ) -> None:
        """method: a name with options ("dive:eta=0.5"), or vanilla; keep: a count or a share."""
        super().__init__()
        unknown.pop("max_batch_size", None)
        allowed = "pretrained, method, keep, batch_size, device, dtype and max_frames"
        require(not unknown, "model_args", ",".join(unknown), f"among {allowed}")
        setting = Setting(method, keep).check()  # before the model is loaded
        self._fill(Answerer(*load(pretrained, device, dtype), shared=False), setting, int(batch_size), None)
        self.max_frames = int(max_frames)

    def _fill(self, answerer: Answerer | None, setting: Setting, batch: int, journal: Journal | None) -> None:
        require(batch >= 1, "batch_size", batch, "at least 1")
        self.setting, self.batch, self.journal = setting, batch, journal
        self.numbers: dict[str, list[int]] = {}  # of a task's documents in the whole data set; none: as they are
        self.max_frames, self.exits, self.device = FRAMES, False, torch.device("cpu")
        self.inputs, self.pad = "template", False
        if answerer is not None:
            self.answerer, self.device = answerer, answerer.model.device
            self.method = setting.ready(answerer.model, answerer.processor)

    @classmethod
    def around(cls, answerer: Answerer | None, setting: Setting, batch: int, journal: Journal | None = None) -> Any:
        """Of a model that is loaded already; without one, the journal has every answer."""
        made = cls.__new__(cls)
        lmms.__init__(made)
        made._fill(answerer, setting, batch, journal)
        return made

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> Any:
        """lmms-eval's command line. It hands `device` and `batch_size` over a second time: model_args go first."""
        more = {key: value for key, value in (additional_config or {}).items() if value is not None}
        made = cls(**{**more, **simple_parse_args_string(arg_string)})
        made.exits = True
        return made

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """A sample that fails ends the run: lmms-eval's command line notes an exception and ends as if all were well, so
        there only leaving helps."""
        try:
            return self._answers(requests)
        except Exception as error:
            if not self.exits:
                raise
            raise SystemExit(f"divevlm: {error}") from error

    def _answers(self, requests: Sequence[Any]) -> list[str]:
        """Pictures are there for a batch at a time."""
        known = {} if self.journal is None else self.journal.done
        here = self.setting.method, self.setting.keep
        places = [(*here, *place(request, self.numbers)) for request in requests]
        answers = {n: known[one]["prediction"] for n, one in enumerate(places) if one in known}
        todo = [number for number in range(len(requests)) if number not in answers]
        there = self.journal is None or hasattr(self, "answerer")
        require(there or not todo, "answers", len(todo), "all there: run once more when every process is done; missing")
        quiet = None if self.rank == 0 else True
        with tqdm(total=len(todo), desc=str(self.setting), unit="sample", disable=quiet) as bar:
            for some in batches([requests[number] for number in todo], self.batch):
                numbers = [todo[at] for at in some]
                made = self.records([requests[number] for number in numbers])
                if self.journal is not None:
                    self.journal.add(made)
                answers |= {number: record["prediction"] for number, record in zip(numbers, made, strict=True)}
                bar.update(len(some))
        return [answers[number] for number in range(len(requests))]

    def records(self, requests: Sequence[Any]) -> list[Record]:
        """Answers to requests of one task and one way to generate."""
        try:
            return self._generated(requests)
        except Exception as error:
            names = ", ".join(" ".join(place(request, self.numbers)) for request in requests)
            raise ValueError(f"{names} failed: {type(error).__name__}: {error}") from error

    def _generated(self, requests: Sequence[Any]) -> list[Record]:
        given = options(requests[0])
        length = int(given.get("max_new_tokens", 1024))
        items = [self._read(request) for request in requests]
        start = time.perf_counter()
        family, stops = self.answerer.family, given.get("until")
        ending = stock.ending(self.answerer.processor.tokenizer, family) if items[0].stock else {}
        found = self.answerer.generate(items, self._method(items), length, **decoding(given), **ending)
        share = (time.perf_counter() - start) / len(items)
        method, keep = self.setting.method, self.setting.keep
        return [
            {"method": method, "keep": keep, "task": item.task, "sample": item.sample}
            | {"prediction": stock.said(one.prediction, family, stops) if item.stock else cut(one.prediction, stops)}
            | {"kept": one.kept, "kv": one.kv, "kv_full": one.kv_full, "seconds": share, "prefill": one.prefill}
            for item, one in zip(items, found, strict=True)
        ]

    def _method(self, items: Sequence[Item]) -> Method | None:
        """MMTok is told where the pictures have bars."""
        if not self.pad or not isinstance(self.method, MMTok):
            return self.method
        require(len(items) == 1, "batch-size", len(items), "1 for mmtok with padded pictures")
        (shown,) = items[0].draw() or [None]
        return self.method if shown is None else replace(self.method, padding=shown.info["bars"])

    def _read(self, request: Any) -> Item:
        raise NotImplementedError

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        raise NotImplementedError("divevlm answers by generation: use tasks of output_type generate_until")

    def generate_until_multi_round(self, requests: Sequence[Any]) -> list[str]:
        raise NotImplementedError("divevlm answers single rounds: use tasks of output_type generate_until")


class Simple(_Base):
    """Plain prompts: one turn with the pictures first, as lmms-eval's own models (`inputs` "stock") or the checkpoint's chat
    template ("template") write it."""

    is_simple = True

    def _read(self, request: Any) -> Item:
        text, _, visuals_of, number, task, split = request.args
        document = self.task_dict[task][split][number]
        draw = partial(media, visuals_of, document, self.inputs == "stock", self.pad, self.max_frames)
        if self.inputs == "stock":
            return Item(*place(request, self.numbers), text, "", draw, stock=True)
        return Item(*place(request, self.numbers), text.replace("<image>", "").lstrip(), "", draw)


class Chat(_Base):
    """The task's own messages through the model's chat template."""

    is_simple = False

    def _read(self, request: Any) -> Item:
        text, messages_of, _, number, task, split = request.args
        messages = ChatMessages(messages=messages_of(self.task_dict[task][split][number]))
        turns = [
            {"role": turn["role"], "content": [_placeholder(part) for part in turn["content"]]}
            for turn in messages.to_hf_messages()
        ]
        return Item(*place(request, self.numbers), text or "", "", partial(self._media, messages), turns)

    def _media(self, messages: ChatMessages) -> list[Any]:
        images, videos, audio = messages.extract_media()
        require(not audio, "task", "audio", "of images, videos and text")
        return [shown(one, self.max_frames) for one in (*images, *videos)]


def _placeholder(part: dict[str, Any]) -> dict[str, Any]:
    return part if part["type"] == "text" else {"type": part["type"]}
