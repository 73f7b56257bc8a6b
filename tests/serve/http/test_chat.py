"""Answers through the real openai client are those of the engine."""

from pathlib import Path

import pytest

from divevlm.serve.http.request import Deployed
from tests.serve.http.conftest import NAME, data_url, turn
from tests.zoo import picture

IMAGE = picture(1, 90, 60)
OTHER = picture(2, 60, 90)


def same(report, expected):
    """But for the time that it took."""
    return {**report, "selection_ms": 0} == {**expected, "selection_ms": 0}


def text_of(made):
    return made.choices[0].message.content


def test_an_answer_and_its_report_are_those_of_the_engine(small):
    text, report = small.alone("what is this ?", IMAGE)
    made = small.ask("what is this ?", IMAGE, max_tokens=8)
    assert text_of(made) == text
    assert same(made.divevlm, report)
    assert len(made.divevlm["samples"][0]["kept"]) == 6
    assert (made.model, made.object, made.choices[0].finish_reason) == (NAME, "chat.completion", "length")
    assert made.usage.prompt_tokens == report["tokens_full"]
    assert made.usage.completion_tokens == 8


def test_the_client_of_the_page_gets_an_answer(tiny):
    page = (Path(__file__).parents[3] / "docs/serving.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    for told, here in (
        ("http://127.0.0.1:8000", tiny.url),
        ("llava-1.5-7b-hf", NAME),
        ("data:image/png;base64,...", data_url(IMAGE)),
    ):
        assert told in code
        code = code.replace(told, here)
    world = {}
    exec(code, world)
    world["client"].close()
    assert len(world["answer"].divevlm["samples"][0]["kept"]) == 32


def test_a_stream_brings_the_same_words_and_the_report_in_its_last_chunk(tiny):
    question = "What is in the picture?"
    text, report = tiny.alone(question, IMAGE, keep=64)
    chunks = list(tiny.ask(question, IMAGE, max_tokens=8, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert [hasattr(chunk, "divevlm") for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert same(chunks[-1].divevlm, report)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.prompt_tokens == report["tokens_full"]
    assert {chunk.model for chunk in chunks} == {NAME}


@pytest.mark.parametrize(
    "setting",
    [
        {"keep": 3},
        {"keep": 0.5},
        {"keep": 4, "eta": 0.2},
        {"method": "fastv", "keep": 5},
        {"method": "visionzip", "keep": 5},
        {"method": "dive", "keep": 5, "placement": "entry"},
    ],
    ids=str,
)
def test_a_request_may_have_a_method_and_a_budget_of_its_own(small, setting):
    text, report = small.alone("what is this ?", IMAGE, **setting)
    made = small.ask("what is this ?", IMAGE, max_tokens=8, extra_body={"divevlm": setting})
    assert text_of(made) == text
    assert same(made.divevlm, report)
    again = small.ask("what is this ?", IMAGE, max_tokens=8)
    assert len(again.divevlm["samples"][0]["kept"]) == 6


def test_settings_of_the_deployment_are_not_those_of_another_method():
    deployed = Deployed("dive:eta=0.5:lam=3", 6)
    assert (deployed.method().eta, deployed.method({"eta": 0.1}).lam) == (0.5, 3)
    assert deployed.method({"method": "fastv"}).keep == 6
    assert deployed.method({"method": "vanilla"}) is None


def test_vanilla_is_the_model_as_it_is(small):
    text, _ = small.alone("what is this ?", IMAGE, keep=16)
    made = small.ask("what is this ?", IMAGE, max_tokens=8, extra_body={"divevlm": {"method": "vanilla"}})
    assert text_of(made) == text
    assert made.divevlm == {"method": "vanilla", "samples": []}
    assert text != small.alone("what is this ?", IMAGE)[0]


def test_two_pictures_keep_their_order(small):
    text, report = small.alone("compare", IMAGE, OTHER)
    made = small.ask("compare", IMAGE, OTHER, max_tokens=8)
    assert text_of(made) == text
    assert same(made.divevlm, report)
    assert text_of(small.ask("compare", OTHER, IMAGE, max_tokens=8)) != text


def test_a_request_without_pictures_is_answered_too(small):
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    made = small.client.chat.completions.create(model=NAME, messages=messages, max_tokens=4)
    assert made.usage.completion_tokens == 4
    assert made.divevlm == {"method": "dive", "samples": []}


def test_a_conversation_with_a_picture_in_an_earlier_turn(small):
    talk = [turn("what is this ?", IMAGE), {"role": "assistant", "content": "a box"}, turn("and now ?", OTHER)]
    made = small.client.chat.completions.create(model=NAME, messages=talk, max_tokens=4)
    sample = made.divevlm["samples"][0]
    assert (sample["visual"], len(sample["kept"]), len(sample["segments"])) == (32, 12, 2)


def test_a_seed_decides_what_is_sampled(small):
    def sampled(seed):
        return text_of(small.ask("what is this ?", IMAGE, max_tokens=16, temperature=2, seed=seed))

    greedy = text_of(small.ask("what is this ?", IMAGE, max_tokens=16, temperature=0))
    assert sampled(1) == sampled(1)
    assert len({sampled(1), sampled(2), greedy}) == 3


def test_a_stop_word_ends_the_answer(small):
    whole = text_of(small.ask("what is this ?", IMAGE, max_tokens=16))
    word = next(sign for sign in whole if sign.isascii())
    made = small.ask("what is this ?", IMAGE, max_tokens=16, stop=[word])
    assert made.choices[0].finish_reason == "stop"
    assert text_of(made) == whole[: whole.index(word) + 1] != whole


def test_only_the_served_model_is_listed(small):
    (listed,) = small.client.models.list().data
    assert (listed.id, listed.divevlm) == (NAME, {"method": "dive", "keep": 6})
