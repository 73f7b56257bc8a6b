"""A loaded model answers questions under a method: by generation, or by teacher forcing with the gold answer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from divevlm.core.metrics import redundancy
from divevlm.core.selection import Selection
from divevlm.engine import Session
from divevlm.engine.report import Costs, Report
from divevlm.experiments.prompts import batch
from divevlm.experiments.shared_prefix import SharedPrefix
from divevlm.experiments.tasks import Item, right
from divevlm.methods import Method
from divevlm.methods.base import Signals
from divevlm.models import family_of
from divevlm.timing import Clock

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
        self.once = SharedPrefix(model) if shared else None
        layers = family_of(model).at(model, family_of(model).text).layers
        self.costs = Costs(model.config.get_text_config(), layers, model.dtype.itemsize)
        self.report: Report | None = None  # of the last pass with teacher forcing
        self._inputs: tuple[tuple[tuple[str, str], ...], dict[str, Any]] | None = None  # of the last batch

    def inputs(self, items: Sequence[Item]) -> dict[str, Any]:
        """Of the last batch they are kept, so that methods share them."""
        key = tuple((item.task, item.sample) for item in items)
        if self._inputs is None or self._inputs[0] != key:
            if self.once is not None:
                self.once.forget()
            inputs = batch(self.processor, self.family, items).to(self.model.device)
            self._inputs = key, {name: self._cast(value) for name, value in inputs.items()}
        return self._inputs[1]

    def _cast(self, value: Any) -> Any:
        return value.to(self.model.dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    @contextmanager
    def under(self, method: Method | None) -> Iterator[Session | None]:
        """Inside, the model runs under a method (None: with all tokens), and what methods share is computed once."""
        with ExitStack() as stack:
            session = None if method is None else stack.enter_context(Session(self.model, method))
            thins = session is not None and session.method.in_tower(session.family.plain)
            if self.once is not None and not thins:
                stack.enter_context(self.once.shared())
            yield session

    @torch.inference_mode()
    def generate(
        self, items: Sequence[Item], method: Method | None, new_tokens: int = 16, **options: Any
    ) -> list[Answered]:
        """Greedy answers; options: of transformers' generate()."""
        inputs = self.inputs(items)
        with self.under(method) as session, Clock(self.model) as clock:
            ids = self.model.generate(**inputs, max_new_tokens=new_tokens, **{"do_sample": False, **options})
        texts = self.processor.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        times = clock.total / len(items), clock.first / len(items)
        return [
            Answered(
                text if item.stock else text.strip(),
                float(right(text, item.gold)),
                None,
                *self._costs(session, b),
                *times,
            )
            for b, (item, text) in enumerate(zip(items, texts, strict=True))
        ]

    @torch.inference_mode()
    def forced(self, items: Sequence[Item], method: Method | None) -> list[Answered]:
        """One pass over prompt and gold answer: its likelihood (Eq. 17), and whether greedy decoding would give it."""
        inputs, labels = self.with_gold(items)
        seen: list[tuple[Signals, Selection]] = []
        with self.under(None if method is None else noting(method, seen)) as session:
            start = time.perf_counter()
            logits = self.model(**inputs, labels=labels).logits
            seconds = time.perf_counter() - start
        self.report = None if session is None else session.report
        answers = self._scored(logits, labels, session, seconds)
        if len(seen) == len(items):  # groups are samples
            for answer, (signals, selection) in zip(answers, seen, strict=True):
                answer.redundancy = redundancy(signals.visual, selection.order) if len(selection) > 1 else None
        return answers

    @torch.inference_mode()
    def blind(self, items: Sequence[Item]) -> list[Answered]:
        """The same without any visual token; the words stand at the positions that they have around an image."""
        inputs, labels = self.with_gold(items)
        visual = torch.tensor(list(family_of(self.model).token_ids(self.model.config).values()))
        present = inputs["attention_mask"].bool()
        words = present & ~torch.isin(inputs["input_ids"], visual.to(present.device))
        order = words.int().argsort(dim=1, stable=True)[:, -int(words.sum(dim=1).max()) :]  # words last, as they come
        rows = (inputs["input_ids"], words.long(), (present.cumsum(dim=1) - 1).clamp_min(0), labels)
        ids, mask, positions, labels = (row.gather(1, order) for row in rows)
        start = time.perf_counter()
        logits = self.model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
        return self._scored(logits, labels, None, time.perf_counter() - start)

    def _scored(self, logits: Tensor, labels: Tensor, session: Session | None, seconds: float) -> list[Answered]:
        wanted = labels[:, 1:]
        asked, logs = wanted != IGNORE, functional.log_softmax(logits[:, :-1].float(), dim=-1)
        gold = (logs.gather(-1, wanted.clamp_min(0)[..., None])[..., 0] * asked).sum(dim=1)
        first = logs.argmax(-1)
        fits = ((first == wanted) | ~asked).all(dim=1)
        share = seconds / len(labels)
        return [
            Answered(
                self.processor.tokenizer.decode(first[b][asked[b]], skip_special_tokens=True),
                float(fits[b]),
                float(gold[b]),
                *self._costs(session, b),
                share,
                share,
            )
            for b in range(len(labels))
        ]

    def with_gold(self, items: Sequence[Item]) -> tuple[dict[str, Any], Tensor]:
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
            rows = torch.full((len(items), length), pad, dtype=value.dtype, device=value.device)
            for b, gold in enumerate(golds):
                prompt = value[b][present[b]]
                tail = {"input_ids": gold, "attention_mask": [1] * len(gold)}.get(name, [0] * len(gold))
                row = torch.cat([prompt, torch.tensor(tail, dtype=value.dtype, device=value.device)])
                rows[b, length - len(row) :] = row
                labels[b, length - len(gold) :] = torch.tensor(gold, device=labels.device)
            inputs[name] = rows
        return inputs, labels

    def _costs(self, session: Session | None, b: int) -> tuple[int | None, float | None, float | None, float | None]:
        """Kept tokens, operations, bytes of the cache and of the full one, of one sample as if it were alone."""
        if session is None or not session.history:
            return None, None, None, None
        report = session.report
        sample, costs = report.samples[b], self.costs
        own, full = lengths(report, b), [sample.text + sample.visual] * len(report.tokens_per_layer)
        return len(sample.kept), costs.flops(1, own), costs.kv_bytes(1, own), costs.kv_bytes(1, full)


def lengths(report: Report, b: int) -> list[int]:
    """Of the sequence of one sample in each block, without the padding that its batch brings."""
    sample, longest = report.samples[b], max(other.text for other in report.samples)
    own = []
    for length in report.tokens_per_layer:
        if length == report.tokens_full:
            visual = sample.visual
        elif length == report.tokens_per_layer[-1]:
            visual = len(sample.kept)
        else:  # between two cuts: as much of its own as of the longest
            visual = round(sample.visual * (length - longest) / (report.tokens_full - longest))
        own.append(sample.text + visual)
    return own


def noting(method: Method, seen: list[tuple[Signals, Selection]]) -> Method:
    """The same method, which writes down what it saw and chose at its last cut, group by group."""
    own: type[Method] = type(method)

    class Noting(own):  # type: ignore[misc, valid-type]
        def select(self, groups: Sequence[Signals], keeps: Sequence[int]) -> list[Selection]:
            selections: list[Selection] = super().select(groups, keeps)
            seen[:] = zip(groups, selections, strict=True)
            return selections

    return Noting(**{field.name: getattr(method, field.name) for field in fields(method) if field.init})
