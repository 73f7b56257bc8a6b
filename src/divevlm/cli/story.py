"""What `divevlm demo` tells: answers, a table, and two selections of a scene side by side."""

from __future__ import annotations

import sys
from typing import Any

from divevlm.cli.demo import ROUNDS
from divevlm.terminal import table

GRID, PATCH = 24, 14
WIDE = 40  # columns from one sketch to the next


def story(result: dict[str, Any], example: Any, answers: dict[str, dict[str, Any]]) -> str:
    """answers: of the example, by setting"""
    rows = [
        [
            row["setting"],
            f"{row['right']} of {row['of']}",
            "-" if row["objects_seen"] is None else f"{100 * row['objects_seen']:.0f} %",
            f"{row['kv_bytes'] / 2**10:.0f} KB",
            "" if row["prefill_ms"] is None else f"{row['prefill_ms']:.0f} ms",
            "" if row["speedup"] is None else f"{row['speedup']:.2f}x",
        ]
        for row in result["rows"]
    ]
    head = ["kept", "right", "objects seen", "KV cache", "prefill", "speed-up"]
    short = [[label, _marked(answer)] for label, answer in answers.items()]
    return "\n".join(
        [
            "A small vision-language model sees drawn scenes through 576 visual tokens; most",
            "show background. Keep 64 or 16 of them: which ones?",
            "  frozen  the top of scores that are computed once (DIVE without its updates)",
            "  DIVE    one by one: take the best, remove what it explains from the others",
            "          and from the prompt, score again",
            "",
            table(head, rows),
            "",
            "objects seen: of those asked about, with at least one token left. Times are",
            f"medians of {ROUNDS} runs on one core. {rows[0][1].split()[-1]} questions are too few for a verdict:",
            "docs/results.md has 1,000 and three trainings, and says where DIVE is behind.",
            "",
            "The first question that frozen scores and DIVE answer differently with 16:"
            if answers["frozen 16"]["answer"] != answers["DIVE 16"]["answer"]
            else "One of the questions (frozen scores and DIVE agree on all with 16):",
            f"{example.text} ({example.answer})",
            "",
            table(["kept", "answers"], short, left=("answers",)),
            "",
            "kept by frozen scores, 16".ljust(WIDE) + "kept by DIVE, 16",
            "",
            sketch(example, answers["frozen 16"]["kept"], answers["DIVE 16"]["kept"]),
            "",
            f"Step by step: open {result['page']} in a browser (it needs no network).",
        ]
    )


def _marked(answer: dict[str, Any]) -> str:
    return f"{answer['answer']}{'' if answer['right'] else '  (wrong)'}"


def sketch(sample: Any, first: list[int], second: list[int]) -> str:
    """A character a patch: in colour on a terminal, dropped ones dark; in a pipe # kept, @ kept and asked for,
    ? asked for and dropped."""
    colour = sys.stdout.isatty()
    relevant = set(sample.patches)
    picture = sample.scene.pixels.reshape(GRID, PATCH, GRID, PATCH, 3).mean(axis=(1, 3)).astype(int)
    lines = []
    for row in range(GRID):
        halves = []
        for kept in (set(first), set(second)):
            tokens = range(row * GRID, (row + 1) * GRID)
            if colour:
                cells = "".join(_patch(picture[row, token % GRID], token in kept) for token in tokens) + "\x1b[0m"
                halves.append(cells + " " * (WIDE - GRID))
            else:
                cells = "".join(_sign(token in kept, token in relevant) for token in tokens)
                halves.append(cells.ljust(WIDE))
        lines.append("".join(halves).rstrip())
    key = "" if colour else "\n\n# kept  @ kept, asked for  ? dropped, asked for  . dropped"
    return "\n".join(lines) + key


def _patch(shade: Any, kept: bool) -> str:
    red, green, blue = (int(value if kept else value * 0.25) for value in shade)
    return f"\x1b[48;2;{red};{green};{blue}m\x1b[97;1m{'o' if kept else ' '}"


def _sign(kept: bool, relevant: bool) -> str:
    return {(True, True): "@", (True, False): "#", (False, True): "?", (False, False): "."}[kept, relevant]
