"""Inner products of the start rows: the only place where the width d appears.

Rows are never copied to normalise them: `scale` (one factor a row) is applied to the products. They are right to the working
precision whatever the process allows for float32 products (TF32 on a GPU, bfloat16 on a CPU): that setting belongs to the
user and to other threads, so it is read, never changed. Where it is reduced, float32 rows are cut into three bfloat16 parts,
whose products are exact under every setting, and the loops on torch products work in float64, which no setting touches.
"""

from __future__ import annotations

import torch
from torch import Tensor


def reduced(device: torch.device) -> bool:
    """May float32 products lose digits on this device?"""
    backend = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    setting = getattr(getattr(backend, "matmul", None), "fp32_precision", None)  # since torch 2.9
    if setting is None:
        return torch.get_float32_matmul_precision() != "highest"
    return setting not in ("ieee", "none")


def row_norms(z: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, rows] norms in the working precision, widening half-precision rows a piece at a time. z: [B, rows, d]"""
    if z.dtype == dtype:
        norms: Tensor = torch.linalg.vector_norm(z, dim=-1)
        return norms
    pieces = torch.split(z, 256, dim=-1)
    return (
        torch.stack([torch.linalg.vector_norm(part, dim=-1, dtype=dtype) for part in pieces]).square_().sum(0).sqrt_()
    )


def fill_gram(out: Tensor, x: Tensor, scale: Tensor) -> None:
    """out: [N, N] <- scaled x x^T. CPU: by blocks above the diagonal, mirrored (about 0.6 of the product's cost)."""
    n = x.shape[0]
    if x.device.type == "cpu" and n >= 256 and _plain(x, x, out):
        step = -(-n // (4 if n < 2048 else 8))
        for i in range(0, n, step):
            j = min(i + step, n)
            torch.mm(x[i:j], x[i:].T, out=out[i:j, i:])
            out[j:, i:j] = out[i:j, j:].T
    else:
        _product(out, x, x, max(n // 4, 256))
    out.mul_(scale[:, None]).mul_(scale)


def fill_product(out: Tensor, q: Tensor, x: Tensor, query_scale: Tensor, scale: Tensor) -> None:
    """out: [M, N] <- scaled q x^T"""
    _product(out, q, x, max(x.shape[0], 256))
    out.mul_(query_scale[:, None]).mul_(scale)


def _plain(a: Tensor, b: Tensor, out: Tensor) -> bool:
    return a.dtype == b.dtype == out.dtype and (out.dtype == torch.float64 or not reduced(out.device))


def _product(out: Tensor, a: Tensor, b: Tensor, width: int) -> None:
    """out <- a b^T. Other than in the plain case, at most `width` columns are widened (and cut) at a time."""
    if _plain(a, b, out):
        torch.mm(a, b.T, out=out)
        return
    exact = {torch.bfloat16, torch.float16} if out.device.type == "cuda" else {torch.bfloat16}  # under every setting
    whole = {a.dtype, b.dtype} <= exact or torch.float64 in (a.dtype, b.dtype) or not reduced(out.device)
    out.zero_()
    for i in range(0, a.shape[1], width):
        _add(out, a[:, i : i + width], None if a is b else b[:, i : i + width], whole)


def _add(out: Tensor, a: Tensor, b: Tensor | None, whole: bool) -> None:
    """out += a b^T; b = a if there is none."""
    work = torch.promote_types(a.dtype if b is None else torch.promote_types(a.dtype, b.dtype), torch.float32)
    cut = (lambda z: [z.to(work)]) if whole else (lambda z: _parts(z.to(work)))
    left = cut(a)
    right = left if b is None else cut(b)
    pairs = ((0, 0),) if whole else ((2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0))  # what is left out is below 2^-24
    for i, j in pairs:
        if work == out.dtype:
            out.addmm_(left[i], right[j].T)
        else:
            out.add_(left[i] @ right[j].T)


def _parts(z: Tensor) -> list[Tensor]:
    """Three bfloat16 numbers, as float32, whose sum is z."""
    parts = []
    for _ in range(3):
        parts.append(z.bfloat16().float())
        z = z - parts[-1]
    return parts
