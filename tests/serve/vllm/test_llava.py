"""LLaVA-1.5 on vLLM answers as transformers does with placement="entry"."""

from dataclasses import replace

import pytest
from vllm import EngineArgs

from divevlm.methods import METHODS
from divevlm.serve.vllm.cache import Recent
from divevlm.serve.vllm.settings import servable_by_name
from tests.zoo import picture

from .served import SAMPLES

QUESTION, OTHER = ({"text": text, "images": [picture(7, 90, 70)]} for text in ("what is red ?", "count the boxes"))


@pytest.fixture
def tower(llava):
    """The images that the vision tower has seen, one number a run."""
    runs = []
    hook = llava.model.vision_tower.register_forward_hook(lambda module, given, output: runs.append(len(given[0])))
    yield runs
    hook.remove()


def test_a_mixed_batch_in_chunks_answers_as_the_engine(llava):
    assert llava.answers(*SAMPLES) == [llava.engine(sample)[0] for sample in SAMPLES]


def test_each_alone_answers_as_in_the_batch(llava):
    assert [llava.answers(sample)[0] for sample in SAMPLES] == llava.answers(*SAMPLES)


def test_prompts_are_shorter_by_what_is_dropped(llava):
    full = [output.prompt_token_ids for output in llava.ask(*SAMPLES, keep=1.0)]
    short = [output.prompt_token_ids for output in llava.ask(*SAMPLES)]
    images = [len(sample.get("images", [])) for sample in SAMPLES]
    assert [len(a) - len(b) for a, b in zip(full, short, strict=True)] == [(16 - 5) * n for n in images]


@pytest.mark.parametrize("keep", [1, 9, 0.5, 1.0, 99])
def test_a_request_may_bring_its_own_budget(llava, keep):
    assert llava.answers(QUESTION, keep=keep) == [llava.engine(QUESTION, keep=keep)[0]]


@pytest.mark.parametrize("keep", [0, -3, 1.5, "many", True])
def test_a_bad_budget_is_refused_in_one_line(llava, keep):
    with pytest.raises(ValueError, match=r"^keep must be a count of at least 1 or a share in \(0, 1\], got .*$"):
        llava.ask(QUESTION, keep=keep)


@pytest.mark.parametrize(
    ("dive", "options", "message"),
    [
        ({"method": "fastv"}, {}, "method must be one of cdpruner, dive, .* on vLLM, got 'fastv'"),
        ({"scope": "sample"}, {}, "scope must be 'image', 'view' or 'frame' on vLLM, got 'sample'"),
        ({}, {"pipeline_parallel_size": 2}, "pipeline_parallel_size must be 1"),
        ({}, {"enable_lora": True}, "enable_lora must be False with DIVE"),
    ],
)
def test_what_cannot_be_served_is_refused_at_the_start(llava, dive, options, message):
    overrides = {"architectures": ["DiveLlavaForConditionalGeneration"], "dive": {"keep": 5, **dive}}
    with pytest.raises(ValueError, match=message):
        EngineArgs(llava.llm.model_config.model, hf_overrides=overrides, **options).create_engine_config()


def test_a_second_question_never_gets_the_first_ones_tokens(llava):
    first, second = llava.engine(QUESTION)[1], llava.engine(OTHER)[1]
    assert first != second  # or it would not show
    assert llava.answers(QUESTION) == [llava.engine(QUESTION)[0]]
    assert llava.answers(OTHER) == [llava.engine(OTHER)[0]]
    keys = {llava.request(QUESTION).key, llava.request(OTHER).key, llava.request(QUESTION, keep=6).key}
    assert len(keys) == 3


def test_a_request_that_comes_again_finds_its_prefix_cached_and_answers_the_same(llava):
    sample = {"text": "a long question " * 4, "images": [picture(11, 80, 80)]}
    first, again = llava.ask(sample)[0], llava.ask(sample)[0]
    assert (first.num_cached_tokens, again.num_cached_tokens > 32) == (0, True)
    assert list(again.outputs[0].token_ids) == list(first.outputs[0].token_ids) == llava.engine(sample)[0]


def test_a_second_question_on_a_picture_skips_the_tower(llava, tower):
    image = picture(8, 77, 77)
    for text in ("first", "second", "third"):
        llava.ask({"text": text, "images": [image]})
    assert tower == [1]
    llava.ask({"text": "with another one", "images": [image, picture(9, 77, 77)]})
    assert tower == [1, 1]


def test_pictures_that_do_not_fit_are_encoded_again(llava, tower):
    model, sample = llava.model, {"text": "?", "images": [picture(10, 60, 60)]}
    rows = 16 * model.text.config.hidden_size * 4
    kept, model.recent = model.recent, Recent(rows - 1)
    try:
        llava.ask(sample)
        runs = len(tower)
        assert model.recent.held < rows
        llava.ask({**sample, "text": "!"})
        assert len(tower) > runs
    finally:
        model.recent = kept


@pytest.mark.parametrize("name", [name for name in METHODS if servable_by_name(name)])
@pytest.mark.parametrize("sample", [SAMPLES[0], SAMPLES[3]], ids=["one", "two"])
def test_every_method_keeps_what_the_engine_keeps(llava, name, sample):
    model, request = llava.model, llava.request(sample)
    own = model.settings
    model.settings = replace(own, options={"method": name, "keep": 5})
    try:
        kept = model.choose(request, model.encoded(request))
    finally:
        model.settings = own
    among = [16 * number + int(i) for number, part in enumerate(kept) for i in part]
    assert among == llava.engine(sample, method=name)[1]
