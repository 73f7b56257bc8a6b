"""`select`: tensors in, picks out. Checks the input, prepares it and runs the Gram-space loop."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from divevlm.budget import Budget
from divevlm.core.columns import Way, cheaper, fill_gram, fill_product, row_norms, start_columns
from divevlm.core.gram import Picks, State, gram_select
from divevlm.core.rule import EPS, Rule, require
from divevlm.core.selection import Selection, Selections

Loop = Literal["auto", "eager", "fused"]
Keep = int | float | Budget
WHOLE = 768  # up to here a rank-2 update of the whole Gram matrix is cheaper than replaying the updates on one column
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@torch.no_grad()
def select(
    x: Tensor,
    q: Tensor,
    keep: Keep | list[int] | tuple[int, ...],
    *,
    lam: float = 1.5,
    eta: float = 0.8,
    top_h: int = 3,
    updates: int | None = None,
    feedback: Literal["last", "all"] = "last",
    trace: bool = False,
    valid_x: Tensor | None = None,
    valid_q: Tensor | None = None,
    score: Literal["fused", "prompt"] = "fused",
    two_sided: bool = False,
    normalize: bool = True,
    weight: Tensor | None = None,
    columns: Way = "auto",
    loop: Loop = "auto",
    check: bool = True,
) -> Selection | Selections:
    """Pick visual tokens one by one, each for what it adds to those before it (DIVE, Algorithm 1).

    x: visual states [N, d] or [B, N, d]; q: prompt states [M, d] or [B, M, d], M may be 0. Any float dtype, device
    and stride; the work is done in float32, or float64 where the states are.

    keep      a count, a share in (0, 1], a `Budget`, or one count for each sample of a batch; more than N keeps all
    lam, eta, top_h, updates, feedback, score, two_sided, normalize    see `Rule`
    valid_x, valid_q    bool masks [N] / [B, N] and [M] / [B, M]; a token marked False is never picked or listened to
    weight    [N] or [B, N] positive factors that replace exp(lam phi) and stay fixed (the prompt states are not used)
    columns   how to get the columns of X X^T: "gram" (all at once), "picked" (as needed) or "auto" (the cheaper one)
    loop      "eager" torch, "fused" by numba (CPU, extra `fast`), or "auto": fused where it is possible
    trace     record scores, alignments and energies of every step
    check     refuse NaN and infinity, naming the row; False skips this (one wait for the device)

    Zero rows have no energy and are picked last, in input order. Identical rows share their energy: after the first,
    the others have only what feedback left them. Scores that the precision can't tell apart go to the lower index.
    """
    rule = Rule(lam, eta, top_h, updates, feedback, score, two_sided, normalize)
    require(columns in ("auto", "gram", "picked"), "columns", columns, "'auto', 'gram' or 'picked'")
    require(loop in ("auto", "eager", "fused"), "loop", loop, "'auto', 'eager' or 'fused'")
    single = _check_states(x, q)
    if single:
        x, q = x[None], q[None]
    valid_x = _check_mask("valid_x", valid_x, x, single)
    valid_q = _check_mask("valid_q", valid_q, q, single)
    weight = _check_weight(weight, x, single)
    counts, until = _counts(keep, x, valid_x)

    call = _Call(rule, columns, loop, until, trace, check)
    items: list[Selection] = []
    with ExitStack() as stack:
        stack.enter_context(torch.autocast(x.device.type, enabled=False))
        stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("highest")
        for part in _parts(x, counts, rule):
            mask_x, mask_q, factors = (None if z is None else z[part] for z in (valid_x, valid_q, weight))
            items += _run(x[part], q[part], mask_x, mask_q, factors, counts[part], call)
    return items[0] if single else Selections(items)


@dataclass(frozen=True)
class _Call:
    rule: Rule
    way: Way
    loop: Loop
    until: float | None
    trace: bool
    check: bool


def _run(
    x: Tensor,
    q: Tensor,
    valid_x: Tensor | None,
    valid_q: Tensor | None,
    weight: Tensor | None,
    counts: list[int],
    call: _Call,
) -> list[Selection]:
    """One loop over samples that go together. x: [B, N, d], q: [B, M, d]"""
    rule, keep = call.rule, max(counts)
    dtype = torch.promote_types(torch.promote_types(x.dtype, q.dtype), torch.float32)
    x = x if valid_x is None else x.masked_fill(~valid_x[..., None], 0)
    q = q if valid_q is None else q.masked_fill(~valid_q[..., None], 0)

    size, query_size = row_norms(x, dtype), row_norms(q, dtype)
    if call.check:
        for name, norms in (("x", size), ("q", query_size)):
            _check_finite(name, norms)
    # Unit rows, or (not normalised) rows in units of the longest.
    longest = size if rule.normalize else size.amax(dim=1, keepdim=True).expand_as(size)
    scale = longest.clamp_min(EPS).reciprocal()
    query_scale = query_size.clamp_min(EPS).reciprocal()

    b, n, _ = x.shape
    texts = q.shape[1] if weight is None and (rule.lam != 0 or call.trace) else 0
    way = cheaper(x, keep) if call.way == "auto" else call.way
    fused = _fused(call.loop, x)
    whole = way == "gram" and n <= WHOLE and not fused  # X X^T small enough to be updated as a whole
    inner = scale.new_empty(b, texts + (n if whole else 0), n)
    for i in range(b):
        if texts:
            fill_product(inner[i, :texts], q[i], x[i], query_scale[i], scale[i])
        if whole:
            fill_gram(inner[i, texts:], x[i], scale[i])
    heard = torch.full_like(size[:, :1], q.shape[1]) if valid_q is None else valid_q.sum(1, keepdim=True).to(dtype)
    state = (fused or State)(
        energy=(size * scale).square_(),
        query_energy=(query_size * query_scale).square_(),
        inner=inner,
        columns=None if whole else start_columns(x, scale, keep, way),
        pooled=heard.clamp_(1, rule.top_h),
        keep=keep,
        rule=rule,
        weight=None if weight is None else weight.to(dtype),
    )
    gone = torch.zeros_like(size) if valid_x is None else valid_x.to(dtype).sub_(1)
    return _selections(gram_select(state, gone, keep, trace=call.trace, until=call.until), counts, call.until)


def _fused(loop: Loop, x: Tensor) -> type[State] | None:
    """The fused state where it is wanted and possible."""
    if loop == "eager" or x.device.type != "cpu" or x.shape[0] != 1:
        require(loop != "fused", "loop", loop, f"'eager' or 'auto' on {x.device.type}")
        return None
    if find_spec("numba") is None:
        require(loop != "fused", "loop", loop, "'eager' or 'auto' without numba (pip install 'divevlm[fast]')")
        return None
    from divevlm.core.fused import FusedState

    return FusedState


def _parts(x: Tensor, counts: list[int], rule: Rule) -> list[slice]:
    """Samples that share a loop: all on an accelerator, one at a time on a CPU or where their schedules differ."""
    together = x.device.type != "cpu" and (rule.updates is None or len(set(counts)) == 1)
    return [slice(None)] if together else [slice(i, i + 1) for i in range(x.shape[0])]


def _selections(picks: Picks, counts: list[int], until: float | None) -> list[Selection]:
    items = []
    for i, count in enumerate(counts):
        left = picks.left[i]
        if until is not None:  # the first step by which the target is met
            met = (left[1:] <= (1 - until) * left[0]).nonzero()
            count = min(count, int(met[0]) + 1) if len(met) else count
        trace = None if picks.traces is None else picks.traces[i].first(count)
        items.append(Selection(picks.order[i, :count], picks.scores[i, :count], left[: count + 1], trace))
    return items


def _check_states(x: Tensor, q: Tensor) -> bool:
    """True for one sample, False for a batch."""
    for name, z in (("x", x), ("q", q)):
        require(isinstance(z, Tensor), name, type(z).__name__, "a torch tensor")
        require(z.dtype in FLOATS, f"{name}.dtype", z.dtype, "float16, bfloat16, float32 or float64")
        require(z.dim() in (2, 3), f"{name}.shape", tuple(z.shape), "[rows, width] or [batch, rows, width]")
    require(x.numel() > 0, "x.shape", tuple(x.shape), "at least one row of at least one number")
    require(q.dim() == x.dim(), "q.shape", tuple(q.shape), f"of the same rank as x {tuple(x.shape)}")
    require(q.shape[-1] == x.shape[-1], "q.shape", tuple(q.shape), f"as wide as x {tuple(x.shape)}")
    require(q.shape[:-2] == x.shape[:-2], "q.shape", tuple(q.shape), f"of the same batch size as x {tuple(x.shape)}")
    require(q.device == x.device, "q.device", str(q.device), f"x.device ({x.device})")
    return x.dim() == 2


def _check_mask(name: str, mask: Tensor | None, z: Tensor, single: bool) -> Tensor | None:
    """None where nothing is masked."""
    if mask is None:
        return None
    shape = tuple(z.shape[1:2] if single else z.shape[:2])
    given = (mask.dtype, tuple(mask.shape)) if isinstance(mask, Tensor) else type(mask).__name__
    require(given == (torch.bool, shape), name, given, f"a bool tensor of shape {shape}")
    mask = mask.to(z.device).view(z.shape[:2])
    return None if bool(mask.all()) else mask


def _check_weight(weight: Tensor | None, x: Tensor, single: bool) -> Tensor | None:
    if weight is None:
        return None
    shape = tuple(x.shape[1:2] if single else x.shape[:2])
    require(isinstance(weight, Tensor) and tuple(weight.shape) == shape, "weight", weight, f"a tensor of shape {shape}")
    ok = weight.isfinite() & (weight > 0)
    require(bool(ok.all()), "weight", weight[~ok][:1].tolist(), "positive and finite everywhere")
    return weight.to(x.device).view(x.shape[:2])


def _check_finite(name: str, norms: Tensor) -> None:
    finite = norms.isfinite()
    if bool(finite.all()):
        return
    sample, row = (int(i) for i in (~finite).nonzero()[0])
    where = f"row {row}" if norms.shape[0] == 1 else f"row {row} of sample {sample}"
    raise ValueError(f"{name} must be finite (and its norms within float32), got NaN, infinity or overflow in {where}")


def _counts(
    keep: Keep | list[int] | tuple[int, ...], x: Tensor, valid_x: Tensor | None
) -> tuple[list[int], float | None]:
    """How many tokens each sample keeps, and the energy target if there is one."""
    b, n, _ = x.shape
    sizes = [n] * b if valid_x is None else valid_x.sum(dim=1).tolist()
    require(
        min(sizes) > 0,
        "valid_x",
        f"no valid token in sample {sizes.index(min(sizes))}",
        "True somewhere in each sample",
    )
    if isinstance(keep, (list, tuple)):
        require(len(keep) == b, "keep", keep, f"one count for each of the {b} samples")
        budgets = [Budget(k) for k in keep]
    else:
        budgets = [Budget.of(keep)] * b
    return [budget.tokens(size) for budget, size in zip(budgets, sizes, strict=True)], budgets[0].energy
