"""Signals of a group of candidates at a cut: hidden states, prompt, embeddings, and rows of a block's attention map.

Attention comes from q and k of a single block: no `output_attentions`, no eager attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from divevlm.core.sparsevlm import gravity
from divevlm.engine.caches import keys_and_values
from divevlm.engine.decide import Group
from divevlm.engine.prefill import Prefill
from divevlm.engine.sequence import Columns
from divevlm.engine.setup import beside_weights
from divevlm.methods.base import Method, Signals


@dataclass
class BlockInput:
    """A decoder block whose attention is asked for, and its input."""

    block: Any
    hidden: Tensor  # [B, Q, d]
    tables: tuple[Tensor, Tensor]  # cos, sin [..., B or 1, Q, head_dim]
    past: tuple[Tensor, Columns] | None  # cached keys [B, heads, P, head_dim], and which of them may be attended to


@dataclass
class Gatherer:
    """Signals of the samples of a batch at a cut.

    hidden: [B, Q, d] before the cut; rows: [B, S] where each position is in it; columns: who may attend to these rows.
    """

    method: Method
    prefill: Prefill
    cut: int
    hidden: Tensor
    rows: Tensor
    columns: Columns
    norm: Callable[[Tensor], Tensor]
    attended: BlockInput | None
    measured: BlockInput | None = None  # the block behind the cut, where groups are measured

    def signals(self, group: Group) -> Signals:
        prefill, row, device = self.prefill, group.row, self.hidden.device
        layout = prefill.layouts[row]
        rows = self.rows[row].to(device)
        positions = layout.positions[group.tokens].to(device)
        text = prefill.prompt[row].nonzero()[:, 0].to(device)
        visual = self.hidden[row, rows[positions]]
        signals = Signals(
            visual=self.norm(visual),
            text=self.norm(self.hidden[row, rows[text]]),
            cells=layout.cells[group.tokens],
            budget=self.method.budget,
            cut=self.cut,
            views=layout.views[group.tokens],
            total=len(group.before),
            hidden=visual,
            later=text > int(layout.positions[-1]),
        )
        if prefill.ids is not None:
            signals.ids = prefill.ids[row].to(device)[text]
        if prefill.embeds is not None:
            embeds = prefill.embeds[row].to(device)
            signals.visual_embeds, signals.text_embeds = embeds[positions], embeds[text]
            signals.all_embeds = embeds[layout.positions[group.before].to(device)]
        if prefill.vision is not None:
            signals.vision = prefill.vision.of(prefill.vision_rows[row][group.tokens])
        asking = text if len(text) else layout.positions[-1:].to(device)  # never an answer that is to be learnt
        if self.attended is not None:
            self._add_attention(signals, self.attended, row, rows[positions], rows[asking])
        if self.measured is not None:
            shares = self._rows(self.measured, row, rows[asking]).mean(dim=(0, 1))
            signals.attended = shares[rows[positions].to(shares.device)].to(device)
        return signals

    def _rows(self, of: BlockInput, row: int, queries: Tensor) -> Tensor:
        """[heads, queries, Q] of a block's attention map. queries: their rows in the sequence as it is"""
        hidden, tables = _input_of(of, row)
        past = None if of.past is None else of.past[0][row]
        columns = self.columns if of.past is None else of.past[1].then(self.columns)
        columns = columns.map(lambda valid: valid[row].to(hidden.device))
        return _attention_rows(of.block, hidden, tables, queries.to(hidden.device), columns, past)

    def _add_attention(self, signals: Signals, of: BlockInput, row: int, visual: Tensor, text: Tensor) -> None:
        """visual, text: their rows in the sequence as it is."""
        needs, device = self.method.needs, self.hidden.device
        hidden, (cos, sin) = _input_of(of, row)
        visual, text = visual.to(hidden.device), text.to(hidden.device)
        if needs.attention is not None:
            rows = self._rows(of, row, text[-1:] if needs.attention == "last" else text)
            signals.attention = rows[..., visual].to(device)
        if needs.gravity:
            signals.gravity = gravity((cos[text], sin[text]), (cos[visual], sin[visual])).to(device)
        if needs.keys:
            keys = _repeated(of.block, _rotated_keys(of.block, hidden, (cos, sin)))
            flat = keys.transpose(0, 1).flatten(1).float()
            signals.visual_keys, signals.text_keys = flat[visual].to(device), flat[text].to(device)


def _input_of(of: BlockInput, row: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Of one sample: its rows [Q, d] where the block's weights are, and its tables cos, sin [Q, head_dim]."""
    hidden, batch = beside_weights(of.hidden[row], of.block.input_layernorm), len(of.hidden)
    cos, sin = (
        _merged_table(
            t.expand(*t.shape[:-3], batch, *t.shape[-2:]).select(-3, row).to(hidden.device), of.block.self_attn
        )
        for t in of.tables
    )
    return hidden, (cos, sin)


def past_keys(cache: Any, block: int, past: Columns | None) -> tuple[Tensor, Columns] | None:
    """What a block holds of before this pass."""
    if cache is None or past is None or not past.valid.shape[1]:
        return None
    return keys_and_values(cache.layers[block])[0][:, :, : past.valid.shape[1]], past


def _rotated_keys(block: Any, hidden: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Keys of a decoder layer after RoPE [heads of keys, S, head_dim]. hidden: [S, d] on its way into it."""
    return _rotate(_heads(block.self_attn, "k", block.input_layernorm.forward(hidden)), *tables)


def _repeated(block: Any, keys: Tensor) -> Tensor:
    """Keys for each head of the queries."""
    attention = block.self_attn
    heads: int = attention.q_proj.out_features // attention.head_dim
    return keys.repeat_interleave(heads // keys.shape[0], dim=0)


def _attention_rows(
    block: Any,
    hidden: Tensor,
    tables: tuple[Tensor, Tensor],
    queries: Tensor,
    columns: Columns,
    past: Tensor | None = None,
) -> Tensor:
    """Softmax rows [heads, R, S] of one sample, in float32.

    block: a decoder layer, hidden: [S, d] on its way into it, tables: cos and sin [S, head_dim],
    queries: [R] positions whose rows are wanted, past: keys [heads of keys, P, head_dim] of what came before: they take their
    share of the attention; columns: [P + S] what may be attended to, and how strongly.
    """
    attention, (cos, sin) = block.self_attn, tables
    q = _rotate(_heads(attention, "q", block.input_layernorm.forward(hidden[queries])), cos[queries], sin[queries])
    k = _rotated_keys(block, hidden, tables)
    allowed = torch.arange(len(hidden), device=hidden.device) <= queries[:, None]
    if past is not None:
        k = torch.cat([past.to(k), k], dim=1)
        allowed = torch.cat([allowed.new_ones(len(queries), past.shape[1]), allowed], dim=1)
    logits: Tensor = (q.float() @ _repeated(block, k).float().mT) * attention.scaling
    if columns.bias is not None:
        logits = logits + columns.bias
    return logits.masked_fill(~(allowed & columns.valid), -torch.inf).softmax(dim=-1)[..., -len(hidden) :]


def _heads(attention: Any, name: str, states: Tensor) -> Tensor:
    """[heads, rows, head_dim], through the norm of q or k where the family has one."""
    z = getattr(attention, f"{name}_proj").forward(states).unflatten(-1, (-1, attention.head_dim))
    norm = getattr(attention, f"{name}_norm", None)
    z = z if norm is None else norm.forward(z)
    heads: Tensor = z.transpose(0, 1)
    return heads


def _merged_table(table: Tensor, attention: Any) -> Tensor:
    """M-RoPE of older versions: one table each for time, height and width, of which every section takes its own."""
    if table.dim() == 2:
        return table
    sections = attention.config.rope_parameters["mrope_section"] * 2
    return torch.cat([part[i % 3] for i, part in enumerate(torch.split(table, sections, dim=-1))], dim=-1)


def _rotate(z: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: the halves of the head are the two coordinates of each pair."""
    first, second = z.chunk(2, dim=-1)
    return z * cos + torch.cat((-second, first), dim=-1) * sin
