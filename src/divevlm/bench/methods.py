"""What each method's selection costs, on the same made-up signals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from divevlm.bench.selection import SelectionShape, states
from divevlm.bench.timing import interleaved
from divevlm.budget import Budget
from divevlm.experiments.loading import machine
from divevlm.methods import METHODS, Method
from divevlm.methods.base import Signals, Vision

SHAPES = (SelectionShape(576, 4096, 40, 64), SelectionShape(2880, 4096, 60, 320))
TOWER = 1024  # width of the tower's features
HEADS = 32
YARDSTICK = "dive"


def signals(shape: SelectionShape) -> Signals:
    """Everything that any method may ask for. Five squares' worth of tokens are a base view and the mosaic of four tiles."""
    gen = torch.Generator().manual_seed(1)
    n, m = shape.n, shape.m
    x, q = (z[0] for z in states(shape))
    weight = torch.randn(TOWER, shape.d, generator=gen) / math.sqrt(TOWER)
    view, tile, cells = places(n)
    vision = Vision(
        tile=tile,
        saliency=torch.rand(n, generator=gen),
        first_saliency=torch.rand(n, generator=gen),
        keys=torch.randn(n, 64, generator=gen),
        features=states(SelectionShape(n, TOWER, 1, 1))[0][0],
        cls=torch.randn(int(tile.max()) + 1, TOWER, generator=gen),
        project=lambda rows: rows @ weight,
    )
    return Signals(
        visual=x,
        text=q,
        cells=cells,
        budget=Budget(shape.keep),
        views=view,
        total=n,
        hidden=x,
        ids=torch.arange(m),
        later=torch.arange(m) > m // 4,
        attention=torch.softmax(torch.randn(HEADS, m, n, generator=gen), dim=-1),
        visual_keys=x,
        text_keys=q,
        visual_embeds=x,
        text_embeds=q,
        vision=vision,
    )


def places(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """View [n], tile [n] and cell [n, 3] of each token."""
    side = math.isqrt(n // 5)
    if 5 * side * side != n:
        rows = next(r for r in range(math.isqrt(n), 0, -1) if n % r == 0)
        return torch.zeros(n, dtype=torch.long), torch.zeros(n, dtype=torch.long), _grid(rows, n // rows)
    mosaic = _grid(2 * side, 2 * side)
    tile = 1 + mosaic[:, 1] // side * 2 + mosaic[:, 2] // side
    base = torch.zeros(side * side, dtype=torch.long)
    return (
        torch.cat([base, base.new_ones(len(mosaic))]),
        torch.cat([base, tile]),
        torch.cat([_grid(side, side), mosaic]),
    )


def _grid(rows: int, columns: int) -> Tensor:
    cells = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
    return torch.cat([torch.zeros(len(cells), 1, dtype=torch.long), cells], dim=1)


def contenders(names: Sequence[str], keep: int, several: bool) -> dict[str, Method]:
    """Those asked for, and the yardstick. Of several views the DPP is timed on all of them together, too."""
    methods = {name: METHODS.get(name)(keep=keep) for name in dict.fromkeys([YARDSTICK, *names])}
    if several and "cdpruner" in methods:
        methods["cdpruner, views together"] = METHODS.get("cdpruner")(keep=keep, apart=False)  # type: ignore[call-arg]
    return methods


def measure(
    names: Sequence[str],
    shapes: Sequence[SelectionShape] = SHAPES,
    rounds: int = 9,
    tick: Callable[..., object] = lambda text, share=None: None,
) -> dict[str, Any]:
    """One row for each shape and method: milliseconds, and how that compares to DIVE."""
    rows = []
    for shape in shapes:
        given = signals(shape)
        assert given.views is not None
        methods = contenders(names, shape.keep, len(given.views.unique()) > 1)
        runs = {name: partial(method.select, [given], [shape.keep]) for name, method in methods.items()}
        for name, run in runs.items():  # what is compiled or loaded at first use
            run()
            tick(f"{shape} {name}")
        seconds, results = interleaved(
            runs,
            dict.fromkeys(runs, rounds),
            lambda name, share, shape=shape: tick(f"{shape} {name}", share),  # type: ignore[misc]
        )
        rows += [
            {
                "shape": str(shape),
                "method": name,
                "ms": seconds[name] * 1e3,
                "of_dive": seconds[name] / seconds[YARDSTICK],
                "kept": len(results[name][0]),
                "cost": methods[name].cost,
            }
            for name in runs
        ]
    return {"machine": machine(), "columns": "N, d, M, K", "rounds": rounds, "rows": rows}
