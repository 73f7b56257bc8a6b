"""Signals of the vision tower for each visual token: saliency, keys, features."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from divevlm.engine.patches import Hook, bound
from divevlm.engine.setup import beside_weights
from divevlm.methods.base import Vision
from divevlm.models.base import Family, Heads

CHUNK = 512  # queries at once where every row of a map is needed


@dataclass(frozen=True)
class BlockRun:
    """A call of a tower block."""

    block: nn.Module
    given: dict[str, Any]  # its arguments
    output: Tensor  # [tiles, rows, d_v]

    @property
    def hidden(self) -> Tensor:
        hidden: Tensor = self.given["hidden_states"]
        return hidden if hidden.dim() == 3 else hidden[None]


@dataclass
class Encoding:
    """A call of get_image_features or get_video_features under way: runs of tower blocks, and what is left of the rows."""

    first: list[BlockRun] = field(default_factory=list)
    used: list[BlockRun] = field(default_factory=list)
    reduced: Any = None


class Tower:
    """Records the tower's first block and the one whose features are used, while images are encoded."""

    def __init__(self, family: Family, model: Any, wanted: tuple[str, ...]) -> None:
        self.family, self.model, self.wanted = family, model, wanted
        self.cls = family.has_cls(model)

    def attach(self, stack: ExitStack, encoding: Callable[[], Encoding | None]) -> None:
        """encoding: the one under way in this thread; what the tower does outside of one belongs to no visual token."""

        def hook_of(name: Literal["first", "used"]) -> Hook:
            def hook(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
                now = encoding()
                if now is not None and output is not None:
                    output = output[0] if isinstance(output, tuple) else output
                    run = BlockRun(block, bound(block, args, kwargs), output if output.dim() == 3 else output[None])
                    getattr(now, name).append(run)

            return Hook(hook)

        blocks = self.family.tower_blocks(self.model)
        used = blocks[self.family.feature_block(self.model)]
        hook_of("used").behind(used, stack)
        if "first_saliency" in self.wanted:
            hook_of("first").behind(blocks[0], stack)

    def tokens(self, kind: str, given: Mapping[str, Any], encoding: Encoding) -> Vision:
        """Of all visual tokens of a call, in the order of their features."""
        with torch.no_grad():
            parts = self._per_tile(encoding)
        cls = parts.pop("cls", None)
        widths = [part.shape[-1] for part in parts.values()]
        arranged = self.family.arrange(self.model, kind, given, torch.cat(list(parts.values()), dim=-1).contiguous())
        values = dict(zip(parts, arranged.split(widths, dim=-1), strict=True))
        tile = values.pop("tile")[:, 0].round().long()
        values = {name: value[:, 0] if name.endswith("saliency") else value for name, value in values.items()}
        project = None
        if not self.family.pools and kind == "image":
            project = partial(self._project, dtype=encoding.used[0].output.dtype)
        return Vision(tile, **values, cls=cls, project=project)

    def _per_tile(self, encoding: Encoding) -> dict[str, Tensor]:
        """[tiles, patches, c] of each quantity; "cls" is [tiles, d_v]."""
        parts: dict[str, list[Tensor]] = defaultdict(list)
        tiles = 0
        for run in encoding.used:
            heads = self._heads(run)
            parts["tile"].append(self._tiles(run, tiles))
            tiles += len(run.hidden)
            if "saliency" in self.wanted:
                parts["saliency"].append(saliency(heads, self.cls, run.given))
            if "keys" in self.wanted:
                parts["keys"].append(heads.keys.float().mean(dim=1)[:, self.cls :])
            if "features" in self.wanted:
                parts["features"].append(run.output.float()[:, self.cls :])
                if self.cls:
                    parts["cls"].append(run.output.float()[:, 0])
        for run in encoding.first:
            parts["first_saliency"].append(saliency(self._heads(run), self.cls, run.given))
        return {name: torch.cat(values) for name, values in parts.items()}

    def _heads(self, run: BlockRun) -> Heads:
        return self.family.tower_heads(run.block, run.hidden, run.given)

    def _tiles(self, run: BlockRun, start: int) -> Tensor:
        """[tiles, patches, 1] number of the tower input; of packed inputs, of the segment."""
        tiles, rows = run.hidden.shape[:2]
        bounds = run.given.get("cu_seqlens")
        if bounds is None:
            number = torch.arange(start, start + tiles, device=run.hidden.device)[:, None].expand(-1, rows - self.cls)
        else:
            number = torch.searchsorted(bounds[1:], torch.arange(rows, device=bounds.device), right=True)[None]
        return number.float()[..., None]

    def _project(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """dtype: what the tower computes in; of quantised weights theirs would be another."""
        projector = self.family.at(self.model, self.family.projector)
        projected: Tensor = projector.forward(beside_weights(rows, projector).to(dtype))
        return projected


def saliency(heads: Heads, cls: bool, given: Mapping[str, Any]) -> Tensor:
    """[tiles, patches, 1]: attention of CLS (mean over heads); without CLS: received, mean over heads and queries."""
    q, k = heads.q.float() * heads.scale, heads.k.float()
    mask, bounds = given.get("attention_mask"), given.get("cu_seqlens")
    if cls:
        return _softmax(q[:, :, :1] @ k.mT, mask, 0).mean(dim=1)[:, 0, 1:, None]
    ends = [0, k.shape[2]] if bounds is None else bounds.tolist()
    received = []
    for begin, end in pairwise(ends):
        columns, total = k[:, :, begin:end].mT, k.new_zeros(k.shape[0], end - begin)
        for row in range(begin, end, CHUNK):
            some = _softmax(q[:, :, row : min(row + CHUNK, end)] @ columns, mask, row)
            total += some.mean(dim=1).sum(dim=1)
        received.append(total / (end - begin))
    return torch.cat(received, dim=1)[..., None]


def _softmax(logits: Tensor, mask: Tensor | None, row: int) -> Tensor:
    """Over the keys, in the rows from `row` on. mask: bool or additive [tiles, 1, queries, keys], or the keys [tiles, keys]."""
    if mask is not None:
        mask = mask[:, None, None] if mask.dim() == 2 else mask[:, :, row : row + logits.shape[2]]
        logits = logits.masked_fill(~mask.bool(), -torch.inf) if not mask.is_floating_point() else logits + mask
    return logits.softmax(dim=-1)


def joined(parts: Mapping[str, Vision]) -> Vision:
    """Images and videos of a batch, one behind the other."""
    if len(parts) == 1:
        return next(iter(parts.values()))
    shift, tiles = 0, []
    for part in parts.values():
        tiles.append(part.tile + shift)
        shift += int(part.tile.max()) + 1 if part.cls is None else len(part.cls)
    values: dict[str, Any] = {}
    for name in {*Vision.PER_TOKEN, "cls"} - {"tile"}:
        of_parts = [getattr(part, name) for part in parts.values()]
        values[name] = None if of_parts[0] is None else torch.cat(of_parts)
    return Vision(torch.cat(tiles), **values)


def tokens_of_rows(parts: Mapping[str, Vision], ids: Tensor, kinds: Mapping[str, int]) -> list[Tensor]:
    """For each row of ids [B, S], which of the joined tokens stand in it, in order. Beams repeat rows: so do these.

    kinds: the placeholder of each kind
    """
    numbers = torch.zeros_like(ids)
    visual = torch.zeros_like(ids, dtype=torch.bool)
    offset = 0
    for kind, part in parts.items():
        here = ids == kinds[kind]
        visual |= here
        repeats = max(1, int(here.sum()) // max(1, len(part.tile)))
        for row in range(0, len(ids), repeats):
            beams, count = slice(row, row + repeats), int(here[row].sum())
            numbers[beams][here[beams]] = torch.arange(offset, offset + count).repeat(repeats)
            offset += count
    return [row[mask] for row, mask in zip(numbers, visual, strict=True)]
