"""ToMe: token merging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from divevlm.checks import require
from divevlm.core.bipartite import match, merged, schedule
from divevlm.core.selection import Rows, Selection
from divevlm.methods.base import Signals
from divevlm.methods.views import Apart


@dataclass(frozen=True, kw_only=True)
class ToMe(Apart):
    """Bipartite matching: every other token joins the most similar of the rest, the most similar pairs first.

    where="tower": between attention and MLP of each block of the tower, by their keys, as its authors do; for towers whose
    patches are the visual tokens, one each. A tower of few blocks leaves the rest to the entry.
    where="entry": on the rows that enter the language model, again and again until K are left, at most halving them each time.
    None: in the tower where that can be.
    """

    where: Literal["tower", "entry"] | None = None
    norm: Literal["final", "next", "none"] = "none"

    name = "tome"
    default_layer = 0
    default_positions = "compact"
    paper = "Bolya et al., ICLR 2023"
    stage = "before the LLM"
    merges = True
    cost = "O(N² d / 4)"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.where in ("tower", "entry", None), "where", self.where, "'tower', 'entry' or None")

    def in_tower(self, plain: bool) -> bool:
        return self.where == "tower" or (self.where is None and plain and self.budget.scope != "sample")

    def thinned(self, blocks: int, tokens: int) -> list[int]:
        return schedule(tokens, self.budget.tokens(tokens), blocks)

    def choose(self, signals: Signals, keep: int) -> Selection:
        hidden = self.given(signals.hidden, "hidden states")
        inside = None if signals.vision is None else signals.vision.owner
        slots, values, members, sizes = [], [], [], []
        for tokens, place in self.parts(signals, keep):
            owner = torch.arange(len(tokens)) if inside is None else inside.cpu()  # whom each token is part of
            at, counts = owner.unique(return_counts=True)  # who is left, and how many are part of it
            x, size = hidden[tokens[at.to(tokens.device)]].float(), counts.float().to(hidden.device)
            while len(x) > place:
                found = match(x, len(x) - place)
                owner_of = torch.arange(len(tokens))
                owner_of[at[found.source.cpu()]] = at[found.target.cpu()]
                owner = owner_of[owner]
                x, size = merged(x, size, found)
                at = at[torch.cat([found.left, found.odd]).cpu()]
            order = at.sort().indices
            slots.append(tokens[at[order].to(tokens.device)])
            values.append(x[order.to(x.device)])
            sizes.append(size[order.to(x.device)])
            whole = tokens.cpu()
            members += [whole[owner == i].tolist() for i in at[order].tolist()]
        place_of, rows = torch.cat(slots), torch.cat(values).to(hidden.dtype)
        by_place = place_of.sort().indices
        found_rows = Rows(place_of[by_place], rows[by_place], [members[i] for i in by_place.tolist()])
        return Selection(found_rows.slots, torch.cat(sizes)[by_place], rows=found_rows)
