"""Methods that cut more than once: each stage keeps its own lengths, masks and cache columns."""

from dataclasses import dataclass

import pytest
import torch
from transformers import DynamicCache

import divevlm
from divevlm.core.selection import Selection
from divevlm.methods.base import Method
from tests.engine.oracle import causal, close, extended, full_length_logits, visual_positions
from tests.engine.samples import batch
from tests.zoo import build

NAMES = ("llava", "llava_next", "qwen2_vl", "qwen3_vl", "idefics3")
GREEDY = {"max_new_tokens": 4, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}


@dataclass(frozen=True, kw_only=True)
class Ladder(Method):
    """Keeps the longest rows: three quarters before block 1, half before block 2, the budget before block 3."""

    cuts: tuple[int, ...] = (1, 2, 3)
    name = "ladder"

    def blocks(self, blocks, default):
        return self.cuts

    def stay(self, cut, keep, tokens, blocks):
        return (tokens * 3 // 4, tokens // 2, keep)[cut]

    def select(self, groups, keeps):
        orders = [
            group.visual.norm(dim=1).argsort(descending=True, stable=True)[:keep]
            for group, keep in zip(groups, keeps, strict=True)
        ]
        return [Selection(order, torch.zeros(len(order))) for order in orders]


@torch.no_grad()
def laddered(model, given, cuts, keep):
    """Logits of a full-length run whose blocks see ever fewer of the visual positions, and what is left at the end."""
    visual = visual_positions(model, given["input_ids"])
    present = given["attention_mask"].bool()
    dropped = torch.zeros_like(visual)
    with divevlm.prune(model, "dive", keep=1.0) as session:  # keeps everything, and tells who competes with whom
        model(**given)
    alive = [
        [[segment.visual, visual[row].nonzero()[:, 0][segment.kept]] for segment in sample.segments]
        for row, sample in enumerate(session.report.samples)
    ]
    norm = session.text.norm

    def mask_of(number, hidden):
        if number in cuts:
            for row, groups in enumerate(alive):
                for group in groups:
                    total, tokens = group
                    stay = (total * 3 // 4, total // 2, min(keep, total))[cuts.index(number)]
                    norms = norm(hidden[row, tokens]).norm(dim=1)
                    best = tokens[norms.argsort(descending=True, stable=True)[:stay]].sort().values
                    dropped[row, tokens] = True
                    dropped[row, best] = False
                    group[1] = best
        return causal(present & ~dropped) if number >= cuts[0] else None

    return full_length_logits(model, given, mask_of), dropped


@pytest.mark.parametrize("cuts", [(1, 2, 3), (0, 1, 3)])
@pytest.mark.parametrize("shape", ["single", "mixed", "several", "some-text-only"])
@pytest.mark.parametrize("name", NAMES)
def test_every_stage_is_mask_equivalent(name, shape, cuts):
    entry = build(name)
    given = batch(entry, shape)
    with torch.no_grad(), divevlm.prune(entry.model, Ladder(keep=3, cuts=cuts)) as session:
        out = entry.model(**given, use_cache=True)
    expected, dropped = laddered(entry.model, given, cuts, 3)
    seen = given["attention_mask"].bool() & ~dropped
    close(out.logits[seen], expected[seen])
    lengths = [block.keys.shape[-2] for block in out.past_key_values.layers]
    assert lengths == session.report.tokens_per_layer
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[cuts[0]] > lengths[cuts[2]]
    assert session.report.kv_bytes == sum(b.keys.nbytes + b.values.nbytes for b in out.past_key_values.layers)


@pytest.mark.parametrize("name", NAMES)
def test_decoding_and_a_second_turn(name):
    entry = build(name)
    given = batch(entry, "mixed")
    cache = DynamicCache(config=entry.model.config.get_text_config())
    with divevlm.prune(entry.model, Ladder(keep=3)) as session:
        first = entry.model.generate(**given, **GREEDY, past_key_values=cache)
        ids = torch.cat(
            [first.sequences, torch.randint(20, 60, (3, 5), generator=torch.Generator().manual_seed(1))], dim=1
        )
        longer = extended(given, ids)
        text = {k: v for k, v in longer.items() if k in ("input_ids", "attention_mask", "mm_token_type_ids")}
        second = entry.model.generate(**text, **GREEDY, past_key_values=cache)
    assert len(session.history) == 1
    expected, _ = laddered(entry.model, extended(given, second.sequences), (1, 2, 3), 3)
    length = given["input_ids"].shape[1]
    close(torch.stack(first.logits, dim=1), expected[:, length - 1 : length + 3])
    close(torch.stack(second.logits, dim=1), expected[:, ids.shape[1] - 1 : -1])


def test_several_cuts_have_no_entry():
    with pytest.raises(ValueError, match="^placement must be 'layer' for the 3 cuts of ladder, got 'entry'"):
        divevlm.prune(build("llava").model, Ladder(keep=3, placement="entry"))
