"""At a cut: groups of candidates, and the method's decision which of them are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from divevlm.budget import Segment
from divevlm.core.cluster import measured_sizes, merged_sizes, row_sizes
from divevlm.core.selection import Selection
from divevlm.engine.prefill import Prefill
from divevlm.methods.base import Method, Signals
from divevlm.models.base import Layout


@dataclass(frozen=True)
class Group:
    """Visual tokens that compete with each other. Tokens are counted within their row's visual tokens."""

    row: int
    tokens: Tensor  # [n] the candidates at this cut, as they come in the sequence
    keep: int  # how many of them stay
    before: Tensor  # the candidates before any cut


@dataclass(frozen=True)
class Choice:
    """The kept tokens of a group, counted within the row's visual tokens."""

    group: Group
    selection: Selection | None  # None: all are kept

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
def decide(
    method: Method,
    blocks: int,
    prefill: Prefill,
    cut: int,
    gather: Callable[[Group], Signals],
    hidden: Tensor,
    before: Decision | None,
) -> Decision:
    """The decision at cut number `cut`. blocks: how many the model has, gather: what the method asks for of a group,
    hidden: states at the cut, before: the decision of the cut before"""
    if before is None:
        length = prefill.present.shape[1]
        places = torch.arange(length, device=prefill.present.device).repeat(len(prefill.present), 1)
        sizes = [torch.ones(len(layout.positions)) for layout in prefill.layouts] if method.bias_strength else []
    else:
        places, sizes = before.places.clone(), [old.clone() for old in before.sizes]
    groups = candidates(method, cut, blocks, prefill, None if before is None else before.kept, places)
    contested = [i for i, g in enumerate(groups) if g.keep < len(g.tokens) or method.budget.energy is not None]
    signals = {i: gather(groups[i]) for i in contested}
    start = _now(hidden)
    selected = method.select(list(signals.values()), [groups[i].keep for i in contested]) if contested else []
    seconds = _now(hidden) - start
    selections = dict(zip(contested, selected, strict=True))
    choices = [Choice(group, selections.get(i)) for i, group in enumerate(groups)]
    kept = _kept(method, prefill, choices)
    edits = []
    for i, choice in enumerate(choices):
        selection, row = choice.selection, choice.group.row
        if selection is None:
            continue
        if selection.rows is not None:
            positions = prefill.layouts[row].positions[choice.slots].to(places.device)
            places[row, positions] = places[row, positions].sort().values
            edits.append((row, positions, selection.rows.values))
        if sizes:
            sizes[row] = _sizes(method, choice.group, selection, signals[i], sizes[row])
    return Decision(choices, kept, _positions(prefill, kept), places, sizes, edits, seconds)


def candidates(
    method: Method, cut: int, blocks: int, prefill: Prefill, kept: Sequence[Tensor] | None, places: Tensor
) -> list[Group]:
    """The groups of a batch at a cut. kept: [N] bool of each row, by the cut before; places: [B, S] order of the sequence."""
    groups = []
    for row, layout in enumerate(prefill.layouts):
        for before, keep in competitors(method, layout):
            tokens = before
            if kept is not None:
                tokens = tokens[kept[row][tokens]]
                tokens = tokens[places[row, layout.positions[tokens]].cpu().argsort()]
            groups.append(Group(row, tokens, method.stay(cut, keep, len(before), blocks), before))
    return groups


def competitors(method: Method, layout: Layout) -> list[tuple[Tensor, int]]:
    """Tokens that compete (indices within the sample's visual tokens; newlines never do), and how many of them stay."""
    markers = layout.markers
    runs = [run[~markers[run]] for run in torch.arange(len(markers)).split([s.size for s in layout.segments])]
    segments = [Segment(len(run), s.image, s.view, s.frame) for run, s in zip(runs, layout.segments, strict=True)]
    shares = method.budget.shares(segments)
    return [(torch.cat([runs[i] for i in share.segments]), share.keep) for share in shares if share.keep]


def _now(z: Tensor) -> float:
    """Seconds, once the device of z has finished its work so far."""
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


def _sizes(method: Method, group: Group, selection: Selection, signals: Signals, sizes: Tensor) -> Tensor:
    """[N] how many tokens each one of a row stands for after a cut: a merged row for its members, all for those most similar
    to them, by their number or (not where rows are merged) by the attention that they have.

    sizes: [N] before the cut
    """
    rows, before, states, shares = selection.rows, sizes[group.tokens], signals.hidden, signals.attended
    assert states is not None
    kept = selection.indices if rows is None else rows.slots
    here = kept.to(states.device), before.to(states.device)
    if method.proportional == "uniform":
        now = (before.sum() / len(kept)).expand(len(kept))
    elif rows is not None:
        now = row_sizes(states, rows.values.to(states), rows.members, here[1]).cpu()
    else:
        now = (merged_sizes(states, *here) if shares is None else measured_sizes(states, *here, shares)).cpu()
    sizes[group.tokens] = 0
    sizes[group.tokens[kept.cpu()]] = now
    return sizes


def _positions(prefill: Prefill, kept: Sequence[Tensor]) -> Tensor:
    """[B, S] bool: all text, and the visual tokens that are kept."""
    stay = prefill.present.clone()
    for row, (layout, keep) in enumerate(zip(prefill.layouts, kept, strict=True)):
        stay[row, layout.positions[~keep].to(stay.device)] = False
    return stay
