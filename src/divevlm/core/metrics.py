"""The paper's measures of a selection and of a method."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from divevlm.checks import require


def redundancy(x: Tensor, indices: Tensor) -> float:
    """Mean, over the kept tokens, of the largest cosine to another kept token (Eq. 19). x: [N, d], indices: [K], K >= 2.

    Lower is less redundant.
    """
    require(indices.numel() >= 2, "indices", indices.tolist(), "at least two tokens")
    rows = x.index_select(0, indices.to(x.device)).to(torch.promote_types(x.dtype, torch.float32))
    cosine = torch.nn.functional.normalize(rows, dim=-1)
    cosine = cosine @ cosine.T
    return float(cosine.fill_diagonal_(-torch.inf).amax(dim=1).mean())


def relative_gold_likelihood(log_likelihood: Tensor) -> Tensor:
    """Likelihood of the gold answer relative to its geometric mean over the schedules, in percent (Eq. 18).

    log_likelihood: [samples, schedules], log of the teacher-forced product (Eq. 17) -> same shape
    """
    require(log_likelihood.dim() == 2, "log_likelihood.shape", tuple(log_likelihood.shape), "[samples, schedules]")
    logs = log_likelihood.double()
    return torch.expm1(logs - logs.mean(dim=1, keepdim=True)) * 100


def relative_average(scores: Mapping[str, float], full: Mapping[str, float]) -> float:
    """Mean over benchmarks of the score relative to that of the full-token model, in percent (Eq. 16)."""
    require(len(full) > 0, "full", dict(full), "at least one benchmark")
    require(set(scores) == set(full), "scores", sorted(scores), f"the benchmarks of full {sorted(full)}")
    zero = [name for name, value in full.items() if value == 0]
    require(not zero, "full", zero, "non-zero for every benchmark")
    return sum(scores[name] / full[name] for name in full) / len(full) * 100
