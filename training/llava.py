"""Train tiny-llava: `python -m training.llava --seed 0 --folder runs/llava-0`."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
from divevlm_tiny import build
from divevlm_tiny.words import vocabulary

from divevlm.checks import at_least
from divevlm.terminal import one_line
from training.batches import Phase, batch
from training.export import unpack
from training.forward import losses
from training.hints import Heads
from training.loop import scheduled, train
from training.muon import optimizers
from training.start import prepare

WINDOWS = (  # between steps on whole pictures
    (8, 48, 0, 0.3),
    (12, 12, 18, 0.2),
    (12, 22, 0, 0.3),
    (8, 48, 0, 0.5),
    (12, 22, 0, 0.2),
)
PHASES = (
    Phase("look", 6, 96, 0, 772, signs=0.3),
    Phase("ask8", 8, 16, 8, 332, signs=0.15, frozen=True),
    Phase("ask12", 12, 10, 14, 323, (0.8, 0.4), signs=0.1, frozen=True),
    Phase("both12", 12, 12, 14, 412, (0.4, 0.4), signs=0.2),
    Phase("mixed24", 24, 5, 20, 360, (0.32, 0.08), turns=WINDOWS[1:2]),
    Phase("both24", 24, 5, 20, 70, (0.08, 0.004)),
    Phase("learn24", 24, 5, 26, 1631, (0.4, 0.25), turns=WINDOWS),
    Phase("end24", 24, 5, 30, 1400, (0.25, 0.004), turns=WINDOWS),
    Phase("count24", 24, 5, 36, 260, (0.15, 0.004), fours=0.7, counting=14, turns=WINDOWS[1:2]),
    Phase("even24", 24, 5, 20, 1000, (0.12, 0.002), fours=0.7, counting=0, every=True, turns=WINDOWS[1:2]),
)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True, help="checkpoint and log; training goes on from there")
    parser.add_argument("--steps", action="append", default=[], metavar="PHASE=N")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all numbers of steps")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--half", action="store_true", help="products in bfloat16: faster where the processor has them")
    parser.add_argument("--matrix-rate", type=float, default=0.02)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument(
        "--go-on", type=Path, metavar="MODEL", help="begin with an exported model, where the folder is empty"
    )
    options = parser.parse_args(arguments)
    at_least("--threads", options.threads, 1)
    at_least("--matrix-rate", options.matrix_rate, 0)
    at_least("--rate", options.rate, 0)
    phases = scheduled(PHASES, options.steps, options.scale)
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
        phases,
        partial(_make, numbers, options.seed),
        partial(losses, model, heads, numbers),
        options.folder,
        half=options.half,
    )


def _make(numbers: dict[str, int], seed: int, phase: Phase, step: int) -> dict[str, object]:
    return batch(numbers, phase, seed, step)


if __name__ == "__main__":
    raise SystemExit(one_line(main))
