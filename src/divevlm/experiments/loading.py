"""Models for experiments: an embedded one by name, any other by path or id; and what they ran on."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import transformers

import divevlm
from divevlm.checks import require
from divevlm.experiments.processors import processor_of

Loaded = tuple[Any, Any]  # a model and its processor


def config_of(model: str) -> Any:
    """The configuration of an embedded model, or of one by path or id; no weights are read."""
    import divevlm_tiny as tiny
    from divevlm_tiny.shipped import MODELS

    where = MODELS / model if model in tiny.available() else model
    with _told(model):
        return transformers.AutoConfig.from_pretrained(where)


@contextmanager
def _told(model: str) -> Iterator[None]:
    """What transformers has to say about a model that does not load, in one line."""
    import divevlm_tiny as tiny

    try:
        yield
    except (OSError, ValueError, ImportError) as error:
        shipped = ", ".join(tiny.available()) or "none yet"
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"model must be an embedded one ({shipped}), a path or an id, got {model!r}: {reason}"
        ) from None


@cache
def family_name(model: str) -> str:
    return str(config_of(model).model_type)


def load(
    model: str,
    device: str | None = None,
    dtype: str | None = None,
    device_map: str | None = None,
    pixels: dict[str, int] | None = None,
    attn: str | None = None,
) -> Loaded:
    """A model in eval mode and its processor, which pads on the left.

    device: default, the GPU of this process if there is one; dtype: default float32 on a CPU, the checkpoint's own on a GPU;
    device_map: "auto" spreads the model over all GPUs; pixels: limits of a picture that the processor is to hold to;
    attn: attention implementation
    """
    import divevlm_tiny as tiny

    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()
    if model in tiny.available():
        network, processor = tiny.load(model)
        return network.to(device or default_device()), processor
    device = device or default_device()
    wanted = dtype or ("float32" if device == "cpu" else "auto")
    require(wanted in ("auto", "float32", "float16", "bfloat16"), "dtype", wanted, "auto, float32, float16 or bfloat16")
    kind = wanted if wanted == "auto" else getattr(torch, wanted)
    with _told(model):
        given = {"device_map": device_map, "attn_implementation": attn}
        more = {name: value for name, value in given.items() if value is not None}
        network = transformers.AutoModelForImageTextToText.from_pretrained(model, dtype=kind, **more)
        processor = processor_of(model, **(pixels or {}))
    processor.tokenizer.padding_side = "left"
    return (network if device_map else network.to(device)).eval(), processor


def rank() -> tuple[int, int]:
    """The number of this process and how many there are, as torchrun and accelerate launch say."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def default_device() -> str:
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"


def machine() -> dict[str, Any]:
    """Versions and hardware."""
    gpus = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    return {
        "divevlm": divevlm.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "system": platform.system(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
        "processes": rank()[1],
    }
