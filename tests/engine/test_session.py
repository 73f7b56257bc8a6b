"""Attaching and leaving, options, and the report."""

import pytest
import torch

import divevlm
from tests.engine.oracle import close, decoder_layers, dropped_positions, masked_logits
from tests.engine.samples import batch
from tests.zoo import FAMILIES, build

GREEDY = {"max_new_tokens": 5, "do_sample": False}


def hooks(model):
    """Ours: transformers leaves hooks of its own, to record outputs."""
    hooks = [hook for m in model.modules() for hook in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]
    return sum(hook.__module__.startswith("divevlm") for hook in hooks)


def own_attributes(model):
    return {name: sorted(module.__dict__) for name, module in model.named_modules()}


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_is_left_behind(name):
    entry = build(name)
    given = batch(entry, "single")
    entry.model.generate(**given, **GREEDY)  # whatever the model keeps of its own (rope deltas) is there from here on
    before, attributes = entry.model.generate(**given, **GREEDY), own_attributes(entry.model)
    with torch.no_grad():
        logits = entry.model(**given).logits
    with divevlm.prune(entry.model, keep=3):
        entry.model.generate(**given, **GREEDY)
        assert hooks(entry.model) > 0
    with pytest.raises(RuntimeError, match="on purpose"), divevlm.prune(entry.model, keep=3):
        entry.model(**given)
        raise RuntimeError("on purpose")
    assert hooks(entry.model) == 0
    assert own_attributes(entry.model) == attributes
    assert torch.equal(entry.model.generate(**given, **GREEDY), before)
    with torch.no_grad():
        assert torch.equal(entry.model(**given).logits, logits)


def test_an_exception_inside_the_model_leaves_it_usable():
    entry = build("llava")
    given = batch(entry, "single")

    def fail(*_):
        raise RuntimeError("inside")

    with divevlm.prune(entry.model, keep=3) as session:
        handle = decoder_layers(entry.model)[3].register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="inside"):
            entry.model(**given)
        handle.remove()
        entry.model(**given)
        assert len(session.history) == 1


def test_attach_and_detach():
    entry = build("llava")
    handle = divevlm.attach(entry.model, divevlm.DIVE(keep=0.25, eta=0.5))
    entry.model.generate(**batch(entry, "single"), **GREEDY)
    assert len(handle.report.samples[0].kept) == 4
    handle.detach()
    handle.detach()
    assert hooks(entry.model) == 0
    with handle:  # a session can be used again
        assert hooks(entry.model) > 0
    assert hooks(entry.model) == 0


def test_a_second_attachment_is_refused():
    entry = build("llava")
    with divevlm.prune(entry.model, keep=3):
        with pytest.raises(ValueError, match="^model must be free, got one that dive is attached to"):
            divevlm.attach(entry.model, keep=5)
        with pytest.raises(ValueError, match="^model must be free"), divevlm.prune(entry.model, keep=5):
            pass
        assert hooks(entry.model) > 0
    divevlm.attach(entry.model, keep=5).detach()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep": 0}, "keep must be a count of at least 1 or a share in (0, 1], got 0"),
        ({}, "keep must be a count of at least 1 or a share in (0, 1], got None for dive"),
        ({"keep": 4, "layer": 4}, "layer must be a block number from 0 to 3, got 4"),
        ({"keep": 4, "layer": -1}, "layer must be a block number of at least 0, got -1"),
        ({"keep": 4, "norm": "first"}, "norm must be 'final' or 'next' or 'none', got 'first'"),
        ({"keep": 4, "positions": "new"}, "positions must be 'keep' or 'compact', got 'new'"),
        ({"keep": 4, "placement": "exit"}, "placement must be 'layer' or 'entry', got 'exit'"),
        ({"keep": 4, "newlines": "some"}, "newlines must be 'keep' or 'drop', got 'some'"),
        ({"keep": 4, "scope": "page"}, "scope must be one of image, sample, view, frame, got 'page'"),
        ({"keep": 4, "eta": 3}, "eta must be a number between 0 and 2, both excluded, got 3"),
        ({"keep": 4, "lamda": 1}, "options of dive must be among"),
        ({"keep": 4, "method": "dove"}, "got 'dove': did you mean 'dive'?"),
        ({"keep": 4, "method": 5}, "method must be a name or a Method object, got int"),
    ],
)
def test_bad_options_are_refused_before_anything_is_computed(arguments, message):
    entry = build("llava")
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is compared below
        divevlm.prune(entry.model, **arguments)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert hooks(entry.model) == 0


def test_options_beside_a_ready_method_are_refused():
    entry = build("llava")
    with pytest.raises(ValueError, match=r"^options must be set on the dive object itself, got eta, keep beside it"):
        divevlm.prune(entry.model, divevlm.DIVE(keep=4), keep=5, eta=0.5)


def test_unknown_families_are_refused():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=16
    )
    with pytest.raises(
        ValueError, match=r"of the families idefics3, internvl, llava, .* got LlamaForCausalLM of type 'llama'"
    ):
        divevlm.prune(LlamaForCausalLM(config), keep=4)
    with pytest.raises(ValueError, match="got Linear of type None"):
        divevlm.prune(torch.nn.Linear(2, 2), keep=4)


def test_a_report_before_any_prefill_is_refused():
    with (
        divevlm.prune(build("llava").model, keep=4) as session,
        pytest.raises(ValueError, match="^no report yet: it is there after the first forward pass"),
    ):
        _ = session.report


@pytest.mark.parametrize("norm", ["final", "next", "none"])
def test_selection_sees_the_states_that_the_paper_names(norm):
    """The output of block 1, through the norm, at the visual and the text positions."""
    entry = build("llava")
    given = batch(entry, "single")
    caught = []
    layers = decoder_layers(entry.model)
    handle = layers[1].register_forward_hook(lambda module, args, out: caught.append(out))
    with torch.no_grad():
        entry.model(**given)
        handle.remove()
        norms = {"final": entry.model.model.language_model.norm, "next": layers[2].input_layernorm, "none": lambda z: z}
        states = norms[norm](caught[0][0])
        visual = given["input_ids"][0] == entry.model.config.image_token_id
        expected = divevlm.select(states[visual], states[~visual], 6)
        with divevlm.prune(entry.model, keep=6, norm=norm) as session:
            entry.model(**given)
    assert session.report.samples[0].order == expected.order.tolist()
    assert session.report.samples[0].kept == expected.indices.tolist()


@pytest.mark.parametrize("shape", ["single", "mixed", "several", "some-text-only"])
@pytest.mark.parametrize("name", ["llava", "llava_next", "qwen2_vl", "qwen3_vl"])
def test_entry_placement(name, shape):
    """Selection with the states of block 2, as at the layer; then all blocks run on what was kept."""
    entry = build(name)
    given = batch(entry, shape)
    with torch.no_grad(), divevlm.prune(entry.model, keep=4, layer=2) as at_layer:
        entry.model(**given)
    with torch.no_grad(), divevlm.prune(entry.model, keep=4, layer=2, placement="entry") as at_entry:
        out = entry.model(**given)
        generated = entry.model.generate(**given, **GREEDY, output_logits=True, return_dict_in_generate=True)
    assert [s.order for s in at_entry.report.samples] == [s.order for s in at_layer.report.samples]
    assert len({block.keys.shape[-2] for block in out.past_key_values.layers}) == 1
    assert at_entry.report.tokens_per_layer[0] == at_layer.report.tokens_per_layer[-1]
    dropped = dropped_positions(entry.model, given["input_ids"], at_entry.report)
    seen = given["attention_mask"].bool() & ~dropped
    expected = masked_logits(entry.model, given, dropped, 0)
    close(out.logits[seen], expected[seen])
    close(generated.logits[0], expected[:, -1])


def test_entry_placement_in_a_second_turn():
    """The scout of a new image sees the conversation so far, and leaves the cache alone."""
    entry = build("llava")
    one, two = batch(entry, "single"), batch(entry, "tall")
    with torch.no_grad(), divevlm.prune(entry.model, keep=4, placement="entry", history=2) as session:
        cache = entry.model(**one, use_cache=True).past_key_values
        before = cache.layers[0].keys.shape[-2]
        mask = torch.cat([one["attention_mask"], two["attention_mask"]], dim=1)
        logits = entry.model(**{**two, "attention_mask": mask}, past_key_values=cache).logits
    assert cache.layers[0].keys.shape[-2] == before + session.report.tokens_per_layer[0]
    both = {"input_ids": torch.cat([one["input_ids"], two["input_ids"]], dim=1), "attention_mask": mask,
            "pixel_values": torch.cat([one["pixel_values"], two["pixel_values"]])}  # fmt: skip
    parts = [
        dropped_positions(entry.model, z["input_ids"], r) for z, r in zip((one, two), session.history, strict=True)
    ]
    expected = masked_logits(entry.model, both, torch.cat(parts, dim=1), 0)[:, -two["input_ids"].shape[1] :]
    close(logits[~parts[1]], expected[~parts[1]])


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("shape", ["single", "mixed"])
def test_compact_positions(shape, layer):
    """Kept tokens are numbered 0, 1, 2, ... from the cut on, in prefill and in decoding."""
    entry = build("llava")
    given = batch(entry, shape)
    tables = []
    with divevlm.prune(entry.model, keep=4, layer=layer, positions="compact") as session:
        handle = decoder_layers(entry.model)[3].register_forward_pre_hook(
            lambda module, args, kwargs: tables.append(kwargs["position_embeddings"][0]), with_kwargs=True
        )
        entry.model.generate(**given, **GREEDY)
        handle.remove()
    rotary = entry.model.model.language_model.rotary_emb
    for row, sample in enumerate(session.report.samples):
        count = sample.text + len(sample.kept)
        numbers = torch.arange(count + 4)[None]
        expected = rotary(torch.zeros(1), position_ids=numbers)[0][0]
        torch.testing.assert_close(tables[0][row, -count:], expected[:count])
        for offset, table in enumerate(tables[1:]):
            torch.testing.assert_close(table[row, 0], expected[count + offset])


def test_compact_positions_of_a_grid_are_refused():
    with pytest.raises(ValueError, match="^positions must be 'keep' for qwen2_vl"):
        divevlm.prune(build("qwen2_vl").model, keep=4, positions="compact")


def test_newline_tokens_stay_beside_the_budget_or_go():
    entry = build("llava_next")
    given = batch(entry, "single")
    counts = {}
    for newlines in ("keep", "drop"):
        with torch.no_grad(), divevlm.prune(entry.model, keep=5, newlines=newlines) as session:
            entry.model(**given)
        counts[newlines] = session.report.samples[0]
    assert len(counts["drop"].kept) == 5
    assert counts["keep"].segments[0].order == counts["drop"].segments[0].order
    assert len(counts["keep"].kept) > 5


@pytest.mark.parametrize(("scope", "groups"), [("image", 2), ("sample", 1), ("view", 4)])
def test_scopes(scope, groups):
    entry = build("llava_next")
    given = batch(entry, "several")
    with torch.no_grad(), divevlm.prune(entry.model, keep=3, scope=scope) as session:
        entry.model(**given)
    segments = session.report.samples[0].segments
    assert len(segments) == groups
    assert all(len(segment.kept) == 3 for segment in segments)
    assert str(session.method.budget) in str(session.report)


def test_frames_of_a_clip():
    entry = build("llava_onevision")
    given = batch(entry, "video")
    with torch.no_grad(), divevlm.prune(entry.model, keep=0.5, scope="frame") as session:
        entry.model(**given)
    segments = session.report.samples[0].segments
    assert len(segments) == 4
    total = sum(segment.visual for segment in segments)
    assert sum(len(segment.kept) for segment in segments) == divevlm.Budget(0.5).tokens(total)


def test_energy_targets():
    entry = build("llava")
    given = batch(entry, "mixed")
    with torch.no_grad(), divevlm.prune(entry.model, keep=divevlm.Budget(energy=0.5, max=9)) as session:
        entry.model(**given)
    counts = [len(sample.kept) for sample in session.report.samples]
    assert all(1 <= count <= 9 for count in counts)


@pytest.mark.parametrize("method", ["dive-no-language", "dive-no-visual", "dive-no-update"])
def test_ablations_by_name(method):
    entry = build("llava")
    given = batch(entry, "single")
    with torch.no_grad(), divevlm.prune(entry.model, method, keep=6) as session:
        entry.model(**given)
    assert session.report.method == method
    assert len(session.report.samples[0].kept) == 6
