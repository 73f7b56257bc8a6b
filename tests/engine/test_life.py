"""Attaching is all or nothing, leaving puts back what was there, copies are their own; what is compiled is noticed."""

import copy

import pytest
import torch
import transformers as hf

import divevlm
from tests.engine.oracle import close, decoder_layers
from tests.engine.samples import batch
from tests.engine.test_session import hooks, own_attributes
from tests.zoo import build

GREEDY = {"max_new_tokens": 3, "do_sample": False}


def pixtral():
    """A LLaVA whose tower VisionZip can't read."""
    vision = hf.PixtralVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=56, patch_size=14
    )
    text = hf.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, vocab_size=50
    )
    config = hf.LlavaConfig(vision_config=vision, text_config=text, image_token_index=49)
    return hf.LlavaForConditionalGeneration(config).eval()


def test_a_failed_attach_leaves_the_model_as_it_was():
    model = pixtral()
    before = own_attributes(model)
    for _ in range(2):
        with pytest.raises(ValueError, match="^model must have a vision tower of blocks"):
            divevlm.attach(model, "visionzip", keep=4)
    assert own_attributes(model) == before
    assert hooks(model) == 0
    divevlm.attach(model, "dive", keep=4).detach()


def test_an_inner_with_does_not_end_the_outer_one():
    entry = build("llava")
    given = batch(entry, "single")
    session = divevlm.prune(entry.model, keep=4)
    with session:
        with session:
            pass
        entry.model(**given)
        assert len(session.report.samples[0].kept) == 4
        assert session.attached
    assert not session.attached
    handle = divevlm.attach(entry.model, keep=4)
    with handle:
        pass
    assert handle.attached  # it was before
    handle.detach()
    assert hooks(entry.model) == 0


def test_reports_are_bounded():
    entry = build("llava")
    given = batch(entry, "single")
    with (
        torch.no_grad(),
        divevlm.prune(entry.model, keep=4) as one,
        pytest.raises(ValueError, match="^history must be"),
    ):
        for _ in range(3):
            entry.model(**given)
        assert list(one.history) == [one.report]
        divevlm.prune(entry.model, keep=4, history=0)
    with torch.no_grad(), divevlm.prune(entry.model, keep=4, history=2) as two:
        for _ in range(3):
            entry.model(**given)
    assert len(two.history) == 2


@pytest.mark.parametrize("method", ["dive", "scope", "tome"])
def test_a_copy_of_an_attached_model_is_a_bare_model_of_its_own(method):
    entry = build("llava", fresh=True)
    given = batch(entry, "single")
    with torch.no_grad():
        bare = entry.model(**given).logits
        with divevlm.prune(entry.model, method, keep=4) as session:
            pruned = entry.model(**given).logits
            twin = copy.deepcopy(entry.model)
            assert torch.equal(twin(**given).logits, bare)
            assert twin.generate(**given, **GREEDY).equal(build("llava").model.generate(**given, **GREEDY))
            for parameter in twin.parameters():
                parameter.zero_()  # the twin must not run a part of the original, nor the other way round
            assert twin(**given).logits.abs().max() == 0
            session.history.clear()
            assert torch.equal(entry.model(**given).logits, pruned)
            assert len(session.history) == 1
        with divevlm.prune(twin, method, keep=4) as other:
            twin(**given)
        assert len(other.history) == 1


@pytest.mark.parametrize("name", ["llava", "qwen2_vl"])
def test_the_kind_of_attention_may_change_while_attached(name):
    entry = build(name, fresh=True)
    given = batch(entry, "mixed")
    with torch.no_grad(), divevlm.prune(entry.model, keep=4):
        want = entry.model(**given).logits
        entry.model.set_attn_implementation("eager")
        close(entry.model(**given).logits, want)


# torch.compile: the tracing is what matters here, so the code that it makes is run as it is


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(module, how):
    if how == "call":
        module.compile(dynamic=True, backend="eager")
    else:
        module.forward = torch.compile(module.forward, dynamic=True, backend="eager")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["call", "forward"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_decoder_layers(when, how):
    entry = build("llava", fresh=True)
    given = batch(entry, "mixed")
    with torch.no_grad(), divevlm.prune(entry.model, keep=4):
        want, ids = entry.model(**given).logits, entry.model.generate(**given, **GREEDY)
    if when == "before":
        for layer in decoder_layers(entry.model):
            compiled(layer, how)
        entry.model.generate(**given, **GREEDY)
    session = divevlm.attach(entry.model, keep=4)
    if when == "after":
        for layer in decoder_layers(entry.model):
            compiled(layer, how)
    with torch.no_grad():
        close(entry.model(**given).logits, want)
        assert entry.model.generate(**given, **GREEDY).equal(ids)
        session.detach()
        close(entry.model(**given).logits, build("llava").model(**given).logits)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", ["", "model", "model.language_model"])
@pytest.mark.usefixtures("fresh_compiler")
def test_code_compiled_before_that_leaves_hooks_out_is_noticed(part):
    entry = build("llava", fresh=True)
    given = batch(entry, "mixed")
    compiled(entry.model.get_submodule(part), "forward")
    with torch.no_grad():
        entry.model(**given)
        with (
            divevlm.prune(entry.model, keep=4),
            pytest.raises(RuntimeError, match=r"^model must not be compiled .* compile its decoder layers instead"),
        ):
            entry.model(**given)
