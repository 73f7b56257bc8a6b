"""Mask equivalence: dropping tokens at block l is a full-length run in which blocks >= l can't see the dropped positions.

Independent of the engine: the mask is written in full, and visual positions are read from the ids.
"""

import torch

from divevlm.models import FAMILIES

PLACEHOLDERS = ("image_token_id", "video_token_id")


def visual_positions(model, ids):
    """[B, S] bool"""
    tokens = [getattr(model.config, name, None) for name in PLACEHOLDERS]
    return torch.stack([ids == token for token in tokens if token is not None]).any(dim=0)


def dropped_positions(model, ids, report):
    """[B, S] bool, from the report's kept indices."""
    visual = visual_positions(model, ids)
    dropped = visual.clone()
    for row, sample in enumerate(report.samples):
        positions = visual[row].nonzero()[:, 0]
        assert sample.visual == len(positions)
        dropped[row, positions[sample.kept]] = False
    return dropped


def decoder_layers(model):
    family = FAMILIES.get(model.config.model_type)()
    return family.at(model, family.text).layers


@torch.no_grad()
def masked_logits(model, batch, dropped, layer):
    """Logits [B, S, V] of the full-length run."""
    length = batch["input_ids"].shape[1]
    present = batch["attention_mask"].bool()
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    mask = (causal & (present & ~dropped)[:, None, None]) | torch.eye(length, dtype=torch.bool)
    layers = decoder_layers(model)
    eager = model.config.get_text_config()._attn_implementation == "eager"
    given = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min) if eager else mask

    def hook(module, args, kwargs):
        return args, kwargs | {"attention_mask": given, "position_ids": None}

    handles = [block.register_forward_pre_hook(hook, with_kwargs=True) for block in layers[layer:]]
    try:
        return model(**batch, use_cache=False).logits
    finally:
        for handle in handles:
            handle.remove()


def extended(batch, ids):
    """The batch with generated tokens behind its prompt."""
    more = ids.shape[1] - batch["input_ids"].shape[1]
    longer = {**batch, "input_ids": ids}
    for name, fill in (("attention_mask", 1), ("mm_token_type_ids", 0)):
        if name in batch:
            longer[name] = torch.cat([batch[name], torch.full((len(ids), more), fill, dtype=batch[name].dtype)], dim=1)
    return longer


def close(one, two, scale=1e-5):
    """Equal to float32, relative to the size of the logits."""
    torch.testing.assert_close(one, two, atol=scale * float(two.abs().max()), rtol=0)
