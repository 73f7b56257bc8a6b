"""Models and processors: an embedded one by name, any other by folder or by its name on the hub."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from divevlm.checks import require

EMBEDDED = ("llava", "qwen2vl")  # also by the names tiny-llava, tiny-qwen2vl
DTYPES = ("auto", "float32", "bfloat16", "float16")
ATTENTIONS = ("sdpa", "eager", "flash_attention_2")
PROBE_SECONDS = 5  # for the hub to answer; else only what is in the cache is loaded

Loaded = tuple[Any, Any]  # a model and its processor


def embedded_name(model: str) -> str | None:
    """What divevlm_tiny calls a model of that name; None: it is none of the embedded ones."""
    name = str(model).removeprefix("tiny-")
    return name if name in EMBEDDED else None


def embedded_models() -> list[str]:
    """Those that are installed."""
    if find_spec("divevlm_tiny") is None:
        return []
    from divevlm_tiny import available

    return available()


def config_of(model: str) -> Any:
    """The configuration; no weights are read."""
    from transformers import AutoConfig

    where = source_of(model)
    with one_line_errors(model):
        return AutoConfig.from_pretrained(where)


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
    device = device or default_device()
    dtype = dtype or ("float32" if device.startswith("cpu") else "auto")
    require(dtype in DTYPES, "dtype", dtype, f"one of {', '.join(DTYPES)}")
    check_device(device)
    where = source_of(model)
    quiet()
    import PIL  # noqa: F401  where it is missing, that is what to say: processors speak of backends
    from transformers import AutoModelForImageTextToText

    from divevlm.processors import processor_of

    options = {"device_map": device_map, "attn_implementation": attn}
    with one_line_errors(model, f" with attention {attn}" if attn else ""):
        if embedded_name(model) is not None:
            from divevlm_tiny.shipped import processor_of as embedded_processor

            processor = embedded_processor(Path(where))
        else:
            processor = processor_of(where, **(pixels or {}))
        given = {name: value for name, value in options.items() if value is not None}
        network = AutoModelForImageTextToText.from_pretrained(where, dtype=dtype, **given)
    processor.tokenizer.padding_side = "left"
    return (network if device_map else network.to(device)).eval(), processor


def default_device() -> str:
    """The GPU of this process, or the best there is."""
    import torch

    if torch.cuda.is_available():
        return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def check_device(device: str) -> None:
    """Before the work: is it there, and can it compute?"""
    import torch

    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device must be one that is there, got {device!r}: {_first_line(error)}") from None


def quiet() -> None:
    """Loading is no news."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def source_of(model: str) -> str | Path:
    """What `from_pretrained` takes: a folder, or a name on a hub that answers; if it does not, the folder in the cache."""
    name = embedded_name(model)
    if name is None:
        return model if Path(model).exists() or _hub_answers() else _cached(model)
    if name not in embedded_models():
        raise ValueError(f"model {model!r} is embedded in divevlm-tiny, which is missing: pip install 'divevlm[demo]'")
    from divevlm_tiny import shipped

    return shipped.MODELS / name


def _cached(model: str) -> str:
    from huggingface_hub import constants, snapshot_download

    try:
        return str(snapshot_download(model, local_files_only=True))
    except (OSError, ValueError):
        reason = f"no such folder, {constants.ENDPOINT} does not answer, and the cache does not hold it"
        raise ValueError(_refusal(model, reason)) from None


@cache
def _hub_answers() -> bool:
    """Asked once and briefly: without network every file would be tried for half a minute."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=PROBE_SECONDS)
    except Exception:  # of the HTTP client, which differs between releases
        return False
    return True


@contextmanager
def one_line_errors(model: str, how: str = "") -> Iterator[None]:
    """A broken file is told by any exception."""
    try:
        yield
    except Exception as error:
        raise ValueError(_refusal(model, _first_line(error), how)) from error


def _refusal(model: str, reason: str, how: str = "") -> str:
    names = ", ".join(embedded_models()) or "none is installed"
    allowed = f"an embedded one ({names}), a folder or a name on the hub that loads{how}"
    return f"model must be {allowed}, got {str(model)!r}: {reason}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
