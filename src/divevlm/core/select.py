"""`select`: tensors in, picks out. Checks the input, prepares it and runs one of the loops."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from shutil import which
from typing import Literal

import torch
from torch import Tensor

from divevlm.budget import Budget
from divevlm.checks import require, yes_or_no
from divevlm.core import inputs
from divevlm.core.columns import Way, cheaper
from divevlm.core.eager import Eager
from divevlm.core.gram import Picks, Problem, run
from divevlm.core.graph import graph_picks
from divevlm.core.products import fill_product, reduced, row_norms
from divevlm.core.rule import EPS, Rule
from divevlm.core.selection import Selection, Selections

Name = Literal["auto", "eager", "graph", "fused", "triton"]
LOOPS = ("auto", "eager", "graph", "fused", "triton")
Keep = int | float | Budget


@torch.no_grad()
def select(
    x: Tensor,
    q: Tensor,
    keep: Keep | Sequence[int],
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
    loop: Name = "auto",
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
    loop      "eager" torch; the same as a CUDA "graph"; "fused" by numba (CPU, extra `fast`); "triton" (CUDA, extra `triton`);
              "auto": fused on a CPU, triton or else graph on CUDA, eager where those can't. `Selection.loop` says which ran
    trace     record scores, alignments and energies of every step
    check     refuse NaN and infinity, naming the row; False takes such rows for zeros (and never waits for the device)

    Zero rows have no energy and are picked last, in input order. Identical rows share their energy: after the first,
    the others have only what feedback left them. Scores that the precision can't tell apart go to the lower index.
    """
    rule = Rule(lam, eta, top_h, updates, feedback, score, two_sided, normalize)
    require(columns in ("auto", "gram", "picked"), "columns", columns, "'auto', 'gram' or 'picked'")
    require(loop in LOOPS, "loop", loop, f"one of {', '.join(LOOPS)}")
    yes_or_no("trace", trace)
    yes_or_no("check", check)
    single = inputs.states(x, q)
    if single:
        x, q = x[None], q[None]
    valid_x = inputs.mask("valid_x", valid_x, x, single)
    valid_q = inputs.mask("valid_q", valid_q, q, single)
    weight = inputs.weight(weight, x, single)
    counts, until = inputs.counts(keep, x, valid_x)

    call = _Call(rule, columns, loop, until, trace, check)
    items: list[Selection] = []
    with torch.autocast(x.device.type, enabled=False):
        for part in _parts(x, counts, rule):
            mask_x, mask_q, factors = (None if z is None else z[part] for z in (valid_x, valid_q, weight))
            items += _run(x[part], q[part], mask_x, mask_q, factors, counts[part], call)
    return items[0] if single else Selections(items)


@dataclass(frozen=True)
class _Call:
    """The settings of a call."""

    rule: Rule
    way: Way
    loop: Name
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
    precision = torch.promote_types(torch.promote_types(x.dtype, q.dtype), torch.float32)  # of the results
    loop = _loop(call, x, q.shape[1], precision)
    working = torch.float64 if loop != "triton" and reduced(x.device) else precision
    largest = 1.0 if weight is None else weight.amax(dim=1, keepdim=True)
    factors = None if weight is None else (weight / largest).to(working)

    x, norms = _measured("x", x, valid_x, working, precision, call.check)
    q, query_norms = _measured("q", q, valid_q, working, precision, call.check)
    problem = _problem(x, norms, q, query_norms, valid_x, valid_q, factors, max(counts), call)
    picks, loop = _picks(problem, loop, call)

    scores = picks.scores.mul(largest).clamp_max_(torch.finfo(precision).max).to(precision)
    picks = replace(picks, scores=scores, left=picks.left.to(precision))
    return [replace(selection, loop=loop) for selection in _selections(picks, counts, call.until)]


def _measured(
    name: str, z: Tensor, valid: Tensor | None, working: torch.dtype, precision: torch.dtype, check: bool
) -> tuple[Tensor, Tensor]:
    """Rows, padding as zeros, and their norms in the working dtype. Not checked, a row without a norm counts as zeros."""
    z = z if valid is None else z.masked_fill(~valid[..., None], 0)
    norms = row_norms(z, working)
    if check:
        inputs.finite(name, norms, precision)
        return z, norms
    bad = inputs.too_long(norms, precision)
    return z.masked_fill(bad[..., None], 0), norms.masked_fill(bad, 0)


def _problem(
    x: Tensor,
    norms: Tensor,
    q: Tensor,
    query_norms: Tensor,
    valid_x: Tensor | None,
    valid_q: Tensor | None,
    weight: Tensor | None,
    keep: int,
    call: _Call,
) -> Problem:
    """Start values: unit rows or (not normalised) rows in units of the longest, and their products with the prompt's."""
    rule, (batch, texts) = call.rule, q.shape[:2]
    longest = norms if rule.normalize else norms.amax(dim=1, keepdim=True).expand_as(norms)
    scale, query_scale = longest.clamp_min(EPS).reciprocal(), query_norms.clamp_min(EPS).reciprocal()
    uses_prompt = weight is None and (rule.lam != 0 or call.trace)
    cross = scale.new_empty(batch, texts if uses_prompt else 0, x.shape[1])
    if uses_prompt:
        for i in range(batch):
            fill_product(cross[i], q[i], x[i], query_scale[i], scale[i])
    words = torch.full_like(norms[:, :1], texts) if valid_q is None else valid_q.sum(1, keepdim=True).to(norms.dtype)
    return Problem(
        x=x,
        scale=scale,
        energy=(norms * scale).square_(),
        query_energy=(query_norms * query_scale).square_(),
        cross=cross,
        pooled=words.clamp_(1, min(rule.top_h, max(texts, 1))),
        padding=None if valid_x is None else ~valid_x,
        weight=weight,
        keep=keep,
        rule=rule,
    )


def _picks(problem: Problem, loop: str, call: _Call) -> tuple[Picks, str]:
    """All picks, and the loop that ran: a shape that a graph does not know yet runs eagerly."""
    _, n, d = problem.x.shape
    way = cheaper(n, d, problem.keep, problem.x.device.type) if call.way == "auto" else call.way
    if loop == "triton":
        from divevlm.core.kernel import kernel_picks

        return kernel_picks(problem, way), loop
    if loop == "graph":
        picks, captured = graph_picks(problem, way)
        return picks, "graph" if captured else "eager"
    if loop == "fused":
        from divevlm.core.fused import Fused

        return run(Fused(problem, way), problem, trace=call.trace, until=call.until), loop
    return run(Eager(problem, way), problem, trace=call.trace, until=call.until), loop


def _loop(call: _Call, x: Tensor, texts: int, dtype: torch.dtype) -> str:
    """The loop to run: the one asked for, or the fastest that is possible."""
    cannot = {
        "fused": lambda: _no_fused(x),
        "triton": lambda: _no_triton(call, x, texts, dtype),
        "graph": lambda: f"on {x.device.type}" if x.device.type != "cuda" else "with trace=True" if call.trace else "",
    }
    if call.loop in cannot:
        why = cannot[call.loop]()
        require(not why, "loop", call.loop, f"'eager' or 'auto' {why}")
        return call.loop
    order = ("triton", "graph") if x.device.type == "cuda" else ("fused",)
    return next((name for name in order if call.loop == "auto" and not cannot[name]()), "eager")


def _no_fused(x: Tensor) -> str:
    if x.device.type != "cpu" or x.shape[0] != 1:
        return f"on {x.device.type}"
    return "" if find_spec("numba") else "without numba (pip install 'divevlm[fast]')"


def _no_triton(call: _Call, x: Tensor, texts: int, dtype: torch.dtype) -> str:
    if not find_spec("triton"):
        return "without Triton (pip install 'divevlm[triton]')"
    from divevlm.core.kernel import cannot, interpreted

    if x.device.type != "cuda" and not interpreted():
        return f"on {x.device.type}, unless Triton interprets (TRITON_INTERPRET=1)"
    if not interpreted() and not (os.environ.get("CC") or which("gcc") or which("clang")):
        return "without a C compiler, which Triton needs at its first launch"
    return cannot(call.rule, texts, dtype, call.trace)


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
