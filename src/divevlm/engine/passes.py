"""A forward pass of the language model under pruning, block by block."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import __version__
from transformers.modeling_layers import GradientCheckpointingLayer

from divevlm.checks import require
from divevlm.engine import flash
from divevlm.engine.caches import NewColumns, copy_of_first, is_pruned, mark_pruned
from divevlm.engine.decide import Decision, decide
from divevlm.engine.prefill import Prefill
from divevlm.engine.sequence import (
    Columns,
    Deepstack,
    causal_mask,
    kept_tail,
    left_padded,
    mask_kind,
    row_of_position,
    take_rows,
)
from divevlm.engine.setup import Setup
from divevlm.engine.signals import BlockInput, Gatherer, past_keys

# Older versions of transformers checkpoint a block with its hooks.
HOOKS_AGAIN = "__call__" in vars(GradientCheckpointingLayer)


@dataclass(frozen=True)
class Stage:
    """The sequence behind a cut."""

    index: Tensor | None  # [B, Q] positions in the full sequence; None = all of them
    valid: Tensor  # [B, Q] False for padding
    columns: Columns  # which of them others may attend to: no padding, no dropped ones whose own output is needed
    arguments: dict[str, Any] = field(default_factory=dict)  # what blocks get instead of the model's own


class Pass:
    """prefill: None where no visual token comes in; present: [B, S] and past: [B, P] | None, False for padding."""

    def __init__(
        self, setup: Setup, prefill: Prefill | None, present: Tensor, past: Tensor | None, deep: Deepstack | None
    ) -> None:
        self.setup, self.prefill, self.present, self.past, self.deep = setup, prefill, present, past, deep
        self.layers: tuple[Any, ...] = tuple(setup.layers)
        # Such blocks ignore the cache.
        self.checkpointed = any(
            layer.training and getattr(layer, "gradient_checkpointing", False) for layer in self.layers
        )
        again = f"off under pruning with transformers {__version__}, which runs hooks again backwards; newer ones don't"
        require(not (self.checkpointed and HOOKS_AGAIN), "gradient_checkpointing", True, again)
        self.kind = mask_kind(setup.text.config)
        if self.kind == "flash" and setup.method.bias_strength:
            kernel = setup.text.config._attn_implementation
            flash.check(kernel, self.layers[0].self_attn, setup.method.proportional)
        self.stages: list[Stage] = []
        self.decisions: list[Decision] = []
        self.cache: Any = None
        self.item_size = 0  # bytes of a number in the states
        self._last_input: tuple[Tensor, Any] | None = None  # of the block before the next cut, with its tables

    @property
    def stage(self) -> Stage:
        return self.stages[-1] if self.stages else Stage(None, self.present, Columns(self.present))

    def enter(self, block: int, hidden: Tensor, kwargs: dict[str, Any]) -> Tensor:
        """hidden: on its way into block number `block` -> what it gets instead; kwargs are put right in place."""
        if block == 0:
            self.cache = None if self.checkpointed else kwargs.get("past_key_values")
            self.item_size = hidden.element_size()
            self._announce(0)
        if self.deep is not None:
            hidden = self.deep.add(hidden, block - 1, self.stage.index)
        if block in self.setup.cuts:
            hidden = self._cut(block, hidden, kwargs)
        if self.stages:
            kwargs |= self.stages[-1].arguments
        if self.prefill is not None:
            self._remember(block, hidden, kwargs["position_embeddings"])
        return hidden

    def _announce(self, block: int) -> None:
        """To the layers from this block on: what they will get, unless there is another cut."""
        if is_pruned(self.cache):
            coming = NewColumns(self.stage.columns, self.present)
            for layer in self.cache.layers[block:]:
                layer.coming = coming

    def finish(self) -> None:
        """All blocks have run."""
        if not is_pruned(self.cache):
            return
        dropped = self.stage.index is not None
        fresh = kept_tail(self.decisions[-1].stay) if dropped else self.present.shape[1]
        for layer in self.cache.layers:
            layer.tail = fresh if dropped else layer.tail + fresh

    def spread(self, output: Tensor) -> Tensor:
        """The output at its full length: positions that were dropped hold zeros. output: [B, Q, d] -> [B, S, d]"""
        stage = self.stage
        assert stage.index is not None
        full = output.new_zeros(*self.present.shape, output.shape[-1])
        rows, columns = stage.valid.nonzero(as_tuple=True)
        full[rows, stage.index[rows, columns]] = output[rows, columns]
        return full

    def abandon(self) -> None:
        """No more blocks will run: whatever was announced does not come."""
        for layer in self.cache.layers if is_pruned(self.cache) else ():
            layer.coming = None

    def _cut(self, block: int, hidden: Tensor, kwargs: dict[str, Any]) -> Tensor:
        past = None if self.past is None else Columns(self.past)
        past = self.cache.layers[block].columns if is_pruned(self.cache) else past
        stage = replace(self.stage, arguments={})
        if self.prefill is not None:
            decision = self._decide(block, hidden, kwargs, past)
            self.decisions.append(decision)
            if int(decision.stay.sum()) < int(stage.columns.valid.sum()):
                unseen = self.prefill.needed & ~decision.stay
                index, valid = left_padded(decision.stay | unseen, decision.places)
                hidden = self._rows(hidden, decision, row_of_position(stage.index, self.present), index)
                stage = Stage(index, valid, Columns(valid & ~unseen.gather(1, index), self._bias(decision, index)))
        if stage.index is not None and self.cache is not None and not is_pruned(self.cache):
            old = self.present[:, :0] if self.past is None else self.past
            mark_pruned(self.cache, self.setup.pruner, len(self.layers), block, old, self.present)
        if stage.index is not None or is_pruned(self.cache):
            stage = replace(stage, arguments=self._arguments(stage, past, hidden, kwargs))
        self.stages.append(stage)
        self._announce(block)
        self._last_input = None
        return hidden

    def _rows(self, hidden: Tensor, decision: Decision, here: Tensor, index: Tensor) -> Tensor:
        """The rows that go on. here: where each position is in hidden, index: the positions that go on"""
        if decision.edits:
            hidden = hidden.clone()
        for row, positions, values in decision.edits:
            hidden[row, here[row, positions].to(hidden.device)] = values.to(hidden)
        return take_rows(hidden, here.gather(1, index))

    def _bias(self, decision: Decision, index: Tensor) -> Tensor | None:
        """[B, Q] what is added to the logits towards tokens that stand for several."""
        if not decision.sizes:
            return None
        assert self.prefill is not None
        bias = torch.zeros_like(self.present, dtype=torch.float)
        for row, (layout, kept, sizes) in enumerate(
            zip(self.prefill.layouts, decision.kept, decision.sizes, strict=True)
        ):
            bias[row, layout.positions[kept].to(bias.device)] = sizes[kept].log().to(bias.device)
        return self.setup.method.bias_strength * bias.gather(1, index)

    def _arguments(self, stage: Stage, past: Columns | None, hidden: Tensor, kwargs: dict[str, Any]) -> dict[str, Any]:
        """What the blocks get instead of the model's own. No position ids: flash takes gaps for packed sequences."""
        queries = stage.valid.shape[1]
        columns = stage.columns
        if self.kind == "flash":
            unseen = stage.valid & ~columns.valid
            require(
                not bool(unseen[:, :-1].any()), "labels", "a word to learn right behind an image",
                "-100 there with flash attention, which can't compute a dropped token's output; or use 'sdpa'",
            )  # fmt: skip
            columns = Columns(stage.valid, columns.bias)
        mask = causal_mask(self.kind, columns if past is None else past.then(columns), queries, hidden.dtype)
        tables = kwargs["position_embeddings"]
        if self.setup.positions == "compact":
            visible = (stage.columns if past is None else past.then(stage.columns)).valid.long()
            numbers = (visible.cumsum(dim=1) - visible)[:, -queries:]
            tables = self.setup.text.rotary_emb(hidden, position_ids=numbers.to(hidden.device))
        elif stage.index is not None:
            tables = tuple(take_rows(table, stage.index) for table in tables)
        return {"attention_mask": mask, "position_embeddings": tables, "position_ids": None}

    # Deciding

    def _decide(self, block: int, hidden: Tensor, kwargs: dict[str, Any], past: Columns | None) -> Decision:
        assert self.prefill is not None
        setup, stage, cut = self.setup, self.stage, len(self.stages)
        states = self._run_ahead(hidden, kwargs, past) if setup.method.placement == "entry" else hidden
        rows = row_of_position(stage.index, self.present)
        attended = self._attended(cut, block, states, kwargs, past)
        measured = self._behind(cut, states, kwargs, past) if setup.method.proportional == "measured" else None
        gatherer = Gatherer(
            setup.method, self.prefill, cut, states, rows, stage.columns, setup.norm(cut), attended, measured
        )
        before = self.decisions[-1] if self.decisions else None
        return decide(setup.method, len(self.layers), self.prefill, cut, gatherer.signals, states, before)

    def _remember(self, block: int, hidden: Tensor, tables: Any) -> None:
        """Keep the input of a block whose attention the method reads at the cut behind it."""
        needs = self.setup.method.needs
        if (needs.attention or needs.keys) and needs.block == "before" and block + 1 in self.setup.reads:
            self._last_input = hidden, tables

    def _attended(
        self, cut: int, at: int, states: Tensor, kwargs: dict[str, Any], past: Columns | None
    ) -> BlockInput | None:
        """The block whose attention the method asks for. at: the block before which it cuts, past: what that one holds"""
        setup, needs, block = self.setup, self.setup.method.needs, self.setup.reads[cut]
        if not (needs.attention or needs.keys):
            return None
        if needs.block == "after":
            return self._behind(cut, states, kwargs, past)
        assert self._last_input is not None
        if block == at and is_pruned(self.cache):  # the block before the cut has run in this pass already
            lead = max(first for first in (0, *setup.cuts) if first < block)
            past = self.cache.layers[lead].columns.map(lambda rows: rows[:, : -states.shape[1]])
        elif block == at:
            past = None if self.past is None else Columns(self.past)
        return BlockInput(self.layers[block - 1], *self._last_input, past_keys(self.cache, block - 1, past))

    def _behind(self, cut: int, states: Tensor, kwargs: dict[str, Any], past: Columns | None) -> BlockInput:
        """The first block behind a cut, on its way into which the states are."""
        block = self.setup.reads[cut]
        tables = self.stage.arguments.get("position_embeddings", kwargs["position_embeddings"])
        return BlockInput(self.layers[block], states, tables, past_keys(self.cache, block, past))

    def _run_ahead(self, hidden: Tensor, kwargs: dict[str, Any], past: Columns | None) -> Tensor:
        """States before the block that the method reads, over the whole sequence, leaving the cache alone."""
        columns = Columns(self.present) if past is None else past.then(Columns(self.present))
        blocks = self.setup.reads[0]
        cache = None if self.cache is None or past is None else copy_of_first(self.cache, blocks)
        mask = causal_mask(self.kind, columns, hidden.shape[1], hidden.dtype)
        kwargs = kwargs | {"attention_mask": mask, "past_key_values": cache}
        with torch.no_grad():
            for number, layer in enumerate(self.layers[:blocks]):
                self._remember(number, hidden, kwargs["position_embeddings"])
                hidden = layer.forward(hidden, **kwargs)
                if self.deep is not None:
                    hidden = self.deep.add(hidden, number, None)
        return hidden
