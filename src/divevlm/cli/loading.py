"""What commands that run a model have in common: their options, the model, the pictures."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from divevlm.terminal import progress

DTYPES = ("auto", "float32", "bfloat16", "float16")


def add_model_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--model", metavar="PATH_OR_ID", help="a folder or a name on the hub (default: the embedded model)"
    )
    command.add_argument("--system", metavar="TEXT", help="a system prompt")
    command.add_argument(
        "--max-new-tokens", type=int, default=32, metavar="N", help="length of the answer (default 32)"
    )
    command.add_argument(
        "--frames", type=int, default=8, metavar="N", help="frames of a video, evenly spaced (default 8)"
    )
    command.add_argument("--dtype", choices=DTYPES, default="auto", help="of the weights (default: as they are stored)")
    command.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, mps (default: the best there is)")
    command.add_argument("--attn", choices=("sdpa", "eager", "flash_attention_2"), help="attention implementation")


def load_model(options: argparse.Namespace) -> tuple[Any, Any, str]:
    """The model in eval mode, its processor, and what to call it."""
    if options.max_new_tokens < 1:
        raise ValueError(f"--max-new-tokens must be at least 1, got {options.max_new_tokens}")
    device = options.device if options.device != "auto" else _best_device()
    check_device(device)
    where, name = (embedded_folder(), "tiny-llava") if options.model is None else (options.model, str(options.model))
    if options.model is None:
        print("no --model given: the embedded model, which knows drawn scenes only", file=sys.stderr)
    quiet()
    from transformers import AutoModelForImageTextToText, AutoProcessor

    given: dict[str, Any] = {"dtype": options.dtype} | ({"attn_implementation": options.attn} if options.attn else {})
    try:
        processor = AutoProcessor.from_pretrained(where)
        model = AutoModelForImageTextToText.from_pretrained(where, **given)
    except Exception as error:  # a broken file is told by any exception
        how = f" with --attn {options.attn}" if options.attn else ""
        raise ValueError(
            f"--model must be a vision-language model that loads{how}, got {name!r}: {_line(error)}"
        ) from None
    return model.eval().to(device), processor, name


def check_device(device: str) -> None:
    """Before the work: is it there, and can it compute?"""
    import torch

    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device must be one that is there, got {device!r}: {_line(error)}") from None


def embedded() -> tuple[Any, Any]:
    """The model inside the package, and its processor."""
    from divevlm_tiny import load

    embedded_folder()
    quiet()
    return load("llava")


def embedded_folder() -> Path:
    from divevlm_tiny import shipped

    if "llava" not in shipped.available():
        raise ValueError("the embedded model is not in this copy of divevlm (run and explore take --model PATH_OR_ID)")
    return shipped.MODELS / "llava"


def quiet() -> None:
    """Loading is no news."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def media_and_question(options: argparse.Namespace) -> tuple[list[Any], str]:
    """All but the last word of the command are files, the last is the question."""
    from divevlm.viz.media import Clip, load

    *paths, question = options.what
    if not paths:
        raise ValueError(
            f'IMAGE must come before the question (divevlm run photo.jpg "What is this?"), got {question!r} alone'
        )
    media = [load(path, options.frames) for path in paths]
    for path, shown in zip(paths, media, strict=True):
        if isinstance(shown, Clip):
            print(f"{path}: {shown}", file=sys.stderr)
    return media, question


def ask_all(
    options: argparse.Namespace, title: str, media: list[Any], question: str, methods: list[tuple[str, Any]]
) -> Any:
    """Load the model of the command and ask it under every method."""
    from divevlm.viz.asking import ask

    with progress(title) as tick:
        tick("loading the model")
        model, processor, name = load_model(options)
        more = {"system": options.system, "max_new_tokens": options.max_new_tokens, "name": name}
        return ask(model, processor, question, media, methods, tick=tick, **more)


def keep(text: str) -> int | float:
    """64 is a count, 0.25 a share."""
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a count or a share, got {text!r}") from None


def _best_device() -> str:
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
