"""The training forward pass of tiny-llava: windows of the grid, packed questions, and the auxiliary losses.

It runs the weights of the stock transformers model, and on one question it equals the stock forward.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from divevlm_tiny.scene import GRID
from torch import Tensor
from torch.nn import functional
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from training.batches import ALL_TASKS, IGNORE
from training.hints import COUNT, COUNTING_HEADS, WORDS, Heads, hints

PREFIX = ("<s>", "user", ":")
CUT = 2  # on half of the rows text does not see the picture before this block


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


class Decoded(NamedTuple):
    """States of the text, [B, T, d]: after so many blocks, and at the end; visual states before block 2, [B, n, d]; how much
    counting words look at the first token and at each visual one, [h, C, 1 + n] logarithms."""

    after: dict[int, Tensor]
    last: Tensor
    visual: Tensor
    looks: Tensor | None


def decode(model: Any, numbers: dict[str, int], visual: Tensor, made: dict[str, Any], cut: int = CUT) -> Decoded:
    """The language model on packed questions about one image each. cut: on hidden rows text sees the picture from here on"""
    words = model.model.language_model.embed_tokens
    b = len(visual)
    prefix = torch.tensor([numbers[word] for word in PREFIX]).expand(b, -1)
    first, start = len(PREFIX), len(PREFIX) + GRID * GRID
    positions = torch.cat([torch.arange(first).expand(b, -1), first + made["places"], start + made["offset"]], dim=1)
    context = torch.cat([words(prefix), visual], dim=1)
    return read(model, context, positions, made, slice(first, first + visual.shape[1]), cut)


def read(
    model: Any, context: Tensor, positions: Tensor, made: dict[str, Any], visual: slice, cut: int = CUT
) -> Decoded:
    """The blocks of the language model on what stands before the questions [B, c, d] and on the packed questions behind it.

    visual: which places of the context are visual tokens.
    """
    text, c = model.model.language_model, context.shape[1]
    states = torch.cat([context, text.embed_tokens(made["ids"])], dim=1)
    turn = text.rotary_emb(states, position_ids=positions)
    seen, hidden = masks(made["segment"], made["hidden"], c, visual)
    after, shown = {}, context
    looks: list[Tensor] = []
    for number, block in enumerate(text.layers):
        last = number + 1 == len(text.layers)
        if number == CUT:
            shown = states[:, visual]
        if number in COUNT and torch.is_grad_enabled():
            looks.append(
                look(block, states, turn, c, seen, made["counts"])[..., [0, *range(visual.start, visual.stop)]]
            )
        states = run_block(block, states, turn, c, hidden if number < cut else seen, text_only=last)
        after[number + 1] = states if last else states[:, c:]
    return Decoded(after, rms(text.norm, states), shown, torch.cat(looks) if looks else None)


def masks(segment: Tensor, hidden: Tensor, context: int, visual: slice) -> tuple[Tensor, Tensor]:
    """Who a text token sees: the image and its own question so far; and the same with the image hidden on some rows."""
    b, t = segment.shape
    own = (segment[:, :, None] == segment[:, None, :]) & torch.ones(t, t, dtype=torch.bool).tril()
    seen = torch.cat([torch.ones(b, t, context, dtype=torch.bool), own], dim=2)
    blind = seen.clone()
    blind[:, :, visual] &= ~hidden[:, None, None]
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
    q, k = q * cos[:, :, asking:] + half_turn(q) * sin[:, :, asking:], k * cos + half_turn(k) * sin
    text = functional.scaled_dot_product_attention(q[:, :, context - asking :], k, v, attn_mask=seen)
    if not text_only:
        image = functional.scaled_dot_product_attention(
            q[:, :, :context], k[:, :, :context], v[:, :, :context], is_causal=True
        )
        text = torch.cat([image, text], dim=2)
    states = states[:, asking:] + attention.o_proj(text.transpose(1, 2).reshape(b, s - asking, -1))
    result: Tensor = states + block.mlp(rms(block.post_attention_layernorm, states))
    return result


def look(block: Any, states: Tensor, turn: tuple[Tensor, Tensor], context: int, seen: Tensor, counts: Tensor) -> Tensor:
    """The logarithm of the attention of a block's first heads in the rows of counting words. [h, C, context + T]"""
    attention = block.self_attn
    d, row, place = attention.head_dim, counts[:, 0], counts[:, 1]
    normed = rms(block.input_layernorm, states)
    q, k = (
        part(x)[..., : COUNTING_HEADS * d].unflatten(-1, (-1, d)).movedim(-2, 0)
        for part, x in ((attention.q_proj, normed[row, context + place]), (attention.k_proj, normed))
    )
    cos, sin = (part.expand(len(states), -1, -1) for part in turn)
    q = q * cos[row, context + place] + half_turn(q) * sin[row, context + place]
    k = k * cos + half_turn(k) * sin
    logits = torch.einsum("hcd,hcsd->hcs", q, k[:, row]) * attention.scaling
    looks: Tensor = logits.masked_fill(~seen[row, 0, place], -torch.inf).log_softmax(-1)
    return looks


def rms(norm: Any, x: Tensor) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)


def half_turn(x: Tensor) -> Tensor:
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
        states = decode(model, numbers, visual, made)
        target = made["target"]
        asked = target != IGNORE
        logits = functional.linear(states.last[asked], model.lm_head.weight)
        answer = functional.cross_entropy(logits, target[asked])
        hint, parts, found = hints(heads, states.after, states.looks, made)
        correct = torch.zeros(target.shape, dtype=torch.bool)
        correct[asked] = logits.argmax(-1) == target[asked]
        right.update(found)
        right.update(by_task(correct, asked, made["task"], made["segment"]))
        log.update(answer=answer.item(), **parts)
        total = total + 2 * answer + hint
    return total, log


def by_task(correct: Tensor, asked: Tensor, task: Tensor, segment: Tensor) -> dict[str, tuple[int, int]]:
    """A question is right if all tokens of its answer are."""
    rows = torch.arange(len(segment))[:, None].expand_as(segment)
    key = (rows * 64 + segment)[asked]
    questions, inverse = key.unique(return_inverse=True)
    wrong = torch.zeros(len(questions), dtype=torch.long).index_add_(0, inverse, (~correct[asked]).long())
    kind = torch.zeros(len(questions), dtype=torch.long).index_put_((inverse,), task[asked])
    return {
        name: (int(((wrong == 0) & (kind == number)).sum()), int((kind == number).sum()))
        for number, name in enumerate(ALL_TASKS)
    }
