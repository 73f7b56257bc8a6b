"""`divevlm check MODEL`: does pruning keep its promises on this checkpoint, this card, these settings? No data set is needed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from divevlm.checks import require
from divevlm.engine import prune
from divevlm.engine.report import Report
from divevlm.experiments.check.pictures import QUESTIONS, pictures
from divevlm.experiments.prompts import batch
from divevlm.experiments.tasks import Item
from divevlm.methods import Method
from divevlm.models import family_of

CLOSE = {torch.float32: 1e-4}  # of the largest logit
HALF = 1e-2
NOISE = 4.0  # times what the model itself differs by between two ways to the same thing


@dataclass(frozen=True)
class Finding:
    """ok: None where it can't be told."""

    check: str
    ok: bool | None
    detail: str
    seconds: float = field(default=0.0, compare=False)


@dataclass
class Subject:
    """A loaded model under one method. shown: (name, picture) pairs"""

    model: Any
    processor: Any
    method: Method
    whole: Method  # the same at keep = 1.0
    shown: list[tuple[str, Any]] = field(default_factory=pictures)

    def inputs(self, *numbers: int) -> dict[str, Any]:
        """Questions about these pictures, in one batch."""
        family = family_of(self.model).name
        items = [
            Item("check", str(n), QUESTIONS[n % len(QUESTIONS)], "", lambda n=n: [self.shown[n][1]])  # type: ignore[misc]
            for n in numbers
        ]
        inputs = batch(self.processor, family, items).to(self.model.device)
        return {
            name: value.to(self.model.dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
            for name, value in inputs.items()
        }

    def logits(self, inputs: dict[str, Any]) -> Tensor:
        """[B, V] of the next token"""
        logits: Tensor = self.model(**inputs, use_cache=False).logits[:, -1]
        return logits.float()

    def pruned(self, inputs: dict[str, Any]) -> tuple[Tensor, Report]:
        with prune(self.model, self.method) as session:
            return self.logits(inputs), session.report

    @property
    def close(self) -> float:
        return CLOSE.get(self.model.dtype, HALF)


@torch.inference_mode()
def findings(subject: Subject, tick: Callable[[str], object] = lambda text: None) -> list[Finding]:
    results = []
    for check in (identity, masked, padded, afterwards):
        tick(check.__doc__ or "")
        start = time.perf_counter()
        try:
            ok, detail = check(subject)
        except Exception as error:  # whatever goes wrong is what is to be told
            ok, detail = False, f"{type(error).__name__}: {' '.join(str(error).split())}"
        results.append(Finding(check.__doc__ or "", ok, detail, time.perf_counter() - start))
    return results


def identity(subject: Subject) -> tuple[bool | None, str]:
    """keeping all tokens changes nothing, bit for bit"""
    for n, (name, _) in enumerate(subject.shown):
        inputs = subject.inputs(n)
        plain = subject.logits(inputs)
        with prune(subject.model, subject.whole):
            pruned = subject.logits(inputs)
        if not torch.equal(pruned, plain):
            return False, f"{name}: logits differ by up to {_apart(pruned, plain):.1e} of the largest"
    return True, f"{len(subject.shown)} pictures"


def masked(subject: Subject) -> tuple[bool | None, str]:
    """pruned logits equal those of a full run that masks the dropped tokens"""
    method, family = subject.method, family_of(subject.model)
    blocks = len(family.at(subject.model, family.text).layers)
    cuts = method.blocks(blocks, min(family.default_layer, blocks - 1))
    moves = (method.positions or method.default_positions) == "compact" and cuts[0] == 0
    if len(cuts) > 1 or moves or method.merges or method.placement == "entry":
        return None, f"{method.name} merges, renumbers or cuts more than once: no mask says the same"
    worst, noise, other = 0.0, 0.0, torch.inf
    for n, (name, _) in enumerate(subject.shown):
        inputs = subject.inputs(n)
        pruned, report = subject.pruned(inputs)
        places, kept = _visual(subject.model, inputs["input_ids"][0]), report.samples[0].kept
        if len(kept) == len(places):
            return None, f"nothing was dropped of the {len(places)} tokens of {name}: choose a smaller --keep"
        cut = next(i for i, length in enumerate(report.tokens_per_layer) if length < report.tokens_full)
        nobody = places[:0]
        dropped = _without(places, kept)
        swapped = _without(places, sorted(set(range(len(places))) - set(kept))[: len(kept)])
        plain, reference = subject.logits(inputs), masked_logits(subject.model, inputs, dropped, cut)
        worst = max(worst, _apart(pruned, reference))
        noise = max(noise, _apart(masked_logits(subject.model, inputs, nobody, cut), plain))
        other = min(other, _apart(masked_logits(subject.model, inputs, swapped, cut), reference))
    allowed = max(subject.close, NOISE * noise)
    told = f"apart {worst:.1e} of the largest logit (allowed {allowed:.1e}; other tokens kept: {other:.1e})"
    if worst > allowed:
        return False, told
    return (True, told) if other > 2 * allowed else (None, f"{told}: which tokens are kept hardly matters here")


def padded(subject: Subject) -> tuple[bool | None, str]:
    """a padded batch gives each prompt what it gets alone"""
    together = subject.inputs(0, 1)
    pruned, report = subject.pruned(together)
    plain = subject.logits(together)
    worst = noise = 0.0
    for row in range(2):
        alone = subject.inputs(row)
        own_logits, own_report = subject.pruned(alone)
        worst = max(worst, _apart(pruned[row], own_logits[0]))
        noise = max(noise, _apart(plain[row], subject.logits(alone)[0]))
        same = len(set(own_report.samples[0].kept) & set(report.samples[row].kept)) / max(
            1, len(own_report.samples[0].kept)
        )
        if worst > max(subject.close, NOISE * noise) and same < 1 and subject.model.dtype != torch.float32:
            return (
                None,
                f"padding moves the model itself by {noise:.1e}, so that {100 * same:.0f} % of the choice is the same",
            )
    allowed = max(subject.close, NOISE * noise)
    return (
        worst <= allowed,
        f"apart {worst:.1e} of the largest logit (allowed {allowed:.1e}; without pruning {noise:.1e})",
    )


def afterwards(subject: Subject) -> tuple[bool | None, str]:
    """afterwards the model is what it was"""
    inputs = subject.inputs(0)
    before = subject.logits(inputs)
    subject.pruned(inputs)
    after = subject.logits(inputs)
    return torch.equal(before, after), "" if torch.equal(before, after) else f"apart {_apart(after, before):.1e}"


def masked_logits(model: Any, inputs: dict[str, Any], dropped: Tensor, cut: int) -> Tensor:
    """[1, V] where blocks from `cut` on can't see the dropped positions of the only row. Independent of the engine."""
    family = family_of(model)
    text = model.config.get_text_config()
    length = inputs["input_ids"].shape[1]
    hidden = torch.zeros(length, dtype=torch.bool, device=model.device)
    hidden[dropped] = True
    sees = torch.ones(length, length, dtype=torch.bool, device=model.device).tril() & ~hidden
    sees |= torch.eye(length, dtype=torch.bool, device=model.device)
    mask: Tensor = sees[None, None]
    if text._attn_implementation == "eager":
        low = torch.finfo(model.dtype).min
        mask = torch.zeros(mask.shape, dtype=model.dtype, device=model.device).masked_fill(~mask, low)

    def hook(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, kwargs | {"attention_mask": mask, "position_ids": None}

    with _maskable(model):
        layers = family.at(model, family.text).layers[cut:]
        handles = [layer.register_forward_pre_hook(hook, with_kwargs=True) for layer in layers]
        try:
            logits: Tensor = model(**inputs, use_cache=False).logits[:, -1]
        finally:
            for handle in handles:
                handle.remove()
    return logits.float()


class _Attention:
    """Another implementation for a while: flash attention takes no mask of single positions."""

    def __init__(self, model: Any, kind: str) -> None:
        self.model, self.kind, self.before = model, kind, model.config.get_text_config()._attn_implementation

    def __enter__(self) -> None:
        self.model.set_attn_implementation(self.kind)

    def __exit__(self, *_: object) -> None:
        self.model.set_attn_implementation(self.before)


def _maskable(model: Any) -> AbstractContextManager[None]:
    kind = str(model.config.get_text_config()._attn_implementation)
    return _Attention(model, "sdpa") if "flash" in kind else nullcontext()


def _visual(model: Any, ids: Tensor) -> Tensor:
    """Positions of visual tokens."""
    tokens = torch.tensor(sorted(family_of(model).token_ids(model.config).values()), device=ids.device)
    places = torch.isin(ids, tokens).nonzero()[:, 0]
    require(len(places) > 0, "model", type(model).__name__, "one whose prompts hold visual tokens")
    return places


def _without(places: Tensor, kept: list[int]) -> Tensor:
    gone = torch.ones(len(places), dtype=torch.bool, device=places.device)
    gone[torch.tensor(kept, dtype=torch.long, device=places.device)] = False
    return places[gone]


def _apart(logits: Tensor, others: Tensor) -> float:
    """The largest difference, by the largest logit."""
    return float((logits - others).abs().max() / others.abs().max())
