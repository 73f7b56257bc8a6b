"""What commands that ask a model about pictures have in common: their options, the model, the pictures."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from divevlm.checks import at_least
from divevlm.cli.parser import Parser
from divevlm.loading import ATTENTIONS, DTYPES
from divevlm.terminal import progress

EMBEDDED = "tiny-llava"


def add_model_options(command: Parser) -> None:
    command.add_argument(
        "--model", metavar="MODEL", help="a folder, a name on the hub, or an embedded one: llava (default), qwen2vl"
    )
    command.add_argument("--system", metavar="TEXT", help="a system prompt")
    command.add_argument(
        "--new-tokens",
        old=["--max-new-tokens"],
        type=int,
        default=32,
        metavar="N",
        help="length of the answer (default 32)",
    )
    command.add_argument(
        "--frames", type=int, default=8, metavar="N", help="frames of a video, evenly spaced (default 8)"
    )
    add_device_options(command)


def add_device_options(command: Parser) -> None:
    command.add_argument(
        "--dtype", choices=DTYPES, help="of the weights (default: float32 on a CPU, as stored on a GPU)"
    )
    command.add_argument("--device", help="cpu, cuda, cuda:1, mps (default: the best there is)")
    command.add_argument("--attn", choices=ATTENTIONS, help="attention implementation")


def media_and_question(options: argparse.Namespace) -> tuple[list[Any], str]:
    """All but the last word of the command are files, the last is the question."""
    from divevlm.media import Video, load

    *paths, question = options.what
    if not paths:
        raise ValueError(
            f'IMAGE must come before the question (divevlm run photo.jpg "What is this?"), got {question!r} alone'
        )
    if not question.strip():
        raise ValueError(f"QUESTION must be a text, got {question!r}")
    media = [load(path, options.frames) for path in paths]
    for path, medium in zip(paths, media, strict=True):
        if isinstance(medium, Video):
            print(f"{path}: {medium}", file=sys.stderr)
    return media, question


def ask_all(
    options: argparse.Namespace, title: str, media: list[Any], question: str, methods: list[tuple[str, Any]]
) -> Any:
    """Load the model of the command and ask it under every method."""
    at_least("--new-tokens", options.new_tokens, 1)
    from divevlm.loading import embedded_name, load
    from divevlm.viz.asking import ask

    if options.model is None:
        print("no --model given: the embedded model, which knows drawn scenes only", file=sys.stderr)
    embedded = embedded_name(options.model or EMBEDDED)
    name = f"tiny-{embedded}" if embedded else options.model
    with progress(title) as tick:
        tick("loading the model")
        model, processor = load(name, options.device, options.dtype, attn=options.attn)
        more = {"system": options.system, "max_new_tokens": options.new_tokens, "name": name}
        return ask(model, processor, question, media, methods, tick=tick, **more)
