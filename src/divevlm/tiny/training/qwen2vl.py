"""Train tiny-qwen2vl: `python -m divevlm.tiny.training.qwen2vl --folder runs/qwen2vl-0 [--from DIRECTORY of tiny-llava]`.

Pictures of several sizes and aspect ratios and clips of eight frames, several questions packed in one row. The stock forward pass
runs, with a block mask and positions that restart behind the picture.
"""

from __future__ import annotations

import argparse
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from divevlm.tiny import build_qwen
from divevlm.tiny.ask import Question, View, ask
from divevlm.tiny.clips import CLIP_TASKS, clip, clip_questions
from divevlm.tiny.scene import PATCH, Scene, scene
from divevlm.tiny.splits import SPAN
from divevlm.tiny.training.batches import IGNORE, Phase, patch_labels, tokens, words
from divevlm.tiny.training.loop import train
from divevlm.tiny.training.muon import optimizers
from divevlm.tiny.words import COLORS, SHAPES, TASKS, vocabulary

NUMBERS = {word: number for number, word in enumerate(vocabulary(*build_qwen.VISUAL, clips=True))}
SIZES = {8: ((8, 8), (6, 10), (10, 6)), 12: ((12, 12), (8, 16), (16, 10)), 24: ((24, 24), (16, 24), (20, 12))}
PREFIX = ("<s>", "user", ":", build_qwen.START)
ALL_TASKS = (*TASKS, *CLIP_TASKS)
PHASES = (
    Phase("look", 8, 32, 0, 1500),
    Phase("ask8", 8, 16, 8, 2000),
    Phase("ask12", 12, 8, 12, 2000),
    Phase("ask24", 24, 4, 16, 1500, (0.7, 0.02)),
)


class Heads(nn.Module):
    """What a merged token (2 x 2 patches) shows; used in training only."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shape, self.color = nn.Linear(width, len(SHAPES) + 2), nn.Linear(width, len(COLORS) + 1)


def batch(phase: Phase, seed: int, step: int) -> dict[str, Any]:
    """Pictures of one size, or clips (every third step of a phase that asks)."""
    random = Random(f"qwen {seed} {step}")
    rows, columns = random.choice(SIZES[phase.rows])
    video = bool(phase.questions) and step % 3 == 2
    seen: Counter[tuple[str, str]] = Counter()
    frames: list[np.ndarray] = []
    asked: list[list[Question]] = []
    pictures: list[Scene] = []
    while len(frames) < phase.batch:
        number = random.randrange(SPAN)
        if video:
            shown = clip(number, min(rows, 12), min(columns, 12))
            if shown is None:
                continue
            frames.append(shown.pixels)
            asked.append(clip_questions(shown, random))
            pictures.append(shown.first)
            continue
        picture = scene(number, rows=rows, columns=columns, whole=True)
        frames.append(np.stack([picture.pixels] * 2))
        pictures.append(picture)
        view = View(picture)
        tries = [ask(view, random.choice(TASKS), random, seen, tries=3) for _ in range(phase.questions)]
        asked.append(list({question.text: question for question in tries if question is not None}.values()))
    patches, grid = patchify(np.stack(frames))
    made: dict[str, Any] = {"patches": patches, "grid": grid, "video": video}
    if not video:
        made["labels"] = _merged(pictures)
    if phase.questions:
        made.update(pack(asked, grid, build_qwen.VIDEO if video else build_qwen.IMAGE))
    return made


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


def _merged(pictures: list[Scene]) -> dict[str, Tensor]:
    """The labels of the patch that shows most, for each token of 2 x 2 patches. [B * n]"""
    found: dict[str, list[np.ndarray]] = {"shape": [], "color": []}
    for picture in pictures:
        labels = patch_labels(picture)
        for kind, values in found.items():
            cells = labels[kind].reshape(picture.rows // 2, 2, picture.columns // 2, 2).transpose(0, 2, 1, 3)
            values.append(cells.reshape(-1, 4).max(axis=1))
    return {kind: torch.from_numpy(np.concatenate(values)) for kind, values in found.items()}


def pack(asked: list[list[Question]], grid: Tensor, pad: str) -> dict[str, Tensor]:
    """Prefix, visual tokens and all questions of each row; M-RoPE positions restart behind the picture. [B, S], [3, B, S]"""
    t, h, w = (int(value) for value in grid[0])
    h, w = h // 2, w // 2
    visual, first = t * h * w, len(PREFIX)
    rows = [[tokens(question, NUMBERS) for question in row] for row in asked]
    context = first + visual + 1
    length = context + max(1, max(sum(map(len, row)) for row in rows))
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    ids[:, :context] = torch.tensor([NUMBERS[word] for word in (*PREFIX, *[pad] * visual, build_qwen.END)])
    segment = torch.full((len(rows), length), -1)
    target, task = torch.full_like(ids, IGNORE), torch.full_like(ids, -1)
    cells = torch.cartesian_prod(torch.arange(t), torch.arange(h), torch.arange(w)).view(-1, 3).T
    positions = torch.zeros(3, len(rows), length, dtype=torch.long)
    positions[:, :, :first] = torch.arange(first)
    positions[:, :, first : first + visual] = first + cells[:, None]
    start = first + max(t, h, w)
    positions[:, :, context - 1] = start
    for b, row in enumerate(rows):
        at = context
        for number, (question, numbers) in enumerate(zip(asked[b], row, strict=True)):
            end, answer = at + len(numbers), len(words(question.answer)) + 1
            ids[b, at:end], segment[b, at:end] = torch.tensor(numbers), number
            positions[:, b, at:end] = start + 1 + torch.arange(len(numbers))
            target[b, end - answer - 1 : end - 1] = torch.tensor(numbers[-answer:])
            task[b, end - answer - 1 : end - 1] = ALL_TASKS.index(question.task)
            at = end
    return {"ids": ids, "segment": segment, "positions": positions, "target": target, "task": task}


def losses(model: Any, heads: Heads, made: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    kind = "video" if made["video"] else "image"
    features = getattr(model.model, f"get_{kind}_features")(made["patches"], made["grid"], return_dict=True)
    visual = torch.cat(list(features.pooler_output))
    total, right = visual.new_zeros(()), {}
    for name, truth in made.get("labels", {}).items():
        logits = getattr(heads, name)(visual)
        loss = functional.cross_entropy(logits, truth, ignore_index=IGNORE, reduction="none")
        total = total + loss[truth > 0].sum() / (truth > 0).sum().clamp_min(1) + 0.5 * loss[truth == 0].mean()
        right[f"patch {name}"] = (int((logits.argmax(-1) == truth)[truth > 0].sum()), int((truth > 0).sum()))
    log: dict[str, Any] = {"patch": total.item()}
    if "ids" in made:
        answer, rights = _answers(model, visual, made)
        total = total + 2 * answer
        log["answer"] = answer.item()
        right.update(rights)
    log["right"] = right
    return total, log


def _answers(model: Any, visual: Tensor, made: dict[str, Any]) -> tuple[Tensor, dict[str, tuple[int, int]]]:
    ids, segment, target = made["ids"], made["segment"], made["target"]
    embeds = model.get_input_embeddings()(ids)
    pads = torch.tensor([NUMBERS[build_qwen.IMAGE], NUMBERS[build_qwen.VIDEO]])
    embeds = embeds.masked_scatter(torch.isin(ids, pads)[..., None], visual)
    s = ids.shape[1]
    shown = (segment[:, :, None] == segment[:, None, :]) | (segment[:, None, :] == -1)
    seen = (shown & torch.ones(s, s, dtype=torch.bool).tril())[:, None]
    text = model.model.language_model
    states = text(inputs_embeds=embeds, attention_mask=seen, position_ids=made["positions"]).last_hidden_state
    asked = target != IGNORE
    logits = model.lm_head(states[asked])
    correct = logits.argmax(-1) == target[asked]
    rights = {}
    for number, name in enumerate(ALL_TASKS):
        mine = made["task"][asked] == number
        rights[name] = (int(correct[mine].sum()), int(mine.sum()))
    return functional.cross_entropy(logits, target[asked]), rights


@torch.no_grad()
def warm(model: Any, folder: Path) -> None:
    """Take the language model of a trained tiny-llava; words by name, biases zero."""
    from transformers import AutoModelForImageTextToText

    from divevlm.tiny import build

    source = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).model.language_model
    state = {name: value for name, value in source.state_dict().items() if "embed_tokens" not in name}
    text = model.model.language_model
    missing = text.load_state_dict(state, strict=False)
    if missing.unexpected_keys:
        raise ValueError(
            f"--from must be a tiny-llava of the same sizes, got unknown weights {missing.unexpected_keys[:3]}"
        )
    for name, parameter in text.named_parameters():
        if name.endswith("_proj.bias"):
            parameter.zero_()
    for number, word in enumerate(vocabulary(build.IMAGE)):
        if word in NUMBERS:
            text.embed_tokens.weight[NUMBERS[word]] = source.embed_tokens.weight[number]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument(
        "--from", dest="source", type=Path, help="a trained tiny-llava, whose language model this one begins with"
    )
    parser.add_argument("--stop", type=int, help="stop at this step")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    model = build_qwen.qwen2vl()
    if options.source:
        warm(model, options.source)
    heads = Heads(model.config.text_config.hidden_size)
    train(
        {"model": model, "heads": heads},
        optimizers(model, heads, 0.02, 3e-3),
        PHASES,
        partial(_make, options.seed),
        partial(losses, model, heads),
        options.folder,
        stop=options.stop,
    )


def _make(seed: int, phase: Phase, step: int) -> dict[str, Any]:
    return batch(phase, seed, step)


if __name__ == "__main__":
    main()
