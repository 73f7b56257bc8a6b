"""The training forward pass of tiny-llava: windows of the grid, packed questions, and the auxiliary losses.

It runs the weights of the stock transformers model, and on one question it equals the stock forward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from divevlm.tiny.scene import GRID
from divevlm.tiny.training.batches import IGNORE, PATCH_LABELS, PLACE_LABELS, PRINTED
from divevlm.tiny.words import COLORS, PATTERNS, SHAPES, SIGN, TASKS

PREFIX = ("<s>", "user", ":")
WORDS = {"shape": (*SHAPES, SIGN), "color": COLORS, "pattern": PATTERNS, "printed": PRINTED}
NOUN_LABELS = {"row": GRID, "column": GRID, "size": 10, "shape": 10, "color": 9, "pattern": 4}
POINT, PAIR = 4, 6  # noun phrases are located in the states after 4 decoder blocks, and two of them compared after 6


class Heads(nn.Module):
    """Used in training only, dropped when the model is saved."""

    def __init__(self, width: int, vision: int) -> None:
        super().__init__()
        self.nothing = nn.ParameterDict({kind: nn.Parameter(0.1 * torch.randn(width)) for kind in WORDS})
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.patch = nn.ModuleDict(
            {
                kind: nn.Linear(width, classes + 1)
                for kind, classes in (PATCH_LABELS | PLACE_LABELS).items()
                if kind not in WORDS
            }
        )
        self.noun = nn.ModuleDict({kind: nn.Linear(width, classes) for kind, classes in NOUN_LABELS.items()})
        self.present = nn.Linear(vision, 9 * 8)
        self.mask = nn.Linear(vision, 49)
        self.way = nn.Linear(width, 2)
        self.measure = nn.Linear(width, 3)
        self.count = nn.Linear(width, 5)
        self.order = nn.Linear(width, 3)


def encode(model: Any, pixels: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tower up to the block that LLaVA reads, and the projector. pixels: [B, h, w, 3] uint8, places: [B, n] in the grid.

    Returns the projected patches [B, n, d], the class token [B, v] and the patches after the first block [B, n, v].
    """
    tower = model.model.vision_tower
    mean, std = torch.tensor(OPENAI_CLIP_MEAN), torch.tensor(OPENAI_CLIP_STD)
    image = ((pixels.float() / 255 - mean) / std).permute(0, 3, 1, 2)
    made = tower.embeddings
    patches = made.patch_embedding(image).flatten(2).transpose(1, 2)
    positions = made.position_embedding.weight
    first = (made.class_embedding + positions[0]).expand(len(pixels), 1, -1)
    states = torch.cat([first, patches + positions[places + 1]], dim=1)
    states = tower.pre_layrnorm(states)
    early = states
    for number, block in enumerate(tower.encoder.layers[:-1]):
        states = block(states, None)
        early = states if number == 0 else early
    return model.model.multi_modal_projector(states[:, 1:]), states[:, 0], early[:, 1:]


def decode(model: Any, numbers: dict[str, int], visual: Tensor, made: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """The language model on packed questions. Returns the text states after POINT and PAIR blocks and at the end. [B, T, d]"""
    text = model.model.language_model
    b, n, _ = visual.shape
    prefix = torch.tensor([numbers[word] for word in PREFIX]).expand(b, -1)
    ids, context = made["ids"], len(PREFIX) + n
    states = torch.cat([text.embed_tokens(prefix), visual, text.embed_tokens(ids)], dim=1)
    start = len(PREFIX) + GRID * GRID
    positions = torch.cat(
        [torch.arange(len(PREFIX)).expand(b, -1), len(PREFIX) + made["places"], start + made["offset"]], dim=1
    )
    turn = text.rotary_emb(states, position_ids=positions)
    seen, hidden = masks(made["segment"], made["hidden"], context)
    middle = late = states
    for number, block in enumerate(text.layers):
        last = number + 1 == len(text.layers)
        states = run_block(block, states, turn, context, hidden if number < 2 else seen, text_only=last)
        if number + 1 == POINT:
            middle = states[:, context:]
        if number + 1 == PAIR:
            late = states if last else states[:, context:]
    return middle, late, rms(text.norm, states)


def masks(segment: Tensor, hidden: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Who a text token sees: the image and its own question so far; and the same with the image hidden on some rows."""
    b, t = segment.shape
    own = (segment[:, :, None] == segment[:, None, :]) & torch.ones(t, t, dtype=torch.bool).tril()
    seen = torch.cat([torch.ones(b, t, context, dtype=torch.bool), own], dim=2)
    blind = seen.clone()
    blind[:, :, len(PREFIX) : context] &= ~hidden[:, None, None]
    return seen[:, None], blind[:, None]


def run_block(
    block: Any, states: Tensor, turn: tuple[Tensor, Tensor], context: int, seen: Tensor, text_only: bool = False
) -> Tensor:
    """One Llama block. The image attends to itself causally, the text to what `seen` allows: [B, 1, T, context + T].

    text_only: return the rows of the text alone, as the last block may (nothing reads the others).
    """
    attention = block.self_attn
    b, s, _ = states.shape
    normed = rms(block.input_layernorm, states)
    asking = context if text_only else 0  # the first row that asks
    q = attention.q_proj(normed[:, asking:]).view(b, s - asking, -1, attention.head_dim).transpose(1, 2)
    k = attention.k_proj(normed).view(b, s, -1, attention.head_dim).transpose(1, 2)
    v = attention.v_proj(normed).view(b, s, -1, attention.head_dim).transpose(1, 2)
    cos, sin = turn[0][:, None], turn[1][:, None]
    q, k = q * cos[:, :, asking:] + _half_turn(q) * sin[:, :, asking:], k * cos + _half_turn(k) * sin
    text = functional.scaled_dot_product_attention(q[:, :, context - asking :], k, v, attn_mask=seen)
    if not text_only:
        image = functional.scaled_dot_product_attention(
            q[:, :, :context], k[:, :, :context], v[:, :, :context], is_causal=True
        )
        text = torch.cat([image, text], dim=2)
    states = states[:, asking:] + attention.o_proj(text.transpose(1, 2).reshape(b, s - asking, -1))
    result: Tensor = states + block.mlp(rms(block.post_attention_layernorm, states))
    return result


def rms(norm: Any, x: Tensor) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)


def _half_turn(x: Tensor) -> Tensor:
    one, two = x.chunk(2, dim=-1)
    return torch.cat([-two, one], dim=-1)


def patch_loss(model: Any, heads: Heads, numbers: dict[str, int], visual: Tensor, labels: dict[str, Tensor]) -> Any:
    """What each projected token shows; words of the language model are the classes where there is a word for it."""
    words = model.model.language_model.embed_tokens.weight
    total, right = visual.new_zeros(()), {}
    for kind, truth in labels.items():
        if kind in WORDS:
            named = words[[numbers[word] for word in WORDS[kind]]]
            classes = torch.cat([heads.nothing[kind][None], named])
            logits = heads.scale * (visual @ classes.T)
        else:
            logits = heads.patch[kind](visual)
        loss = functional.cross_entropy(logits.flatten(0, 1), truth.flatten(), ignore_index=IGNORE, reduction="none")
        object_, ground = truth.flatten() > 0, truth.flatten() == 0
        total = total + loss[object_].sum() / object_.sum().clamp_min(1)
        total = total + 0.5 * loss[ground].sum() / ground.sum().clamp_min(1)
        shown = (truth > 0) & (truth < 9) if kind == "shape" else truth > 0  # signs are easy
        right[f"patch {kind}"] = (int((logits.argmax(-1) == truth)[shown].sum()), int(shown.sum()))
    return total, right


def losses(model: Any, heads: Heads, numbers: dict[str, int], made: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """All losses of a batch added up, and (right, asked) counts by task and label."""
    right: dict[str, tuple[int, int]] = {}
    log: dict[str, Any] = {"right": right}
    if made.get("frozen"):
        with torch.no_grad():
            visual, _, _ = encode(model, made["pixels"], made["places"])
        total = visual.new_zeros(())
    else:
        visual, first, early = encode(model, made["pixels"], made["places"])
        total, found = patch_loss(model, heads, numbers, visual, made["labels"])
        right.update(found)
        present = functional.binary_cross_entropy_with_logits(heads.present(first), made["present"])
        mask = functional.binary_cross_entropy_with_logits(heads.mask(early), made["mask"].float())
        shown = made["labels"]["shape"] > 0
        way = functional.mse_loss(heads.way(visual)[shown], made["way"][shown])
        log.update(patch=total.item(), present=present.item(), mask=mask.item(), way=way.item())
        total = total + present + 3 * mask + 5 * way
    if "ids" in made:
        middle, late, last = decode(model, numbers, visual, made)
        target = made["target"]
        asked = target != IGNORE
        logits = functional.linear(last[asked], model.lm_head.weight)
        answer = functional.cross_entropy(logits, target[asked])
        noun, found = noun_loss(heads, middle, made["nouns"], made["counts"])
        order, right["noun order"] = pair_loss(heads, late, made["nouns"], made["pairs"])
        correct = torch.zeros(target.shape, dtype=torch.bool)
        correct[asked] = logits.argmax(-1) == target[asked]
        right.update(found)
        right.update(by_task(correct, asked, made["task"], made["segment"]))
        log.update(answer=answer.item(), noun=noun.item(), order=order.item())
        total = total + 2 * answer + 0.5 * noun + order
    return total, log


def noun_loss(heads: Heads, middle: Tensor, nouns: Tensor, counts: Tensor) -> tuple[Tensor, dict[str, tuple[int, int]]]:
    """What a phrase names, where it is and how large (as classes and as numbers that can be compared), and how many there are."""
    states = middle[nouns[:, 0], nouns[:, 1]]
    total, right = middle.new_zeros(()), {}
    for column, kind in enumerate(NOUN_LABELS):
        logits, truth = heads.noun[kind](states), nouns[:, 2 + column]
        total = total + functional.cross_entropy(logits, truth)
        right[f"noun {kind}"] = (int((logits.argmax(-1) == truth).sum()), len(truth))
    x, y, size = nouns[:, 8:].float().unbind(1)
    numbers = torch.stack([x / 168 - 1, y / 168 - 1, (size / 14).log2() / 1.35 - 1], dim=1)
    total = total + 4 * functional.mse_loss(heads.measure(states), numbers)
    logits, truth = heads.count(middle[counts[:, 0], counts[:, 1]]), counts[:, 2]
    right["noun count"] = (int((logits.argmax(-1) == truth).sum()), len(truth))
    return total + functional.cross_entropy(logits, truth, reduction="sum") / max(1, len(truth)), right


def pair_loss(heads: Heads, late: Tensor, nouns: Tensor, pairs: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """At the second of two phrases: is the first one further right, further down, larger?"""
    first, second = nouns[pairs[:, 0]], nouns[pairs[:, 1]]
    logits = heads.order(late[second[:, 0], second[:, 1]])
    apart = (first - second)[:, 8:]
    clear = apart.abs() >= torch.tensor([20, 20, 5])
    truth = apart > 0
    loss = functional.binary_cross_entropy_with_logits(logits, truth.float(), reduction="none")
    right = ((logits > 0) == truth) & clear
    return (loss * clear).sum() / clear.sum().clamp_min(1), (int(right.sum()), int(clear.sum()))


def by_task(correct: Tensor, asked: Tensor, task: Tensor, segment: Tensor) -> dict[str, tuple[int, int]]:
    """A question is right if all tokens of its answer are."""
    rows = torch.arange(len(segment))[:, None].expand_as(segment)
    key = (rows * 64 + segment)[asked]
    questions, inverse = key.unique(return_inverse=True)
    wrong = torch.zeros(len(questions), dtype=torch.long).index_add_(0, inverse, (~correct[asked]).long())
    kind = torch.zeros(len(questions), dtype=torch.long).index_put_((inverse,), task[asked])
    return {
        name: (int(((wrong == 0) & (kind == number)).sum()), int((kind == number).sum()))
        for number, name in enumerate(TASKS)
    }
