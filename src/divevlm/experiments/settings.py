"""What is compared: a method with its options, and a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from divevlm.budget import Budget
from divevlm.core.rule import require
from divevlm.methods import METHODS, Method, method_of, setting_value
from divevlm.models import family_of
from divevlm.planning import MATCHES, VANILLA


@dataclass(frozen=True)
class Setting:
    """method: a name with options, "dive:eta=0.5:layer=3"; keep: a count or a share, 0 for vanilla."""

    method: str
    keep: int | float

    def __str__(self) -> str:
        return self.method if not self.keep else f"{self.method} {self.keep:g}"

    def ready(self, model: Any) -> Method | None:
        """The method itself, for this model; None: vanilla."""
        name, options = parse(self.method)
        if name == VANILLA:
            return None
        match = options.get("match")
        if match is None or "match" in {f.name for f in fields(METHODS.get(name))}:
            return method_of(name, self.keep, options)
        require(match in MATCHES, "match", match, "'final' or 'layer-mean'")
        del options["match"]
        return method_of(name, self._mean_matched(name, model) if match == "layer-mean" else self.keep, options)

    def _mean_matched(self, name: str, model: Any) -> int | float:
        """What to keep after a single cut so that `keep` enter a block on average."""
        family = family_of(model)
        blocks = len(family.at(model, family.text).layers)
        cut = METHODS.get(name).default_layer
        cut = family.default_layer if cut is None else cut
        if isinstance(self.keep, float):
            share = (self.keep * blocks - cut) / (blocks - cut)
            require(share > 0, "keep", self.keep, f"above {cut / blocks:.3f} with match=layer-mean")
            return share
        from divevlm.planning import plan

        found = plan(name, model, keep=self.keep, match="layer-mean").method
        assert found is not None
        return found.keep  # type: ignore[return-value]


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """ "dive:layer=3:eta=0.5" -> ("dive", {"layer": 3, "eta": 0.5})"""
    name, *settings = text.split(":")
    require(all(s.count("=") == 1 for s in settings), "method", text, "NAME or NAME:option=value:...")
    if name != VANILLA:
        METHODS.get(name)  # an unknown name is told at once
    return name, {key: setting_value(value) for key, value in (s.split("=") for s in settings)}


def grid(methods: Sequence[str], keeps: Sequence[int | float]) -> list[Setting]:
    """Every method with every budget; vanilla stands first, once: all others are measured by it."""
    for method in methods:
        parse(method)
    for keep in keeps:
        Budget(keep)
    named = [method for method in dict.fromkeys(methods) if method != VANILLA]
    return [Setting(VANILLA, 0), *(Setting(method, keep) for method in named for keep in dict.fromkeys(keeps))]
