"""How much memory a run is going to take, told before it begins."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from divevlm.checks import require
from divevlm.models import FAMILIES

GB = 2**30
TEXT = 512  # a long prompt
SLACK = 1.0 * GB  # CUDA's own, the allocator's leftovers


def estimate(config: Any, dtype: str | None, batch: int = 1) -> dict[str, float]:
    """Bytes: weights, the cache of the longest prompts (all tokens kept), what the widest layer and the logits hold beside them.

    dtype: as for loading; None and "auto": the checkpoint's own
    """
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(config)
    count = sum(one.numel() for one in model.parameters())
    own = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None) or torch.float32
    kind: torch.dtype = own if dtype in (None, "auto") else getattr(torch, str(dtype))
    size, text = kind.itemsize, config.get_text_config()
    length = FAMILIES.get(config.model_type).most_tokens + TEXT
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    cache = batch * length * text.num_hidden_layers * 2 * text.num_key_value_heads * head * size
    # states, queries, keys, values and the MLP's two products; one row of logits, in float32 as well
    widest = batch * length * (4 * text.hidden_size + 3 * text.intermediate_size) * size
    work = widest + batch * text.vocab_size * (size + 4)
    return {"weights": float(count * size), "cache": float(cache), "work": work + SLACK}


def told(config: Any, dtype: str | None, batch: int, cards: list[float], spread: bool) -> str:
    """One line for people. cards: bytes of each GPU; spread: over all of them. Weights that fit nowhere are refused."""
    found = estimate(config, dtype, batch)
    total = sum(found.values())
    line = (
        f"memory: about {total / GB:.1f} GB for {config.model_type} at batch {batch} "
        f"({found['weights'] / GB:.1f} weights, {found['cache'] / GB:.1f} cache, {found['work'] / GB:.1f} work)"
    )
    if not cards:
        return f"{line}; no GPU here"
    room = sum(cards) if spread else cards[0]
    enough = "--device-map auto where there are several cards, or a smaller --dtype"
    fits = found["weights"] < room
    require(
        fits or spread,
        "model",
        f"{found['weights'] / GB:.1f} GB",
        f"smaller than the card's {room / GB:.1f} GB, or {enough}",
    )
    return f"{line}; {room / GB:.1f} GB here" + ("" if total <= room else ": this may not fit")


def cards() -> list[float]:
    if not torch.cuda.is_available():
        return []
    return [float(torch.cuda.get_device_properties(i).total_memory) for i in range(torch.cuda.device_count())]
