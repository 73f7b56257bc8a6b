"""Checks of what `select` is given: one line that names the parameter, the value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from divevlm.budget import Budget
from divevlm.checks import require

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def states(x: Tensor, q: Tensor) -> bool:
    """True for one sample, False for a batch."""
    for name, z in (("x", x), ("q", q)):
        _dense(name, z)
        require(z.dim() in (2, 3), f"{name}.shape", tuple(z.shape), "[rows, width] or [batch, rows, width]")
    require(x.numel() > 0, "x.shape", tuple(x.shape), "at least one row of at least one number")
    require(q.dim() == x.dim(), "q.shape", tuple(q.shape), f"of the same rank as x {tuple(x.shape)}")
    require(q.shape[-1] == x.shape[-1], "q.shape", tuple(q.shape), f"as wide as x {tuple(x.shape)}")
    require(q.shape[:-2] == x.shape[:-2], "q.shape", tuple(q.shape), f"of the same batch size as x {tuple(x.shape)}")
    require(q.device == x.device, "q.device", str(q.device), f"x.device ({x.device})")
    return x.dim() == 2


def _dense(name: str, z: object) -> None:
    require(isinstance(z, Tensor), name, type(z).__name__, "a torch tensor")
    assert isinstance(z, Tensor)
    require(z.layout is torch.strided, f"{name}.layout", z.layout, "torch.strided (a dense tensor)")
    require(z.dtype in FLOATS, f"{name}.dtype", z.dtype, "float16, bfloat16, float32 or float64")
    require(z.device.type != "meta", f"{name}.device", "meta", "one that holds numbers")


def mask(name: str, given: Tensor | None, z: Tensor, single: bool) -> Tensor | None:
    """None where nothing is masked."""
    if given is None:
        return None
    shape = tuple(z.shape[1:2] if single else z.shape[:2])
    kind = (given.dtype, tuple(given.shape)) if isinstance(given, Tensor) else type(given).__name__
    require(kind == (torch.bool, shape), name, kind, f"a bool tensor of shape {shape}")
    require(given.layout is torch.strided, f"{name}.layout", given.layout, "torch.strided (a dense tensor)")
    given = given.to(z.device).reshape(z.shape[:2])
    return None if bool(given.all()) else given


def weight(given: Tensor | None, x: Tensor, single: bool) -> Tensor | None:
    if given is None:
        return None
    _dense("weight", given)
    shape = tuple(x.shape[1:2] if single else x.shape[:2])
    require(
        tuple(given.shape) == shape, "weight", f"a tensor of shape {tuple(given.shape)}", f"a tensor of shape {shape}"
    )
    ok = given.isfinite() & (given > 0)
    require(bool(ok.all()), "weight", given[~ok][:1].tolist(), "positive and finite everywhere")
    return given.to(x.device, torch.promote_types(given.dtype, torch.float32)).reshape(x.shape[:2])


def too_long(norms: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, rows] True for NaN, infinity, and norms whose square is not a number of the dtype."""
    return ~(norms <= _most(dtype))


def _most(dtype: torch.dtype) -> float:
    return math.sqrt(torch.finfo(dtype).max) / 2


def finite(name: str, norms: Tensor, dtype: torch.dtype) -> None:
    bad = too_long(norms, dtype)
    if not bool(bad.any()):
        return
    sample, row = (int(i) for i in bad.nonzero()[0])
    where = f"row {row}" if norms.shape[0] == 1 else f"row {row} of sample {sample}"
    allowed = f"finite, with norms of at most {_most(dtype):.0e}"
    raise ValueError(f"{name} must be {allowed}, got NaN, infinity or overflow in {where}")


def counts(
    keep: int | float | Budget | Sequence[int], x: Tensor, valid_x: Tensor | None
) -> tuple[list[int], float | None]:
    """How many tokens each sample keeps, and the energy target if there is one."""
    b, n, _ = x.shape
    sizes = [n] * b if valid_x is None else valid_x.sum(dim=1).tolist()
    least = min(sizes)
    require(least > 0, "valid_x", f"no valid token in sample {sizes.index(least)}", "True somewhere in each sample")
    if isinstance(keep, (list, tuple)):
        require(len(keep) == b, "keep", keep, f"one count for each of the {b} samples")
        budgets = [Budget(k) for k in keep]
    else:
        budgets = [Budget.of(keep)] * b  # type: ignore[arg-type]
    return [budget.tokens(size) for budget, size in zip(budgets, sizes, strict=True)], budgets[0].energy
