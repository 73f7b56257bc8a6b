"""At a cut: who stays, and what the blocks behind it get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from divevlm.engine.caches import glimpse, guard
from divevlm.engine.call import Call, Stage, left_aligned, take
from divevlm.engine.choose import choose
from divevlm.engine.masks import Kind, stage_mask
from divevlm.engine.signals import Gatherer, Look, past_keys
from divevlm.methods.base import Method


class Cutter:
    """Cuts the sequence of a language model before the blocks `cuts`."""

    def __init__(
        self,
        text: Any,
        method: Method,
        cuts: tuple[int, ...],
        look: int,
        kind: Kind,
        positions: Literal["keep", "compact"],
    ) -> None:
        self.text, self.method, self.cuts, self.kind, self.positions = text, method, cuts, kind, positions
        self.layers: nn.ModuleList = text.layers
        self.looks = (look, *cuts[1:])  # the blocks whose states the method sees

    def enter(self, call: Call, hidden: Tensor, kwargs: dict[str, Any]) -> Tensor:
        """hidden: [B, Q, d] on its way into the block of the next cut -> the rows that go on."""
        number = len(call.stages)
        talk = call.conversation
        past = talk.valid.get(number) if talk is not None else None
        if past is None:
            past = call.past
        before = call.index
        stage = Stage(before, call.stages[-1].valid if call.stages else call.present)
        if call.layouts is not None:
            states = self._scout(hidden, kwargs, call, past) if self.method.placement == "entry" else hidden
            rows = call.rows()
            norm, look = self._norm(number), self._look(number, call, states, kwargs, past)
            gatherer = Gatherer(self.method, call, number, states, rows, stage.valid, norm, look)
            choice = choose(self.method, number, len(self.layers), gatherer, call)
            if int(choice.stay.sum()) < int(stage.valid.sum()):
                stage.index, stage.valid = left_aligned(choice.stay, choice.places)
                if choice.edits:
                    hidden = hidden.clone()
                for row, positions, values in choice.edits:
                    hidden[row, rows[row, positions].to(hidden.device)] = values.to(hidden)
                hidden = take(hidden, rows.gather(1, stage.index))
            call.before = None
        call.stages.append(stage)
        columns = stage.valid if past is None else torch.cat([past.to(stage.valid.device), stage.valid], dim=1)
        pruned = stage.index is not None
        if talk is not None:
            talk.valid[number] = columns
            talk.pruned |= pruned
            pruned = talk.pruned
            if pruned:
                guard(call.cache, talk, pretend=self.cuts[0] == 0)
        if pruned:
            stage.arguments = self._arguments(stage, columns, hidden, kwargs)
        return hidden

    def _arguments(self, stage: Stage, columns: Tensor, hidden: Tensor, kwargs: dict[str, Any]) -> dict[str, Any]:
        """What the blocks get instead of the model's own. No position ids: with gaps they look like packed sequences."""
        queries = stage.valid.shape[1]
        mask = stage_mask(self.kind, columns, queries, hidden.dtype)
        tables = kwargs["position_embeddings"]
        if self.positions == "compact":
            numbers = columns.long().cumsum(dim=1).sub_(1).clamp_min_(0)[:, -queries:]
            tables = self.text.rotary_emb(hidden, position_ids=numbers.to(hidden.device))
        elif stage.index is not None:
            tables = tuple(take(table, stage.index) for table in tables)
        return {"attention_mask": mask, "position_embeddings": tables, "position_ids": None}

    def note(self, call: Call, block: int, hidden: Tensor, tables: Any) -> None:
        """Keep what goes into a block for the cut behind it, where the method looks at that block."""
        needs = self.method.needs
        if (needs.attention or needs.keys) and needs.block == "before" and block + 1 in self.looks:
            call.before = hidden, tables

    def _look(
        self, number: int, call: Call, states: Tensor, kwargs: dict[str, Any], past: Tensor | None
    ) -> Look | None:
        """The block whose attention the method asks for. past: valid columns of what the block of this cut remembers."""
        needs, block = self.method.needs, self.looks[number]
        if not (needs.attention or needs.keys):
            return None
        if needs.block == "after":
            earlier = call.stages[-1].arguments if call.stages else {}
            tables = earlier.get("position_embeddings", kwargs["position_embeddings"])
            return Look(self.layers[block], states, tables, past_keys(call.cache, block, past))
        assert call.before is not None
        if number and call.conversation is not None:
            past = call.conversation.valid[number - 1][:, : -states.shape[1]]
        elif block == self.cuts[number]:  # the block before it remembers the past uncut
            past = None if number else call.past
        return Look(self.layers[block - 1], *call.before, past_keys(call.cache, block - 1, past))

    def _scout(self, hidden: Tensor, kwargs: dict[str, Any], call: Call, past: Tensor | None) -> Tensor:
        """States of block `look` over the whole sequence, leaving the cache alone."""
        columns = call.present if past is None else torch.cat([past, call.present], dim=1)
        seen = None if call.cache is None or past is None else glimpse(call.cache, self.looks[0])
        mask = stage_mask(self.kind, columns, hidden.shape[1], hidden.dtype)
        kwargs = kwargs | {"attention_mask": mask, "past_key_values": seen}
        with torch.no_grad():
            for number, layer in enumerate(self.layers[: self.looks[0]]):
                self.note(call, number, hidden, kwargs["position_embeddings"])
                hidden = layer.forward(hidden, **kwargs)
                if call.deep is not None:
                    hidden = call.deep.add(hidden, number, None)
        return hidden

    def _norm(self, number: int) -> Callable[[Tensor], Tensor]:
        if self.method.norm == "none":
            return lambda z: z
        norm: Any = self.text.norm if self.method.norm == "final" else self.layers[self.looks[number]].input_layernorm
        return lambda z: norm.forward(z.to(norm.weight.device))
