"""Matched budgets: what a method keeps in each block, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal

from divevlm.budget import Budget
from divevlm.checks import require
from divevlm.core.costs import prefill_flops
from divevlm.core.schedules import keep_for_mean, tokens_per_block
from divevlm.methods import METHODS, Method, method_of, parse
from divevlm.methods.staged import Staged

Match = Literal["final", "layer-mean"]
MATCHES = ("final", "layer-mean")
VANILLA = "vanilla"


@dataclass(frozen=True)
class ModelShape:
    """Of a model and its input. Default: LLaVA-1.5-7B with one image and 64 text tokens.

    kv: heads of keys by heads of queries; cut: before which block a method cuts that does not say so itself; plain: patches
    are the visual tokens, one each
    """

    tokens: int = 576
    layers: int = 32
    width: int = 4096
    mlp: int = 11008
    text: int = 64
    views: int = 1
    kv: float = 1.0
    cut: int = 2
    plain: bool = True

    def __post_init__(self) -> None:
        for name in ("tokens", "layers", "width", "mlp", "views"):
            value = getattr(self, name)
            require(isinstance(value, int) and value >= 1, name, value, "a whole number of at least 1")
        require(isinstance(self.text, int) and self.text >= 0, "text", self.text, "a whole number of at least 0")

    def flops(self, visual: list[int]) -> float:
        """Prefill operations: two for each of 4 n d^2 + 2 n^2 d + 3 n d m multiplications in a block with n tokens."""
        weights = (2 + 2 * self.kv) * self.width**2 + 3 * self.width * self.mlp
        return prefill_flops([n + self.text for n in visual], [weights] * len(visual), self.width)

    @classmethod
    def of(cls, model: Any, **given: int | None) -> ModelShape:
        """Of a model, its config, or a path or name that transformers can load a config from. given: fields that go first."""
        own: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if model is None:
            return cls(**own)
        from divevlm.loading import config_of
        from divevlm.models import FAMILIES

        config = config_of(model) if isinstance(model, str) else getattr(model, "config", model)
        kind = getattr(config, "model_type", None)

        if not isinstance(kind, str) or kind not in FAMILIES:
            raise ValueError(f"model must be of the families {', '.join(FAMILIES)}, got {kind!r}")
        family = FAMILIES.get(kind)()
        text = config.get_text_config()
        heads = text.num_attention_heads
        shape: dict[str, Any] = {
            "layers": text.num_hidden_layers,
            "width": text.hidden_size,
            "mlp": text.intermediate_size,
            "kv": (getattr(text, "num_key_value_heads", None) or heads) / heads,
            "cut": family.default_layer,
            "plain": family.plain,
        }
        if views := family.usual_views(config):
            shape |= {"views": len(views), "tokens": sum(views)}
        elif "tokens" not in own:
            raise ValueError(f"tokens must be given for {kind}, whose images have any number of tokens, got None")
        return cls(**(shape | own))


@dataclass(frozen=True)
class Plan:
    """How many visual tokens enter each block, and what that costs."""

    method: Method | None  # None: vanilla
    match: Match
    keep: int  # what was asked for
    shape: ModelShape
    tokens_per_layer: list[int]
    final: int
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return VANILLA if self.method is None else self.method.name

    @property
    def mean(self) -> float:
        """Visual tokens that enter a block, on average."""
        return sum(self.tokens_per_layer) / len(self.tokens_per_layer)

    @property
    def leaving_mean(self) -> float:
        """Visual tokens that leave a block, on average: how SparseVLM's authors count."""
        return sum([*self.tokens_per_layer[1:], self.final]) / len(self.tokens_per_layer)

    @property
    def flops(self) -> float:
        return self.shape.flops(self.tokens_per_layer)

    @property
    def flops_share(self) -> float:
        """Of the prefill of all tokens; selection itself is not counted."""
        return self.flops / self.shape.flops([self.shape.tokens] * self.shape.layers)

    @property
    def kv_share(self) -> float:
        """Of the cache of all tokens, text included."""
        text = self.shape.text
        return (self.mean + text) / (self.shape.tokens + text)

    @property
    def setting(self) -> dict[str, Any]:
        """What to give to the method for this plan."""
        if self.method is None:
            return {}
        given: dict[str, Any] = {"keep": self.method.keep}
        if isinstance(self.method, Staged):
            given["match"] = self.method.match
        return given

    def to_dict(self) -> dict[str, Any]:
        return {
            "method": self.name,
            "match": self.match,
            "keep": self.keep,
            "setting": self.setting | self.details,
            "final": self.final,
            "mean": self.mean,
            "leaving_mean": self.leaving_mean,
            "flops": self.flops,
            "flops_share": self.flops_share,
            "kv_share": self.kv_share,
            "tokens_per_layer": self.tokens_per_layer,
        }

    def runs(self) -> str:
        """576 x 2, 64 x 30"""
        return ", ".join(f"{n} x {len(list(some))}" for n, some in groupby(self.tokens_per_layer))

    def __str__(self) -> str:
        setting = ", ".join(f"{name} {value}" for name, value in (self.setting | self.details).items())
        rows = (
            (self.name, f"{self.keep} of {self.shape.tokens} visual tokens, match {self.match}"),
            ("setting", setting or "none"),
            ("blocks", self.runs()),
            ("tokens", f"{self.final} in the end, mean {self.mean:.1f} entering, {self.leaving_mean:.1f} leaving"),
            ("prefill", f"{self.flops / 1e12:.2f} TFLOP, {100 * self.flops_share:.1f} % of all tokens"),
            ("KV cache", f"{100 * self.kv_share:.1f} % of all tokens"),
        )
        return "\n".join(f"{name:<10}{text}" for name, text in rows)


def plan(
    method: str | Method,
    model: Any = None,
    *,
    keep: int | float | Budget | None = None,
    match: Match = "final",
    tokens: int | None = None,
    layers: int | None = None,
    width: int | None = None,
    mlp: int | None = None,
    text: int | None = None,
    views: int | None = None,
    **options: Any,
) -> Plan:
    """What a method keeps in each block.

    method  a name ("vanilla": no pruning) with its options, or a method that is ready
    model   a model, its config, a path or a name; None: LLaVA-1.5-7B, changed by tokens (all of an image), layers, ...
    match   "final": `keep` tokens in the end; "layer-mean": as many as it takes for `keep` to enter a block on average
            (SparseVLM: the authors' lists, which count tokens that leave a block)
    """
    require(match in MATCHES, "match", match, "'final' or 'layer-mean'")
    shape = ModelShape.of(model, tokens=tokens, layers=layers, width=width, mlp=mlp, text=text, views=views)
    if method == VANILLA:
        return Plan(None, match, shape.tokens, shape, [shape.tokens] * shape.layers, shape.tokens)
    if isinstance(method, str):
        name, settings = parse(method)
        if issubclass(METHODS.get(name), Staged) and "match" not in settings:
            options = {"match": match, **options}
    ready = method_of(method, keep, options)
    possible = shape.plain or not ready.in_tower(plain=False)
    require(possible, "method", ready.name, "one that works outside the vision tower, for this model")
    require(ready.budget.energy is None, "keep", ready.budget, "a count or a share")
    wanted = ready.budget.tokens(shape.tokens)
    cuts = ready.blocks(shape.layers, min(shape.cut, shape.layers - 1))
    require(cuts[-1] < shape.layers, "layer", cuts[-1], f"below the {shape.layers} blocks of the model")
    count = wanted
    if match == "layer-mean" and not isinstance(ready, Staged):
        count = keep_for_mean(wanted, shape.tokens, shape.layers, cuts[0])
        if count != wanted:
            ready = replace(ready, keep=Budget(count, scope=ready.budget.scope) if ready.scope else count)
    stays = [min(shape.tokens, ready.stay(i, count, shape.tokens, shape.layers)) for i in range(len(cuts))]
    per_layer = tokens_per_block(shape.tokens, shape.layers, cuts, stays)
    details = ready.details(count, shape.tokens, shape.layers, shape.views)
    return Plan(ready, match, wanted, shape, per_layer, stays[-1], details)
