"""What pruning saves on this machine: prefill, selection, decoding and cache of a LLaVA-shaped random model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from divevlm.engine import prune
from divevlm.engine.report import Costs
from divevlm.experiments.loading import machine
from divevlm.experiments.settings import Setting
from divevlm.planning import VANILLA


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
    methods: Sequence[str] = ("dive",),
    rounds: int = 3,
    decode: int = 16,
    tick: Callable[..., object] = lambda text, share=None: None,
) -> dict[str, Any]:
    """Vanilla against each method at each budget, interleaved; medians over the rounds."""
    rows = []
    for shape in shapes:
        model, inputs = random_llava(shape)
        text = model.model.language_model
        costs = Costs(text.config, text.layers, 4)
        full = [576 * shape.views + shape.text] * shape.layers
        settings = [Setting(VANILLA, 0), *(Setting(name, keep) for keep in shape.keeps for name in methods)]
        runs: dict[Setting, list[dict[str, Any]]] = {setting: [] for setting in settings}
        for turn in range(rounds + 1):  # the first round warms up
            for setting, timed in runs.items():
                tick(f"{shape}, {setting}, round {turn}", turn / (rounds + 1))
                run = _once(model, inputs, setting, decode)
                if turn:
                    timed.append(run)
        vanilla = {name: median(run[name] for run in runs[settings[0]]) for name in ("prefill", "token")}
        for setting, timed in runs.items():
            lengths = timed[0]["lengths"] or full
            prefill, token = (median(run[name] for run in timed) for name in ("prefill", "token"))
            bound = costs.flops(1, full) / costs.flops(1, lengths)
            rows.append(
                {
                    "shape": str(shape),
                    "method": setting.method,
                    "keep": setting.keep or 576 * shape.views,
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
                    "mask_bytes": timed[0]["masks"][0],
                    "mask_bytes_token": timed[0]["masks"][-1],
                }
            )
    return {"machine": machine(), "rounds": rounds, "decode": decode, "rows": rows}


def _once(model: Any, inputs: dict[str, Tensor], setting: Setting, decode: int) -> dict[str, Any]:
    method = setting.ready(model)
    masks: list[int] = []  # bytes, at the last block, of each pass

    def note(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        mask = kwargs.get("attention_mask")
        masks.append(0 if mask is None else mask.nbytes)

    with nullcontext() if method is None else prune(model, replace(method, scope="sample")) as session:
        watch = model.model.language_model.layers[-1].register_forward_pre_hook(note, with_kwargs=True)
        start = time.perf_counter()
        cache = model(**inputs, use_cache=True, logits_to_keep=1).past_key_values
        prefill = time.perf_counter() - start
        held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
        steps = []
        for _ in range(decode):
            start = time.perf_counter()
            model(input_ids=inputs["input_ids"][:, -1:], past_key_values=cache, use_cache=True)
            steps.append(time.perf_counter() - start)
        watch.remove()
    selection, lengths = (
        (0.0, []) if session is None else (session.report.selection_ms / 1e3, session.report.tokens_per_layer)
    )
    return {
        "prefill": prefill,
        "token": median(steps),
        "selection": selection,
        "lengths": lengths,
        "kv": held,
        "masks": masks,
    }
