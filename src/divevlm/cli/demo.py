"""divevlm demo: selection on a drawn scene, shown in the terminal. (An embedded model will take its place.)"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import torch
from torch import Tensor

from divevlm.core.metrics import redundancy
from divevlm.core.select import select

SIDE, KEEP = 24, 16
COLOURS = {"sky": (0.55, 0.75, 0.95), "grass": (0.35, 0.65, 0.3), "house": (0.75, 0.3, 0.2), "sun": (0.98, 0.85, 0.2),
           "tree": (0.1, 0.4, 0.15), "cat": (0.15, 0.15, 0.2)}  # fmt: skip
LETTERS = {"sky": ".", "grass": ",", "house": "h", "sun": "o", "tree": "t", "cat": "c"}
QUESTION = "where is the cat ?"


def scene() -> tuple[list[str], Tensor, Tensor]:
    """What each of 24 x 24 patches shows, their states [576, 64], and those of a prompt that asks for the cat [4, 64]."""
    names = []
    for row in range(SIDE):
        for column in range(SIDE):
            name = "sky" if row < 13 else "grass"
            name = "house" if 8 <= row < 18 and 3 <= column < 11 else name
            name = "sun" if (row - 3) ** 2 + (column - 19) ** 2 <= 5 else name
            name = "tree" if 9 <= row < 19 and 14 <= column < 17 else name
            name = "cat" if 19 <= row < 21 and 19 <= column < 21 else name
            names.append(name)
    gen = torch.Generator().manual_seed(0)
    kinds = {name: torch.randn(64, generator=gen) for name in COLOURS}
    place = torch.randn(2, 64, generator=gen)
    grid = torch.cartesian_prod(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE))
    x = (
        torch.stack([kinds[name] for name in names])
        + 0.3 * grid @ place
        + 0.2 * torch.randn(SIDE**2, 64, generator=gen)
    )
    return names, x, 0.5 * kinds["cat"] + torch.randn(len(QUESTION.split()), 64, generator=gen)


def add(commands: Any) -> None:
    demo = commands.add_parser("demo", help="selection on a drawn scene, no model and no download")
    demo.add_argument("--json", action="store_true", help="print one JSON object instead of the pictures")
    demo.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    names, x, q = scene()
    found = {"static top-K (scores frozen at the start)": select(x, q, KEEP, updates=0), "DIVE": select(x, q, KEEP)}
    rows = []
    for method, picks in found.items():
        kept: list[int] = picks.indices.tolist()  # type: ignore[union-attr]
        shows = sorted({names[i] for i in kept})
        rows.append({"method": method, "kept": kept, "shows": shows, "redundancy": redundancy(x, torch.tensor(kept))})
    if options.json:
        print(json.dumps({"question": QUESTION, "tokens": SIDE**2, "keep": KEEP, "rows": rows}))
        return
    print(f"A drawn scene of {SIDE} x {SIDE} = {SIDE**2} visual tokens. Prompt: {QUESTION!r}. Keep {KEEP}.\n")
    for row in rows:
        print(f"{row['method']}: keeps {', '.join(row['shows'])}; redundancy {row['redundancy']:.2f}")  # type: ignore[arg-type]
        print(picture(names, row["kept"]) + "\n")  # type: ignore[arg-type]


def picture(names: list[str], kept: list[int]) -> str:
    """One cell a token: coloured blocks on a terminal, letters in a pipe; kept tokens are marked."""
    colour = sys.stdout.isatty()
    lines = []
    for row in range(SIDE):
        cells = []
        for i in range(row * SIDE, (row + 1) * SIDE):
            r, g, b = (int(255 * v) for v in COLOURS[names[i]])
            mark = "[]" if i in kept else "  "
            plain = f"[{LETTERS[names[i]]}]" if i in kept else f" {LETTERS[names[i]]} "
            cells.append(f"\x1b[48;2;{r};{g};{b}m\x1b[97;1m{mark}\x1b[0m" if colour else plain)
        lines.append("".join(cells))
    return "\n".join(lines)
