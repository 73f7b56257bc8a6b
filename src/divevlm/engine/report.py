"""What a pruned prefill kept and saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import nn

from divevlm.core.costs import prefill_flops
from divevlm.core.selection import Trace
from divevlm.engine.decide import Choice, Decision
from divevlm.engine.passes import Pass
from divevlm.engine.prefill import Prefill
from divevlm.models.base import Visual


@dataclass
class SegmentReport:
    """Tokens that competed with each other: all counted within the sample's visual tokens.

    kept: whose places stay (a method that merges may put other rows there), ascending; order: as picked.
    """

    kept: list[int]
    order: list[int]
    visual: int
    candidates: list[int] = field(default_factory=list, repr=False)  # in the order of a trace's columns
    trace: Trace | None = None
    note: str = ""  # what the method has to say about its choice
    loop: str = ""  # which of DIVE's loops chose
    # of a method that merges: what each row stands for, as they come in the sequence
    merged: list[list[int]] | None = None


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
    decisions: Sequence[Decision] = field(default=(), repr=False, compare=False)  # one a cut, as tensors

    @property
    def mean_tokens(self) -> float:
        return sum(self.tokens_per_layer) / len(self.tokens_per_layer)

    def to_dict(self) -> dict[str, Any]:
        plain = asdict(replace(self, decisions=())) | {"mean_tokens": self.mean_tokens}
        del plain["decisions"]
        for sample in plain["samples"]:
            for segment in sample["segments"]:
                del segment["trace"], segment["candidates"]
            for visual in sample["visuals"]:
                visual["views"] = list(visual["views"])
        return plain

    def __str__(self) -> str:
        kept, visual = sum(len(s.kept) for s in self.samples), sum(s.visual for s in self.samples)
        last = self.tokens_per_layer[-1]
        kv_share, flops_share = 100 * self.kv_bytes / self.kv_bytes_full, 100 * self.flops / self.flops_full
        batch = f" in {len(self.samples)} samples" if len(self.samples) > 1 else ""
        loops = {segment.loop for sample in self.samples for segment in sample.segments}
        rows = (
            (self.method, f"kept {kept} of {visual} visual tokens{batch} ({self.budget})"),
            ("tokens", f"{self.tokens_full} -> {last} in the last block, mean {self.mean_tokens:.1f}"),
            ("KV cache", f"{_bytes(self.kv_bytes_full)} -> {_bytes(self.kv_bytes)} ({kv_share:.1f} %)"),
            ("prefill", f"{_flops(self.flops_full)} -> {_flops(self.flops)} ({flops_share:.1f} %, estimated)"),
            ("selection", f"{self.selection_ms:.2f} ms" + "".join(f", {loop} loop" for loop in sorted(loops) if loop)),
        )
        return "\n".join(f"{name:<10}{text}" for name, text in rows)


def report_of(done: Pass) -> Report:
    """Of a pass that brought visual tokens and has run through all blocks."""
    assert done.prefill is not None
    setup, (batch, length) = done.setup, done.present.shape
    blocks = range(len(setup.layers))
    past = 0 if done.past is None else done.past.shape[1]
    lengths = [length, *(stage.valid.shape[1] for stage in done.stages)]
    tokens = [lengths[sum(cut <= block for cut in setup.cuts)] for block in blocks]
    held = tokens if done.cache is None else [_columns(done.cache.layers[block]) for block in blocks]
    costs = Costs(setup.text.config, setup.layers, done.item_size)
    return Report(
        method=setup.method.name,
        budget=str(setup.method.budget),
        samples=_samples(done.prefill, done.decisions[-1]),
        tokens_per_layer=tokens,
        tokens_full=length,
        kv_bytes=costs.kv_bytes(batch, held),
        kv_bytes_full=costs.kv_bytes(batch, [past + length for _ in blocks]),
        flops=costs.flops(batch, tokens),
        flops_full=costs.flops(batch, [length for _ in blocks]),
        selection_ms=1e3 * sum(decision.seconds for decision in done.decisions),
        decisions=[_light(decision) for decision in done.decisions],
    )


def _light(decision: Decision) -> Decision:
    """Without the states that went on: a report is kept."""
    choices = []
    for choice in decision.choices:
        selection = choice.selection
        if selection is not None and selection.rows is not None:
            selection = replace(selection, rows=replace(selection.rows, values=selection.rows.values[:0].clone()))
        choices.append(replace(choice, selection=selection))
    return replace(decision, edits=(), choices=choices)


def _columns(layer: Any) -> int:
    return int(getattr(layer, "held", layer).get_seq_length())


def _samples(prefill: Prefill, decision: Decision) -> list[SampleReport]:
    samples = [
        SampleReport(len(layout.positions), int(prompt.sum()), kept.nonzero()[:, 0].tolist(), [], [], layout.visuals)
        for layout, prompt, kept in zip(prefill.layouts, prefill.prompt, decision.kept, strict=True)
    ]
    for choice in decision.choices:
        segment = _segment(choice)
        samples[choice.group.row].segments.append(segment)
        samples[choice.group.row].order += segment.order
    return samples


def _segment(choice: Choice) -> SegmentReport:
    tokens, selection = choice.group.tokens, choice.selection
    segment = SegmentReport(choice.slots.sort().values.tolist(), choice.order.tolist(), len(tokens), tokens.tolist())
    if selection is not None:
        segment.trace, segment.note, segment.loop = selection.trace, selection.note, selection.loop
        if selection.rows is not None:
            segment.merged = [tokens[members].tolist() for members in selection.rows.members]
    return segment


class Costs:
    """Bytes and operations of a language model, by the lengths of its blocks."""

    def __init__(self, config: Any, layers: nn.ModuleList, item_size: int) -> None:
        heads = config.num_attention_heads
        head = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.token_bytes: int = 2 * config.num_key_value_heads * head * item_size
        self.weights = [
            sum(m.in_features * m.out_features for m in layer.modules() if isinstance(m, nn.Linear)) for layer in layers
        ]
        self.width = heads * head

    def kv_bytes(self, batch: int, lengths: list[int]) -> int:
        return batch * self.token_bytes * sum(lengths)

    def flops(self, batch: int, lengths: list[int]) -> float:
        return batch * prefill_flops(lengths, self.weights, self.width)


def _bytes(value: float) -> str:
    return f"{value / 2**20:.2f} MB" if value >= 2**20 else f"{value / 2**10:.1f} KB"


def _flops(value: float) -> str:
    return f"{value / 1e12:.2f} TFLOP" if value >= 1e11 else f"{value / 1e9:.3g} GFLOP"
