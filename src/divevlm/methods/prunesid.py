"""PruneSID: synergistic importance and diversity."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from divevlm.core.principal import group_places, principal_groups, suppressed
from divevlm.core.selection import Selection
from divevlm.core.top import unit
from divevlm.methods.base import Needs, Signals
from divevlm.methods.rows import Part, assembled, cls_row
from divevlm.methods.views import Apart


@dataclass(frozen=True, kw_only=True)
class PruneSID(Apart):
    """Groups by principal components, near-duplicates within each behind the others, places by what is left.

    Where rows reach the language model one by one (LLaVA), features of the tower are grouped, CLS attention is importance,
    and CLS itself takes one of the K places. Where the family pools them (Qwen), the pooled rows are grouped and a token's
    own loading is its importance. faithful: the original's order, group by group.
    """

    faithful: bool = False

    name = "prunesid"
    needs = Needs(vision=("saliency", "features"))
    paper = "Fang et al., ICLR 2026"
    arxiv = "2603.09480"
    stage = "vision tower"
    cost = "O(N² d + N³)"

    def choose(self, signals: Signals, keep: int) -> Selection:
        parts = [self.part(signals.of(tokens), tokens, place) for tokens, place in self.parts(signals, keep)]
        return assembled(signals, parts)

    def part(self, signals: Signals, tokens: Tensor, keep: int) -> Part:
        """Of one view. tokens: [n] its tokens within the group"""
        saliency = self.tower(signals, "saliency").float()
        vision, n = signals.vision, len(tokens)
        assert vision is not None
        direct = vision.project is not None
        x = self.tower(signals, "features") if direct else self.given(signals.hidden, "hidden states")
        has_cls = vision.cls is not None and direct
        group, loading = principal_groups(x, max(keep // 4, 1 if direct else 4))
        importance = saliency if direct else loading.amax(dim=1)
        rows = unit(x)
        cosine = rows @ rows.T
        above = cosine.triu(1).sum()
        if direct:
            threshold = keep / 32 * above / max(1, n * (n - 1) // 2)
        else:  # the diagonal counted, the lower triangle not, over all n^2 entries: about half the mean
            threshold = max(18 * keep / n, 1) * (above + cosine.diagonal().sum()) / n**2
        gone = suppressed(cosine, group, importance, float(threshold))
        count = loading.shape[1]
        survivors = torch.bincount(group[~gone], minlength=count).tolist()
        places = group_places(survivors, torch.bincount(group, minlength=count).tolist(), keep, int(has_cls))
        kept = _first(group, gone, importance, places)
        free = torch.ones(n, dtype=torch.bool, device=kept.device)
        free[kept] = False
        cls = cls_row(signals, tokens, free)
        return Part(tokens, tokens[kept], importance[kept], cls, ascending=not self.faithful)


def _first(group: Tensor, gone: Tensor, importance: Tensor, places: list[int]) -> Tensor:
    """The first `places[g]` tokens of each group: survivors by importance, then the suppressed by importance."""
    order = importance.sort(descending=True, stable=True).indices
    order = order[gone[order].sort(stable=True).indices]
    order = order[group[order].sort(stable=True).indices]  # group by group
    sizes = torch.bincount(group, minlength=len(places))
    start = sizes.cumsum(0) - sizes
    rank = torch.arange(len(group), device=group.device) - start[group[order]]
    return order[rank < torch.tensor(places, device=group.device)[group[order]]]
