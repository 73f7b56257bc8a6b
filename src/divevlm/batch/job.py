"""What is to be answered, by what, and where the answers go."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from divevlm.checks import require
from divevlm.experiments.settings import Setting, check_budgets
from divevlm.loading import Loaded, config_of, load

if TYPE_CHECKING:
    from divevlm.batch.engine import Engine
    from divevlm.batch.rows import Row

FORMAT = 1  # of the folders: raised when answers of before must not be added to
SIZES = {"local": 8, "vllm": 256}  # rows that go through an engine together


@dataclass(frozen=True)
class Job:
    """engine: where the rows go; actor: what answers them inside Ray. shard: the number of this process among `shards`.

    llm: further arguments of vllm.LLM
    """

    input: Path
    out: Path
    model: str = "llava"
    method: str = "dive"
    keep: int | float = 64
    engine: Literal["local", "vllm", "ray"] = "local"
    actor: Literal["local", "vllm"] = "local"
    actors: int = 2
    batch: int | None = None
    shards: int = 1
    shard: int = 0
    system: str | None = None
    max_new_tokens: int = 32
    frames: int = 8
    dtype: str | None = None
    device: str | None = None
    attn: str | None = None
    llm: dict[str, Any] = field(default_factory=dict)

    @property
    def answers(self) -> Literal["local", "vllm"]:
        """What answers in the end."""
        return self.actor if self.engine == "ray" else self.engine

    @property
    def size(self) -> int:
        return SIZES[self.answers] if self.batch is None else self.batch

    def check(self) -> None:
        """What can be told before anything is loaded."""
        for name, value in (
            ("batch-size", self.size),
            ("shards", self.shards),
            ("actors", self.actors),
            ("new-tokens", self.max_new_tokens),
            ("frames", self.frames),
        ):
            require(value >= 1, f"--{name}", value, "at least 1")
        require(0 <= self.shard < self.shards, "--shard", self.shard, f"from 0 to {self.shards - 1}")
        require(
            self.shards == 1 or self.engine != "ray", "--shards", self.shards, "left out where Ray spreads the work"
        )
        require(not self.llm or self.answers == "vllm", "--llm", self.llm, "left out where vLLM does not answer")
        check_budgets([Setting(self.method, self.keep).check()], config_of(self.model))

    def same(self, mark: str) -> dict[str, Any]:
        """What all answers of a folder have in common. mark: of the input"""
        names = ("model", "method", "system", "max_new_tokens", "frames", "dtype", "attn", "llm")
        own = {name: getattr(self, name) for name in names}
        return {"format": FORMAT, "input": mark, "keep": str(self.keep), "answers": self.answers, **own}

    def key(self, row: Row) -> dict[str, Any]:
        """Names of the journal: which answer a record is."""
        return {"method": self.method, "keep": self.keep, "task": "batch", "sample": str(row.line)}

    def load(self) -> Loaded:
        loaded = load(self.model, self.device, self.dtype, attn=self.attn)
        template = getattr(loaded[1], "chat_template", None)
        require(bool(template), "--model", self.model, "one whose processor has a chat template")
        return loaded

    def ready(self) -> Engine:
        """With its model loaded."""
        if self.answers == "vllm":
            from divevlm.batch.with_vllm import Vllm

            return Vllm(self)
        from divevlm.batch.engine import Local

        return Local(self)
