"""What a method is: its settings, where it cuts, what it may read, and which candidates it keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from divevlm.budget import Budget, Scope
from divevlm.checks import require
from divevlm.core.selection import Selection

Norm = Literal["final", "next", "none"]
Positions = Literal["keep", "compact"]
Placement = Literal["layer", "entry"]
Newlines = Literal["keep", "drop"]
Stage = Literal["vision tower", "before the LLM", "LLM block"]
CHOICES = {"norm": Norm, "positions": Positions, "placement": Placement, "newlines": Newlines}


@dataclass(frozen=True)
class Needs:
    """What the engine gathers for a method beyond hidden states; what is not asked for is not computed.

    attention  rows of the attention map of one block: of the "last" prompt token or of every "text" token
    keys       that block's keys, after RoPE
    block      which block: the last one "before" the cut (FastV, SparseVLM, DART), or the first one "after" it (PDrop)
    embeds     the rows that entered the language model
    gravity    what RoPE alone does to the logits of that block (SparseVLM+)
    vision     of the vision tower: any of "saliency", "first_saliency", "keys", "features"
    """

    attention: Literal["last", "text"] | None = None
    keys: bool = False
    block: Literal["before", "after"] = "before"
    embeds: bool = False
    gravity: bool = False
    vision: tuple[Literal["saliency", "first_saliency", "keys", "features"], ...] = ()


@dataclass
class Vision:
    """Of the vision tower, for each candidate (pooled as the model pools its features). All float32.

    saliency  attention of CLS (mean over heads) at the block whose features are used; without CLS: attention received,
              mean over heads and queries. first_saliency: the same of block 0.
    """

    tile: Tensor  # [n] which tower input (image, tile, frame of the batch) it comes from
    saliency: Tensor | None = None  # [n]
    first_saliency: Tensor | None = None  # [n]
    owner: Tensor | None = None  # [n] of a method that works in the tower: the candidate whose row each one went into
    keys: Tensor | None = None  # [n, head_dim] mean over heads, before any rotation
    features: Tensor | None = None  # [n, d_v] output of that block, before projection
    cls: Tensor | None = None  # [tiles, d_v] its CLS rows; None where the tower has none
    project: Callable[[Tensor], Tensor] | None = None  # [r, d_v] -> [r, d]; None where rows are pooled on their way

    PER_TOKEN: ClassVar = ("tile", "saliency", "first_saliency", "owner", "keys", "features")

    def of(self, tokens: Tensor) -> Vision:
        """Of these candidates only. tokens: [r], ascending where there is an owner, which is then counted within them"""
        some = replace(self, **_rows(self, self.PER_TOKEN, tokens))
        if some.owner is not None:
            some.owner = torch.searchsorted(tokens.to(some.owner.device), some.owner)
        return some


@dataclass
class Signals:
    """What a method may read of candidates that compete with each other. What it does not need is None."""

    visual: Tensor  # [n, d] hidden states of the candidates at the cut, normed as the method asks
    text: Tensor  # [M, d] the same of the prompt
    cells: Tensor  # [n, 3] frame, row, column of each candidate
    budget: Budget
    cut: int = 0  # which of the method's cuts this is
    views: Tensor | None = None  # [n] which view of its image
    total: int = 0  # how many candidates there were before any cut
    hidden: Tensor | None = None  # [n, d] hidden states as they are
    ids: Tensor | None = None  # [M] token ids of the prompt
    later: Tensor | None = None  # [M] bool: prompt tokens behind the last visual token of the sample
    attention: Tensor | None = None  # [heads, 1 or M, n]
    attended: Tensor | None = (
        None  # [n] of the prompt's attention in the block behind the cut, where groups are measured
    )
    visual_keys: Tensor | None = None  # [n, heads * head_dim], repeated to the heads of the queries
    text_keys: Tensor | None = None  # [M, heads * head_dim]
    visual_embeds: Tensor | None = None  # [n, d]
    text_embeds: Tensor | None = None  # [M, d]
    all_embeds: Tensor | None = None  # [total, d] visual_embeds of all candidates before any cut
    gravity: Tensor | None = None  # [M, n] RoPE's own product of prompt and visual positions (core/sparsevlm.py)
    vision: Vision | None = None

    PER_TOKEN: ClassVar = ("visual", "cells", "views", "hidden", "attended", "visual_keys", "visual_embeds")

    def of(self, tokens: Tensor) -> Signals:
        """Of these candidates only. tokens: [r]"""
        some = replace(self, **_rows(self, self.PER_TOKEN, tokens))
        some.attention = None if self.attention is None else self.attention[..., tokens.to(self.attention.device)]
        some.gravity = None if self.gravity is None else self.gravity[..., tokens.to(self.gravity.device)]
        some.vision = None if self.vision is None else self.vision.of(tokens)
        return some


def _rows(of: Signals | Vision, names: Sequence[str], tokens: Tensor) -> dict[str, Any]:
    given = {name: getattr(of, name) for name in names}
    return {name: value[tokens.to(value.device)] for name, value in given.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A pruning method, with the settings that every method has.

    keep       how many visual tokens: a count, a share in (0, 1] or a Budget
    scope      of what: each "image" (default), "sample", "view" or "frame"
    layer      the cut is before this decoder block (0 = before the first); None = the family's default
    norm       what hidden states pass before the method sees them: the LM's "final" norm, the "next" block's, or "none"
    positions  "keep" the original position ids of kept tokens, or "compact" them; None = as the method's authors do
    placement  "layer": cut at that block; "entry": choose with that block's states, then run all blocks on the kept tokens
    newlines   "keep" newline and separator tokens beside the budget, or "drop" them
    proportional  kept tokens stand for the dropped ones: in every block behind the cut alpha log n is added to the logits
               towards a token that stands for n (itself, and the dropped ones that are most similar to it). True is
               alpha = 1, a number is alpha; "measured": n is what the group has of the prompt's attention at the cut, by
               what its kept token has; "uniform": every kept token stands for N / K. Not in the paper
    """

    keep: int | float | Budget
    scope: Scope | None = None
    layer: int | None = None
    norm: Norm = "final"
    positions: Positions | None = None
    placement: Placement = "layer"
    newlines: Newlines = "keep"
    proportional: bool | float | Literal["uniform", "measured"] = False

    name: ClassVar[str]
    default_layer: ClassVar[int | None] = None  # what `layer=None` means; None = the family's default
    # for the table of methods: authors and venue, its number at arXiv, where it chooses, what it reads and does, the cost
    paper: ClassVar[str] = ""
    arxiv: ClassVar[str] = ""
    stage: ClassVar[Stage] = "LLM block"
    reads_text: ClassVar[bool] = False
    merges: ClassVar[bool] = False
    cost: ClassVar[str] = ""

    @property
    def needs(self) -> Needs:
        """What the engine gathers for it; most methods say it as a class attribute: `needs = Needs(keys=True)`."""
        return Needs()

    @property
    def default_positions(self) -> Positions:
        """What `positions=None` means; families whose positions are a grid always keep them. Often a class attribute."""
        return "keep"

    @property
    def budget(self) -> Budget:
        return Budget.of(self.keep, self.scope)

    def __post_init__(self) -> None:
        Budget.of(self.keep, self.scope)
        block = type(self.layer) is int and self.layer >= 0
        require(block or self.layer is None, "layer", self.layer, "a block number of at least 0")
        number = isinstance(self.proportional, (bool, int, float)) and 0 <= self.proportional <= 10
        known = number or self.proportional in ("uniform", "measured")
        require(known, "proportional", self.proportional, "True, False, a number from 0 to 10, 'uniform' or 'measured'")
        for option, kind in CHOICES.items():
            value, allowed = getattr(self, option), get_args(kind)
            known = value in allowed or (option == "positions" and value is None)
            require(known, option, value, " or ".join(repr(choice) for choice in allowed))

    @property
    def bias_strength(self) -> float:
        """alpha of `proportional`."""
        return 1.0 if isinstance(self.proportional, str) else float(self.proportional)

    def blocks(self, blocks: int, default: int) -> tuple[int, ...]:
        """Before which blocks it cuts, ascending. blocks: how many there are, default: the family's single cut."""
        first = default if self.default_layer is None else self.default_layer
        return (first if self.layer is None else self.layer,)

    def stay(self, cut: int, keep: int, tokens: int, blocks: int) -> int:
        """How many candidates of a group are left after cut number `cut`.

        keep: by the budget, tokens: before any cut, blocks: how many the model has.
        """
        return keep

    def details(self, keep: int, tokens: int, blocks: int, views: int) -> dict[str, Any]:
        """Further numbers of its setting, for plans. keep, tokens: of an image of so many views"""
        return {}

    def in_tower(self, plain: bool) -> bool:
        """Whether it works inside the vision tower, too (methods/tower.py). plain: there patches are visual tokens, one each."""
        return False

    @abstractmethod
    def select(self, groups: Sequence[Signals], keeps: Sequence[int]) -> list[Selection]:
        """The kept candidates of each group, counted within the group. A method that merges says by `Selection.rows` what
        goes on instead."""
