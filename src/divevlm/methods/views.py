"""Methods that look at one view at a time, as towers do: the base view, each tile, each frame."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from divevlm.budget import divide
from divevlm.core.selection import Selection
from divevlm.methods.base import Signals
from divevlm.methods.each import Each

PER_TOKEN = {"visual", "cells", "views", "hidden", "attention", "visual_keys", "visual_embeds"}


@dataclass(frozen=True, kw_only=True)
class Apart(Each):
    """apart: each view by itself with its share of the places (as the authors do); False: all views together."""

    apart: bool = True

    def parts(self, signals: Signals, keep: int) -> list[tuple[Tensor, int]]:
        """The tokens of each view, and how many of them stay."""
        every = torch.arange(len(signals.visual), device=signals.visual.device)
        return per_view(signals, keep) if self.apart else [(every, keep)]


@dataclass(frozen=True, kw_only=True)
class PerView(Apart):
    """A method that only drops, view by view."""

    def choose(self, signals: Signals, keep: int) -> Selection:
        parts = self.parts(signals, keep)
        if len(parts) == 1 and len(parts[0][0]) == len(signals.visual):
            return self.choose_view(signals, keep)
        found = [self.choose_view(part(signals, tokens), place) for tokens, place in parts]
        order = torch.cat([tokens[one.order] for (tokens, _), one in zip(parts, found, strict=True)])
        return Selection(order, torch.cat([one.scores for one in found]), note=found[0].note)

    @abstractmethod
    def choose_view(self, signals: Signals, keep: int) -> Selection:
        """Of one view: 1 <= keep <= n."""


def units(signals: Signals) -> Tensor:
    """[n] number of the view, tile or frame of each token, in the order in which they come."""
    n = len(signals.visual)
    if signals.vision is not None and signals.vision.project is not None:
        label = signals.vision.tile.cpu()[:, None]
    else:
        view = torch.zeros(n, dtype=torch.long) if signals.views is None else signals.views.cpu()
        label = torch.stack([view, signals.cells[:, 0].cpu()], dim=1)
    number: Tensor = label.unique(dim=0, return_inverse=True)[1]
    return number.to(signals.visual.device)


def per_view(signals: Signals, keep: int) -> list[tuple[Tensor, int]]:
    """The tokens of each view that gets a place, and how many: floor(keep n_view / n), the rest to the base view; without
    a base view (frames) by largest remainder."""
    unit = units(signals)
    sizes = torch.bincount(unit).tolist()
    if signals.views is not None and len(signals.views.unique()) > 1:
        places = [keep * size // len(unit) for size in sizes]
        for i, size in enumerate(sizes):
            places[i] += min(keep - sum(places), size - places[i])
    else:
        places = divide(keep, sizes)
    return [((unit == i).nonzero()[:, 0], place) for i, place in enumerate(places) if place]


def part(signals: Signals, tokens: Tensor) -> Signals:
    """The same of some tokens only. tokens: [r]"""

    values = {name: getattr(signals, name) for name in PER_TOKEN}
    chosen = {
        name: value.index_select(2 if name == "attention" else 0, tokens.to(value.device))
        for name, value in values.items()
        if value is not None
    }
    return replace(signals, vision=None if signals.vision is None else signals.vision.of(tokens), **chosen)
