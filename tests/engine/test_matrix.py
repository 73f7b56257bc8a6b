"""Every family, attention kind, batch shape and layer: the engine against mask equivalence."""

import pytest
import torch

import divevlm
from divevlm.models import FAMILIES
from tests.engine.oracle import close, dropped_positions, extended, masked_logits, visual_positions
from tests.engine.samples import batch, shapes
from tests.zoo import FAMILIES as ZOO
from tests.zoo import build

NAMES = [name for name in ZOO if name != "llava_576" and name in FAMILIES]
CASES = [(name, shape) for name in NAMES for shape in shapes(name)]


@pytest.mark.parametrize("attn", ["sdpa", "eager"])
@pytest.mark.parametrize("layer", [0, 1, 2, 3])
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_prefill_is_mask_equivalent(name, shape, layer, attn):
    entry = build(name, attn=attn)
    for side in ("left", "right"):
        given = batch(entry, shape, padding_side=side)
        with torch.no_grad(), divevlm.prune(entry.model, "dive", keep=0.3, layer=layer) as session:
            logits = entry.model(**given).logits
        dropped = dropped_positions(entry.model, given["input_ids"], session.report)
        assert dropped.any()
        seen = given["attention_mask"].bool() & ~dropped
        expected = masked_logits(entry.model, given, dropped, layer)
        assert logits.shape == expected.shape
        close(logits[seen], expected[seen])


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_decoding_is_mask_equivalent(name, shape, layer):
    """Every step of a greedy generation equals the full-length run on prompt and answer so far."""
    entry = build(name)
    given = batch(entry, shape)
    length = given["input_ids"].shape[1]
    with divevlm.prune(entry.model, "dive", keep=0.3, layer=layer) as session:
        out = entry.model.generate(
            **given, max_new_tokens=4, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
    assert len(session.history) == 1
    longer = extended(given, out.sequences)
    dropped = dropped_positions(entry.model, out.sequences, session.report)
    expected = masked_logits(entry.model, longer, dropped, layer)
    close(torch.stack(out.logits, dim=1), expected[:, length - 1 : -1])


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_keeping_all_is_the_identity_bit_for_bit(name, shape):
    entry = build(name)
    given = batch(entry, shape)
    options = {"max_new_tokens": 4, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    plain = entry.model.generate(**given, **options)
    for keep, layer in ((100_000, 2), (1.0, 0)):
        with divevlm.prune(entry.model, "dive", keep=keep, layer=layer):
            kept = entry.model.generate(**given, **options)
        assert torch.equal(plain.sequences, kept.sequences)
        assert all(torch.equal(a, b) for a, b in zip(plain.logits, kept.logits, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_padded_batch_get_what_they_get_alone(name):
    entry = build(name)
    from tests.engine.samples import picture, sample

    samples = [sample(0, picture(1, 150, 80)), sample(1, picture(2, 70, 140)), sample(2, picture(3, 60, 60))]
    from tests.zoo import inputs

    options = {"max_new_tokens": 5, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    with divevlm.prune(entry.model, "dive", keep=5) as session:
        together = entry.model.generate(**inputs(entry, samples), **options)
        whole = session.report
        for row, one in enumerate(samples):
            alone = entry.model.generate(**inputs(entry, [one]), **options)
            assert session.report.samples[0].order == whole.samples[row].order
            assert together.sequences[row, -5:].tolist() == alone.sequences[0, -5:].tolist()
            close(torch.stack(together.logits)[:, row], torch.stack(alone.logits)[:, 0], scale=1e-4)


@pytest.mark.parametrize("layer", [0, 1, 2, 3])
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_cache_lengths_are_real_and_the_report_agrees(name, shape, layer):
    entry = build(name)
    given = batch(entry, shape)
    with torch.no_grad(), divevlm.prune(entry.model, "dive", keep=0.3, layer=layer) as session:
        cache = entry.model(**given, use_cache=True).past_key_values
    report = session.report
    lengths = [block.keys.shape[-2] for block in cache.layers]
    assert lengths == report.tokens_per_layer
    size = given["input_ids"].shape[1]
    dropped = dropped_positions(entry.model, given["input_ids"], report)
    short = int((given["attention_mask"].bool() & ~dropped).sum(dim=1).max())
    assert lengths == [size if number < layer else short for number in range(4)]
    assert report.kv_bytes == sum(block.keys.nbytes + block.values.nbytes for block in cache.layers)
    assert report.kv_bytes_full == report.kv_bytes // sum(lengths) * size * 4
    assert report.mean_tokens == sum(lengths) / 4
    text = given["attention_mask"].bool() & ~visual_positions(entry.model, given["input_ids"])
    assert [sample.text for sample in report.samples] == text.sum(dim=1).tolist()
