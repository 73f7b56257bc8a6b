"""What the vision tower thought of each visual token: saliency, keys, features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from divevlm.engine.patches import Hook, bound
from divevlm.engine.setup import at_home
from divevlm.methods.base import Vision
from divevlm.models.base import Family, Heads

PER_TOKEN = ("tile", "owner", "saliency", "first_saliency", "keys", "features")
CHUNK = 512  # queries at once where every row of a map is needed


@dataclass(frozen=True)
class Seen:
    """One pass of a tower block."""

    block: nn.Module
    given: dict[str, Any]  # its arguments
    output: Tensor  # [tiles, rows, d_v]

    @property
    def hidden(self) -> Tensor:
        hidden: Tensor = self.given["hidden_states"]
        return hidden if hidden.dim() == 3 else hidden[None]


@dataclass
class Encoding:
    """One call of get_image_features or get_video_features under way: what was seen of the tower, or thinned out in it."""

    first: list[Seen] = field(default_factory=list)
    used: list[Seen] = field(default_factory=list)
    thinned: Any = None


class Tower:
    """Looks at the tower's first block and at the one whose features are used, while images are encoded."""

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
                    seen = Seen(block, bound(block, args, kwargs), output if output.dim() == 3 else output[None])
                    getattr(now, name).append(seen)

            return Hook(hook)

        blocks = self.family.tower_blocks(self.model)
        used = blocks[self.family.feature_block(self.model)]
        hook_of("used").behind(used, stack)
        if "first_saliency" in self.wanted:
            hook_of("first").behind(blocks[0], stack)

    def tokens(self, kind: str, given: Mapping[str, Any], encoding: Encoding) -> Vision:
        """Of all visual tokens of a call, in the order of their features."""
        with torch.no_grad():
            first, used = self._per_tile(encoding.first, "first"), self._per_tile(encoding.used, "used")
        parts = (
            {"tile": used.pop("tile")}
            | used
            | {f"first_{name}": part for name, part in first.items() if name != "tile"}
        )
        cls = parts.pop("cls", None)
        widths = [part.shape[-1] for part in parts.values()]
        arranged = self.family.arrange(self.model, kind, given, torch.cat(list(parts.values()), dim=-1).contiguous())
        found = dict(zip(parts, arranged.split(widths, dim=-1), strict=True))
        flat = {
            name: part[:, 0] if name.endswith("saliency") else part for name, part in found.items() if name != "tile"
        }
        project = None
        if not self.family.pools and kind == "image":
            project = partial(self._project, dtype=encoding.used[0].output.dtype)
        return Vision(found["tile"][:, 0].round().long(), **flat, cls=cls, project=project)

    def _per_tile(self, passes: list[Seen], name: str) -> dict[str, Tensor]:
        """[tiles, patches, c] of each quantity; "cls" is [tiles, d_v]."""
        if not passes:
            return {}
        found: dict[str, list[Tensor]] = {}
        tiles = 0
        for seen in passes:
            heads = self.family.tower_heads(seen.block, seen.hidden, seen.given)
            part = {"tile": self._tiles(seen, tiles)}
            tiles += len(seen.hidden)
            if name == "first" or "saliency" in self.wanted:
                part["saliency"] = saliency(heads, self.cls, seen.given)
            if name == "used" and "keys" in self.wanted:
                part["keys"] = heads.keys.float().mean(dim=1)[:, self.cls :]
            if name == "used" and "features" in self.wanted:
                part["features"] = seen.output.float()[:, self.cls :]
                if self.cls:
                    part["cls"] = seen.output.float()[:, 0]
            for key, value in part.items():
                found.setdefault(key, []).append(value)
        return {key: torch.cat(values) for key, values in found.items()}

    def _tiles(self, seen: Seen, start: int) -> Tensor:
        """[tiles, patches, 1] number of the tower input; of packed inputs, of the segment."""
        tiles, rows = seen.hidden.shape[:2]
        bounds = seen.given.get("cu_seqlens")
        if bounds is None:
            number = torch.arange(start, start + tiles, device=seen.hidden.device)[:, None].expand(-1, rows - self.cls)
        else:
            number = torch.searchsorted(bounds[1:], torch.arange(rows, device=bounds.device), right=True)[None]
        return number.float()[..., None]

    def _project(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """dtype: what the tower computes in; of quantised weights theirs would be another."""
        projector = self.family.at(self.model, self.family.projector)
        projected: Tensor = projector.forward(at_home(rows, projector).to(dtype))
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


def picked(vision: Vision, tokens: Tensor) -> Vision:
    """Of these tokens only."""
    if vision.owner is not None:  # counted within the candidates: a sample's images lie side by side
        owner = vision.owner[tokens.to(vision.owner.device)]
        vision = replace(vision, owner=None)
        return replace(picked(vision, tokens), owner=torch.searchsorted(tokens.to(owner.device), owner))
    own = {f.name: getattr(vision, f.name) for f in fields(vision)}
    return Vision(
        **{name: v[tokens.to(v.device)] if name in PER_TOKEN and v is not None else v for name, v in own.items()}
    )


def joined(parts: Mapping[str, Vision]) -> Vision:
    """Images and videos of a batch, one behind the other."""
    if len(parts) == 1:
        return next(iter(parts.values()))
    shift, tiles = 0, []
    for part in parts.values():
        tiles.append(part.tile + shift)
        shift += int(part.tile.max()) + 1 if part.cls is None else len(part.cls)
    found: dict[str, Any] = {}
    for name in (*PER_TOKEN[1:], "cls"):
        values = [getattr(part, name) for part in parts.values()]
        found[name] = None if values[0] is None else torch.cat(values)
    return Vision(torch.cat(tiles), **found)


def per_row(sizes: Mapping[str, int], ids: Tensor, kinds: Mapping[str, int]) -> list[Tensor]:
    """For each row of ids [B, S], which of the joined tokens stand in it, in order. Beams repeat rows: so do these.

    sizes: how many tokens of each kind there are, kinds: its placeholder.
    """
    numbers = torch.zeros_like(ids)
    offset = 0
    for kind, size in sizes.items():
        here = ids == kinds[kind]
        repeats = max(1, int(here.sum()) // max(1, size))
        for row in range(0, len(ids), repeats):
            count = int(here[row].sum())
            numbers[row : row + repeats][here[row : row + repeats]] = torch.arange(offset, offset + count).repeat(
                repeats
            )
            offset += count
    visual = torch.stack([ids == kinds[kind] for kind in sizes]).any(dim=0)
    return [row[mask] for row, mask in zip(numbers, visual, strict=True)]
