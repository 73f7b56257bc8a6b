"""Random signals of the shapes that the engine gathers."""

from dataclasses import fields, replace

import torch

from divevlm.budget import Budget
from divevlm.methods import METHODS
from divevlm.methods.base import Signals, Vision

# A smaller image is chosen before there are any tokens: that is for the engine's tests.
COMPARED = [name for name in METHODS if not name.startswith("dive") and name != "downsample"]
MERGING = [name for name in COMPARED if METHODS.get(name).merges]
# The spec claims that these see tokens as a set; VisionZip's targets, ToMe, HoloV's runs and the lattices depend on order.
SETS = ("fastv", "pdrop", "dart", "mmtok", "cdpruner", "scope", "hired", "resprune", "farthest")


def cells_of(rows, columns, frame=0):
    grid = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
    return torch.cat([torch.full((len(grid), 1), frame), grid], dim=1)


def plain(rows=6, columns=6, *, d=16, m=7, heads=4, seed=0, pools=False, cls=True, dtype=torch.float32):
    """One view of rows x columns tokens. pools: as in Qwen, no way from the tower's rows to single tokens, and no CLS."""
    gen = torch.Generator().manual_seed(seed)

    def rand(*shape):
        return torch.randn(*shape, generator=gen)

    n = rows * columns
    weight = rand(10, d)
    features, hidden, text = rand(n, 10), rand(n, d), rand(m, d)
    vision = Vision(
        tile=torch.zeros(n, dtype=torch.long),
        saliency=torch.softmax(rand(n), 0),
        first_saliency=torch.softmax(rand(n), 0),
        keys=rand(n, 5),
        features=features,
        cls=None if pools or not cls else rand(1, 10),
        project=None if pools else lambda some: some @ weight,
    )
    return Signals(
        visual=hidden.to(dtype),
        text=text.to(dtype),
        cells=cells_of(rows, columns),
        budget=Budget(1),
        views=torch.zeros(n, dtype=torch.long),
        total=n,
        hidden=hidden.to(dtype),
        ids=torch.arange(m) + 3,
        later=torch.arange(m) >= 2,
        attention=torch.softmax(rand(heads, m, n), -1),
        visual_keys=rand(n, 12),
        text_keys=rand(m, 12),
        visual_embeds=hidden.to(dtype),
        text_embeds=text.to(dtype),
        vision=vision,
    )


def tiled(tile_rows=2, tile_columns=2, side=4, **settings):
    """A base view, then the mosaic of its tiles in reading order."""
    n = side * side * (1 + tile_rows * tile_columns)
    signals = plain(n, 1, **settings)
    mosaic = cells_of(side * tile_rows, side * tile_columns)
    tile = 1 + mosaic[:, 1] // side * tile_columns + mosaic[:, 2] // side
    signals.cells = torch.cat([cells_of(side, side), mosaic])
    signals.views = torch.cat([torch.zeros(side * side), torch.ones(len(mosaic))]).long()
    signals.vision.tile = torch.cat([torch.zeros(side * side).long(), tile])
    if signals.vision.cls is not None:
        signals.vision.cls = torch.randn(1 + tile_rows * tile_columns, 10, generator=torch.Generator().manual_seed(5))
    return signals


def frames(count=4, side=3, **settings):
    """A clip: pooled rows, no CLS, one view."""
    signals = plain(count * side * side, 1, pools=True, **settings)
    signals.cells = torch.cat([cells_of(side, side, frame) for frame in range(count)])
    return signals


def permuted(signals, order):
    return signals.of(order)


def without(signals, *names):
    """The same with signals missing."""
    own = {name: None for name in names if name in {f.name for f in fields(Signals)}}
    seen = {name: None for name in names if name in {f.name for f in fields(Vision)}}
    return replace(signals, **own, vision=replace(signals.vision, **seen) if signals.vision else None)


def choose(method, signals, keep):
    (selection,) = method.select([signals], [keep])
    return selection
