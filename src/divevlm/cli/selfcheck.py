"""Does pruning do what it promises on this machine? Asked of a tiny random LLaVA, in a few seconds."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import torch

from divevlm.core.reference import reference_select
from divevlm.core.select import select
from divevlm.engine import prune

KEEP, LAYER, VISUAL, IMAGE = 5, 2, 36, 99


@torch.no_grad()
def checks(device: str) -> list[dict[str, Any]]:
    """One row a promise: kept or not, and how long it took to see."""
    rows = []
    for name, check in (
        ("selection equals Algorithm 1 in float64", _selection),
        ("keeping all tokens changes nothing, bit for bit", _identity),
        ("pruned logits equal those of a run that masks the dropped tokens", _masked),
        ("later blocks cache the kept tokens only", _cache),
        ("afterwards the model is what it was", _afterwards),
    ):
        start = time.perf_counter()
        try:
            ok, problem = check(device), ""
        except Exception as error:  # whatever goes wrong is what is to be told
            ok, problem = False, f"{type(error).__name__}: {' '.join(str(error).split())}"
        rows.append({"check": name, "ok": ok, "problem": problem, "seconds": time.perf_counter() - start})
    return rows


def _selection(device: str) -> bool:
    gen = torch.Generator().manual_seed(0)
    x, q = (torch.randn(n, 32, generator=gen, dtype=torch.float64) for n in (60, 7))
    printed = reference_select(x, q, 12)
    fast = select(x.float().to(device), q.float().to(device), 12)
    return bool((fast.order.cpu() == printed.order).all())  # type: ignore[union-attr]


def _identity(device: str) -> bool:
    model, batch = _model(device)
    plain = model(**batch).logits
    with prune(model, "dive", keep=1.0):
        return torch.equal(model(**batch).logits, plain)


def _masked(device: str) -> bool:
    model, batch = _model(device)
    with prune(model, "dive", keep=KEEP) as session:
        pruned = model(**batch).logits[:, -1]
    kept = torch.tensor(session.report.samples[0].kept, device=device)
    ids = batch["input_ids"][0]
    visible = torch.ones_like(ids, dtype=torch.bool)
    places = (ids == IMAGE).nonzero()[:, 0]
    visible[places] = False
    visible[places[kept]] = True
    whole = torch.ones(len(ids), len(ids), dtype=torch.bool, device=device).tril()
    mask = ((whole & visible) | torch.eye(len(ids), dtype=torch.bool, device=device))[None, None]

    def hook(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, kwargs | {"attention_mask": mask}

    handles = [
        block.register_forward_pre_hook(hook, with_kwargs=True) for block in model.model.language_model.layers[LAYER:]
    ]
    masked = model(**batch, use_cache=False).logits[:, -1]
    for handle in handles:
        handle.remove()
    return bool((pruned - masked).abs().max() <= 1e-4 * masked.abs().max())


def _cache(device: str) -> bool:
    model, batch = _model(device)
    length = batch["input_ids"].shape[1]
    with prune(model, "dive", keep=KEEP):
        cache = model(**batch, use_cache=True).past_key_values
    short = length - VISUAL + KEEP
    return [layer.keys.shape[-2] for layer in cache.layers] == [length] * LAYER + [short] * (len(cache.layers) - LAYER)


def _afterwards(device: str) -> bool:
    model, batch = _model(device)
    plain = model(**batch).logits
    with prune(model, "dive", keep=KEEP):
        changed = model(**batch).logits
    return torch.equal(model(**batch).logits, plain) and not torch.equal(changed[:, -1], plain[:, -1])


@cache
def _model(device: str) -> tuple[Any, dict[str, Any]]:
    """Four blocks of width 32, 36 visual tokens between words."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    small: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(image_size=42, patch_size=7, num_hidden_layers=2, **small),
        text_config=LlamaConfig(vocab_size=100, num_hidden_layers=4, pad_token_id=0, **small),
        image_token_index=IMAGE,
        image_seq_length=VISUAL,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlavaForConditionalGeneration(config).eval()
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 1))
        pixels = torch.randn(1, 3, 42, 42)
    ids = torch.tensor([[1, 5, *[IMAGE] * VISUAL, 7, 8, 9, 10]])
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}
    return model.to(device), {name: value.to(device) for name, value in batch.items()}
