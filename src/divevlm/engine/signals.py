"""What a method asked to see, gathered at a cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from divevlm.core.sparsevlm import gravity
from divevlm.engine.attention import attention_rows, merged_table, repeated, rotated_keys
from divevlm.engine.caches import contents
from divevlm.engine.masks import Columns
from divevlm.engine.prefill import Group, Prefill
from divevlm.engine.setup import at_home
from divevlm.engine.vision import picked
from divevlm.methods.base import Method, Signals


@dataclass
class Look:
    """A decoder block whose attention is asked for, and what it works on."""

    block: Any
    hidden: Tensor  # [B, Q, d] on its way into it
    tables: tuple[Tensor, Tensor]  # cos, sin [..., B or 1, Q, head_dim]
    past: tuple[Tensor, Columns] | None  # keys [B, heads, P, head_dim], and what they look like


@dataclass
class Gatherer:
    """Signals of the samples of a batch at one cut.

    hidden: [B, Q, d] before the cut; rows: [B, S] where each position is in it; seen: what others see of these rows.
    """

    method: Method
    prefill: Prefill
    cut: int
    hidden: Tensor
    rows: Tensor
    seen: Columns
    norm: Callable[[Tensor], Tensor]
    look: Look | None

    def signals(self, group: Group) -> Signals:
        given, row = self.prefill, group.row
        layout = given.layouts[row]
        device = self.hidden.device
        here = self.rows[row].to(device)
        positions = layout.positions[group.tokens].to(device)
        text = given.prompt[row].nonzero()[:, 0].to(device)
        visual = self.hidden[row, here[positions]]
        found = Signals(
            visual=self.norm(visual),
            text=self.norm(self.hidden[row, here[text]]),
            cells=layout.cells[group.tokens],
            budget=self.method.budget,
            cut=self.cut,
            views=layout.views[group.tokens],
            total=len(group.before),
            hidden=visual,
            later=text > int(layout.positions[-1]),
        )
        if given.ids is not None:
            found.ids = given.ids[row].to(device)[text]
        if given.embeds is not None:
            embeds = given.embeds[row].to(device)
            found.visual_embeds, found.text_embeds = embeds[positions], embeds[text]
            found.all_embeds = embeds[layout.positions[group.before].to(device)]
        if given.vision is not None:
            found.vision = picked(given.vision, given.vision_rows[row][group.tokens])
        if self.look is not None:
            last = given.present[row].nonzero()[-1:, 0].to(device)
            self._look(found, self.look, row, here[positions], here[text if len(text) else last])
        return found

    def _look(self, found: Signals, look: Look, row: int, visual: Tensor, text: Tensor) -> None:
        """visual, text: where they are in the sequence as it is. A prompt without text speaks by its last position."""
        needs = self.method.needs
        hidden = at_home(look.hidden[row], look.block.input_layernorm)
        visual, text = visual.to(hidden.device), text.to(hidden.device)
        batch = len(look.hidden)
        cos, sin = (
            t.expand(*t.shape[:-3], batch, *t.shape[-2:]).select(-3, row).to(hidden.device) for t in look.tables
        )
        if needs.attention is not None:
            queries = text[-1:] if needs.attention == "last" else text
            past = None if look.past is None else look.past[0][row]
            columns = self.seen if look.past is None else look.past[1].then(self.seen)
            columns = columns.each(lambda rows: rows[row].to(hidden.device))
            rows = attention_rows(look.block, hidden, (cos, sin), queries, columns, past)
            found.attention = rows[..., visual].to(self.hidden.device)
        if needs.gravity:
            turned = tuple(merged_table(table, look.block.self_attn) for table in (cos, sin))
            pull = gravity((turned[0][text], turned[1][text]), (turned[0][visual], turned[1][visual]))
            found.gravity = pull.to(self.hidden.device)
        if needs.keys:
            keys = repeated(look.block, rotated_keys(look.block, hidden, (cos, sin)))
            flat = keys.transpose(0, 1).flatten(1).float().to(self.hidden.device)
            found.visual_keys, found.text_keys = flat[visual.to(flat.device)], flat[text.to(flat.device)]


def past_keys(cache: Any, block: int, past: Columns | None) -> tuple[Tensor, Columns] | None:
    """What a block remembers of before this pass."""
    if cache is None or past is None or not past.valid.shape[1]:
        return None
    return contents(cache.layers[block])[0][:, :, : past.valid.shape[1]], past
