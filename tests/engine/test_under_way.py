"""Calls inside calls, interrupted calls, and what is left of a call when it is over."""

import copy
import gc
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList

import divevlm
from divevlm.core.selection import Selection
from divevlm.methods.base import Method
from tests.engine.oracle import decoder_layers, visual_positions
from tests.engine.samples import batch
from tests.zoo import build

GREEDY = {"max_new_tokens": 4, "do_sample": False}
WORDS = torch.tensor([[30, 31, 32]])


@dataclass(frozen=True, kw_only=True)
class Asking(Method):
    """Calls the model itself while it chooses."""

    model: Any = None
    name = "asking"

    def select(self, groups, keeps):
        with torch.no_grad():
            self.model(input_ids=WORDS)
            self.model.model.language_model(input_ids=WORDS)
        return [Selection(torch.arange(keep), torch.zeros(keep)) for keep in keeps]


@pytest.mark.parametrize("layer", [0, 2, 3])
def test_a_method_may_call_the_model(layer):
    entry = build("llava")
    given = batch(entry, "mixed")
    plain = Asking(keep=4, layer=layer, model=build("llava", seed=1).model)
    with torch.no_grad():
        with divevlm.prune(entry.model, plain):
            want = entry.model(**given).logits
        with divevlm.prune(entry.model, Asking(keep=4, layer=layer, model=entry.model), history=3) as session:
            result = entry.model(**given).logits
    assert torch.equal(result, want)
    assert len(session.history) == 1


def test_a_call_with_an_image_inside_another():
    entry = build("llava")
    outer, inner = batch(entry, "single"), batch(entry, "mixed")
    once = []

    def ask(*_):
        if not once:
            once.append(None)
            once.append(entry.model(**inner).logits)

    with torch.no_grad(), divevlm.prune(entry.model, keep=4, history=5) as session:
        want = entry.model(**outer).logits, entry.model(**inner).logits
        handle = decoder_layers(entry.model)[0].register_forward_hook(ask)
        result = entry.model(**outer).logits
        handle.remove()
    assert torch.equal(result, want[0])
    assert torch.equal(once[1], want[1])
    assert len(session.history) == 4


def interrupted(entry, call, where):
    def stop(*_):
        raise KeyboardInterrupt

    handle = where.register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        call()
    handle.remove()


@pytest.mark.parametrize("place", ["tower", "block 0", "block 3"])
@pytest.mark.parametrize("how", ["forward", "generate"])
def test_an_interrupt_leaves_nothing_behind(place, how):
    entry = build("llava")
    given = batch(entry, "single")
    where = entry.model.model.vision_tower if place == "tower" else decoder_layers(entry.model)[int(place[-1])]
    caches = [DynamicCache()]
    alive = weakref.ref(caches[0])
    labels = {
        "labels": torch.cat([torch.full_like(given["input_ids"][:, 3:], -100), given["input_ids"][:, -3:]], dim=1)
    }
    with torch.no_grad(), divevlm.prune(entry.model, "visionzip", keep=4) as session:
        want = entry.model(**given).logits
        if how == "forward":
            interrupted(entry, lambda: entry.model(**given, **labels, past_key_values=caches[0]), where)
        else:
            interrupted(entry, lambda: entry.model.generate(**given, **GREEDY, past_key_values=caches[0]), where)
        entry.model.model.language_model(input_ids=WORDS)
        assert torch.equal(entry.model.model(**given).last_hidden_state, entry.model.model(**given).last_hidden_state)
        assert torch.equal(entry.model(**given).logits, want)
    caches.clear()
    gc.collect()
    assert alive() is None
    assert session.report.samples[0].text > 0


def test_an_interrupted_step_announces_nothing():
    entry = build("llava")
    given = batch(entry, "single")
    cache = DynamicCache()
    with torch.no_grad(), divevlm.prune(entry.model, keep=4):
        entry.model(**given, past_key_values=cache)
        length = given["input_ids"].shape[1]
        ids = torch.cat([given["input_ids"], WORDS], dim=1)
        text = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        interrupted(
            entry,
            lambda: entry.model.generate(**text, **GREEDY, past_key_values=cache),
            decoder_layers(entry.model)[0],
        )
    before = [layer.keys.shape[-2] for layer in cache.layers]
    with pytest.raises(ValueError, match="^past_key_values must be used with the method"), torch.no_grad():
        entry.model(input_ids=WORDS, past_key_values=cache)
    assert [layer.keys.shape[-2] for layer in cache.layers] == before
    assert cache.get_seq_length() == length


@pytest.mark.parametrize("layer", [0, 2])
def test_a_later_mask_over_pruned_tokens_is_refused(layer):
    entry = build("llava")
    given = batch(entry, "mixed")
    length = given["input_ids"].shape[1]
    turn = WORDS.repeat(3, 1)
    mask = torch.cat([given["attention_mask"], torch.ones_like(turn)], dim=1)
    other = mask.clone()
    other[:, length - 6 : length - 2] = 0
    with torch.no_grad(), divevlm.prune(entry.model, keep=4, layer=layer):
        cache = DynamicCache()
        entry.model(**given, past_key_values=cache)
        with pytest.raises(ValueError, match="^attention_mask must be the same over the tokens of a pruned cache"):
            entry.model(input_ids=turn, past_key_values=cache, attention_mask=other)
        entry.model(input_ids=turn, past_key_values=cache, attention_mask=mask)


def test_assisted_decoding_of_a_prompt_that_ends_in_an_image():
    entry = build("llava")
    given = batch(entry, "single")
    end = int(visual_positions(entry.model, given["input_ids"])[0].nonzero()[-1]) + 1
    short = {**given, "input_ids": given["input_ids"][:, :end], "attention_mask": given["attention_mask"][:, :end]}
    for keep in (1, 2, 4):
        with divevlm.prune(entry.model, keep=keep):
            want = entry.model.generate(**short, **GREEDY)
            assert entry.model.generate(**short, **GREEDY, assistant_model=copy.deepcopy(entry.model)).equal(want)


def test_prompt_lookup_may_propose_placeholders():
    entry = build("llava")
    given = batch(entry, "single")
    ids = given["input_ids"]
    first = int(visual_positions(entry.model, ids)[0].nonzero()[0])

    class Forced(LogitsProcessor):
        """The second word is the one before the image."""

        def __call__(self, input_ids, scores):
            if input_ids.shape[1] == ids.shape[1] + 1:
                scores = torch.full_like(scores, -1e9)
                scores[:, ids[0, first - 1]] = 0
            return scores

    options = {"max_new_tokens": 6, "do_sample": False, "logits_processor": LogitsProcessorList([Forced()])}
    never = {"eos_token_id": entry.processor.tokenizer.pad_token_id}
    with divevlm.prune(entry.model, keep=4):
        want = entry.model.generate(**given, **options)
        assert entry.model.generate(**given, **options, **never, prompt_lookup_num_tokens=3).equal(want)


def test_a_prompt_mask_in_every_way_to_generate():
    entry = build("llava")
    given = batch(entry, "single")
    mask = given["attention_mask"].bool()
    with divevlm.prune(entry.model, keep=4) as session:
        want = entry.model.generate(**given, **GREEDY)
        kept = session.report.samples[0].kept
        for more in ({}, {"use_cache": False}, {"assistant_model": copy.deepcopy(entry.model)}):
            assert entry.model.generate(**given, **GREEDY, prompt_mask=mask, **more).equal(want)
            assert session.report.samples[0].kept == kept


def test_an_attached_model_is_freed():
    def attached():
        model = build("llava", fresh=True).model
        divevlm.attach(model, keep=4)
        return weakref.ref(model)

    model = attached()
    gc.collect()
    assert model() is None


@pytest.mark.parametrize("method", ["dive", "visionzip", "scope", "tome", "fastv"])
def test_nothing_of_a_call_stays_but_its_report(method):
    """No cache, no features, no states, also without the garbage collector."""
    entry = build("llava")
    given = batch(entry, "mixed")

    def tensors():
        alive = [z for z in gc.get_objects() if issubclass(type(z), torch.Tensor)]
        return {
            id(z) for z in alive if z.is_floating_point() and z.numel() > 16
        }  # the scores of 4 kept tokens may stay

    with torch.no_grad(), divevlm.prune(entry.model, method, keep=4):
        entry.model.generate(**given, **GREEDY)
        gc.collect()
        before = tensors()
        gc.disable()
        try:
            entry.model.generate(**given, **GREEDY)
            entry.model(**given)
            assert not tensors() - before
        finally:
            gc.enable()


def test_a_forward_wrapped_without_names():
    entry = build("llava", fresh=True)
    given = batch(entry, "single")
    with torch.no_grad(), divevlm.prune(entry.model, "visionzip", keep=4):
        want = entry.model(**given).logits
    for module in (entry.model, *entry.model.model.vision_tower.encoder.layers):
        module.forward = (lambda forward: lambda *args, **kwargs: forward(*args, **kwargs))(module.forward)
    with torch.no_grad(), divevlm.prune(entry.model, "visionzip", keep=4):
        assert torch.equal(entry.model(given["input_ids"], given["pixel_values"]).logits, want)


@pytest.mark.parametrize(
    ("labels", "shown"),
    [(lambda ids: ids[:, 1:], r"\(1, \d+\)"), (lambda ids: ids[0], r"\(\d+,\)"), (lambda ids: "x", "'str'")],
)
def test_odd_labels(labels, shown):
    entry = build("llava")
    given = batch(entry, "single")
    with (
        divevlm.prune(entry.model, keep=4),
        pytest.raises(
            ValueError, match=rf"^labels must be a tensor \[batch, length\], as long as input_ids, got {shown}"
        ),
    ):
        entry.model(**given, labels=labels(given["input_ids"]))
