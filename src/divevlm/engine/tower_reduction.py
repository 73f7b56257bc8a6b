"""Token reduction inside the vision tower: a smaller image (downsample), or rows merged block by block (ToMe).

Only for towers whose patches are the visual tokens, one each. Behind the block whose features are used the sequence gets its
length back: each row at the place of the patch it stands for, zeros elsewhere. The cut before the language model drops those.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from divevlm.checks import require
from divevlm.core.bipartite import match, merged
from divevlm.engine.patches import Patch
from divevlm.engine.vision import Encoding
from divevlm.methods.base import Method, Vision
from divevlm.methods.tower import MergesRows, ShrinksImages
from divevlm.models.base import Family


@dataclass
class ReducedRows:
    """The rows that are left in one encoding."""

    places: Tensor  # [tiles, rows] the patch whose place each row has
    sizes: Tensor  # [tiles, rows and CLS] how many patches it stands for
    owner: Tensor  # [tiles, patches] the patch in whose row each one went

    def tokens(self) -> Vision:
        """Whose row each patch went into, counted within the batch."""
        tiles, patches = self.owner.shape
        number = torch.arange(tiles, device=self.owner.device)[:, None]
        owner = (self.owner + number * patches).flatten()
        return Vision(tile=number.expand_as(self.owner).flatten(), owner=owner)


class TowerReducer:
    """A tower whose rows a method reduces while images are encoded."""

    def __init__(self, family: Family, model: Any, method: Method) -> None:
        require(family.plain, "method", method.name, f"one that works outside the tower, for {family.name}")
        scope = method.budget.scope
        require(scope != "sample", "scope", scope, f"'image', 'view' or 'frame' for {method.name} in the tower")
        self.tower, self.family, self.method = family.at(model, family.tower), family, method
        self.blocks, self.used = family.tower_blocks(model), family.feature_block(model)
        config = model.config.vision_config
        self.patch: int = config.patch_size
        self.side: int = config.image_size // self.patch
        self.cls = int(family.has_cls(model))
        self.merges: list[int] = []  # rows that each block merges away
        if isinstance(method, MergesRows):
            self.merges = method.merged_per_block(self.used + 1, self.side**2)
        known = getattr(config, "_attn_implementation", "eager")
        require(known in ("eager", "sdpa"), "attn_implementation", known, "'eager' or 'sdpa' in the vision tower")

    def attach(self, stack: ExitStack, encoding: Callable[[], Encoding | None]) -> None:
        """encoding: the one under way in this thread; outside of one the tower is as it was."""
        embeddings = next(m for name, m in self.tower.named_modules() if name.endswith("embeddings"))
        stack.callback(Patch(embeddings, "forward", self._embed(encoding)).undo)
        for number, block in enumerate(self.blocks):
            stack.callback(Patch(block, "forward", self._run(number, block, encoding)).undo)

    def _embed(self, encoding: Callable[[], Encoding | None]) -> Callable[..., Tensor]:
        def run(forward: Callable[..., Tensor], pixel_values: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            now = encoding()
            if now is None:
                return forward(pixel_values, *args, **kwargs)
            method, small = self.method, pixel_values
            if isinstance(method, ShrinksImages):
                small = method.smaller(pixel_values, self.patch)
            tiles, (rows, columns) = len(small), (extent // self.patch for extent in small.shape[-2:])
            places, cell = (z.to(small.device) for z in _coarser(self.side, rows, columns))
            sizes = torch.ones(tiles, rows * columns + self.cls, device=small.device)
            now.reduced = ReducedRows(places.expand(tiles, -1), sizes, places[cell].expand(tiles, -1))
            if rows == columns == self.side:
                return forward(pixel_values, *args, **kwargs)
            return forward(small, interpolate_pos_encoding=True)

        return run

    def _run(self, number: int, block: Any, encoding: Callable[[], Encoding | None]) -> Callable[..., Any]:
        def run(forward: Callable[..., Any], hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            now = encoding()
            if now is None:
                return forward(hidden_states, *args, **kwargs)
            if number > self.used:
                return hidden_states
            if any(self.merges):
                hidden = self._merge(block, hidden_states, now.reduced, self.merges[number], number > 0)
            else:
                hidden = forward(hidden_states, *args, **kwargs)
            return self._expand(hidden, now.reduced.places) if number == self.used else hidden

        return run

    def _merge(self, block: Any, hidden: Tensor, rows: ReducedRows, r: int, weigh: bool) -> Tensor:
        """A block that merges r rows between its attention and its MLP; keys weigh what they stand for."""
        bias = rows.sizes.log()[:, None, None].expand(-1, -1, hidden.shape[1], -1).to(hidden.dtype) if weigh else None
        keys = self.family.tower_heads(block, hidden, {}).keys.float().mean(dim=1)
        hidden = hidden + block.self_attn(hidden_states=block.layer_norm1(hidden), attention_mask=bias)[0]
        lists: tuple[list[Tensor], ...] = ([], [], [], [])
        for tile, states in enumerate(hidden):
            matching = match(keys[tile], r, self.cls)
            row, size = merged(states, rows.sizes[tile], matching)
            before = rows.places[tile]
            goes = torch.arange(rows.owner.shape[1], device=hidden.device)
            goes[before[matching.source - self.cls]] = before[matching.target - self.cls]
            stay = matching.stay[self.cls :] - self.cls
            for values, value in zip(lists, (row, size, before[stay], goes[rows.owner[tile]]), strict=True):
                values.append(value)
        hidden, rows.sizes, rows.places, rows.owner = (torch.stack(values) for values in lists)
        done: Tensor = hidden + block.mlp(block.layer_norm2(hidden))
        return done

    def _expand(self, hidden: Tensor, places: Tensor) -> Tensor:
        tiles, rows, width = hidden.shape
        patches = self.side * self.side
        if rows == patches + self.cls:
            return hidden
        full = hidden.new_zeros(tiles, patches + self.cls, width)
        full[:, : self.cls] = hidden[:, : self.cls]
        return full.scatter(1, (places + self.cls)[..., None].expand(-1, -1, width), hidden[:, self.cls :])


def _coarser(side: int, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """A side x side grid of patches as rows x columns cells: [cells] the patch in the middle, [patches] the cell of each."""
    middle = [(2 * torch.arange(n) + 1) * side // (2 * n) for n in (rows, columns)]
    cell = [torch.arange(side) * n // side for n in (rows, columns)]
    return (middle[0][:, None] * side + middle[1]).flatten(), (cell[0][:, None] * columns + cell[1]).flatten()
