"""ToMe: token merging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from divevlm.checks import require
from divevlm.core.bipartite import match, merged, schedule
from divevlm.core.selection import Rows, Selection
from divevlm.methods.base import Signals
from divevlm.methods.rows import in_input_order, joined
from divevlm.methods.views import Apart


@dataclass(frozen=True, kw_only=True)
class ToMe(Apart):
    """Bipartite matching: every other token joins the most similar of the rest, the most similar pairs first.

    where="tower": between attention and MLP of each block of the tower, by their keys, as its authors do; for towers whose
    patches are the visual tokens, one each. A tower of few blocks leaves the rest to the entry.
    where="entry": on the rows that enter the language model, until K are left; each round halves them at most.
    None: in the tower where that can be.
    """

    where: Literal["tower", "entry"] | None = None

    name = "tome"
    paper = "Bolya et al., ICLR 2023"
    arxiv = "2210.09461"
    merges = True
    cost = "O(N² d / 4)"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.where in ("tower", "entry", None), "where", self.where, "'tower', 'entry' or None")

    def in_tower(self, plain: bool) -> bool:
        return self.where == "tower" or (self.where is None and plain and self.budget.scope != "sample")

    def merged_per_block(self, blocks: int, tokens: int) -> list[int]:
        return schedule(tokens, self.budget.tokens(tokens), blocks)

    def choose(self, signals: Signals, keep: int) -> Selection:
        hidden = self.given(signals.hidden, "hidden states")
        inside = None if signals.vision is None else signals.vision.owner
        views, sizes = [], hidden.new_zeros(len(hidden), dtype=torch.float32)
        for tokens, place in self.parts(signals, keep):
            owner = torch.arange(len(tokens)) if inside is None else inside.cpu()  # whom each token is part of
            left, counts = owner.unique(return_counts=True)  # those that are left, and how many tokens are part of them
            x, size = hidden[tokens[left.to(tokens.device)]].float(), counts.float().to(hidden.device)
            while len(x) > place:
                pairs = match(x, len(x) - place)
                joins = torch.arange(len(tokens))
                joins[left[pairs.source.cpu()]] = left[pairs.target.cpu()]
                owner = joins[owner]
                x, size = merged(x, size, pairs)
                left = left[torch.cat([pairs.left, pairs.odd]).cpu()]
            slots = tokens[left.to(tokens.device)]
            members = [tokens[(owner == token).to(tokens.device)].tolist() for token in left.tolist()]
            views.append(Rows(slots, x.to(hidden.dtype), members))
            sizes[slots] = size
        rows = in_input_order(joined(views))
        return Selection(rows.slots, sizes[rows.slots], rows=rows)
