"""Chance, as the baseline that every method has to beat."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch

from divevlm.core.selection import Selection
from divevlm.methods.base import Signals
from divevlm.methods.each import Each


@dataclass(frozen=True, kw_only=True)
class Random(Each):
    """Tokens drawn without replacement.

    The draw depends on `seed`, the prompt's token ids and the number of tokens, and on nothing else: not on the batch, the
    device or what was drawn before.
    """

    seed: int = 0

    name = "random"
    paper = "baseline"
    cost = "O(N)"

    def choose(self, signals: Signals, keep: int) -> Selection:
        ids = [] if signals.ids is None else signals.ids.tolist()
        drawn = torch.Generator().manual_seed(zlib.crc32(repr((self.seed, ids)).encode()))
        order = torch.randperm(len(signals.visual), generator=drawn)[:keep].to(signals.visual.device)
        return Selection(order, torch.ones(keep, device=order.device))
