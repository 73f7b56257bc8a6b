"""DIVE's loop as a Triton kernel (extra `triton`): float32, a batch of ragged samples, the state never leaves the device.

One program does all picks of a sample in one launch; beyond WHOLE tokens a pick is one launch of several programs a sample, each
of which finds the pick for itself and updates its own tokens. What one program writes and another reads in the same launch has
two copies, read and written in turn: alignments by pick, energies and C by update. The rule and its names: `core/gram.py`.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import triton
import triton.language as tl

from divevlm.core.gram import Picks, Problem, from_log
from divevlm.core.products import fill_gram
from divevlm.core.rule import Rule

WHOLE = 1024  # tokens up to which one program takes a sample
SHARE = 256  # tokens of a program beyond that
POOLED = 16  # pooled prompt tokens, unless they are all of them
FUSED, PROMPT, ENERGY = (tl.constexpr(kind) for kind in range(3))  # as in core/fused.py


@triton.jit
def _scores(e, r, weight, top, lam, tie, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """The scores, and what counts against the best: the scores with `tie` more energy. r is -inf for tokens that are gone."""
    phi = tl.where(r > -float("inf"), r, 0.0) / top
    if KIND == ENERGY:
        g = e * weight
        upper = (e + tie) * weight
    elif KIND == PROMPT:
        g = lam * phi
        upper = g + tie
    else:
        g = tl.where(e > 0, tl.log(tl.maximum(e, 1e-30)) + lam * phi, -float("inf"))
        upper = tl.log(e + tie) + lam * phi
    return tl.where(r > -float("inf"), g, -float("inf")), upper


@triton.jit
def _pick(E, R, weight, top, fresh, n, lam, tie, KIND: tl.constexpr, SCAN: tl.constexpr):  # type: ignore[no-untyped-def]
    """The pick among all tokens of a sample, its score, and the largest alignment (`top`, unless scores are fresh)."""
    lanes = tl.arange(0, SCAN)
    if fresh:
        most = tl.full([SCAN], -float("inf"), tl.float32)
        for begin in range(0, n, SCAN):
            i = begin + lanes
            most = tl.maximum(most, tl.load(R + i, mask=i < n, other=-float("inf")))
        top = tl.max(most, axis=0)
        top = tl.where(top > 0, top, 1.0)  # without text, and when every token is gone
    most = tl.full([SCAN], -float("inf"), tl.float32)
    for begin in range(0, n, SCAN):
        i = begin + lanes
        r = tl.load(R + i, mask=i < n, other=-float("inf"))
        e, w = tl.load(E + i, mask=i < n, other=0.0), tl.load(weight + i, mask=i < n, other=1.0)
        g, _ = _scores(e, r, w, top, lam, tie, KIND)
        most = tl.maximum(most, g)
    best = tl.max(most, axis=0)
    lowest = tl.full([SCAN], 2147483647, tl.int32)
    for begin in range(0, n, SCAN):
        i = begin + lanes
        r = tl.load(R + i, mask=i < n, other=-float("inf"))
        e, w = tl.load(E + i, mask=i < n, other=0.0), tl.load(weight + i, mask=i < n, other=1.0)
        _, upper = _scores(e, r, w, top, lam, tie, KIND)
        lowest = tl.where((r > -float("inf")) & (upper >= best), tl.minimum(lowest, i), lowest)
    # A sample whose tokens are all gone repeats its last one; what is beyond its count is cut off.
    return tl.minimum(tl.min(lowest, axis=0), n - 1), best, top


@triton.jit(do_not_specialize=["begin", "end", "n", "m", "d", "keep", "batch"])
def _loop(  # type: ignore[no-untyped-def]
    begin, end, E, R, C, pairs, start, scale, weight, soft, used, order, bests, tops, left,
    n, m, d, keep, batch, lam, eta, tie, floor,
    KIND: tl.constexpr, LAZY: tl.constexpr, TWO_SIDED: tl.constexpr, H: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, SCAN: tl.constexpr, REPLAY: tl.constexpr, WIDE: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Picks `begin` to `end` of a sample, and the updates that follow, of this program's share of its tokens."""
    sample = tl.program_id(0).to(tl.int64)
    part, parts = tl.program_id(1), tl.num_programs(1)
    lanes, rows, taus, wide = tl.arange(0, BLOCK), tl.arange(0, ROWS)[:, None], tl.arange(0, REPLAY), tl.arange(0, WIDE)
    words = tl.arange(0, WORDS)
    pairs += sample * keep * 2 * n
    weight += sample * n
    scale += sample * n
    for t in range(begin, end):
        u = tl.load(used + t)  # updates so far
        E_now, E_next = E + ((u % 2) * batch + sample) * n, E + (((u + 1) % 2) * batch + sample) * n
        R_now, R_next = R + ((t % 2) * batch + sample) * n, R + (((t + 1) % 2) * batch + sample) * n
        C_now, C_next = C + ((u % 2) * batch + sample) * m * n, C + (((u + 1) % 2) * batch + sample) * m * n
        fresh = (t == 0) | (u > tl.load(used + tl.maximum(t - 1, 0)))
        top = tl.load(tops + sample * keep + tl.maximum(t - 1, 0))
        s, best, top = _pick(E_now, R_now, weight, top, fresh, n, lam, tie, KIND, SCAN)
        if part == 0:
            tl.store(order + sample * keep + t, s)
            tl.store(bests + sample * keep + t, best)
            tl.store(tops + sample * keep + t, top)
        e_s = tl.load(E_now + s)
        inverse = tl.where(e_s > 0, 1 / tl.sqrt(tl.maximum(e_s, floor)), 0.0)
        update = tl.load(used + t + 1) > u
        for first in range(part * BLOCK, n, parts * BLOCK):
            i = first + lanes
            inside = i < n
            r = tl.load(R_now + i, mask=inside, other=0.0)
            if update:
                if LAZY:
                    column = tl.zeros([BLOCK], tl.float32)
                    for k in range(0, d, WIDE):
                        at = k + wide
                        x_s = tl.load(start + (sample * n + s) * d + at, mask=at < d, other=0.0).to(tl.float32)
                        x = start + (sample * n + i[:, None]) * d + at[None, :]
                        x = tl.load(x, mask=inside[:, None] & (at < d)[None, :], other=0.0).to(tl.float32)
                        column += tl.sum(x * x_s[None, :], axis=1)
                    column *= tl.load(scale + i, mask=inside, other=0.0) * tl.load(scale + s)
                else:
                    column = tl.load(start + (sample * n + s) * n + i, mask=inside, other=0.0)
                for tau in range(0, u, REPLAY):
                    at = tau + taus
                    m_s = tl.load(pairs + 2 * at * n + s, mask=at < u, other=0.0)
                    a_s = tl.load(pairs + (2 * at + 1) * n + s, mask=at < u, other=0.0)
                    at_m = pairs + 2 * at[:, None] * n + i[None, :]
                    there = inside[None, :] & (at < u)[:, None]
                    taken = a_s[:, None] * tl.load(at_m, mask=there, other=0.0)
                    taken += m_s[:, None] * tl.load(at_m + n, mask=there, other=0.0)
                    column -= tl.sum(taken, axis=0)
                b = tl.minimum(tl.maximum(column * inverse, -1.0), 1.0)
                a_i = eta * (b if TWO_SIDED else tl.maximum(b, 0.0))
                m_i = b - 0.5 * a_i
                tl.store(pairs + 2 * u * n + i, m_i, mask=inside)
                tl.store(pairs + (2 * u + 1) * n + i, a_i, mask=inside)
                e = tl.load(E_now + i, mask=inside, other=0.0) - 2 * m_i * a_i
                e = tl.where(e > floor, e, 0.0)
                tl.store(E_next + i, e, mask=inside)
                tl.store(left + (sample * keep + u) * tl.cdiv(n, BLOCK) + first // BLOCK, tl.sum(e, axis=0))
                pooled = tl.zeros([BLOCK], tl.float32)
                if KIND != ENERGY:
                    pool = tl.where(rows < H, tl.zeros([ROWS, BLOCK], tl.float32), float("inf"))  # the H largest so far
                    for j in range(0, m, WORDS):
                        word = j + words
                        p = tl.load(C_now + word * n + s, mask=word < m, other=0.0)
                        p = tl.minimum(tl.maximum(p * inverse, -1.0), 1.0)
                        w = eta * (p if TWO_SIDED else tl.maximum(p, 0.0))
                        v = p - 0.5 * w
                        cell = word[:, None] * n + i[None, :]
                        there = (word < m)[:, None] & inside[None, :]
                        c = tl.load(C_now + cell, mask=there, other=0.0)
                        c -= w[:, None] * m_i[None, :] + v[:, None] * a_i[None, :]
                        tl.store(C_next + cell, c, mask=there)
                        if H == 0:  # all of them
                            pooled += tl.sum(tl.maximum(c, 0.0), axis=0)
                        for _ in tl.static_range(H):
                            high, spot = tl.max(c, axis=0), tl.argmax(c, axis=0)
                            least, place = tl.min(pool, axis=0), tl.argmin(pool, axis=0)
                            pool = tl.where((rows == place[None, :]) & (high > least)[None, :], high[None, :], pool)
                            c = tl.where(words[:, None] == spot[None, :], -float("inf"), c)
                    if H > 0:
                        pooled = tl.sum(tl.where(rows < H, pool, 0.0), axis=0)
                    pooled = tl.load(soft + sample) + tl.where(e > 0, pooled / tl.sqrt(tl.maximum(e, floor)), 0.0)
                r = tl.where(r > -float("inf"), pooled, r)
            tl.store(R_next + i, tl.where(i == s, -float("inf"), r), mask=inside)
        tl.debug_barrier()  # the next pick reads what other threads of this program wrote


def interpreted() -> bool:
    """Does Triton run in Python, on a CPU?"""
    return not isinstance(_loop, triton.runtime.JITFunction)


def kernel_picks(
    problem: Problem, way: Literal["gram", "picked"], whole: int = WHOLE, share: int = SHARE, tile: int | None = None
) -> Picks:
    """All picks. whole: tokens up to which one program takes a sample; share: tokens of a program beyond that;
    tile: rows at a time (None: so many that a program's numbers fit into its registers)."""
    arguments, options = prepared(problem, way, whole, share, tile)
    b, n, keep = len(problem.x), problem.x.shape[1], problem.keep
    if n > whole:
        for t in range(keep):
            _loop[(b, triton.cdiv(n, options["BLOCK"]))](t, t + 1, *arguments.values(), **options)
    else:
        _loop[(b, 1)](0, keep, *arguments.values(), **options)
    scores, used = arguments["bests"], arguments["used"].long()
    if problem.logs:
        scores = from_log(scores - problem.rule.lam * problem.soft / arguments["tops"])
    left = torch.cat([problem.energy.sum(dim=1, keepdim=True), arguments["left"].sum(dim=2)], dim=1)[:, used]
    return Picks(arguments["order"], scores, left)


def prepared(
    problem: Problem, way: str, whole: int, share: int, tile: int | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments and options of the launches."""
    rule, keep, e = problem.rule, problem.keep, problem.energy
    b, n, d = problem.x.shape
    texts = problem.cross.shape[1] if problem.logs else 0
    block = share if n > whole else min(max(triton.next_power_of_2(n), 16), 1024)
    h = min(rule.top_h, texts)
    E, R, C = e.new_zeros(2, b, n), e.new_zeros(2, b, n), e.new_empty(2, b, texts, n)
    E[0] = torch.threshold(e, problem.floor, 0)
    if texts:
        C[0] = problem.cross
        pooled = problem.cross.topk(h, dim=1).values.clamp_min_(0).sum(dim=1)
        R[0] = problem.soft + pooled * E[0].rsqrt().nan_to_num_(posinf=0)
    if problem.padding is not None:
        R[0].masked_fill_(problem.padding, -torch.inf)
    start = problem.x.contiguous()
    if way == "gram":
        start = e.new_empty(b, n, n)
        for i in range(b):
            fill_gram(start[i], problem.x[i], problem.scale[i])
    steps = rule.update_steps(keep)
    used = torch.tensor([0, *(t in steps for t in range(keep))], dtype=torch.int32, device=e.device).cumsum(0)
    arguments = {
        "E": E, "R": R, "C": C, "pairs": e.new_empty(b, keep, 2, n), "start": start, "scale": problem.scale,
        "weight": torch.ones_like(e) if problem.weight is None else problem.weight.contiguous(),
        "soft": problem.soft, "used": used.int(), "order": torch.empty(b, keep, dtype=torch.long, device=e.device),
        "bests": e.new_empty(b, keep), "tops": e.new_ones(b, keep),
        "left": e.new_zeros(b, keep, triton.cdiv(n, block)),
        "n": n, "m": texts, "d": d, "keep": keep, "batch": b,
        "lam": float(rule.lam), "eta": float(rule.eta), "tie": problem.tie, "floor": problem.floor,
    }  # fmt: skip
    tile = tile or (16 if n > whole else 8)
    kind = ENERGY if not problem.logs else FUSED if rule.score == "fused" else PROMPT
    options = {
        "KIND": kind.value, "LAZY": way == "picked", "TWO_SIDED": rule.two_sided, "H": 0 if h == texts else h,
        "ROWS": 1 if h == texts else triton.next_power_of_2(h), "BLOCK": block,
        "SCAN": min(max(triton.next_power_of_2(n), 16), 1024), "REPLAY": tile, "WIDE": 8, "WORDS": tile,
        "num_warps": 4 if n > whole else 8,
    }  # fmt: skip
    return arguments, options


def cannot(rule: Rule, texts: int, dtype: torch.dtype, trace: bool) -> str:
    """Why the kernel can't do this; empty where it can."""
    if dtype != torch.float32:
        return "with float64 states"
    if trace:
        return "with trace=True"
    if rule.feedback == "all" and rule.updates is not None:
        return "with feedback='all'"
    return f"with more than {POOLED} pooled words of {texts}" if POOLED < rule.top_h < texts else ""
