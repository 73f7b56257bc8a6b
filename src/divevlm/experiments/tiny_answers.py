"""Answers of a model under a pruning method, scored by teacher forcing.

An answer is right if each of its tokens, and the end after it, is the model's first choice: what greedy decoding gives.
The image features of a scene are computed once and shared by all its questions and all methods that do not look into the tower;
the blocks before the cut run once for all methods.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from divevlm_tiny.splits import Sample
from torch import Tensor
from torch.nn import functional

from divevlm.engine import prune
from divevlm.engine.once import Once
from divevlm.models import family_of

IGNORE = -100


@dataclass
class Answer:
    """Of one question: right or not, log-likelihood of the gold answer, what was kept (None: everything) and the cost."""

    sample: Sample
    right: bool
    likelihood: float
    kept: list[int] | None
    flops: float
    tokens: float  # mean length of the sequence over the blocks


@dataclass
class Chunk:
    """A few scenes with all their questions, ready for the model: one row a question, padded on the left."""

    samples: list[Sample]
    scene: Tensor  # [B] which image a row belongs to
    ids: Tensor  # [B, S]
    present: Tensor  # [B, S]
    labels: Tensor  # [B, S]
    pixels: Tensor  # [scenes, 3, 336, 336]
    image_token: int
    features: list[Tensor] = field(default_factory=list)  # of each scene, [N, d]
    kind: type[Any] = dict  # what the model hands features over in


def chunks(samples: Sequence[Sample], processor: Any, scenes: int = 8) -> Iterator[Chunk]:
    """Samples in their order, `scenes` images at a time."""
    pictures = [list(group) for _, group in groupby(samples, key=lambda sample: sample.scene.seed)]
    for at in range(0, len(pictures), scenes):
        yield _chunk(pictures[at : at + scenes], processor)


def prompt(processor: Any, text: str) -> str:
    turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}]
    written: str = processor.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
    return written


def _chunk(pictures: list[list[Sample]], processor: Any) -> Chunk:
    tokens = processor.tokenizer
    images = processor.image_processor([row[0].image for row in pictures], return_tensors="pt")["pixel_values"]
    rows, answers, samples, scene = [], [], [], []
    for number, row in enumerate(pictures):
        for sample in row:
            text = prompt(processor, sample.text).replace("<image>", "<image>" * 576)
            answer = [*tokens(sample.answer, add_special_tokens=False)["input_ids"], tokens.eos_token_id]
            rows.append(tokens(text)["input_ids"] + answer)
            answers.append(len(answer))
            samples.append(sample)
            scene.append(number)
    length = max(len(row) for row in rows)
    ids = torch.full((len(rows), length), tokens.pad_token_id)
    present, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORE)
    for b, (numbers, answered) in enumerate(zip(rows, answers, strict=True)):
        ids[b, length - len(numbers) :], present[b, length - len(numbers) :] = torch.tensor(numbers), 1
        labels[b, -answered:] = ids[b, -answered:]
    return Chunk(samples, torch.tensor(scene), ids, present, labels, images, tokens.convert_tokens_to_ids("<image>"))


def look(model: Any, chunk: Chunk) -> None:
    """Run the tower and the projector once for each scene."""
    with torch.inference_mode():
        made = model.model.get_image_features(pixel_values=chunk.pixels, return_dict=True)
    chunk.features, chunk.kind = list(made.pooler_output), type(made)


@contextmanager
def shared_features(model: Any, chunk: Chunk) -> Iterator[None]:
    """Inside, the model takes the features that `look` computed instead of running its tower."""
    base = model.model

    def get_image_features(pixel_values: Tensor, **_: Any) -> Any:
        return chunk.kind(pooler_output=[chunk.features[number] for number in chunk.scene])

    base.get_image_features = get_image_features
    try:
        yield
    finally:
        vars(base).pop("get_image_features", None)  # a session that ended inside has removed it already


@torch.inference_mode()
def answer(model: Any, chunk: Chunk, method: Any, once: Once | None = None) -> list[Answer]:
    """Every question of a chunk under a pruning method. once: keeps the blocks before the cut for the next method."""
    thins = method.in_tower(family_of(model).plain)
    with ExitStack() as stack:
        if not (method.needs.vision or thins):
            stack.enter_context(shared_features(model, chunk))
        session = stack.enter_context(prune(model, method))
        if once is not None and not thins:
            stack.enter_context(once.shared())
        made = model(
            input_ids=chunk.ids,
            attention_mask=chunk.present,
            labels=chunk.labels,
            pixel_values=chunk.pixels[chunk.scene],
        )
        return _scored(chunk.samples, made.logits, chunk.labels, session.report)


@torch.inference_mode()
def vanilla(model: Any, chunk: Chunk) -> tuple[list[Answer], Tensor]:
    """Every question with all tokens, and the states of the visual tokens after two blocks, [scenes, N, d].

    What stands before the question is the same for all questions of a scene, so it runs once and its cache is shared.
    """
    text = model.model.language_model
    start = _start(chunk)
    visual = torch.stack(chunk.features)
    before = text.embed_tokens(chunk.ids[:1, start - 3 : start]).expand(len(visual), -1, -1)
    states: list[Tensor] = []
    hook = text.layers[2].register_forward_pre_hook(lambda _, given: states.append(given[0]))
    made = text(inputs_embeds=torch.cat([before, visual], dim=1), use_cache=True)
    hook.remove()
    cache, past = made.past_key_values, visual.shape[1] + 3
    cache.batch_select_indices(chunk.scene)
    ids, labels, present = _questions(chunk)
    ones = present.new_ones(len(ids), past)
    made = text(
        input_ids=ids,
        past_key_values=cache,
        attention_mask=torch.cat([ones, present], dim=1),
        position_ids=past + torch.arange(ids.shape[1]).expand(len(ids), -1),
    )
    return _scored(chunk.samples, model.lm_head(made.last_hidden_state), labels, None), text.norm(states[0][:, 3:])


@torch.inference_mode()
def blind(model: Any, chunk: Chunk) -> list[Answer]:
    """No visual token at all; the words stand at the positions they have behind an image."""
    ids, labels, present = _questions(chunk)
    start = _start(chunk)
    before = chunk.ids[:1, start - 3 : start].expand(len(ids), -1)
    visual = int((chunk.ids[0] == chunk.image_token).sum())
    places = torch.cat([torch.arange(3), 3 + visual + torch.arange(ids.shape[1])]).expand(len(ids), -1)
    mask = torch.cat([torch.ones_like(before), present], dim=1)
    made = model.model.language_model(
        input_ids=torch.cat([before, ids], dim=1), attention_mask=mask, position_ids=places
    )
    return _scored(chunk.samples, model.lm_head(made.last_hidden_state[:, 3:]), labels, None)


def _start(chunk: Chunk) -> int:
    """The first visual token of the first row; `<s> user :` stands before it."""
    return int((chunk.ids[0] == chunk.image_token).nonzero()[0])


def _questions(chunk: Chunk) -> tuple[Tensor, Tensor, Tensor]:
    """What follows the image, padded on the right: ids, labels, present."""
    rows = [(ids == chunk.image_token).nonzero()[-1].item() + 1 for ids in chunk.ids]
    length = chunk.ids.shape[1] - min(rows)
    ids = chunk.ids.new_zeros(len(rows), length)
    labels, present = torch.full_like(ids, IGNORE), torch.zeros_like(ids)
    for b, row in enumerate(rows):
        span = chunk.ids.shape[1] - row
        ids[b, :span], labels[b, :span], present[b, :span] = chunk.ids[b, row:], chunk.labels[b, row:], 1
    return ids, labels, present


def _scored(samples: list[Sample], logits: Tensor, labels: Tensor, report: Any | None) -> list[Answer]:
    """logits: [B, Q, V], those of the last Q positions of labels [B, S]."""
    labels = labels[:, -logits.shape[1] :][:, 1:]
    asked, logits = labels != IGNORE, logits[:, :-1]
    gold = functional.log_softmax(logits.float(), dim=-1).gather(-1, labels.clamp_min(0)[..., None])[..., 0]
    right = ((logits.argmax(-1) == labels) | ~asked).all(dim=1)
    likelihood = (gold * asked).sum(dim=1)
    return [
        Answer(
            sample,
            bool(right[b]),
            float(likelihood[b]),
            None if report is None else report.samples[b].kept,
            math.nan if report is None else report.flops / len(samples),
            math.nan if report is None else report.mean_tokens,
        )
        for b, sample in enumerate(samples)
    ]
