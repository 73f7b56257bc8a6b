"""Train tiny-llava: `python -m divevlm.tiny.training.llava --seed 0 --folder runs/llava-0`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from divevlm.tiny import build
from divevlm.tiny.training.batches import Phase, batch
from divevlm.tiny.training.export import unpack
from divevlm.tiny.training.forward import Heads, losses
from divevlm.tiny.training.loop import train
from divevlm.tiny.training.muon import optimizers
from divevlm.tiny.training.start import prepare
from divevlm.tiny.words import vocabulary

PHASES = (
    Phase("look", 6, 96, 0, 772, signs=0.3),
    Phase("ask8", 8, 16, 8, 332, signs=0.15, frozen=True),
    Phase("ask12", 12, 10, 14, 323, (0.8, 0.4), signs=0.1, frozen=True),
    Phase("both12", 12, 12, 14, 412, (0.4, 0.4), signs=0.2),
    Phase("mixed24", 24, 5, 20, 360, (0.32, 0.08), mixed=True),
    Phase("both24", 24, 5, 20, 70, (0.08, 0.004)),
)


def schedule(changes: list[str], scale: float) -> list[Phase]:
    """PHASES with other numbers of steps: "ask24=500", all of them times `scale`."""
    steps = dict(change.split("=") for change in changes)
    unknown = set(steps) - {phase.name for phase in PHASES}
    if unknown:
        raise ValueError(f"--steps must name a phase of {[phase.name for phase in PHASES]}, got {sorted(unknown)}")
    return [replace(phase, steps=round(scale * int(steps.get(phase.name, phase.steps)))) for phase in PHASES]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True, help="checkpoint and log; training goes on from there")
    parser.add_argument("--steps", action="append", default=[], metavar="PHASE=N")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all numbers of steps")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--matrix-rate", type=float, default=0.02)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument(
        "--go-on", type=Path, metavar="MODEL", help="begin with an exported model, where the folder is empty"
    )
    options = parser.parse_args(arguments)
    if options.go_on is not None:
        unpack(options.go_on, options.folder)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    model = build.llava()
    prepare(model)
    heads = Heads(model.config.text_config.hidden_size, model.config.vision_config.hidden_size)
    numbers = {word: number for number, word in enumerate(vocabulary(build.IMAGE))}
    train(
        {"model": model, "heads": heads},
        optimizers(model, heads, options.matrix_rate, options.rate),
        schedule(options.steps, options.scale),
        partial(_make, numbers, options.seed),
        partial(losses, model, heads, numbers),
        options.folder,
    )


def _make(numbers: dict[str, int], seed: int, phase: Phase, step: int) -> dict[str, object]:
    return batch(numbers, phase, seed, step)


if __name__ == "__main__":
    main()
