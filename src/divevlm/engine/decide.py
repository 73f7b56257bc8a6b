"""At a cut: from candidates and signals to those who stay."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from divevlm.core.cluster import merged_sizes
from divevlm.core.selection import Selection
from divevlm.engine.prefill import Group, Prefill, candidates
from divevlm.engine.signals import Gatherer
from divevlm.methods.base import Method


@dataclass(frozen=True)
class Choice:
    """Of one group: who stays. Tokens are counted within the row's visual tokens."""

    group: Group
    selection: Selection | None  # None: all of them stay

    @property
    def order(self) -> Tensor:
        """The kept tokens as picked."""
        tokens = self.group.tokens
        return tokens if self.selection is None else tokens[self.selection.order.cpu()]

    @property
    def slots(self) -> Tensor:
        """Whose places stay, in the order of the sequence: of a method that merges, those that its rows take."""
        if self.selection is None or self.selection.rows is None:
            return self.order.sort().values
        return self.group.tokens[self.selection.rows.slots.cpu()]


@dataclass(frozen=True)
class Decision:
    """Of a batch at one cut."""

    choices: Sequence[Choice]
    kept: Sequence[Tensor]  # [N] bool for each row: its visual tokens that stay, newline tokens among them
    stay: Tensor  # [B, S] positions of the full sequence that stay
    places: Tensor  # [B, S] by these the positions that stay are ordered: merged rows may stand elsewhere
    sizes: Sequence[Tensor] = ()  # [N] for each row, where asked for: how many tokens each one stands for
    edits: Sequence[tuple[int, Tensor, Tensor]] = field(default=(), repr=False)  # row, positions [r], new states [r, d]
    seconds: float = 0.0


@torch.no_grad()
def decide(method: Method, blocks: int, prefill: Prefill, gatherer: Gatherer, before: Decision | None) -> Decision:
    """before: what the cut before this one decided."""
    places = torch.arange(prefill.present.shape[1], device=prefill.present.device).repeat(len(prefill.present), 1)
    if before is not None:
        places = before.places.clone()
    kept = None if before is None else before.kept
    groups = candidates(method, gatherer.cut, blocks, prefill, kept, places)
    contested = [group.keep < len(group.tokens) or method.budget.energy is not None for group in groups]
    signals = [gatherer.signals(group) for group, asked in zip(groups, contested, strict=True) if asked]
    keeps = [group.keep for group, asked in zip(groups, contested, strict=True) if asked]
    start = _now(gatherer.hidden)
    selections = iter(method.select(signals, keeps) if signals else ())
    seconds = _now(gatherer.hidden) - start
    choices = [
        Choice(group, next(selections) if asked else None) for group, asked in zip(groups, contested, strict=True)
    ]
    stays = _kept(method, prefill, choices)
    edits = []
    for choice in choices:
        rows = None if choice.selection is None else choice.selection.rows
        if rows is not None:
            row = choice.group.row
            positions = prefill.layouts[row].positions[choice.slots].to(places.device)
            places[row, positions] = places[row, positions].sort().values
            edits.append((row, positions, rows.values))
    sizes: Sequence[Tensor] = ()
    if method.bias_strength:
        known = [torch.ones(len(layout.positions)) for layout in prefill.layouts]
        known = known if before is None else [old.clone() for old in before.sizes]
        states = iter(signals)
        sizes = _sizes(method, choices, [next(states).hidden if asked else None for asked in contested], known)
    return Decision(choices, stays, _positions(prefill, stays), places, sizes, edits, seconds)


def _now(z: Tensor) -> float:
    """Seconds, once the device of z has done what it was told so far."""
    if z.is_cuda and torch.cuda.is_available():
        torch.cuda.synchronize(z.device)
    return time.perf_counter()


def _kept(method: Method, prefill: Prefill, choices: Sequence[Choice]) -> list[Tensor]:
    """[N] bool of each row."""
    keeps = [
        layout.markers.clone() if method.newlines == "keep" else torch.zeros(len(layout.positions), dtype=torch.bool)
        for layout in prefill.layouts
    ]
    for choice in choices:
        keeps[choice.group.row][choice.slots] = True
    return keeps


def _sizes(
    method: Method, choices: Sequence[Choice], states: Sequence[Tensor | None], sizes: list[Tensor]
) -> list[Tensor]:
    """How many tokens each one stands for after this cut: of a method that merges, its members; else by similarity.

    states: [n, d] of each group that was asked; sizes: [N] of each row before the cut
    """
    for choice, hidden in zip(choices, states, strict=True):
        if choice.selection is None or hidden is None:
            continue
        tokens, rows = choice.group.tokens, choice.selection.rows
        before = sizes[choice.group.row][tokens]
        kept = choice.selection.order.sort().values if rows is None else rows.slots
        if method.proportional == "uniform":
            now = (before.sum() / len(kept)).expand(len(kept))
        elif rows is not None:
            now = torch.stack([before[members].sum() for members in rows.members]).clamp_min(1)
        else:
            now = merged_sizes(hidden, kept.to(hidden.device), before.to(hidden.device)).cpu()
        sizes[choice.group.row][tokens] = 0
        sizes[choice.group.row][tokens[kept.cpu()]] = now
    return sizes


def _positions(prefill: Prefill, kept: Sequence[Tensor]) -> Tensor:
    """[B, S] bool: all text, and the visual tokens that are kept."""
    stay = prefill.present.clone()
    for row, (layout, keep) in enumerate(zip(prefill.layouts, kept, strict=True)):
        stay[row, layout.positions[~keep].to(stay.device)] = False
    return stay
