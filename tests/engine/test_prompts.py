"""Odd prompts: images only, an image at the end, embeddings instead of ids."""

import pytest
import torch

import divevlm
from divevlm.methods import METHODS
from divevlm.methods.base import Needs
from tests.engine.oracle import close, dropped_positions, extended, masked_logits, visual_positions
from tests.engine.samples import batch
from tests.engine.spy import Spy
from tests.engine.test_modes import flash_stand_in  # noqa: F401 - registers it
from tests.zoo import build

NAMES = ("llava", "llava_next", "llava_onevision", "qwen2_vl", "qwen3_vl")
GREEDY = {"max_new_tokens": 3, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}


def cut_short(entry, shape, end="image"):
    """The batch up to its last visual token; end="alone": and nothing before its image either."""
    given = batch(entry, shape)
    visual = visual_positions(entry.model, given["input_ids"])
    last = int(visual[0].nonzero()[-1]) + 1
    first = int(visual[0].nonzero()[0]) if end == "alone" else 0
    names = ("input_ids", "attention_mask", "mm_token_type_ids")
    return {name: value[:, first:last] if name in names else value for name, value in given.items()}


@pytest.mark.parametrize("attn", ["sdpa", "eager", "flash_stand_in"])
@pytest.mark.parametrize("layer", [0, 2, 3])
@pytest.mark.parametrize("end", ["image", "alone"])
@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_that_ends_in_a_dropped_token(name, end, layer, attn):
    """Its logits are the next word: they are those of the masked run, in prefill and behind it."""
    entry = build(name)
    if attn != "sdpa":
        entry = build(name, fresh=True)
        entry.model.set_attn_implementation({"text_config": attn})
    given = cut_short(entry, "single", end)
    length = given["input_ids"].shape[1]
    first = Spy(keep=2, wants=Needs(), cuts=(layer,), newlines="drop")  # keeps the first tokens
    with divevlm.prune(entry.model, first) as session:
        out = entry.model.generate(**given, **GREEDY)
    dropped = dropped_positions(entry.model, out.sequences, session.report)
    assert dropped[0, length - 1]
    longer = extended(given, out.sequences)
    if attn == "flash_stand_in":
        entry.model.set_attn_implementation({"text_config": "sdpa"})
    # Behind an image at the end, Qwen's generate() numbers words otherwise than its forward pass does, pruned or not.
    steps = 1 if name.startswith("qwen") else 3
    want = masked_logits(entry.model, longer, dropped, layer)[:, length - 1 : length - 1 + steps]
    close(torch.stack(out.logits[:steps], dim=1), want)
    assert out.logits[0].abs().max() > 0


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("name", ["llava", "qwen2_vl"])
def test_every_method_takes_prompts_without_a_word(name, method):
    if method == "downsample" and name != "llava":
        return
    entry = build(name)
    given = cut_short(entry, "single", "alone")
    with divevlm.prune(entry.model, method, keep=3) as session:
        out = entry.model.generate(**given, **GREEDY)
    choices = [choice for decision in session.report.decisions for choice in decision.choices]
    assert all(choice.selection.scores.isfinite().all() for choice in choices if choice.selection is not None)
    assert session.report.samples[0].text == 0
    assert 1 <= len(session.report.samples[0].kept) <= 4
    assert all(logits.isfinite().all() and logits.abs().max() > 0 for logits in out.logits)


def embedded(entry, given):
    """As a caller makes embeddings: words, and features at the visual positions."""
    caught = []
    handle = entry.model.model.language_model.register_forward_pre_hook(
        lambda module, args, kwargs: caught.append(kwargs["inputs_embeds"]), with_kwargs=True
    )
    with torch.no_grad():
        entry.model(**given)
    handle.remove()
    return caught[0]


@pytest.mark.parametrize("shape", ["single", "mixed", "several", "some-text-only"])
@pytest.mark.parametrize("method", ["dive", "fastv", "random"])
def test_embeddings_with_given_visual_positions(method, shape):
    entry = build("llava")
    given = batch(entry, shape)
    visual = visual_positions(entry.model, given["input_ids"])
    numbered = visual.long() * (1 + (visual.long().cumsum(1) - 1).clamp_min(0) // 16)  # 16 tokens an image
    mine = {"inputs_embeds": embedded(entry, given), "attention_mask": given["attention_mask"]}
    with divevlm.prune(entry.model, method, keep=4) as session:
        out = entry.model.generate(**mine, visual_mask=numbered, **GREEDY)
        report = session.report
        with torch.no_grad():
            logits = entry.model(**mine, visual_mask=numbered).logits
    assert [len(sample.kept) for sample in report.samples] == [4 * (int(row.sum()) // 16) for row in visual]
    if method == "dive":
        with divevlm.prune(entry.model, method, keep=4) as session:
            want = entry.model.generate(**given, **GREEDY)
        assert [sample.kept for sample in report.samples] == [sample.kept for sample in session.report.samples]
        close(torch.stack(out.logits), torch.stack(want.logits))
    dropped = dropped_positions(entry.model, given["input_ids"], session.report)
    if method != "dive":
        seen = given["attention_mask"].bool() & ~dropped
        close(logits[seen], masked_logits(entry.model, given, dropped, 2)[seen])


def test_told_positions_that_can_not_be_right_are_refused():
    entry = build("llava")
    given = batch(entry, "single")
    mine = {"inputs_embeds": embedded(entry, given), "attention_mask": given["attention_mask"]}
    mask = visual_positions(entry.model, given["input_ids"])
    for wrong, text in (
        (mask.float(), r"visual_mask must be a bool or integer tensor \[batch, length\]"),
        (mask[0], r"visual_mask must be a bool or integer tensor \[batch, length\]"),
        (mask[:0], r"visual_mask must be of shape \(1, \d+\)"),
        (torch.ones(1, 99, dtype=torch.bool), r"visual_mask must be of shape \(1, \d+\)"),
        (-mask.long(), r"visual_mask must be numbers from 1, the tokens of an image behind one another"),
        (torch.arange(mask.shape[1])[None] % 3, r"visual_mask must be numbers from 1, the tokens of an image behind"),
    ):
        with divevlm.prune(entry.model, keep=4), pytest.raises(ValueError, match=f"^{text}.*, got"):
            entry.model(**mine, visual_mask=wrong)
    with divevlm.prune(entry.model, keep=4), pytest.raises(ValueError, match="^visual_mask must be left out"):
        entry.model(**given, visual_mask=mask)
    with (
        divevlm.prune(entry.model, "visionzip", keep=4),
        pytest.raises(ValueError, match="^inputs_embeds must be pixels for visionzip"),
    ):
        entry.model(**mine, visual_mask=mask)


def test_beams_of_embeddings():
    entry = build("llava")
    given = batch(entry, "mixed")
    mine = {"inputs_embeds": embedded(entry, given), "attention_mask": given["attention_mask"]}
    options = {"max_new_tokens": 3, "do_sample": False, "num_beams": 3}
    mask = visual_positions(entry.model, given["input_ids"])
    with divevlm.prune(entry.model, keep=4):
        result = entry.model.generate(**mine, visual_mask=mask, **options)
        want = entry.model.generate(**given, **options)
    assert result.equal(want[:, given["input_ids"].shape[1] :])
