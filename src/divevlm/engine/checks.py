"""What is refused before a method is attached."""

from __future__ import annotations

from typing import Any

import torch

from divevlm.core.rule import require
from divevlm.methods.base import Method
from divevlm.models.base import Family


def check(model: Any, family: Family, text: Any, method: Method, cuts: tuple[int, ...], mrope: bool) -> None:
    """cuts: the blocks whose states the method sees; mrope: positions are a grid"""
    config, last, needs = text.config, len(text.layers) - 1, method.needs
    require(max(cuts) <= last, "layer", max(cuts), f"a block number from 0 to {last}")
    looks_back = needs.block == "before" and (needs.attention is not None or needs.keys)
    require(
        not looks_back or cuts[0] > 0,
        "layer",
        cuts[0],
        f"at least 1 for {method.name}, which looks at the block before",
    )
    entry = method.placement == "entry"
    require(
        not (entry and len(cuts) > 1),
        "placement",
        "entry",
        f"'layer' for the {len(cuts)} cuts of {method.name}",
    )
    compiled = isinstance(model, torch._dynamo.OptimizedModule) or model._compiled_call_impl is not None
    require(not compiled, "model", "a compiled model", "attached to before torch.compile, or not compiled")
    types = getattr(config, "layer_types", None)
    windowed = types is None and getattr(config, "sliding_window", None) is not None  # Mistral tells it this way
    kinds = {"sliding_attention"} if windowed else set(types or ()) - {"full_attention"}
    require(
        not kinds,
        "model",
        f"blocks of {', '.join(sorted(kinds))}",
        "one whose blocks all attend to the full sequence",
    )
    require(
        not (mrope and method.positions == "compact"),
        "positions",
        "compact",
        f"'keep' for {family.name}, whose positions are a grid",
    )
