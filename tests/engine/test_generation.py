"""Ways to generate that touch the cache: assisted decoding and prompt lookup crop it, others store it otherwise."""

import contextlib

import pytest
import torch
from transformers import Cache, DynamicCache, QuantizedCache
from transformers.cache_utils import QuantizedLayer

import divevlm
from divevlm.engine.caches import PrunedLayer
from tests.engine.oracle import close, dropped_positions, extended, masked_logits
from tests.engine.samples import batch, picture, sample
from tests.zoo import build, inputs

GREEDY = {"max_new_tokens": 12, "do_sample": False}
FULL = {"output_logits": True, "return_dict_in_generate": True}
NAMES = ("llava", "llava_onevision", "qwen2_vl")
# transformers' own: assisted decoding passes both a config and arguments on to the assistant
pytestmark = pytest.mark.filterwarnings("ignore:.*generation_config.*")


@pytest.fixture(params=NAMES)
def entry(request):
    return build(request.param)


@pytest.fixture
def crops(monkeypatch):
    """How many tokens were taken off pruned layers."""
    removed, crop = [], PrunedLayer.crop

    def noting(self, tokens):
        before = self.length
        crop(self, tokens)
        removed.append(before - self.length)

    monkeypatch.setattr(PrunedLayer, "crop", noting)
    return removed


@pytest.mark.parametrize("layer", [0, 2])
def test_prompt_lookup_equals_plain_decoding(entry, layer):
    """Its candidates stand behind the prompt in the very first pass: they do not choose tokens."""
    given = batch(entry, "single")
    given = extended(
        given, torch.cat([given["input_ids"], torch.tensor([[30, 31, 32, 33, 30, 31, 32, 33, 30, 31]])], 1)
    )
    with divevlm.prune(entry.model, keep=4, layer=layer) as session:
        want = entry.model.generate(**given, **GREEDY, **FULL)
        plain = session.report.samples
        never = {"eos_token_id": entry.processor.tokenizer.pad_token_id}  # older versions of transformers want one
        result = entry.model.generate(**given, **GREEDY, **FULL, **never, prompt_lookup_num_tokens=3)
    assert session.report.samples == plain
    assert session.report.tokens_full > given["input_ids"].shape[1]
    assert result.sequences.equal(want.sequences)
    close(torch.stack(result.logits), torch.stack(want.logits), 2e-5)


def test_assisted_decoding_equals_plain_decoding(entry, crops):
    given = batch(entry, "single")
    for seed in (0, 1):  # one that agrees always, one that seldom does
        assistant = build(entry.name, seed=seed, fresh=True).model
        with divevlm.prune(entry.model, keep=4):
            want = entry.model.generate(**given, **GREEDY)
            result = entry.model.generate(**given, **GREEDY, assistant_model=assistant)
        assert result.equal(want)
    assert sum(crops) > 0


class Lossless(QuantizedLayer):
    """A quantised layer whose rounding is none: keys and values go the same ways."""

    def _quantize(self, tensor, axis):
        return [tensor]

    def _dequantize(self, stored):
        return stored[0]


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("lossless", [True, False])
def test_quantised_caches(entry, layer, lossless):
    """The prefill is exact, and but for the cache's rounding all that is decoded behind it."""
    given, length = batch(entry, "mixed"), batch(entry, "mixed")["input_ids"].shape[1]
    kind = {"past_key_values": Cache(layers=[Lossless(residual_length=4) for _ in range(4)])}
    if not lossless:
        settings = {"backend": "quanto", "nbits": 4, "q_group_size": 16}
        kind = {"cache_implementation": "quantized", "cache_config": settings}
    with divevlm.prune(entry.model, keep=4, layer=layer) as session:
        out = entry.model.generate(**given, **GREEDY, **FULL, **kind)
    dropped = dropped_positions(entry.model, out.sequences, session.report)
    want = masked_logits(entry.model, extended(given, out.sequences), dropped, layer)[:, length - 1 : -1]
    result = torch.stack(out.logits, dim=1)
    exact = slice(None) if lossless else slice(1)
    close(result[:, exact], want[:, exact])
    if not lossless:
        assert isinstance(out.past_key_values, QuantizedCache)
        assert 0 < float((result - want).norm() / want.norm()) < 0.3


def test_a_second_image_on_a_quantised_cache():
    """FastV reads keys of before, and states that are run ahead of the cut."""
    entry = build("llava")
    one, two = (inputs(entry, [sample(n, picture(n, 80, 60))]) for n in range(2))
    mask = torch.cat([one["attention_mask"], two["attention_mask"]], dim=1)
    config = entry.model.config.get_text_config()
    for options in ({"method": "fastv"}, {"method": "dive", "placement": "entry"}):
        kept = []
        for cache in (DynamicCache(config=config), QuantizedCache("quanto", config, nbits=4)):
            with torch.no_grad(), divevlm.prune(entry.model, keep=4, **options) as session:
                entry.model(**one, past_key_values=cache)
                logits = entry.model(**{**two, "attention_mask": mask}, past_key_values=cache).logits
            kept.append(session.report.samples[0].kept)
            assert logits.isfinite().all()
        assert len(set(kept[0]) & set(kept[1])) >= 2  # of 4, but for the rounding of keys


class Stream(contextlib.nullcontext):
    """Stands in for a stream of a device: there is none here."""

    def wait_stream(self, other):
        pass


def test_offloaded_caches(monkeypatch, entry):
    monkeypatch.setattr(torch, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device=None: Stream())
    given = batch(entry, "mixed")
    with divevlm.prune(entry.model, keep=4):
        want = entry.model.generate(**given, **GREEDY)
        out = entry.model.generate(**given, **GREEDY, **FULL, cache_implementation="offloaded")
    assert out.past_key_values.offloading
    assert out.sequences.equal(want)
