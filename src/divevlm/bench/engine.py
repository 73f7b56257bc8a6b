"""What pruning saves on this machine: prefill, selection, decoding and cache of a LLaVA-shaped random model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from divevlm.engine import prune
from divevlm.engine.report import Costs
from divevlm.experiments.loading import machine


@dataclass(frozen=True)
class BenchShape:
    """A decoder of `layers` blocks and `width`, with `views` images of 24 x 24 tokens and `text` tokens of prompt."""

    layers: int
    width: int
    views: int
    text: int
    keeps: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.layers} blocks, d {self.width}, {576 * self.views} + {self.text} tokens"


SHAPES = (BenchShape(24, 1024, 1, 60, (192, 128, 64)), BenchShape(24, 1024, 5, 60, (640, 320, 160)))


def random_llava(shape: BenchShape) -> tuple[Any, dict[str, Tensor]]:
    """The real class with random weights; its vision tower is kept tiny, so that the language model is what is timed."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=1, image_size=336, patch_size=14
    )
    text = LlamaConfig(
        hidden_size=shape.width,
        intermediate_size=shape.width * 11 // 4,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.width // 64,
        vocab_size=1000,
    )
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(
        LlavaConfig(vision_config=vision, text_config=text, image_token_index=999)
    ).eval()
    ids = torch.cat(
        [torch.randint(0, 900, (5,)), torch.full((576 * shape.views,), 999), torch.randint(0, 900, (shape.text - 5,))]
    )
    return model, {"input_ids": ids[None], "pixel_values": torch.randn(shape.views, 3, 336, 336)}


@torch.no_grad()
def measure(
    shapes: Sequence[BenchShape] = SHAPES,
    rounds: int = 3,
    decode: int = 16,
    tick: Callable[..., object] = lambda text, share=None: None,
) -> dict[str, Any]:
    """Vanilla against DIVE at each budget, interleaved; medians over the rounds."""
    rows = []
    for shape in shapes:
        model, inputs = random_llava(shape)
        text = model.model.language_model
        costs = Costs(text.config, text.layers, 4)
        full = [576 * shape.views + shape.text] * shape.layers
        runs: dict[int, list[dict[str, Any]]] = {keep: [] for keep in (0, *shape.keeps)}
        for turn in range(rounds + 1):  # the first round warms up
            for keep, timed in runs.items():
                tick(f"{shape}, {f'keep {keep}' if keep else 'vanilla'}, round {turn}", turn / (rounds + 1))
                run = _once(model, inputs, keep, decode)
                if turn:
                    timed.append(run)
        vanilla = {name: median(run[name] for run in runs[0]) for name in ("prefill", "token")}
        for keep, timed in runs.items():
            lengths = full if not keep else [n if i < 2 else keep + shape.text for i, n in enumerate(full)]
            prefill, token = (median(run[name] for run in timed) for name in ("prefill", "token"))
            bound = costs.flops(1, full) / costs.flops(1, lengths)
            rows.append(
                {
                    "shape": str(shape),
                    "keep": keep or 576 * shape.views,
                    "prefill_ms": prefill * 1e3,
                    "speedup": vanilla["prefill"] / prefill,
                    "bound": bound,
                    "of_bound": vanilla["prefill"] / prefill / bound,
                    "selection_ms": median(run["selection"] for run in timed) * 1e3,
                    "selection_of_vanilla": median(run["selection"] for run in timed) / vanilla["prefill"],
                    "token_ms": token * 1e3,
                    "token_of_vanilla": token / vanilla["token"],
                    "kv_bytes": timed[0]["kv"],
                    "kv_bytes_formula": costs.kv_bytes(1, lengths),
                }
            )
    return {"machine": machine(), "rounds": rounds, "decode": decode, "rows": rows}


def _once(model: Any, inputs: dict[str, Tensor], keep: int, decode: int) -> dict[str, Any]:
    with prune(model, "dive", keep=keep, scope="sample") if keep else nullcontext() as session:
        start = time.perf_counter()
        cache = model(**inputs, use_cache=True, logits_to_keep=1).past_key_values
        prefill = time.perf_counter() - start
        held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
        steps = []
        for _ in range(decode):
            start = time.perf_counter()
            model(input_ids=inputs["input_ids"][:, -1:], past_key_values=cache, use_cache=True)
            steps.append(time.perf_counter() - start)
        selection = session.report.selection_ms / 1e3 if session is not None else 0.0
    return {"prefill": prefill, "token": median(steps), "selection": selection, "kv": held}
