"""Batches of tiny-qwen2vl: pictures of several sizes or clips of eight frames, questions, and labels for every patch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import torch
from divevlm_tiny import build_qwen
from divevlm_tiny.ask import Question
from divevlm_tiny.clips import FRAMES, STEPS, MovingScene, ask_clip, clip
from divevlm_tiny.scene import PATCH, Scene
from divevlm_tiny.splits import CLIP_SIZES, SPAN
from divevlm_tiny.splits import SIZES as WHOLE
from divevlm_tiny.words import vocabulary
from torch import Tensor
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from training.batches import MOST, PATCH_LABELS, Phase, asked_of, pack, patch_labels, viewed

NUMBERS = {word: number for number, word in enumerate(vocabulary(*build_qwen.VISUAL, clips=True))}
SIZES = {  # rows and columns of patches, by the size of a phase
    8: ((8, 8), (6, 10), (10, 6)),
    12: ((12, 12), (8, 16), (16, 10)),
    24: WHOLE,
}
CLIPS = {8: ((8, 8),), 12: ((12, 12), (10, 12)), 24: CLIP_SIZES}
PREFIX = ("<s>", "user", ":", build_qwen.START)
LABELS = {**PATCH_LABELS, "moves": len(STEPS)}


def batch(phase: Phase, seed: int, step: int) -> dict[str, Any]:
    """Pictures of one size or, in a third of the steps, clips."""
    random = Random(f"qwen {seed} {step}")
    phase = phase.turned(step)
    video = random.random() < 1 / 3
    if video and not phase.questions:
        phase = replace(phase, batch=max(1, phase.batch // 4))  # a clip is four pictures to the tower
    rows, columns = random.choice((CLIPS if video else SIZES)[phase.rows])
    seen: Counter[tuple[str, str]] = Counter()
    frames: list[np.ndarray] = []
    asked: list[list[Question]] = []
    pictures: list[Scene] = []
    labels: list[dict[str, np.ndarray]] = []
    times: list[tuple[int, ...]] = []
    while len(frames) < phase.batch:
        if video:
            shown = clip(random.randrange(SPAN), rows, columns)
            if shown is None:
                continue
            frames.append(shown.pixels)
            pictures.append(shown.first)
            labels.append(clip_labels(shown))
            times.append(tuple(when // 2 for when in shown.appears))
            asked.append(ask_clip(shown, random) if phase.questions else [])
            continue
        view = viewed(random, phase, rows=rows, columns=columns, whole=True)
        picture = view.scene
        frames.append(np.stack([picture.pixels] * 2))
        pictures.append(picture)
        labels.append({**patch_labels(picture), "moves": np.zeros(rows * columns, dtype=np.int64)})
        times.append((0,) * len(picture.items))
        asked.append(asked_of(view, phase, random, seen))
    patches, grid = patchify(np.stack(frames))
    made: dict[str, Any] = {"patches": patches, "grid": grid, "video": video}
    made["labels"] = {
        kind: torch.from_numpy(np.stack([_grouped(one[kind], rows, columns) for one in labels])) for kind in LABELS
    }
    if phase.questions:
        made.update(pack(asked, pictures, NUMBERS, times))
        cells = made["counted"].view(-1, MOST, rows // 2, 2, columns // 2, 2)
        made["counted"] = cells.any(dim=5).any(dim=3).flatten(2)
        made["hidden"] = torch.tensor([random.random() < 0.5 for _ in pictures])
        made["frozen"] = phase.frozen
    return made


def clip_labels(shown: MovingScene) -> dict[str, np.ndarray]:
    """What each patch shows in the first of every two frames, and where what it shows is going. [4 * rows * columns]"""
    labels: dict[str, list[np.ndarray]] = {kind: [] for kind in LABELS}
    going = list(STEPS).index(shown.direction) + 1
    for number in range(0, FRAMES, 2):
        frame = shown.frame(number)
        mover = next(i for i, item in enumerate(frame.items) if _same(item, shown.first.items[shown.mover]))
        found = patch_labels(frame)
        found["moves"] = np.zeros_like(found["shape"])
        found["moves"][frame.patches(mover)] = going
        for kind, values in labels.items():
            values.append(found[kind])
    return {kind: np.concatenate(values) for kind, values in labels.items()}


def _same(one: Any, two: Any) -> bool:
    """Objects of a clip that can be asked about differ in colour or shape."""
    return (one.color, one.shape) == (two.color, two.shape)


def _grouped(labels: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """From row by row to the order of Qwen's patches, groups of 2 x 2. [T * rows * columns]"""
    return np.ascontiguousarray(labels.reshape(-1, rows // 2, 2, columns // 2, 2).transpose(0, 1, 3, 2, 4).reshape(-1))


def patchify(frames: np.ndarray) -> tuple[Tensor, Tensor]:
    """What the image processor makes of pictures: rows of patches in groups of 2 x 2, two frames deep.

    frames: [B, T, h, w, 3] uint8 -> [patches, 3 * 2 * 14 * 14], grid [B, 3]
    """
    b, t, h, w, _ = frames.shape
    mean, std = torch.tensor(OPENAI_CLIP_MEAN), torch.tensor(OPENAI_CLIP_STD)
    x = ((torch.from_numpy(frames).float() / 255 - mean) / std).permute(0, 1, 4, 2, 3)
    x = x.reshape(b, t // 2, 2, 3, h // 28, 2, PATCH, w // 28, 2, PATCH)
    x = x.permute(0, 1, 4, 7, 5, 8, 3, 2, 6, 9).reshape(-1, 3 * 2 * PATCH * PATCH)
    return x, torch.tensor([[t // 2, h // PATCH, w // PATCH]] * b)
