"""Right in every way of calling a model, or refused."""

import gc
import weakref

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.masking_utils import flash_attention_mask

import divevlm
from tests.engine.oracle import close, decoder_layers, dropped_positions, extended, masked_logits
from tests.engine.samples import batch, picture, sample
from tests.zoo import build, inputs

FAMILIES = ("llava", "llava_onevision", "qwen2_vl")
GREEDY = {"max_new_tokens": 5, "do_sample": False}


@pytest.fixture(params=FAMILIES)
def entry(request):
    return build(request.param)


def generated(model, given, **options):
    out = model.generate(**given, **(GREEDY | options), output_logits=True, return_dict_in_generate=True)
    return out.sequences, torch.stack(out.logits, dim=1)


# Attention kinds


def flash_stand_in(module, query, key, value, attention_mask, scaling=None, dropout=0.0, position_ids=None, **kwargs):
    """Flash attention's contract, not its kernel: a 2-D mask over the keys or None; causal, aligned at the end; and
    position ids that restart or jump with batch 1 and no mask are taken for packed sequences."""
    batch, _, queries, _ = query.shape
    keys = key.shape[2]
    if attention_mask is None and batch == 1 and queries > 1 and position_ids is not None:
        assert (position_ids.diff() == 1).all(), "taken for packed sequences"
    allowed = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)[None, None]
    if attention_mask is not None:
        assert attention_mask.shape == (batch, keys)
        allowed = (allowed & attention_mask.bool()[:, None, None]) | torch.eye(queries, keys, dtype=torch.bool).roll(
            keys - queries, 1
        )
    repeat = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
    weights = (query @ key.mT * scaling).masked_fill(~allowed, -torch.inf).softmax(-1)
    return (weights @ value).transpose(1, 2), None


AttentionInterface.register("flash_stand_in", flash_stand_in)
AttentionMaskInterface.register("flash_stand_in", flash_attention_mask)


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("shape", ["single", "mixed", "some-text-only"])
@pytest.mark.parametrize("name", FAMILIES)
def test_flash_style_masks(name, shape, layer):
    plain, flash = build(name), build(name, fresh=True)
    flash.model.set_attn_implementation({"text_config": "flash_stand_in"})
    given = batch(plain, shape)
    with divevlm.prune(plain.model, keep=4, layer=layer):
        expected = generated(plain.model, given)
    with divevlm.prune(flash.model, keep=4, layer=layer):
        result = generated(flash.model, given)
    assert torch.equal(result[0], expected[0])
    close(result[1], expected[1])


# Precisions


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FAMILIES)
def test_half_precision(name, dtype):
    """Picks, caches and finite logits in half precision; equal to the masked run of the same precision to its rounding."""
    entry = build(name, fresh=True)
    entry.model.to(dtype)
    given = batch(entry, "mixed").to(dtype)
    with torch.no_grad(), divevlm.prune(entry.model, keep=4) as session:
        out = entry.model(**given)
    dropped = dropped_positions(entry.model, given["input_ids"], session.report)
    seen = given["attention_mask"].bool() & ~dropped
    expected = masked_logits(entry.model, given, dropped, 2)
    assert out.logits.dtype == dtype
    assert {block.keys.dtype for block in out.past_key_values.layers} == {dtype}
    close(out.logits[seen].float(), expected[seen].float(), scale=0.06)
    assert session.report.kv_bytes == sum(b.keys.nbytes + b.values.nbytes for b in out.past_key_values.layers)


# Ways to generate


def test_beam_search_equals_masked_scores(entry):
    """Each beam's score is the sum of the log-probabilities that a full-length masked run gives its tokens."""
    given = batch(entry, "mixed")
    options = {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.0}
    with divevlm.prune(entry.model, keep=4) as session:
        out = entry.model.generate(**given, **GREEDY, **options, output_scores=True, return_dict_in_generate=True)
    assert [s.kept for s in session.report.samples[::3]] == [s.kept for s in session.report.samples[1::3]]
    length = given["input_ids"].shape[1]
    report = session.report
    report.samples = [s for s in report.samples[::3] for _ in range(2)]
    twice = {"llava": ("pixel_values",), "qwen2_vl": ("image_grid_thw",)}.get(
        entry.family, ("pixel_values", "image_sizes")
    )
    longer = {k: v.repeat_interleave(2, dim=0) if k in ("input_ids", "attention_mask", "mm_token_type_ids", *twice) else v
              for k, v in given.items()}  # fmt: skip
    if entry.family == "qwen2_vl":
        sizes = given["image_grid_thw"].prod(dim=1).tolist()
        longer["pixel_values"] = torch.cat([part.repeat(2, 1) for part in given["pixel_values"].split(sizes)])
    if "batch_num_images" in longer:
        longer["batch_num_images"] = longer["batch_num_images"].repeat_interleave(2)
    longer = extended(longer, out.sequences)
    dropped = dropped_positions(entry.model, out.sequences, report)
    logs = masked_logits(entry.model, longer, dropped, 2).log_softmax(-1)[:, length - 1 : -1]
    scores = logs.gather(2, out.sequences[:, length:, None])[..., 0].sum(dim=1)
    torch.testing.assert_close(out.sequences_scores, scores, atol=1e-3, rtol=0)


def test_sampling_with_several_sequences(entry):
    given = batch(entry, "mixed")
    options = {"do_sample": True, "num_return_sequences": 3, "max_new_tokens": 5}
    runs = []
    for _ in range(2):
        torch.manual_seed(7)
        with divevlm.prune(entry.model, keep=4) as session:
            runs.append(entry.model.generate(**given, **options))
    assert torch.equal(*runs)
    assert len(session.report.samples) == 9
    kept = [sample.kept for sample in session.report.samples]
    assert kept[0] == kept[1] == kept[2]
    with divevlm.prune(entry.model, keep=4) as session:
        entry.model.generate(**given, **GREEDY)
    assert [sample.kept for sample in session.report.samples] == kept[::3]


def test_without_a_cache_every_step_is_a_prefill(entry):
    given = batch(entry, "single")
    with divevlm.prune(entry.model, keep=4, history=9) as session:
        sequences, logits = generated(entry.model, given, use_cache=False)
    assert len(session.history) == GREEDY["max_new_tokens"]
    length = given["input_ids"].shape[1]
    for step, report in enumerate(session.history):
        ids = sequences[:, : length + step]
        expected = masked_logits(entry.model, extended(given, ids), dropped_positions(entry.model, ids, report), 2)
        close(logits[:, step], expected[:, -1])


def test_a_second_turn_of_text_on_the_same_cache(entry):
    given, more = batch(entry, "mixed"), 6
    gen = torch.Generator().manual_seed(0)
    turn = torch.randint(20, 60, (3, more), generator=gen)
    for layer in (0, 2):
        cache = DynamicCache(config=entry.model.config.get_text_config())
        with divevlm.prune(entry.model, keep=4, layer=layer) as session:
            first = entry.model.generate(**given, **GREEDY, past_key_values=cache)
            ids = torch.cat([first, turn], dim=1)
            longer = extended(given, ids)
            text = {k: v for k, v in longer.items() if k in ("input_ids", "attention_mask", "mm_token_type_ids")}
            sequences, logits = generated(entry.model, text, past_key_values=cache)
        assert len(session.history) == 1
        dropped = dropped_positions(entry.model, sequences, session.report)
        expected = masked_logits(entry.model, extended(given, sequences), dropped, layer)
        close(logits, expected[:, ids.shape[1] - 1 : -1])


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_second_turn_with_a_new_image(layer):
    """Selection is among the new image's tokens; the first image's stay as they were."""
    entry = build("llava")
    one, two = (inputs(entry, [sample(n, picture(n, 80, 60))]) for n in range(2))
    cache = DynamicCache(config=entry.model.config.get_text_config())
    with torch.no_grad(), divevlm.prune(entry.model, keep=4, layer=layer, history=2) as session:
        entry.model(**one, past_key_values=cache, use_cache=True)
        mask = torch.cat([one["attention_mask"], two["attention_mask"]], dim=1)
        second = {**two, "attention_mask": mask}
        logits = entry.model(**second, past_key_values=cache, use_cache=True).logits
    together = {
        "input_ids": torch.cat([one["input_ids"], two["input_ids"]], dim=1),
        "attention_mask": mask,
        "pixel_values": torch.cat([one["pixel_values"], two["pixel_values"]]),
    }
    parts = [
        dropped_positions(entry.model, z["input_ids"], r) for z, r in zip((one, two), session.history, strict=True)
    ]
    dropped = torch.cat(parts, dim=1)
    expected = masked_logits(entry.model, together, dropped, layer)[:, -two["input_ids"].shape[1] :]
    close(logits[~parts[1]], expected[~parts[1]])


def test_conversations_do_not_disturb_each_other(entry):
    batches = [batch(entry, "single"), batch(entry, "tall")]
    layer = 2
    with torch.no_grad(), divevlm.prune(entry.model, keep=4, layer=layer):
        alone = []
        for given in batches:
            cache = entry.model(**given, use_cache=True).past_key_values
            alone.append(step(entry, given, cache))
        caches = [entry.model(**given, use_cache=True).past_key_values for given in batches]
        mixed = [step(entry, given, cache) for given, cache in zip(batches, caches, strict=True)]
    for a, b in zip(alone, mixed, strict=True):
        assert torch.equal(a, b)


def step(entry, given, cache):
    """Logits of one more token, with the position that the token has."""
    length = given["input_ids"].shape[1]
    return entry.model(
        input_ids=torch.tensor([[30]]), past_key_values=cache, position_ids=torch.tensor([[length]])
    ).logits


def test_caches_are_not_kept_alive(entry):
    given = batch(entry, "single")
    with torch.no_grad(), divevlm.prune(entry.model, keep=4, layer=0):
        out = entry.model(**given, use_cache=True)
        seen = weakref.ref(out.past_key_values)
        del out
        gc.collect()
        assert seen() is None


def test_gradients_flow_through_the_kept_tokens():
    entry = build("llava")
    given = batch(entry, "single")
    given["pixel_values"].requires_grad_()
    with divevlm.prune(entry.model, keep=4):
        entry.model(**given).logits[:, -1].sum().backward()
    assert given["pixel_values"].grad.abs().sum() > 0


def test_answers_do_not_choose_the_tokens(entry):
    """With labels, what is to be learnt is not part of the prompt; the loss counts the answer alone."""
    given = batch(entry, "single")
    with torch.no_grad(), divevlm.prune(entry.model, keep=4, history=2) as session:
        entry.model(**given)
        ids = torch.cat([given["input_ids"], torch.tensor([[40, 41, 42]])], dim=1)
        labels = ids.clone()
        labels[:, : given["input_ids"].shape[1]] = -100
        out = entry.model(**extended(given, ids), labels=labels)
    plain, forced = session.history
    assert plain.samples[0].order == forced.samples[0].order
    assert plain.samples[0].text == forced.samples[0].text
    expected = masked_logits(entry.model, extended(given, ids), dropped_positions(entry.model, ids, forced), 2)
    loss = torch.nn.functional.cross_entropy(expected[0, -4:-1], ids[0, -3:])
    torch.testing.assert_close(out.loss, loss, atol=1e-4, rtol=0)


# Refused


def test_layers_of_the_decoder_are_found(entry):
    assert len(decoder_layers(entry.model)) == 4
