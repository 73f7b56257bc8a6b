"""The settings of one DIVE selection, checked once, shared by the reference and the fast path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from divevlm.checks import number, require, whole, yes_or_no

EPS = 1e-6  # the paper's epsilon: clamped denominators, and the norm below which a residual counts as zero

MOST = 1e30  # of lam: its products with an alignment stay within float32


@dataclass(frozen=True)
class Rule:
    """How tokens are scored and how a pick feeds back.

    lam, eta, top_h   prompt strength, feedback strength and pooled prompt tokens of the paper (Eqs. 1, 3 and 7)
    updates           number of feedback updates, spread evenly over the picks; None = after every pick
    feedback          what an update applies: the "last" pick only, or "all" picks since the update before
    score             "fused" = exp(lam phi) |x|^2; "prompt" = exp(lam phi) alone (the paper's "w/o V-C")
    two_sided         also remove negatively aligned parts (plain projection: CDPruner, ResPrune)
    normalize         start from unit rows (the paper) or from the rows as they are (ResPrune)
    """

    lam: float = 1.5
    eta: float = 0.8
    top_h: int = 3
    updates: int | None = None
    feedback: Literal["last", "all"] = "last"
    score: Literal["fused", "prompt"] = "fused"
    two_sided: bool = False
    normalize: bool = True

    def __post_init__(self) -> None:
        number("lam", self.lam, f"a number from {-MOST:g} to {MOST:g}", lambda v: -MOST <= v <= MOST)
        number("eta", self.eta, "a number between 0 and 2, both excluded", lambda v: 0 < v < 2)
        whole("top_h", self.top_h, 1)
        if self.updates is not None:
            whole("updates", self.updates, 0)
        require(self.feedback in ("last", "all"), "feedback", self.feedback, "'last' or 'all'")
        require(self.score in ("fused", "prompt"), "score", self.score, "'fused' or 'prompt'")
        for name in ("two_sided", "normalize"):
            yes_or_no(name, getattr(self, name))
        require(not (self.score == "prompt" and self.lam == 0), "lam", self.lam, "non-zero with score='prompt'")

    def update_steps(self, keep: int) -> frozenset[int]:
        """The picks (0-based) after which the residual states are updated.

        r updates cut the picks into r + 1 blocks of (nearly) equal size, so that each of them can matter;
        r >= keep is the default, an update after every pick.
        """
        r = keep if self.updates is None else min(self.updates, keep)
        return frozenset(-(-(j + 1) * keep // (r + 1)) - 1 for j in range(r))
