"""What a method asked to see, gathered at a cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from divevlm.core.raters import gravity
from divevlm.engine.attention import attention_rows, merged_table, repeated, rotated_keys
from divevlm.engine.call import Call
from divevlm.engine.vision import picked
from divevlm.methods.base import Method, Signals


@dataclass
class Look:
    """A decoder block whose attention is asked for, and what it works on."""

    block: Any
    hidden: Tensor  # [B, Q, d] on its way into it
    tables: tuple[Tensor, Tensor]  # cos, sin [..., B or 1, Q, head_dim]
    past: tuple[Tensor, Tensor] | None  # keys [B, heads, P, head_dim] and which are valid [B, P]


@dataclass
class Gatherer:
    """Signals of the samples of a batch at one cut.

    hidden: [B, Q, d] before the cut; rows: [B, S] where each position is in it; valid: [B, Q] False for padding.
    """

    method: Method
    call: Call
    cut: int
    hidden: Tensor
    rows: Tensor
    valid: Tensor
    norm: Callable[[Tensor], Tensor]
    look: Look | None

    def signals(self, row: int, tokens: Tensor, text: Tensor, before: Tensor) -> Signals:
        """tokens: the candidates, within the sample's visual tokens; text: [M] positions of the prompt; before: the
        candidates before any cut."""
        call = self.call
        assert call.layouts is not None
        layout = call.layouts[row]
        device = self.hidden.device
        here = self.rows[row].to(device)
        positions = layout.positions[tokens].to(device)
        text = text.to(device)
        visual = self.hidden[row, here[positions]]
        found = Signals(
            visual=self.norm(visual),
            text=self.norm(self.hidden[row, here[text]]),
            cells=layout.cells[tokens],
            budget=self.method.budget,
            cut=self.cut,
            views=layout.views[tokens],
            total=len(before),
            hidden=visual,
            later=text > int(layout.positions[-1]),
        )
        if call.ids is not None:
            found.ids = call.ids[row].to(device)[text]
        if call.embeds is not None:
            embeds = call.embeds[row].to(device)
            found.visual_embeds, found.text_embeds = embeds[positions], embeds[text]
            found.all_embeds = embeds[layout.positions[before].to(device)]
        if call.vision is not None:
            found.vision = picked(call.vision, call.vision_rows[row][tokens])
        if self.look is not None:
            self._look(found, self.look, row, here[positions], here[text])
        return found

    def _look(self, found: Signals, look: Look, row: int, visual: Tensor, text: Tensor) -> None:
        """visual, text: where they are in the sequence as it is."""
        needs = self.method.needs
        hidden = look.hidden[row].to(look.block.input_layernorm.weight.device)
        visual, text = visual.to(hidden.device), text.to(hidden.device)
        batch = len(look.hidden)
        cos, sin = (
            t.expand(*t.shape[:-3], batch, *t.shape[-2:]).select(-3, row).to(hidden.device) for t in look.tables
        )
        if needs.attention is not None:
            queries = text[-1:] if needs.attention == "last" else text
            past = None if look.past is None else (look.past[0][row], look.past[1][row])
            valid = self.valid[row].to(hidden.device)
            rows = attention_rows(look.block, hidden, (cos, sin), queries, valid, past)
            found.attention = rows[..., visual].to(self.hidden.device)
        if needs.gravity:
            turned = tuple(merged_table(table, look.block.self_attn) for table in (cos, sin))
            pull = gravity((turned[0][text], turned[1][text]), (turned[0][visual], turned[1][visual]))
            found.gravity = pull.to(self.hidden.device)
        if needs.keys:
            keys = repeated(look.block, rotated_keys(look.block, hidden, (cos, sin)))
            flat = keys.transpose(0, 1).flatten(1).float().to(self.hidden.device)
            found.visual_keys, found.text_keys = flat[visual.to(flat.device)], flat[text.to(flat.device)]


def past_keys(cache: Any, block: int, valid: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """What a block remembers of before this pass. valid: [B, P]"""
    if cache is None or valid is None or not valid.shape[1]:
        return None
    return cache.layers[block].keys[:, :, : valid.shape[1]], valid.to(torch.bool)
