"""Mask equivalence: dropping tokens at block l is a full-length run in which blocks >= l can't see the dropped positions.

Independent of the engine: the mask is written in full, and visual positions are read from the ids.
"""

from contextlib import ExitStack

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


def causal(seen):
    """[B, 1, S, S] bool: who attends to whom, if `seen` [B, S] may be attended to, and every position to itself."""
    length = seen.shape[1]
    lower = torch.ones(length, length, dtype=torch.bool).tril()
    return (lower & seen[:, None, None]) | torch.eye(length, dtype=torch.bool)


def full_length_logits(model, given, mask_of):
    """[B, S, V] of a run in which block `number` gets mask_of(number, hidden) instead of its own mask, unless that is None."""

    def hook_of(number):
        def hook(layer, args, kwargs):
            mask = mask_of(number, args[0])
            return None if mask is None else (args, kwargs | {"attention_mask": mask, "position_ids": None})

        return hook

    with ExitStack() as stack:
        for number, layer in enumerate(decoder_layers(model)):
            stack.callback(layer.register_forward_pre_hook(hook_of(number), with_kwargs=True).remove)
        return model(**given, use_cache=False).logits


def behind(cuts, masks):
    """From each cut on its mask, for `full_length_logits`."""

    def mask_of(number, hidden):
        passed = sum(cut <= number for cut in cuts)
        return masks[passed - 1] if passed else None

    return mask_of


@torch.no_grad()
def masked_logits(model, batch, dropped, layer):
    """Logits [B, S, V] of the full-length run."""
    mask = causal(batch["attention_mask"].bool() & ~dropped)
    if model.config.get_text_config()._attn_implementation == "eager":
        mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    return full_length_logits(model, batch, behind((layer,), [mask]))


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
