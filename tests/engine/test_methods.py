"""Every method on every family: counts, identity, rows alone and in a batch, mask equivalence of those that only drop."""

import pytest
import torch
from transformers import DynamicCache

import divevlm
from divevlm.methods import METHODS
from tests.engine.oracle import behind, causal, close, full_length_logits, visual_positions
from tests.engine.samples import batch, picture, sample
from tests.zoo import FAMILIES, VIDEO_FAMILIES, build, inputs

KEEP = 5
TOWERS = ("downsample",)  # only where patches are visual tokens: refused elsewhere
NAMES = [name for name in FAMILIES if name != "llava_576"]
PAIRS = [(method, name) for method in METHODS for name in NAMES if method not in TOWERS or name == "llava"]
MERGING = [method for method in METHODS if METHODS.get(method).merges]
WITH_CLS = [("prunesid", name) for name in ("llava", "llava_next", "llava_next_video")]  # the CLS row takes a place
DROPPING = [pair for pair in PAIRS if pair[0] not in MERGING and pair not in WITH_CLS]


def test_pairs_that_make_no_sense_are_refused_before_anything_is_computed():
    for method in TOWERS:
        for name in NAMES:
            if (method, name) not in PAIRS:
                with pytest.raises(ValueError, match=f"for {build(name).family}, got '{method}'"):
                    divevlm.prune(build(name).model, method, keep=KEEP)


def run(entry, given, method, keep=KEEP, **options):
    cache = DynamicCache()
    with divevlm.prune(entry.model, method, keep=keep, **options) as session, torch.no_grad():
        logits = entry.model(**given, past_key_values=cache).logits
    return logits, session, cache


@pytest.mark.parametrize(("method", "name"), PAIRS)
def test_counts_are_exact_in_every_block_and_in_the_cache(method, name):
    entry = build(name)
    given = batch(entry, "several")
    _, session, cache = run(entry, given, method)
    report = session.report
    stays = [decision.stay for decision in report.decisions]
    assert len(stays) == len(session.cuts)
    lengths = [given["input_ids"].shape[1], *(int(stay.sum(dim=1).max()) for stay in stays)]
    want = [lengths[sum(cut <= block for cut in session.cuts)] for block in range(len(session.layers))]
    assert report.tokens_per_layer == want
    assert [layer.keys.shape[2] for layer in cache.layers] == want
    _, everything, _ = run(entry, given, "dive", keep=1.0)
    last, blocks = len(session.cuts) - 1, len(session.layers)
    for row, whole in zip(report.samples, everything.report.samples, strict=True):
        for segment, before in zip(row.segments, whole.segments, strict=True):
            total = len(before.kept)
            keep = min(total, session.method.stay(last, min(KEEP, total), total, blocks))
            exact = method != "downsample" or keep == total  # a grid of at most K
            assert len(segment.kept) == keep if exact else 0 < len(segment.kept) <= keep


@pytest.mark.parametrize(("method", "name"), PAIRS)
def test_keeping_everything_is_the_identity(method, name):
    entry = build(name)
    given = batch(entry, "mixed")
    with torch.no_grad():
        plain = entry.model(**given).logits
    logits, _, _ = run(entry, given, method, keep=1.0)
    assert logits.equal(plain)


@pytest.mark.parametrize(("method", "name"), PAIRS)
def test_a_sample_in_a_padded_batch_gets_what_it_gets_alone(method, name):
    """Padding on the right: on the left, a plain call counts positions from the padding, and DART reads them in its keys."""
    entry = build(name)
    given = batch(entry, "mixed", padding_side="right")
    together, many, _ = run(entry, given, method)
    pictures = picture(1, 150, 80), picture(2, 70, 140), picture(3, 60, 60)
    for row in (0, 1):
        alone, one, _ = run(entry, inputs(entry, [sample(row, pictures[row])]), method)
        last = int(given["attention_mask"][row].sum()) - 1
        close(together[row, last], alone[0, -1], 2e-5)
        assert many.report.samples[row].kept == one.report.samples[0].kept


@pytest.mark.parametrize(("method", "name"), DROPPING)
@torch.no_grad()
def test_dropping_is_not_being_seen(method, name):
    entry = build(name)
    for shape in ("mixed", *(["videos"] if name in VIDEO_FAMILIES else [])):
        given = batch(entry, shape)
        logits, session, _ = run(entry, given, method, positions="keep", proportional=False)
        stays = [decision.stay for decision in session.report.decisions]
        masks = [causal(given["attention_mask"].bool() & stay) for stay in stays]
        want = full_length_logits(entry.model, given, behind(session.cuts, masks))
        close(logits[stays[-1]], want[stays[-1]])
        visual = visual_positions(entry.model, given["input_ids"])
        assert (visual & ~stays[-1]).any()


@pytest.mark.parametrize("method", list(METHODS))
def test_the_same_call_keeps_the_same_tokens(method):
    entry = build("llava")
    given = batch(entry, "single")
    with divevlm.prune(entry.model, method, keep=KEEP, history=2) as session:
        one, two = (entry.model.generate(**given, max_new_tokens=3, do_sample=False) for _ in range(2))
    assert one.equal(two)
    assert session.history[0].samples == session.history[1].samples
