"""A model that reads pictures late: `python -m training.late --folder runs/late`.

What does `dive-plus` lose where its second cut comes before the words have looked? The shipped tiny-llava goes on training
with words that see the picture from block 4 on only (of 8; it learnt to look in blocks 2 and 3). The tower is frozen, and the
hints, which ask for places after block 4, are left out. The exported model is a stock one: nothing hides the picture there.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from divevlm_tiny import build
from divevlm_tiny.shipped import MODELS
from divevlm_tiny.words import vocabulary
from torch import Tensor
from torch.nn import functional

from divevlm.terminal import one_line
from training.batches import IGNORE, Phase, batch
from training.export import unpack
from training.forward import by_task, decode, encode
from training.hints import Heads
from training.llava import PHASES, WINDOWS
from training.loop import train
from training.muon import optimizers

FIRST = 4  # block in which words may look


def losses(model: Any, numbers: dict[str, int], made: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    with torch.no_grad():
        visual, _, _ = encode(model, made["pixels"], made["places"])
    made = made | {"hidden": torch.ones_like(made["hidden"])}
    states = decode(model, numbers, visual, made, FIRST)
    asked = made["target"] != IGNORE
    logits, target = functional.linear(states.last[asked], model.lm_head.weight), made["target"][asked]
    answer = functional.cross_entropy(logits, target)
    correct = torch.zeros(asked.shape, dtype=torch.bool)
    correct[asked] = logits.argmax(-1) == target
    right = by_task(correct, asked, made["task"], made["segment"])
    return answer, {"right": right, "answer": answer.item()}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="checkpoint and log; training goes on from there")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    unpack(MODELS / "llava", options.folder)
    model = build.llava()
    heads = Heads(model.config.text_config.hidden_size, model.config.vision_config.hidden_size)
    numbers = {word: number for number, word in enumerate(vocabulary(build.IMAGE))}
    phases = [
        Phase("before", 24, 0, 0, sum(phase.steps for phase in PHASES)),
        Phase("late24", 24, 5, 20, options.steps, (0.4, 0.01), fours=0.7, counting=0, every=True, turns=WINDOWS[1:2]),
    ]
    train(
        {"model": model, "heads": heads},
        optimizers(model, heads, 0.02, 3e-3),
        phases,
        lambda phase, step: batch(numbers, phase, 3, step),
        partial(losses, model, numbers),
        options.folder,
        half=True,
    )


if __name__ == "__main__":
    raise SystemExit(one_line(main))
