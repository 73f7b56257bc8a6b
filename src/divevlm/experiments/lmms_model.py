"""The models that lmms-eval drives: `--model divevlm --model_args pretrained=...,method=dive,keep=64`.

Every family of the engine, images and videos, batches; a sample that fails ends the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from lmms_eval.api.model import lmms
from lmms_eval.models.model_utils.load_video import read_video
from lmms_eval.protocol import ChatMessages
from lmms_eval.utils import simple_parse_args_string
from tqdm import tqdm

from divevlm.core.rule import require
from divevlm.experiments.answering import Answerer
from divevlm.experiments.journal import Journal
from divevlm.experiments.loading import load
from divevlm.experiments.settings import Setting
from divevlm.experiments.tasks import Item
from divevlm.viz.media import Clip

FRAMES = 32  # of a video, evenly spaced
GREEDY = {"do_sample": False, "num_beams": 1}


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
        self._fill(
            Answerer(*load(pretrained, device, dtype), shared=False), Setting(method, keep), int(batch_size), None
        )
        self.max_frames = int(max_frames)

    def _fill(self, answerer: Answerer, setting: Setting, batch: int, journal: Journal | None) -> None:
        require(batch >= 1, "batch_size", batch, "at least 1")
        self.answerer, self.setting, self.batch, self.journal = answerer, setting, batch, journal
        self.device = answerer.model.device
        self.method = setting.ready(answerer.model)
        self.max_frames, self.exits, self.now = FRAMES, False, ""

    @classmethod
    def around(cls, answerer: Answerer, setting: Setting, batch: int, journal: Journal | None = None) -> Any:
        """Of a model that is loaded already."""
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
            raise SystemExit(f"divevlm: {self.now} failed: {type(error).__name__}: {error}") from error

    def _answers(self, requests: Sequence[Any]) -> list[str]:
        answers: dict[int, str] = {}
        todo: list[tuple[int, Item, dict[str, Any]]] = []
        for number, request in enumerate(requests):
            self.now = " ".join(map(str, request.args[-3:]))
            item, options = self._read(request)
            known = None if self.journal is None else self.journal.done.get((*self._place, item.task, item.sample))
            if known is not None:
                answers[number] = known["prediction"]
            else:
                todo.append((number, item, options))
        with tqdm(
            total=len(todo), desc=str(self.setting), unit="sample", disable=None if self.rank == 0 else True
        ) as bar:
            for some in _batches(todo, self.batch):
                self.now = ", ".join(f"{item.task} {item.sample}" for _, item, _ in some)
                texts = self._generate([item for _, item, _ in some], dict(some[0][2]))
                answers |= dict(zip((number for number, _, _ in some), texts, strict=True))
                bar.update(len(some))
        return [answers[number] for number in range(len(requests))]

    @property
    def _place(self) -> tuple[str, int | float]:
        return self.setting.method, self.setting.keep

    def _generate(self, items: list[Item], options: dict[str, Any]) -> list[str]:
        until, length = options.pop("until", None), int(options.pop("max_new_tokens", 1024))
        start = time.perf_counter()
        found = self.answerer.generate(items, self.method, length, **_options(options))
        texts = [_cut(one.prediction, until) for one in found]
        if self.journal is not None:
            share = (time.perf_counter() - start) / len(items)
            method, keep = self._place
            self.journal.add(
                {"method": method, "keep": keep, "task": item.task, "sample": item.sample, "prediction": text}
                | {"kept": one.kept, "kv": one.kv, "kv_full": one.kv_full, "seconds": share, "prefill": one.prefill}
                for item, text, one in zip(items, texts, found, strict=True)
            )
        return texts

    def _read(self, request: Any) -> tuple[Item, dict[str, Any]]:
        raise NotImplementedError

    def _clip(self, path: str) -> Clip:
        frames = read_video(path, num_frm=self.max_frames)
        return Clip(frames, list(range(len(frames))), len(frames), 1.0)

    def _shown(self, visual: Any) -> Any:
        """A picture as it is; a path is a video."""
        return self._clip(visual) if isinstance(visual, str) else visual.convert("RGB")

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        raise NotImplementedError("divevlm answers by generation: use tasks of output_type generate_until")

    def generate_until_multi_round(self, requests: Sequence[Any]) -> list[str]:
        raise NotImplementedError("divevlm answers single rounds: use tasks of output_type generate_until")


class Simple(_Base):
    """Plain prompts: one turn with the pictures first, as lmms-eval 0.3.0 (the paper's) had them."""

    is_simple = True

    def _read(self, request: Any) -> tuple[Item, dict[str, Any]]:
        text, options, visuals_of, number, task, split = request.args
        document = self.task_dict[task][split][number]
        draw = partial(self._media, visuals_of, document)
        return Item(task, str(number), text.replace("<image>", "").strip(), "", draw), options

    def _media(self, visuals_of: Callable[[Any], Any], document: Any) -> list[Any]:
        return [self._shown(one) for one in visuals_of(document) or []]


class Chat(_Base):
    """The task's own messages through the model's chat template."""

    is_simple = False

    def _read(self, request: Any) -> tuple[Item, dict[str, Any]]:
        text, messages_of, options, number, task, split = request.args
        messages = ChatMessages(messages=messages_of(self.task_dict[task][split][number]))
        turns = [
            {"role": turn["role"], "content": [_placeholder(part) for part in turn["content"]]}
            for turn in messages.to_hf_messages()
        ]
        return Item(task, str(number), text or "", "", partial(self._media, messages), turns), options

    def _media(self, messages: ChatMessages) -> list[Any]:
        images, videos, audio = messages.extract_media()
        require(not audio, "task", "audio", "of images, videos and text")
        return [self._shown(one) for one in (*images, *videos)]


def _placeholder(part: dict[str, Any]) -> dict[str, Any]:
    return part if part["type"] == "text" else {"type": part["type"]}


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Greedy unless the task asks for a temperature."""
    known = {key: given[key] for key in ("num_beams", "temperature", "top_p") if given.get(key) is not None}
    if not known.get("temperature"):
        return {**GREEDY, "num_beams": known.get("num_beams", 1)}
    return {"do_sample": True, **known}


def _cut(text: str, until: Any) -> str:
    for stop in [until] if isinstance(until, str) else until or []:
        text = text.split(stop)[0] if stop else text
    return text.strip()


def _batches(todo: list[tuple[int, Item, dict[str, Any]]], size: int) -> Any:
    """In their order; a batch has one task and one way to generate."""
    groups: dict[tuple[str, str], list[tuple[int, Item, dict[str, Any]]]] = {}
    for one in todo:
        groups.setdefault((one[1].task, repr(sorted(one[2].items()))), []).append(one)
    for group in groups.values():
        for at in range(0, len(group), size):
            yield group[at : at + size]
