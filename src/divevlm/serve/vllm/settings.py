"""What a deployment asks for: the "dive" entry of --hf-overrides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from divevlm.checks import require
from divevlm.methods import METHODS, Method, method_of
from divevlm.methods.base import Needs
from divevlm.models import FAMILIES
from divevlm.models.base import Family

ARCHITECTURES = {f"Dive{FAMILIES.get(name).vllm}": name for name in FAMILIES if FAMILIES.get(name).vllm}  # -> family
CACHE = 2**30  # bytes of host memory for embeddings of whole images, in each worker
FIXED = ("placement", "proportional")  # what vLLM leaves no choice in


@dataclass(frozen=True)
class Settings:
    options: Mapping[str, Any]  # of the method, with its name and budget
    cache_bytes: int
    family: Family
    config: Any  # of the checkpoint
    blocks: int

    @classmethod
    def of(cls, config: Any) -> Settings:
        """From a checkpoint's configuration with "dive" in it; refuses what can't be served."""
        given = getattr(config, "dive", None)
        allowed = 'an object with at least "keep", as in {"keep": 64}'
        require(isinstance(given, Mapping) and "keep" in given, "dive in --hf-overrides", given, allowed)
        assert given is not None
        options = {"method": "dive", **given}
        size = options.pop("cache_bytes", CACHE)
        whole = isinstance(size, int) and not isinstance(size, bool) and size >= 0
        require(whole, "cache_bytes", size, "a whole number of bytes of at least 0")
        family = FAMILIES.get(config.model_type)()
        settings = cls(options, size, family, config, config.get_text_config().num_hidden_layers)
        settings._check(settings.method())
        return settings

    def method(self, keep: Any = None) -> Method:
        """keep: of this request; None: the deployment's."""
        options = {name: value for name, value in self.options.items() if name not in ("method", "keep")}
        set_here = sorted(set(options) & set(FIXED))
        require(
            not set_here, "dive", ", ".join(set_here), "without it: on vLLM tokens are chosen at the entry, unweighted"
        )
        return method_of(self.options["method"], self.options["keep"] if keep is None else keep, options)

    def key(self, keep: Any) -> str:
        """All that the choice depends on beside the prompt and its images."""
        return json.dumps({**self.options, "keep": self.options["keep"] if keep is None else keep}, sort_keys=True)

    @property
    def grid(self) -> bool:
        """Whether positions are a grid, as those of Qwen2-VL."""
        return "mrope_section" in (getattr(self.config.get_text_config(), "rope_parameters", None) or {})

    @property
    def positions(self) -> Literal["keep", "compact"]:
        method = self.method()
        return method.positions or ("keep" if self.grid else method.default_positions)

    @property
    def look(self) -> int:
        """The method sees the states in front of this block."""
        return self.method().blocks(self.blocks, self.family.default_layer)[0]

    def _check(self, method: Method) -> None:
        servable = [name for name in METHODS if servable_by_name(name)]
        require(servable_by_name(method.name), "method", method.name, f"one of {', '.join(servable)} on vLLM")
        require(self.look < self.blocks, "layer", self.look, f"a block number from 0 to {self.blocks - 1}")
        require(method.budget.energy is None, "keep", method.budget, "a count or a share: vLLM must know it beforehand")
        require(method.budget.scope != "sample", "scope", "sample", "'image', 'view' or 'frame' on vLLM")
        compact = self.grid and method.positions == "compact"
        require(not compact, "positions", "compact", f"'keep' for {self.family.name}, whose positions are a grid")
        rope = (getattr(self.config.get_text_config(), "rope_parameters", None) or {}).get("rope_type", "default")
        plain = self.grid or self.positions == "compact" or rope in ("default", "linear", "llama3")
        require(plain, "positions", "keep", f"'compact' with RoPE of type {rope!r}")


def servable_by_name(name: str) -> bool:
    """Whether a method looks at embeddings and hidden states alone, chooses once, and moves no rows."""
    kind = METHODS.get(name)
    needs = kind(keep=1).needs
    plain = all(getattr(needs, f.name) == f.default for f in fields(Needs) if f.name not in ("embeds", "block"))
    once = kind.blocks is Method.blocks and kind.stay is Method.stay
    return plain and once and not kind.merges and kind.in_tower is Method.in_tower
