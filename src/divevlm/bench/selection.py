"""What selection costs: Algorithm 1 as printed, the Gram-space paths, and the one product X X^T as the floor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from divevlm.bench.timing import interleaved, peak_bytes
from divevlm.core.reference import Residuals, reference_select
from divevlm.core.select import select
from divevlm.experiments.loading import machine


@dataclass(frozen=True)
class SelectionShape:
    n: int
    d: int
    m: int
    keep: int
    batch: int = 1

    def __str__(self) -> str:
        return f"{f'{self.batch} x ' * (self.batch > 1)}({self.n}, {self.d}, {self.m}, {self.keep})"


BLOCKS = 32  # of a 7B language model

SHAPES = (
    SelectionShape(576, 4096, 40, 64),
    SelectionShape(576, 4096, 40, 192),
    SelectionShape(2880, 4096, 60, 160),
    SelectionShape(2880, 4096, 60, 320),
    SelectionShape(6272, 3584, 60, 940),
    SelectionShape(576, 4096, 40, 64, batch=8),
)


class InPlace(Residuals):
    """The printed form with its temporaries taken out: the strictest baseline that still rewrites X at every step."""

    def feed_back(self, s: int) -> None:
        u = self.x[s] / self.x[s].norm()
        b, p = self.x @ u, self.q @ u
        a, w = self.rule.eta * b.clamp_min(0), self.rule.eta * p.clamp_min(0)
        self.x.addr_(a, u, alpha=-1)
        self.q.addr_(w, u, alpha=-1)
        self.cross.addr_(w, b - a, alpha=-1).addr_(p, a, alpha=-1)


def states(shape: SelectionShape, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Groups of near-duplicates around a common direction, as visual states are; a prompt near one of the groups."""
    gen = torch.Generator().manual_seed(seed)
    centres = torch.randn(40, shape.d, generator=gen) + torch.randn(shape.d, generator=gen)
    group = torch.randint(40, (shape.batch, shape.n), generator=gen)
    x = centres[group] + 0.5 * torch.randn(shape.batch, shape.n, shape.d, generator=gen)
    return x, centres[0] + torch.randn(shape.batch, shape.m, shape.d, generator=gen)


def contenders(shape: SelectionShape, device: str = "cpu") -> dict[str, Callable[[], Any]]:
    x, q = (z.to(place(device)) for z in states(shape))
    keep = shape.keep
    if shape.batch > 1:
        return {
            "one by one": lambda: [select(a, b, keep) for a, b in zip(x, q, strict=True)],
            "batch": partial(select, x, q, keep),
        }
    x, q = x[0], q[0]
    runs: dict[str, Callable[[], Any]] = {
        "floor": lambda: x @ x.T,
        "reference": partial(reference_select, x, q, keep),
    }
    if device != "cpu":
        loops = ("eager", "graph", "triton") if find_spec("triton") else ("eager", "graph")
        return runs | {loop: partial(select, x, q, keep, loop=loop) for loop in loops}  # type: ignore[arg-type]
    runs |= {
        "in place": partial(reference_select, x, q, keep, residuals=InPlace),
        "fast": partial(select, x, q, keep),
        "gram": partial(select, x, q, keep, columns="gram"),
        "picked": partial(select, x, q, keep, columns="picked"),
    }
    if find_spec("numba"):
        runs["eager gram"] = partial(select, x, q, keep, columns="gram", loop="eager")
        runs["eager picked"] = partial(select, x, q, keep, columns="picked", loop="eager")
    return runs


def place(device: str) -> torch.device:
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device must be cpu where torch finds no GPU, got 'cuda'")
    return torch.device(device)


def settled(run: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """A GPU works on after the call returns: wait for it."""

    def whole() -> Any:
        result = run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return result

    return whole


def prefill(
    tokens: int, device: torch.device, width: int = 4096, inner: int = 11008, heads: int = 32
) -> Callable[[], Any]:
    """One of the 32 blocks of a 7B Llama over a prompt of `tokens`, random weights, in bfloat16 on a GPU."""
    new = partial(torch.randn, device=device, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32)
    attend, out, rise, fall = (
        new(*size) * 0.01 for size in ((width, 3 * width), (width, width), (width, 2 * inner), (inner, width))
    )
    x = new(tokens, width)

    def block() -> Tensor:
        q, k, v = (z.unflatten(-1, (heads, -1)).transpose(0, 1) for z in (x @ attend).chunk(3, dim=-1))
        mixed = (
            x
            + torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
            .transpose(0, 1)
            .flatten(1)
            @ out
        )
        gate, up = (mixed @ rise).chunk(2, dim=-1)
        return mixed + (torch.nn.functional.silu(gate) * up) @ fall

    return block


def measure(
    shapes: Sequence[SelectionShape] = SHAPES,
    rounds: int = 9,
    slow_rounds: int = 3,
    device: str = "cpu",
    tick: Callable[..., object] = lambda text, share=None: None,
) -> dict[str, Any]:
    """One row for each shape and contender: seconds, ratio to reference and floor, peak memory, picks equal to float64's."""
    rows = []
    for shape in shapes:
        target = place(device)
        runs = {name: settled(run, target) for name, run in contenders(shape, device).items()}
        if device != "cpu":
            runs["block"] = settled(prefill(shape.n + shape.m, target), target)
            for run in (
                *runs.values(),
                *runs.values(),
            ):  # what is compiled at first use; graphs are captured at the second
                run()
        # `slow_rounds` of the slow baselines at most; where these take minutes, one, and three of the others.
        long = shape.n * shape.d * shape.keep > 1e10
        slow = 1 if long else min(rounds, slow_rounds)
        times = {
            name: slow if name in ("reference", "in place") else min(rounds, 3) if long else rounds for name in runs
        }
        seconds, results = interleaved(runs, times, lambda name, share, shape=shape: tick(f"{shape} {name}", share))  # type: ignore[misc]
        whole = BLOCKS * seconds.pop("block", 0.0)  # seconds of a 7B prefill
        runs.pop("block", None)
        x, q = (z if shape.batch > 1 else z[0] for z in states(shape))
        # Not the float32 reference's picks: over many steps its rounding may lead to others.
        expected = _orders(select(x.double(), q.double(), shape.keep))
        for name, run in runs.items():
            row: dict[str, Any] = {"shape": str(shape), "path": name, "ms": seconds[name] * 1e3, "runs": times[name]}
            if shape.batch == 1:
                row["over_reference"] = seconds["reference"] / seconds[name]
                row["of_floor"] = seconds[name] / seconds["floor"]
            else:
                row["ms_per_sample"] = row["ms"] / shape.batch
            if whole:
                row["of_prefill"] = seconds[name] / (whole * shape.batch)
            if name != "floor":
                row["same_picks"] = _orders(results[name]) == expected
                if name not in ("reference", "in place") and device == "cpu":
                    row["peak_over_n2"] = peak_bytes(run) / (4 * shape.n**2)
            rows.append(row)
            tick(f"{shape} memory")
    described = machine() | ({} if device == "cpu" else {"gpu": torch.cuda.get_device_name()})
    return {"machine": described, "columns": "N, d, M, K", "rounds": rounds, "rows": rows}


def _orders(result: Any) -> list[list[int]]:
    return [picks.order.tolist() for picks in ([result] if hasattr(result, "left") else result)]
