"""What is compared: a method with its options, and a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from divevlm.budget import Budget
from divevlm.checks import require
from divevlm.methods import METHODS, Method, method_of, parse
from divevlm.methods.readers import check as check_reader
from divevlm.methods.readers import readers
from divevlm.models import FAMILIES, family_of
from divevlm.planning import MATCHES, VANILLA

NOMINAL = 1024  # visual tokens, to check shares where images have any number of them


@dataclass(frozen=True)
class Setting:
    """method: a name with options, "dive:eta=0.5:layer=3"; keep: a count or a share, 0 for vanilla; seed: of methods that draw,
    unless the options name one."""

    method: str
    keep: int | float
    seed: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return self.method if not self.keep else f"{self.method} {self.keep:g}"

    def ready(self, model: Any, processor: Any = None) -> Method | None:
        """The method itself, for this model; None: vanilla."""
        name, options, match = self._parts()
        if name == VANILLA:
            return None
        options |= readers(name, self._text(), model, processor)
        return method_of(name, self._mean_matched(name, model) if match == "layer-mean" else self.keep, options)

    def _text(self) -> str | None:
        """What a method reads the prompt with, where the string says so."""
        found = parse(self.method)[1].get("text")
        return None if found is None else str(found)

    def check(self) -> Setting:
        """Refuse what is wrong whatever the model."""
        name, options, _ = self._parts()
        if name != VANILLA:
            check_reader(name, self._text())
            method_of(name, self.keep, options)
        return self

    def _parts(self) -> tuple[str, dict[str, Any], str | None]:
        """The name, the method's own options, and how to match the budget where the method has no option for it."""
        name, options = parse(self.method)
        if name == VANILLA:
            require(not options, "method", self.method, "without options where it is vanilla")
            return name, {}, None
        known = {f.name for f in fields(METHODS.get(name))}
        options.pop("text", None)
        if "seed" in known:
            options.setdefault("seed", self.seed)
        match = None if "match" in known else options.pop("match", None)
        require(match is None or match in MATCHES, "match", match, "'final' or 'layer-mean'")
        return name, options, match

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


def check_budgets(settings: Sequence[Setting], config: Any) -> None:
    """Refuse budgets that no image of this model can meet. config: of the model; nothing is loaded."""
    from divevlm.planning import ModelShape, plan

    family = FAMILIES.get(config.model_type)()
    tokens = None if family.usual_views(config) else NOMINAL
    for setting in settings:
        name, options, match = setting._parts()
        if name == VANILLA:
            continue
        most = ModelShape.of(config, tokens=tokens).tokens
        large = family.plain and isinstance(setting.keep, int) and setting.keep > most
        require(not large, "keep", setting.keep, f"at most {most}, the visual tokens of an image, for {name}")
        wanted: Any = match or options.pop("match", "final")
        try:
            plan(name, config, keep=setting.keep, match=wanted, tokens=tokens, **options)
        except ValueError as error:
            raise ValueError(f"{setting} can't be done: {error}") from None


def grid(methods: Sequence[str], keeps: Sequence[int | float], seed: int = 0) -> list[Setting]:
    """Every method with every budget, checked; vanilla stands first, once: all others are measured by it."""
    for keep in keeps:
        Budget(keep)
    named = [method for method in dict.fromkeys(methods) if method != VANILLA]
    others = [Setting(method, keep, seed).check() for method in named for keep in dict.fromkeys(keeps)]
    return [Setting(VANILLA, 0), *others]
