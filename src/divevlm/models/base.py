"""What a family adapter says: where things are in its models, and what each visual token shows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor

from divevlm.budget import Segment

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
    def markers(self) -> Tensor:
        """[N] bool: newline and separator tokens."""
        return self.cells[:, 1] == NEWLINE


class Family(ABC):
    """Paths are from the model that the user holds (the one with the language-model head)."""

    name: ClassVar[str]
    checkpoints: ClassVar[tuple[str, ...]] = ()
    base = "model"
    text = "model.language_model"
    tower = "model.vision_tower"
    projector = "model.multi_modal_projector"
    default_layer = 2
    deepstack = False  # adds visual features after its first blocks, too

    def at(self, model: Any, path: str) -> Any:
        return attrgetter(path)(model)

    def token_ids(self, config: Any) -> dict[str, int]:
        """Placeholder token of each kind of visual."""
        found = {"image": getattr(config, "image_token_id", None), "video": getattr(config, "video_token_id", None)}
        return {kind: token for kind, token in found.items() if token is not None}

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
        total = sum(visual.size for found in visuals.values() for visual in found)
        repeats = int(mask.sum()) // total if total else 1
        queues = {kind: list(found) for kind, found in visuals.items()}
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
