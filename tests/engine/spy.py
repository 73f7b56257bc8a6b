"""Methods that show what the engine hands them."""

from dataclasses import dataclass, field

import torch

from divevlm.core.selection import Rows, Selection
from divevlm.methods.base import Method


@dataclass(frozen=True, kw_only=True)
class Spy(Method):
    """Keeps the first tokens of each group, and what it was shown."""

    wants: object = None
    cuts: tuple = (2,)
    seen: list = field(default_factory=list)
    name = "spy"

    @property
    def needs(self):
        return self.wants

    def blocks(self, blocks, default):
        return self.cuts

    def stay(self, cut, keep, tokens, blocks):
        return keep + len(self.cuts) - 1 - cut

    def select(self, groups, keeps):
        self.seen.append(list(groups))
        return [Selection(torch.arange(keep), torch.zeros(keep)) for keep in keeps]


@dataclass(frozen=True, kw_only=True)
class Merger(Method):
    """Drops every other token; the mean of the dropped goes on behind the kept ones, at the first dropped token's slot."""

    name = "merger"

    def blocks(self, blocks, default):
        return (1, 3) if self.layer is None else (self.layer,)

    def stay(self, cut, keep, tokens, blocks):
        return max(1, tokens - 1) if cut == 0 else max(1, tokens // 2)

    def select(self, groups, keeps):
        selections = []
        for group in groups:
            kept, dropped = torch.arange(0, len(group.hidden), 2), torch.arange(1, len(group.hidden), 2)
            values = torch.cat([group.hidden[kept], group.hidden[dropped].mean(dim=0, keepdim=True)])
            members = [[i] for i in kept.tolist()] + [dropped.tolist()]
            rows = Rows(torch.cat([kept, dropped[:1]]), values, members)
            selections.append(Selection(kept, torch.zeros(len(kept)), rows=rows))
        return selections
