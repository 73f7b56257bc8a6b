"""Methods that choose view by view, as towers see them: the base view, each tile, each frame."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from divevlm.budget import divide
from divevlm.core.selection import Selection
from divevlm.methods.base import Signals
from divevlm.methods.each import BeforeLLM


@dataclass(frozen=True, kw_only=True)
class Apart(BeforeLLM):
    """apart: each view by itself with its share of the places (as the authors do); False: all views together."""

    apart: bool = True

    def parts(self, signals: Signals, keep: int) -> list[tuple[Tensor, int]]:
        """The candidates of each view, and how many of them are kept."""
        every = torch.arange(len(signals.visual), device=signals.visual.device)
        return per_view(signals, keep) if self.apart else [(every, keep)]


@dataclass(frozen=True, kw_only=True)
class PerView(Apart):
    """A method that only drops, view by view."""

    def choose(self, signals: Signals, keep: int) -> Selection:
        parts = self.parts(signals, keep)
        if len(parts) == 1 and len(parts[0][0]) == len(signals.visual):
            return self.choose_view(signals, keep)
        views = [self.choose_view(signals.of(tokens), place) for tokens, place in parts]
        order = torch.cat([tokens[view.order] for (tokens, _), view in zip(parts, views, strict=True)])
        return Selection(order, torch.cat([view.scores for view in views]), note=views[0].note)

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
