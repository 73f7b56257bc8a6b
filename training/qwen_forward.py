"""The training forward pass of tiny-qwen2vl on pictures of one size, and its losses. It runs the weights of the stock model."""

from __future__ import annotations

from typing import Any

import torch
from divevlm_tiny import build_qwen
from torch import Tensor, nn
from torch.nn import functional

from training.batches import IGNORE
from training.forward import Decoded, by_task, half_turn, read
from training.hints import POINT, WORDS, Heads, hints
from training.qwen_batches import LABELS, NUMBERS, PREFIX

LONGEST = 32  # patches along a side
FRAMES = 4  # pairs of frames in a clip


class QwenHeads(Heads):
    """Those of tiny-llava's words, and others on patches and on visual tokens of 2 x 2 patches; used in training only."""

    def __init__(self, width: int, vision: int) -> None:
        super().__init__(width, vision, LONGEST)
        self.patch = nn.ModuleDict({kind: nn.Linear(vision, classes + 1) for kind, classes in LABELS.items()})
        self.merged = nn.ModuleDict({kind: nn.Linear(width, 4 * (classes + 1)) for kind, classes in LABELS.items()})
        self.bias = nn.ParameterDict(
            {kind: nn.Parameter(torch.full((len(words),), -3.0)) for kind, words in WORDS.items()}
        )
        places = {"time": FRAMES, "row": LONGEST // 2, "column": LONGEST // 2}
        self.place = nn.ModuleDict({kind: nn.Linear(width, classes) for kind, classes in places.items()})
        self.time = nn.Linear(width, FRAMES)
        self.side = nn.Linear(width, 2)
        del self.nothing, self.present, self.mask, self.way


def encode(model: Any, patches: Tensor, grid: Tensor) -> tuple[Tensor, Tensor]:
    """Tower and merger. Returns the patches [B * T, n, v] and the visual tokens [B, T * n / 4, d]."""
    tower = model.model.visual
    b, (t, h, w) = len(grid), (int(value) for value in grid[0])
    cells = torch.cartesian_prod(torch.arange(h // 2), torch.arange(w // 2), torch.arange(2), torch.arange(2))
    places = torch.stack([2 * cells[:, 0] + cells[:, 2], 2 * cells[:, 1] + cells[:, 3]], dim=1)
    states = tower.patch_embed(patches).view(b * t, h * w, -1)
    cos, sin = tower.rotary_pos_emb(states, places)
    for block in tower.blocks:
        states = states + _attend(block.attn, block.norm1(states), cos, sin)
        states = states + block.mlp(block.norm2(states))
    return states, tower.merger(states).view(b, t * h * w // 4, -1)


def _attend(attention: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    b, n, _ = x.shape
    q, k, v = attention.qkv(x).view(b, n, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
    q, k = q * cos + half_turn(q) * sin, k * cos + half_turn(k) * sin
    out: Tensor = attention.proj(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, -1))
    return out


def decode(model: Any, visual: Tensor, made: dict[str, Any]) -> Decoded:
    """The language model on packed questions about one picture or clip each; M-RoPE positions restart behind it."""
    t, h, w = (int(value) for value in made["grid"][0])
    words, b, first = model.model.language_model.embed_tokens, len(visual), len(PREFIX)
    prefix = torch.tensor([NUMBERS[word] for word in PREFIX]).expand(b, -1)
    end = torch.tensor([NUMBERS[build_qwen.END]]).expand(b, 1)
    cells = torch.cartesian_prod(torch.arange(t), torch.arange(h // 2), torch.arange(w // 2)).view(-1, 3).T
    start = first + max(t, h // 2, w // 2)
    positions = torch.cat(
        [
            torch.arange(first).expand(3, b, -1),
            first + cells[:, None].expand(-1, b, -1),
            torch.full((3, b, 1), start),
            (start + 1 + made["offset"]).expand(3, -1, -1),
        ],
        dim=2,
    )
    context = torch.cat([words(prefix), visual, words(end)], dim=1)
    return read(model, context, positions, made, slice(first, first + visual.shape[1]))


def losses(model: Any, heads: QwenHeads, made: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """All losses of a batch added up, and (right, asked) counts by task and label."""
    right: dict[str, tuple[int, int]] = {}
    log: dict[str, Any] = {"right": right}
    with torch.set_grad_enabled(torch.is_grad_enabled() and not made.get("frozen", False)):
        patches, visual = encode(model, made["patches"], made["grid"])
    total = visual.new_zeros(())
    if not made.get("frozen"):
        total, found = patch_loss(model, heads, patches, visual, made["labels"])
        right.update(found)
        log["patch"] = total.item()
    if "ids" in made:
        states = decode(model, visual, made)
        asked = made["target"] != IGNORE
        logits = functional.linear(states.last[asked], model.lm_head.weight)
        answer = functional.cross_entropy(logits, made["target"][asked])
        hint, parts, found = hints(heads, states.after, states.looks, made)
        place, spot = place_loss(heads, states, made)
        correct = torch.zeros(asked.shape, dtype=torch.bool)
        correct[asked] = logits.argmax(-1) == made["target"][asked]
        right.update(found | spot | by_task(correct, asked, made["task"], made["segment"]))
        log.update(answer=answer.item(), place=place.item(), **parts)
        total = total + 2 * answer + hint + place
    return total, log


def patch_loss(
    model: Any, heads: QwenHeads, patches: Tensor, visual: Tensor, labels: dict[str, Tensor]
) -> tuple[Tensor, dict[str, tuple[int, int]]]:
    """What each patch shows, read from the patch, from the token that holds it with three others, and in words."""
    words = model.model.language_model.embed_tokens.weight
    total, right = visual.new_zeros(()), {}
    for kind, truth in labels.items():
        flat = truth.flatten()
        for weight, logits in ((0.5, heads.patch[kind](patches)), (1.0, heads.merged[kind](visual))):
            logits = logits.reshape(len(flat), -1)
            loss = functional.cross_entropy(logits, flat, ignore_index=IGNORE, reduction="none")
            there, ground = flat > 0, flat == 0
            total = total + weight * (loss * there).sum() / there.sum().clamp_min(1)
            total = total + 0.5 * weight * (loss * ground).sum() / ground.sum().clamp_min(1)
        shown = (flat > 0) & (flat < 9) if kind == "shape" else flat > 0  # signs are easy
        right[f"patch {kind}"] = (int((logits.argmax(-1) == flat)[shown].sum()), int(shown.sum()))
        if kind in WORDS:
            named = words[[NUMBERS[word] for word in WORDS[kind]]]
            logits = heads.scale * (visual @ named.T) + heads.bias[kind]
            grouped = truth.view(*visual.shape[:2], 4)
            holds = (grouped[..., None] == torch.arange(1, len(named) + 1)).any(2)
            known = (grouped != IGNORE).any(-1)
            loss = functional.binary_cross_entropy_with_logits(logits, holds.float(), reduction="none").sum(-1)
            total = total + (loss * known).sum() / known.sum().clamp_min(1)
    return total, right


def place_loss(heads: QwenHeads, states: Decoded, made: dict[str, Any]) -> tuple[Tensor, dict[str, tuple[int, int]]]:
    """Before the cut each visual token knows its place; phrases know when their object comes, and in which half it is."""
    t, h, w = (int(value) for value in made["grid"][0])
    cells = torch.cartesian_prod(torch.arange(t), torch.arange(h // 2), torch.arange(w // 2)).view(-1, 3).T
    total, right = states.last.new_zeros(()), {}
    for kind, truth in zip(("time", "row", "column"), cells, strict=True):
        logits = heads.place[kind](states.visual)
        truth = truth.expand(len(logits), -1)
        total = total + functional.cross_entropy(logits.flatten(0, 1), truth.flatten())
        right[f"place {kind}"] = (int((logits.argmax(-1) == truth).sum()), truth.numel())
    nouns = made["nouns"]
    if len(nouns):
        found = states.after[POINT][nouns[:, 0], nouns[:, 1]]
        halves = torch.stack([nouns[:, 8] > 7 * w, nouns[:, 9] > 7 * h], dim=1).float()
        total = total + functional.binary_cross_entropy_with_logits(heads.side(found), halves)
        if made["video"]:
            logits = heads.time(found)
            total = total + functional.cross_entropy(logits, nouns[:, 11])
            right["noun time"] = (int((logits.argmax(-1) == nouns[:, 11]).sum()), len(nouns))
    return total, right
