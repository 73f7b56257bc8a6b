"""Train tiny-qwen2vl: `python -m training.qwen2vl --folder runs/qwen2vl-0 --from tiny/src/divevlm_tiny/models/llava`."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from divevlm_tiny import build, build_qwen
from divevlm_tiny.words import vocabulary

from divevlm.checks import at_least
from divevlm.terminal import one_line
from training.batches import Phase
from training.export import unpack
from training.loop import scheduled, train
from training.muon import optimizers
from training.qwen_batches import NUMBERS, batch
from training.qwen_forward import QwenHeads, losses
from training.start import prepare_qwen

WINDOWS = ((12, 24, 0, 0.3), (12, 12, 14, 0.2))  # between steps on larger pictures
PHASES = (
    Phase("look", 8, 40, 0, 800, signs=0.3),
    Phase("ask12", 12, 12, 14, 800, (0.8, 0.5), signs=0.2, turns=((8, 40, 0, 0.3),)),
    Phase("ask24", 24, 6, 24, 1400, (0.5, 0.3), turns=WINDOWS),
    Phase("end24", 24, 6, 24, 900, (0.3, 0.004), turns=WINDOWS),
    Phase("even24", 24, 6, 24, 1150, (0.12, 0.002), fours=0.7, counting=0, every=True, turns=WINDOWS[1:]),
    Phase("whole24", 24, 6, 24, 520, (0.09, 0.002), fours=0.5, counting=0, every=True),
)


@torch.no_grad()
def warm(model: Any, folder: Path) -> None:
    """Take the language model of a trained tiny-llava; words by name, biases zero."""
    from transformers import AutoModelForImageTextToText

    source = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).model.language_model
    state = {name: value for name, value in source.state_dict().items() if "embed_tokens" not in name}
    text = model.model.language_model
    missing = text.load_state_dict(state, strict=False)
    if missing.unexpected_keys:
        raise ValueError(
            f"--from must be a tiny-llava of the same sizes, got unknown weights {missing.unexpected_keys[:3]}"
        )
    for name, parameter in text.named_parameters():
        if name.endswith("_proj.bias"):
            parameter.zero_()
    for number, word in enumerate(vocabulary(build.IMAGE)):
        if word in NUMBERS:
            text.embed_tokens.weight[NUMBERS[word]] = source.embed_tokens.weight[number]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True, help="checkpoint and log; training goes on from there")
    parser.add_argument(
        "--from", dest="source", type=Path, help="a trained tiny-llava, whose language model this one begins with"
    )
    parser.add_argument("--steps", action="append", default=[], metavar="PHASE=N")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all numbers of steps")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--half", action="store_true", help="products in bfloat16: faster where the processor has them")
    parser.add_argument("--stop", type=int, help="stop at this step")
    parser.add_argument(
        "--go-on", type=Path, metavar="MODEL", help="begin with an exported model, where the folder is empty"
    )
    options = parser.parse_args(arguments)
    at_least("--threads", options.threads, 1)
    if options.stop is not None:
        at_least("--stop", options.stop, 0)
    phases = scheduled(PHASES, options.steps, options.scale)
    if options.go_on is not None:
        unpack(options.go_on, options.folder)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    model = build_qwen.qwen2vl()
    prepare_qwen(model)
    if options.source:
        warm(model, options.source)
    heads = QwenHeads(model.config.text_config.hidden_size, model.config.vision_config.embed_dim)
    train(
        {"model": model, "heads": heads},
        optimizers(model, heads, 0.02, 3e-3),
        phases,
        partial(_make, options.seed),
        partial(losses, model, heads),
        options.folder,
        stop=options.stop,
        half=options.half,
    )


def _make(seed: int, phase: Phase, step: int) -> dict[str, Any]:
    return batch(phase, seed, step)


if __name__ == "__main__":
    raise SystemExit(one_line(main))
