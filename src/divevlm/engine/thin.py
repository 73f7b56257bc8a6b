"""Fewer rows inside the vision tower itself: a smaller image, or rows merged block by block.

Only for towers whose patches are the visual tokens, one each. Behind the block whose features are used the sequence gets its
length back: each row at the place of the patch it stands for, zeros elsewhere. The cut before the language model drops those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from divevlm.core.bipartite import match, merged
from divevlm.core.rule import require
from divevlm.methods.base import Method, Vision
from divevlm.models.base import Family


class Override:
    """Another forward for one module, until removed."""

    def __init__(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        self.module = module
        module.forward = forward

    def remove(self) -> None:
        del self.module.forward


class Thinner:
    """A tower in which a method thins out rows while images are encoded."""

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
        known = getattr(config, "_attn_implementation", "eager")
        require(known in ("eager", "sdpa"), "attn_implementation", known, "'eager' or 'sdpa' in the vision tower")
        self.places: Tensor  # [tiles, rows] the patch whose place each row has
        self.sizes: Tensor  # [tiles, rows] how many patches it stands for
        self.owner: Tensor  # [tiles, patches] the patch in whose row each one went

    def attach(self) -> list[Any]:
        embeddings = next(m for name, m in self.tower.named_modules() if name.endswith("embeddings"))
        overrides = [Override(embeddings, self._embed(embeddings))]
        for number, block in enumerate(self.blocks):
            overrides.append(Override(block, self._run(number, block)))
        return overrides

    def tokens(self) -> Vision:
        """Whose row each patch went into, counted within the batch, and how many patches a row stands for."""
        tiles, patches = self.owner.shape
        number = torch.arange(tiles, device=self.owner.device)[:, None]
        owner = (self.owner + number * patches).flatten()
        return Vision(tile=number.expand_as(self.owner).flatten(), owner=owner)

    def _embed(self, embeddings: Any) -> Callable[..., Tensor]:
        forward = embeddings.forward

        def run(pixel_values: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            size = (self.side, self.side)
            small = self.method.smaller(pixel_values, self.patch)
            rows, columns = (extent // self.patch for extent in small.shape[-2:])
            self.places = nearest(rows, columns, self.side).to(small.device).expand(len(small), -1)
            cells = torch.cartesian_prod(torch.arange(self.side), torch.arange(self.side))
            row, column = (
                (cells[:, i] * extent).div(self.side, rounding_mode="floor") for i, extent in enumerate((rows, columns))
            )
            self.owner = self.places[:, (row * columns + column).to(small.device)]
            self.sizes = torch.ones(len(small), rows * columns + self.cls, device=small.device)
            if (rows, columns) == size:
                embedded: Tensor = forward(pixel_values, *args, **kwargs)
                return embedded
            resized: Tensor = forward(small, interpolate_pos_encoding=True)
            return resized

        return run

    def _run(self, number: int, block: Any) -> Callable[..., Any]:
        forward = block.forward

        def run(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            if number > self.used:
                return hidden_states
            plan = self.method.thinned(self.used + 1, self.side * self.side)
            if not any(plan):
                hidden = forward(hidden_states, *args, **kwargs)
            else:
                hidden = self._merge(block, hidden_states, plan[number], number > 0)
            return self._expand(hidden) if number == self.used else hidden

        return run

    def _merge(self, block: Any, hidden: Tensor, r: int, weigh: bool) -> Tensor:
        """A block that merges r rows between its attention and its MLP; keys weigh what they stand for."""
        bias = self.sizes.log()[:, None, None].expand(-1, -1, hidden.shape[1], -1).to(hidden.dtype) if weigh else None
        keys = self.family.tower_heads(block, hidden, {}).keys.float().mean(dim=1)
        hidden = hidden + block.self_attn(hidden_states=block.layer_norm1(hidden), attention_mask=bias)[0]
        lists: tuple[list[Tensor], ...] = ([], [], [], [])
        for tile, states in enumerate(hidden):
            found = match(keys[tile], r, self.cls)
            row, size = merged(states, self.sizes[tile], found)
            before = self.places[tile]
            goes = torch.arange(self.owner.shape[1], device=hidden.device)
            goes[before[found.source - self.cls]] = before[found.target - self.cls]
            stay = torch.cat([found.left, found.odd])[self.cls :] - self.cls
            for values, value in zip(lists, (row, size, before[stay], goes[self.owner[tile]]), strict=True):
                values.append(value)
        hidden, self.sizes, self.places, self.owner = (torch.stack(values) for values in lists)
        done: Tensor = hidden + block.mlp(block.layer_norm2(hidden))
        return done

    def _expand(self, hidden: Tensor) -> Tensor:
        tiles, rows, width = hidden.shape
        patches = self.side * self.side
        if rows == patches + self.cls:
            return hidden
        full = hidden.new_zeros(tiles, patches + self.cls, width)
        full[:, : self.cls] = hidden[:, : self.cls]
        return full.scatter(1, (self.places + self.cls)[..., None].expand(-1, -1, width), hidden[:, self.cls :])


def nearest(rows: int, columns: int, side: int) -> Tensor:
    """[rows * columns] the patch of a side x side grid that lies in the middle of each cell of a smaller one."""
    row, column = (((torch.arange(n) * 2 + 1) * side).div(2 * n, rounding_mode="floor") for n in (rows, columns))
    cells = torch.cartesian_prod(row, column)
    return cells[:, 0] * side + cells[:, 1]
