"""What a pruned prefill kept and saved."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from divevlm.core.selection import Trace
from divevlm.models.base import Visual


@dataclass
class SegmentReport:
    """Tokens that competed with each other: all counted within the sample's visual tokens.

    kept: whose places stay (a method that merges may put other rows there), ascending; order: as picked.
    """

    kept: list[int]
    order: list[int]
    visual: int
    trace: Trace | None = None
    note: str = ""  # what the method has to say about its choice
    merged: list[list[int]] | None = (
        None  # of a method that merges: what each row stands for, as they come in the sequence
    )


@dataclass
class SampleReport:
    visual: int  # N
    text: int  # M
    kept: list[int]  # ascending, counted within the sample's visual tokens; newline tokens that stay are among them
    order: list[int]  # as picked, one segment after another
    segments: list[SegmentReport] = field(default_factory=list)
    visuals: list[Visual] = field(default_factory=list)  # its images and videos: the grids that the tokens come from

    @property
    def cells(self) -> list[tuple[int, int, int]]:
        """Frame, row and column of each visual token; row and column are -1 for newline tokens."""
        cells = [cell for visual in self.visuals for view in visual.views for cell in view.cells().tolist()]
        return [(frame, row, column) for frame, row, column in cells]

    @property
    def views(self) -> list[int]:
        """Which view of its image each visual token belongs to."""
        return [view.view for visual in self.visuals for view in visual.views for _ in range(view.size)]

    @property
    def images(self) -> list[int]:
        """Which image or video of the sample each visual token belongs to."""
        return [number for number, visual in enumerate(self.visuals) for _ in range(visual.size)]


@dataclass
class Report:
    """Of one prefill. Bytes and operations are those of the whole batch, padding included."""

    method: str
    budget: str
    samples: list[SampleReport]
    tokens_per_layer: list[int]  # length of the sequence in each block
    tokens_full: int
    kv_bytes: int
    kv_bytes_full: int
    flops: float
    flops_full: float
    selection_ms: float

    @property
    def mean_tokens(self) -> float:
        return sum(self.tokens_per_layer) / len(self.tokens_per_layer)

    def to_dict(self) -> dict[str, Any]:
        plain = asdict(self) | {"mean_tokens": self.mean_tokens}
        for sample in plain["samples"]:
            for segment in sample["segments"]:
                segment.pop("trace")
            for visual in sample["visuals"]:
                visual["views"] = list(visual["views"])
        return plain

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        kept, visual = (sum(values) for values in zip(*((len(s.kept), s.visual) for s in self.samples), strict=True))
        batch = f" in {len(self.samples)} samples" if len(self.samples) > 1 else ""
        rows = (
            (self.method, f"kept {kept} of {visual} visual tokens{batch} ({self.budget})"),
            (
                "tokens",
                f"{self.tokens_full} -> {self.tokens_per_layer[-1]} in the last block, mean {self.mean_tokens:.1f}",
            ),
            (
                "KV cache",
                f"{_bytes(self.kv_bytes_full)} -> {_bytes(self.kv_bytes)} ({_share(self.kv_bytes, self.kv_bytes_full)})",
            ),
            (
                "prefill",
                f"{_flops(self.flops_full)} -> {_flops(self.flops)} ({_share(self.flops, self.flops_full)}, estimated)",
            ),
            ("selection", f"{self.selection_ms:.2f} ms"),
        )
        return "\n".join(f"{name:<10}{text}" for name, text in rows)


class Costs:
    """Bytes and operations of a language model, by the lengths of its blocks."""

    def __init__(self, config: Any, layers: nn.ModuleList, item_size: int) -> None:
        heads = config.num_attention_heads
        head = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.token_bytes: int = 2 * config.num_key_value_heads * head * item_size
        self.weights = [sum(m.weight.numel() for m in layer.modules() if isinstance(m, nn.Linear)) for layer in layers]
        self.width = heads * head

    def kv_bytes(self, batch: int, lengths: list[int]) -> int:
        return batch * self.token_bytes * sum(lengths)

    def flops(self, batch: int, lengths: list[int]) -> float:
        """Two operations a weight and token, and the two products of attention; norms and softmax are left out."""
        per_layer = zip(self.weights, lengths, strict=True)
        return float(batch * sum(2 * weights * n + 4 * n * n * self.width for weights, n in per_layer))


def _bytes(value: float) -> str:
    return f"{value / 2**20:.2f} MB" if value >= 2**20 else f"{value / 2**10:.1f} KB"


def _flops(value: float) -> str:
    return f"{value / 1e12:.2f} TFLOP" if value >= 1e11 else f"{value / 1e9:.3g} GFLOP"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %"
