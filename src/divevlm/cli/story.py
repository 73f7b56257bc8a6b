"""What `divevlm demo` tells: answers, a table, and two selections of a scene side by side."""

from __future__ import annotations

import sys
from typing import Any

from divevlm.terminal import table

GRID, PATCH = 24, 14


def story(result: dict[str, Any], records: list[dict[str, Any]], example: dict[str, Any]) -> str:
    labels = [row["setting"] for row in result["rows"]]
    answers = [
        [record["question"], record["gold"], *(_marked(record["answers"][label], record["gold"]) for label in labels)]
        for record in records
    ]
    rows = [
        [
            row["setting"],
            str(row["keep"]),
            f"{row['right']} of {row['of']}",
            "-" if row["objects_seen"] is None else f"{100 * row['objects_seen']:.0f} %",
            f"{row['kv_bytes'] / 2**10:.0f} KB",
            f"{row['prefill_ms']:.0f} ms",
            f"{row['speedup']:.2f}x",
        ]
        for row in result["rows"]
    ]
    by_label = {answer.label: answer for answer in example["comparison"].answers}
    kept = {label: by_label[label].report.samples[0].kept for label in ("frozen 16", "DIVE 16")}
    head = ["kept", "tokens", "right", "asked-for objects seen", "KV cache", "prefill", "speed-up"]
    return "\n".join(
        [
            "A small vision-language model looks at drawn scenes through 576 visual tokens. Most of them are background.",
            "With a few tokens, which ones? Frozen scores rank all tokens once and take the top: near-copies of the same",
            "object. DIVE takes one, removes what it explains from all others and from the prompt, and scores again.",
            "",
            table(["question", "right answer", *labels], answers),
            "(wrong answers in brackets; frozen, random: that many tokens by scores that are never updated, or by chance)",
            "",
            table(head, rows),
            "",
            f"{example['question']} ({example['gold']}) With 16 tokens, frozen scores keep these (left), DIVE these (right):",
            "",
            sketch(example["sample"], kept["frozen 16"], kept["DIVE 16"]),
            "",
            f"The same, step by step: open {result['page']} in a browser (it needs no network).",
            f"The first {len(records)} questions of the validation split, too few for a verdict (divevlm bench accuracy).",
        ]
    )


def _marked(text: str, gold: str) -> str:
    return text if text == gold else f"({text})"


def sketch(sample: Any, first: list[int], second: list[int]) -> str:
    """Patches in colour on a terminal, dropped ones dark; in a pipe: # kept, @ kept and asked for, ? asked for and dropped."""
    colour = sys.stdout.isatty()
    relevant = set(sample.patches)
    picture = sample.scene.pixels.reshape(GRID, PATCH, GRID, PATCH, 3).mean(axis=(1, 3)).astype(int)
    lines = []
    for row in range(GRID):
        halves = []
        for kept in (set(first), set(second)):
            tokens = range(row * GRID, (row + 1) * GRID)
            if colour:
                halves.append(
                    "".join(_patch(picture[row, token % GRID], token in kept) for token in tokens) + "\x1b[0m"
                )
            else:
                halves.append("".join(_sign(token in kept, token in relevant) for token in tokens))
        lines.append("    ".join(halves))
    key = (
        "" if colour else "\n\n# kept   @ kept, of an object asked for   ? dropped, of an object asked for   . dropped"
    )
    return "\n".join(lines) + key


def _patch(shade: Any, kept: bool) -> str:
    red, green, blue = (int(value if kept else value * 0.25) for value in shade)
    return f"\x1b[48;2;{red};{green};{blue}m\x1b[97;1m{'[]' if kept else '  '}"


def _sign(kept: bool, relevant: bool) -> str:
    return {(True, True): "@", (True, False): "#", (False, True): "?", (False, False): "."}[kept, relevant] + " "
