"""Where a method cuts a language model, checked before it is attached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from divevlm.checks import require
from divevlm.engine.caches import Pruner
from divevlm.engine.sequence import mask_kind
from divevlm.methods.base import Method
from divevlm.models.base import Family

COMPILE = "compile its decoder layers instead (for layer in layers: layer.compile(dynamic=True))"


@dataclass(frozen=True)
class Setup:
    text: Any  # the language model
    method: Method
    cuts: tuple[int, ...]  # before which of its blocks
    reads: tuple[int, ...]  # before which blocks the method reads states, at each cut
    positions: Literal["keep", "compact"]

    @property
    def layers(self) -> nn.ModuleList:
        layers: nn.ModuleList = self.text.layers
        return layers

    @property
    def pruner(self) -> Pruner:
        return Pruner(self.method.name, self.cuts, self.positions, self.method.bias_strength > 0)

    def norm(self, cut: int) -> Callable[[Tensor], Tensor]:
        """What states pass before they become signals."""
        if self.method.norm == "none":
            return lambda z: z
        norm: Any = self.text.norm if self.method.norm == "final" else self.layers[self.reads[cut]].input_layernorm
        return lambda z: norm.forward(beside_weights(z, norm))


def beside_weights(z: Tensor, module: nn.Module) -> Tensor:
    """z where the weights of a module are. Offloaded weights are nowhere: those modules fetch their input themselves."""
    device = next(module.parameters()).device
    return z if device.type == "meta" else z.to(device)


def setup_of(model: Any, family: Family, method: Method) -> Setup:
    text = family.at(model, family.text)
    reads = method.blocks(len(text.layers), family.default_layer)
    grid = "mrope_section" in (getattr(text.config, "rope_parameters", None) or {})  # positions are a grid
    _check_method(method, reads, len(text.layers) - 1)
    _check_model(model, text)
    require(
        not (grid and method.positions == "compact"),
        "positions", "compact", f"'keep' for {family.name}, whose positions are a grid",
    )  # fmt: skip
    positions = method.positions or ("keep" if grid else method.default_positions)
    return Setup(text, method, (0,) if method.placement == "entry" else reads, reads, positions)


def _check_method(method: Method, reads: tuple[int, ...], last: int) -> None:
    needs, name = method.needs, method.name
    require(max(reads) <= last, "layer", max(reads), f"a block number from 0 to {last}")
    reads_back = needs.block == "before" and (needs.attention is not None or needs.keys)
    allowed = f"at least 1 for {name}, which looks at the block before"
    require(not reads_back or reads[0] > 0, "layer", reads[0], allowed)
    entry = method.placement == "entry"
    require(not (entry and len(reads) > 1), "placement", "entry", f"'layer' for the {len(reads)} cuts of {name}")


def _check_model(model: Any, text: Any) -> None:
    config = text.config
    mask_kind(config)
    compiled = isinstance(model, torch._dynamo.OptimizedModule) or model._compiled_call_impl is not None
    require(not compiled, "model", "a compiled model", f"uncompiled: {COMPILE}")
    types = getattr(config, "layer_types", None)
    windowed = types is None and getattr(config, "sliding_window", None) is not None  # Mistral tells it this way
    kinds = {"sliding_attention"} if windowed else set(types or ()) - {"full_attention"}
    allowed = "one whose blocks all attend to the full sequence"
    require(not kinds, "model", f"blocks of {', '.join(sorted(kinds))}", allowed)
