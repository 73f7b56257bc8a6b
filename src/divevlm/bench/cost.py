"""What selection should take on a GPU, from published figures of the cards: a model, not a measurement.

python -m divevlm.bench.cost
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from divevlm.bench.selection import SelectionShape
from divevlm.core.columns import cheaper

DISPATCH = 5e-6  # seconds from one torch operation to the next, called from Python
NODE = 1.5e-6  # from one node of a CUDA graph to the next
LAUNCH = 10e-6  # from one Triton kernel to the next, called from Python
TURN = 0.7e-6  # one round of loads that wait for the second-level cache, and what is done with them
OPERATIONS = 20  # of the eager loop, a pick
PAPER = 13.6  # ms that feedback adds to the paper's prefill at K = 64
SHAPES = (
    SelectionShape(576, 4096, 40, 64),
    SelectionShape(576, 4096, 40, 192),
    SelectionShape(2880, 4096, 60, 160),
    SelectionShape(2880, 4096, 60, 320),
    SelectionShape(16384, 3584, 60, 2048),
)


@dataclass(frozen=True)
class Card:
    name: str
    memory: float  # bytes a second
    float32: float  # operations a second, without tensor cores
    multiprocessors: int
    clock: float
    cache: float  # second level, bytes

    @property
    def one(self) -> float:
        """Bytes a second between one multiprocessor and the second-level cache: 64 a cycle."""
        return 64 * self.clock


CARDS = (
    Card("RTX 3090", 936e9, 35.6e12, 82, 1.70e9, 6e6),
    Card("A100 80 GB", 2039e9, 19.5e12, 108, 1.41e9, 40e6),
    Card("H100 SXM", 3350e9, 67e12, 132, 1.83e9, 50e6),
)


def start(shape: SelectionShape, card: Card) -> float:
    """Seconds of the start products, in float32, at 60 % of the card's rate (G), or bound by reading X (columns)."""
    n, d = shape.n, shape.d
    cross = 2 * shape.m * n * d / (0.6 * card.float32)
    if cheaper(n, d, shape.keep, "cuda") == "gram":
        return cross + 2 * n * n * d / (0.6 * card.float32)
    return cross + shape.keep * n * d * 4 / (0.8 * card.memory)


def bytes_a_pick(shape: SelectionShape) -> float:
    """On average: C read and written, half of all pairs, a column of G, energies and alignments three times over."""
    return 4 * shape.n * (2 * shape.m + shape.keep + 1 + 8)


def loop(shape: SelectionShape, card: Card, kind: str) -> float:
    """Seconds of all picks."""
    n, m, keep = shape.n, shape.m, shape.keep
    moved = bytes_a_pick(shape)
    if kind in ("eager", "graph"):
        return keep * (OPERATIONS * (DISPATCH if kind == "eager" else NODE) + moved / (0.8 * card.memory))
    split = n > 1024
    tile, programs = (16, -(-n // 256)) if split else (8, 1)
    turns = -(-m // tile) + keep / 2 / tile + 3 * -(-n // 1024) + 3
    rate = card.one * min(programs, card.multiprocessors)
    if moved > card.cache:
        rate = min(rate, 0.8 * card.memory)
    busy = turns * TURN + moved / rate
    return keep * max(busy + 2e-6, LAUNCH) if split else keep * busy + LAUNCH


def launches(shape: SelectionShape, kind: str) -> int:
    if kind == "triton":
        return shape.keep if shape.n > 1024 else 1
    return OPERATIONS * shape.keep


def table() -> str:
    lines = ["| (N, d, M, K) | card | start products | eager | graph | Triton |", "|---|---|---|---|---|---|"]
    for shape in SHAPES:
        for card in CARDS:
            cells = [f"{1e3 * loop(shape, card, kind):.1f} ms" for kind in ("eager", "graph", "triton")]
            lines.append(f"| {shape} | {card.name} | {1e3 * start(shape, card):.1f} ms | {' | '.join(cells)} |")
    lines += [
        "",
        "| (N, d, M, K) | launches: eager and graph | Triton | MB a pick | MB of C, pairs, G |",
        "|---|---|---|---|---|",
    ]
    for shape in SHAPES:
        held = 4 * shape.n * (2 * shape.m + 2 * shape.keep + shape.n) / 1e6
        counts = f"{launches(shape, 'eager')} | {launches(shape, 'triton')}"
        lines.append(f"| {shape} | {counts} | {bytes_a_pick(shape) / 1e6:.2f} | {held:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
