"""A loaded model answers questions under a method: by generation, or by teacher forcing with the gold answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from divevlm.engine import Session
from divevlm.engine.once import Once
from divevlm.engine.report import Costs, Report
from divevlm.experiments.prompts import batch
from divevlm.experiments.tasks import Item, right
from divevlm.experiments.watched import watched
from divevlm.methods import Method
from divevlm.models import family_of

IGNORE = -100


@dataclass
class Answered:
    """Of one question. likelihood: log of the gold answer's; kept: visual tokens in the end (None: all)."""

    prediction: str
    score: float
    likelihood: float | None
    kept: int | None
    flops: float | None
    kv: float | None  # bytes of the cache after the prefill
    kv_full: float | None  # the same with all tokens
    seconds: float
    prefill: float  # seconds until the first token is there
    redundancy: float | None = None


class Answerer:
    """shared: compute the tower and the first blocks once a batch for all methods (times then mean nothing)."""

    def __init__(self, model: Any, processor: Any, shared: bool = True) -> None:
        self.model, self.processor = model, processor
        self.family = family_of(model).name
        self.once = Once(model) if shared else None
        layers = family_of(model).at(model, family_of(model).text).layers
        self.costs = Costs(model.config.get_text_config(), layers, model.dtype.itemsize)
        self._inputs: tuple[tuple[tuple[str, str], ...], dict[str, Any]] | None = None  # of the last batch

    def inputs(self, items: Sequence[Item]) -> dict[str, Any]:
        """Of the last batch they are kept, so that methods share them."""
        key = tuple((item.task, item.sample) for item in items)
        if self._inputs is None or self._inputs[0] != key:
            if self.once is not None:
                self.once.forget()
            made = batch(self.processor, self.family, items).to(self.model.device)
            self._inputs = key, {name: self._cast(value) for name, value in made.items()}
        return self._inputs[1]

    def _cast(self, value: Any) -> Any:
        return value.to(self.model.dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    def _under(self, stack: ExitStack, method: Method | None) -> Session | None:
        session = None if method is None else stack.enter_context(Session(self.model, method))
        thins = session is not None and session.method.in_tower(session.family.plain)
        if self.once is not None and not thins:
            stack.enter_context(self.once.shared())
        return session

    @torch.inference_mode()
    def generate(
        self, items: Sequence[Item], method: Method | None, new_tokens: int = 16, **options: Any
    ) -> list[Answered]:
        """Greedy answers; options: of transformers' generate()."""
        inputs = self.inputs(items)
        with ExitStack() as stack:
            session = self._under(stack, method)
            clock = Clock(self.model)
            stack.callback(clock.remove)
            made = self.model.generate(**inputs, max_new_tokens=new_tokens, **{"do_sample": False, **options})
            total = clock.stop()
        texts = self.processor.batch_decode(made[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        found = []
        for b, (item, text) in enumerate(zip(items, texts, strict=True)):
            costs = self._costs(session, b)
            share = total / len(items), clock.first / len(items)
            found.append(
                Answered(text if item.stock else text.strip(), float(right(text, item.gold)), None, *costs, *share)
            )
        return found

    @torch.inference_mode()
    def forced(self, items: Sequence[Item], method: Method | None) -> list[Answered]:
        """One pass over prompt and gold answer: its likelihood (Eq. 17), and whether greedy decoding would give it."""
        inputs, labels = self._with_gold(items)
        seen = None if method is None else watched(method)
        with ExitStack() as stack:
            session = self._under(stack, seen)
            start = time.perf_counter()
            logits = self.model(**inputs, labels=labels).logits
            total = time.perf_counter() - start
        wanted = labels[:, 1:]
        asked, logs = wanted != IGNORE, functional.log_softmax(logits[:, :-1].float(), dim=-1)
        gold = (logs.gather(-1, wanted.clamp_min(0)[..., None])[..., 0] * asked).sum(dim=1)
        first = logs.argmax(-1)
        fits = ((first == wanted) | ~asked).all(dim=1)
        found = []
        for b in range(len(items)):
            text = self.processor.tokenizer.decode(first[b][asked[b]], skip_special_tokens=True)
            costs, share = self._costs(session, b), total / len(items)
            alike = None if seen is None else seen.redundancy(b, len(items))
            found.append(Answered(text, float(fits[b]), float(gold[b]), *costs, share, share, alike))
        return found

    def _with_gold(self, items: Sequence[Item]) -> tuple[dict[str, Any], Tensor]:
        """Rows of prompt, answer and end of sequence, padded on the left; labels for the latter two."""
        inputs = dict(self.inputs(items))
        tokens = self.processor.tokenizer
        end = [] if tokens.eos_token_id is None else [tokens.eos_token_id]
        golds = [[*tokens(item.gold, add_special_tokens=False)["input_ids"], *end] for item in items]
        present, shape = inputs["attention_mask"].bool(), inputs["input_ids"].shape
        length = max(int(row.sum()) + len(gold) for row, gold in zip(present, golds, strict=True))
        labels = torch.full((len(items), length), IGNORE, device=present.device)
        for name, value in inputs.items():
            if not isinstance(value, Tensor) or value.shape != shape:
                continue
            pad = tokens.pad_token_id if name == "input_ids" else 0
            made = torch.full((len(items), length), pad, dtype=value.dtype, device=value.device)
            for b, gold in enumerate(golds):
                prompt = value[b][present[b]]
                tail = {"input_ids": gold, "attention_mask": [1] * len(gold)}.get(name, [0] * len(gold))
                row = torch.cat([prompt, torch.tensor(tail, dtype=value.dtype, device=value.device)])
                made[b, length - len(row) :] = row
                labels[b, length - len(gold) :] = torch.tensor(gold, device=labels.device)
            inputs[name] = made
        return inputs, labels

    def _costs(self, session: Session | None, b: int) -> tuple[int | None, float | None, float | None, float | None]:
        """Kept tokens, operations, bytes of the cache and of the full one, of one sample as if it were alone."""
        if session is None or not session.history:
            return None, None, None, None
        report = session.report
        sample, costs = report.samples[b], self.costs
        own, full = lengths(report, b), [sample.text + sample.visual] * len(report.tokens_per_layer)
        return len(sample.kept), costs.flops(1, own), costs.kv_bytes(1, own), costs.kv_bytes(1, full)


class Clock:
    """Seconds of a generate(): until the first forward pass is over, and in all."""

    def __init__(self, model: Any) -> None:
        self.device = model.device
        self.first = 0.0
        self.start = self._now()
        self.handle = model.register_forward_hook(self._passed)

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _passed(self, *_: Any) -> None:
        if not self.first:
            self.first = self._now() - self.start

    def stop(self) -> float:
        return self._now() - self.start

    def remove(self) -> None:
        self.handle.remove()


def lengths(report: Report, b: int) -> list[int]:
    """Of the sequence of one sample in each block, without the padding that its batch brings."""
    sample, longest = report.samples[b], max(one.text for one in report.samples)
    found = []
    for length in report.tokens_per_layer:
        if length == report.tokens_full:
            visual = sample.visual
        elif length == report.tokens_per_layer[-1]:
            visual = len(sample.kept)
        else:  # between two cuts: as much of its own as of the longest
            visual = round(sample.visual * (length - longest) / (report.tokens_full - longest))
        found.append(sample.text + visual)
    return found
