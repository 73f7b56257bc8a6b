"""DART: stop looking for important tokens, duplication matters more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from divevlm.core.selection import Selection
from divevlm.core.top import top_k, unit
from divevlm.methods.base import Needs, Signals
from divevlm.methods.each import Each


@dataclass(frozen=True, kw_only=True)
class DART(Each):
    """A few pivots with the largest keys (L1), and for each the tokens least like it.

    visual_pivots, text_pivots  how many of each; text: behind the image
    faithful                    the original's count: K // pivots tokens of each pivot beside the visual pivots (64 gives 68)
    """

    visual_pivots: int = 4
    text_pivots: int = 4
    faithful: bool = False

    name = "dart"
    needs = Needs(keys=True)
    paper = "Wen et al., EMNLP 2025"
    arxiv = "2502.11494"
    reads_text = True
    cost = "O(P N d), P = 8"

    def stay(self, cut: int, keep: int, tokens: int, blocks: int) -> int:
        pivots = self.visual_pivots + self.text_pivots
        return min(tokens, self.visual_pivots + pivots * (keep // pivots)) if self.faithful else keep

    def details(self, keep: int, tokens: int, blocks: int, views: int) -> dict[str, Any]:
        left = self.stay(0, keep, tokens, blocks)
        each, more = divmod(left - self.visual_pivots, self.visual_pivots + self.text_pivots)
        return {"pivots": self.visual_pivots, "each": each, "one more for": more}

    def choose(self, signals: Signals, keep: int) -> Selection:
        keys = self.given(signals.visual_keys, "keys of a block before the cut (layer 1 or later)")
        text_keys = self.given(signals.text_keys, "keys of a block before the cut (layer 1 or later)")
        size = keys.float().abs().sum(dim=1)
        pivots = top_k(size, min(self.visual_pivots, keep)).sort().values
        later = torch.ones(len(text_keys), dtype=torch.bool) if signals.later is None else signals.later
        behind = later.to(keys.device).nonzero()[:, 0]
        text_size = text_keys[behind].float().abs().sum(dim=1)
        words = behind[top_k(text_size, self.text_pivots).sort().values]
        directions = torch.cat([unit(signals.visual[pivots]), unit(signals.text[words])])
        cosine = directions @ unit(signals.visual).T
        others, scores = least_alike(cosine, pivots, keep - len(pivots))
        return Selection(torch.cat([pivots, others]), torch.cat([size[pivots].to(scores.dtype), scores]))


def least_alike(cosine: Tensor, taken: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Each pivot in turn takes the free tokens with the lowest cosine to it: `count` in all, one more each for the first
    pivots. cosine: [P, n], taken: [p] tokens that are not free -> [count] tokens, [count] minus their cosines.
    """
    free = torch.ones_like(cosine[0], dtype=torch.bool)
    free[taken] = False
    each, more = divmod(count, len(cosine))
    order, scores = [taken[:0]], [cosine[0, :0]]
    for number, row in enumerate(cosine):
        picks = top_k(-row, each + (number < more), free)
        free[picks] = False
        order.append(picks)
        scores.append(-row[picks])
    return torch.cat(order), torch.cat(scores)
