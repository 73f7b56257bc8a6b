"""What a family says: where things are in its models, what each visual token shows, what its processor wants."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from divevlm.budget import Segment
from divevlm.models.places import Place

NEWLINE = -1  # row and column of a token that marks the end of a row or of a view and shows nothing itself


@dataclass(frozen=True)
class View:
    """A rectangle of visual tokens in reading order: one view of an image or one frame of a video.

    newlines: each row ends with a marker token; tail: marker tokens after the last row.
    """

    rows: int
    columns: int
    view: int = 0
    frame: int = 0
    newlines: bool = False
    tail: int = 0

    @property
    def size(self) -> int:
        return self.rows * (self.columns + self.newlines) + self.tail

    def cells(self) -> Tensor:
        """[size, 3] frame, row and column of each token; NEWLINE for markers."""
        columns = torch.arange(self.columns + self.newlines)
        columns[self.columns :] = NEWLINE
        grid = torch.cartesian_prod(torch.arange(self.rows), columns)
        grid[grid[:, 1] == NEWLINE] = NEWLINE
        grid = torch.cat([grid, torch.full((self.tail, 2), NEWLINE)])
        return torch.cat([torch.full((len(grid), 1), self.frame), grid], dim=1)


@dataclass(frozen=True)
class Visual:
    """One image or video of a sample: its views, in the order of their tokens."""

    views: tuple[View, ...]
    kind: str = "image"

    @property
    def size(self) -> int:
        return sum(view.size for view in self.views)


@dataclass
class Layout:
    """The visual tokens of one sample, in the order of the sequence."""

    positions: Tensor  # [N] where they are in the sequence
    visuals: list[Visual] = field(default_factory=list)

    @property
    def segments(self) -> list[Segment]:
        return [Segment(v.size, i, v.view, v.frame) for i, visual in enumerate(self.visuals) for v in visual.views]

    @property
    def cells(self) -> Tensor:
        """[N, 3] frame, row, column."""
        views = [view.cells() for visual in self.visuals for view in visual.views]
        return torch.cat(views) if views else torch.zeros(0, 3, dtype=torch.long)

    @property
    def views(self) -> Tensor:
        """[N] which view of its image each token belongs to."""
        views = [torch.full((view.size,), view.view) for visual in self.visuals for view in visual.views]
        return torch.cat(views) if views else torch.zeros(0, dtype=torch.long)

    @property
    def markers(self) -> Tensor:
        """[N] bool: newline and separator tokens."""
        return self.cells[:, 1] == NEWLINE


class Heads(NamedTuple):
    """Of one tower block, [tiles, heads, rows, head_dim]; `keys` before any rotation."""

    q: Tensor
    k: Tensor
    keys: Tensor
    scale: float


def split_heads(z: Tensor, heads: int) -> Tensor:
    """[tiles, rows, heads * head_dim] -> [tiles, heads, rows, head_dim]"""
    heads_first: Tensor = z.unflatten(-1, (heads, -1)).transpose(1, 2)
    return heads_first


class Family(ABC):
    """All that is known of a family. Paths are from the model that the user holds (the one with the language-model head)."""

    name: ClassVar[str]
    checkpoints: ClassVar[tuple[str, ...]] = ()
    about = ""  # what its visual tokens are, in the table of `divevlm models`
    videos = ""  # "yes", "frames as images", or nothing: takes none
    base = "model"
    text = "model.language_model"
    tower = "model.vision_tower"
    projector = "model.multi_modal_projector"
    default_layer = 2
    plain = False  # the patches of one square image are its visual tokens, one each
    pools = False  # visual tokens are pooled or merged rows of the tower, not one each
    deepstack = False  # adds visual features after its first blocks, too
    most_tokens = 4096  # visual tokens of a prompt: a large picture, or a video of 32 frames
    nested_images = False  # its processor wants the images of each prompt in a list of their own
    nested_videos = False  # and so the videos
    vllm = ""  # vLLM's model of this family, if the plugin can stand before it
    lmms_eval = ""  # lmms-eval's own model of this family, if it has one whose inputs we know

    def at(self, model: Any, path: str) -> Any:
        return attrgetter(path)(model)

    def token_ids(self, config: Any) -> dict[str, int]:
        """Placeholder token of each kind of visual."""
        tokens = {kind: getattr(config, f"{kind}_token_id", None) for kind in ("image", "video")}
        return {kind: token for kind, token in tokens.items() if token is not None}

    def usual_views(self, config: Any) -> list[int]:
        """Visual tokens in each view of an image (the usual number of views); empty where images have any number of tokens."""
        return []

    def places(self, processor: Any, views: Sequence[View], size: tuple[int, int]) -> list[Place]:
        """Where each view of an image lies on it. size: its width and height"""
        return [Place(f"view {i}" if len(views) > 1 else "") for i in range(1, len(views) + 1)]

    def frame_place(self, processor: Any, size: tuple[int, int]) -> Place:
        """What its tokens show of a video's frame."""
        return Place()

    def tower_blocks(self, model: Any) -> nn.ModuleList:
        """The blocks of the vision tower."""
        for name, module in self.at(model, self.tower).named_modules():
            if name.endswith(("encoder.layers", "encoder.layer", "blocks")):
                return module  # type: ignore[no-any-return]
        raise ValueError(f"model must have a vision tower of blocks, got {type(model).__name__}")

    def feature_block(self, model: Any) -> int:
        """Number of the tower's block whose output goes to the projector."""
        count, layer = len(self.tower_blocks(model)), getattr(model.config, "vision_feature_layer", -1)
        last: int = layer if isinstance(layer, int) else layer[-1]
        return count + last if last < 0 else last - 1

    def has_cls(self, model: Any) -> bool:
        """Whether row 0 of the tower is a CLS token."""
        names = (name for name, _ in self.at(model, self.tower).named_parameters())
        return any(name.endswith(("class_embedding", "cls_token")) for name in names)

    def tower_heads(self, block: Any, hidden: Tensor, given: Mapping[str, Any]) -> Heads:
        """Queries and keys of a tower block. hidden: on its way into it, given: the block's other arguments."""
        attention = block.self_attn
        states = block.layer_norm1.forward(hidden)
        q, k = (split_heads(proj.forward(states), attention.num_heads) for proj in (attention.q_proj, attention.k_proj))
        return Heads(q, k, k, attention.scale)

    def arrange(self, model: Any, kind: str, given: Mapping[str, Any], rows: Tensor) -> Tensor:
        """Rows of the tower [tiles, patches, c] -> of the visual tokens [tokens, c], as the model arranges and pools them.

        given: the arguments of get_image_features or get_video_features. Newline tokens get zeros.
        """
        return rows.flatten(0, 1)

    @abstractmethod
    def visuals(self, model: Any, kind: str, given: Mapping[str, Any]) -> list[Visual]:
        """The images or videos of one call of get_image_features or get_video_features, with its arguments by name."""

    def layouts(self, model: Any, ids: Tensor, visuals: Mapping[str, Sequence[Visual]]) -> list[Layout]:
        """One for each row of ids [B, S]. Tokens belong to images and videos in order, as the model itself has it.

        Beam search and several return sequences repeat each row: then so do its images.
        """
        kinds = self.token_ids(model.config)
        rows = ids.cpu()
        mask = torch.zeros_like(rows, dtype=torch.bool)
        for token in kinds.values():
            mask |= rows == token
        total = sum(visual.size for of_kind in visuals.values() for visual in of_kind)
        repeats = int(mask.sum()) // total if total else 1
        queues = {kind: list(of_kind) for kind, of_kind in visuals.items()}
        layouts: list[Layout] = []
        for number, (row, visual) in enumerate(zip(rows, mask, strict=True)):
            if number % repeats:
                layouts.append(layouts[-1])
                continue
            positions = visual.nonzero()[:, 0]
            layout, start = Layout(positions), 0
            while start < len(positions):
                kind = next(name for name, token in kinds.items() if token == int(row[positions[start]]))
                if not queues.get(kind):
                    raise ValueError(f"input_ids must hold the tokens of the {kind}s given, got more of them")
                layout.visuals.append(queues[kind].pop(0))
                start += layout.visuals[-1].size
            if start != len(positions):
                raise ValueError(
                    f"input_ids must hold whole images, got {len(positions)} visual tokens where {start} belong"
                )
            layouts.append(layout)
        return layouts
