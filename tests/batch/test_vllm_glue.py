"""What `--engine vllm` tells vLLM and makes of its answers, with a stand-in for vLLM: no model runs here."""

import sys
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from divevlm.batch.run import run
from divevlm.batch.with_vllm import Vllm, vllm_options
from divevlm.experiments.tasks import Item
from divevlm.media import Video

from .conftest import answers, questions, write

VISUAL = 4  # placeholders in a prompt as the stand-in tells it


class EngineDeadError(Exception):
    pass


@dataclass
class SamplingParams:
    temperature: float
    max_tokens: int
    detokenize: bool


def said(prompt):
    """Tokens of an answer that tells which prompt it belongs to."""
    return [40 + len(prompt["prompt"]) % 50, *[41] * len(prompt["multi_modal_data"]["image"])]


class StandInLLM:
    """Says something about each prompt; refuses some."""

    made: list["StandInLLM"] = []  # noqa: RUF012

    def __init__(self, **options):
        if options.get("max_model_len") == 0:
            raise RuntimeError("Engine core initialization failed.\nSee above")
        self.options, self.calls = options, []
        self.made.append(self)

    def generate(self, prompts, params, **more):
        self.calls.append((prompts, params, more))
        if any("too long" in prompt["prompt"] for prompt in prompts):
            raise ValueError("The decoder prompt is too long")
        if any("dies" in prompt["prompt"] for prompt in prompts):
            raise EngineDeadError("EngineCore encountered an issue")
        tokens = [9999, *[self.options["mark"]] * VISUAL]
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=said(p))], prompt_token_ids=tokens) for p in prompts]


@pytest.fixture
def there(monkeypatch, job, engine):
    """The stand-in under vLLM's names, and a job for it."""
    for name in ("vllm", "vllm.v1", "vllm.v1.engine", "vllm.v1.engine.exceptions"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["vllm"].LLM, sys.modules["vllm"].SamplingParams = StandInLLM, SamplingParams
    sys.modules["vllm.v1.engine.exceptions"].EngineDeadError = EngineDeadError
    monkeypatch.setattr(StandInLLM, "made", [])
    mark = int(engine.marks[0])
    return replace(job, engine="vllm", batch=None, llm={"mark": mark})


def test_the_prompts_are_those_of_the_chat_template_with_their_pictures(there, engine, tmp_path):
    rows = questions(tmp_path, 3)
    rows[2] |= {"keep": 7, "max_new_tokens": 9, "image": ["1.png", "2.png"]}
    run(replace(there, input=write(tmp_path / "rows.jsonl", rows)))
    (llm,) = StandInLLM.made
    (first, own, more), (second, longer, _) = llm.calls
    turns = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": rows[0]["question"]}]}]
    wanted = engine.answerer.processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert first[0]["prompt"] == wanted
    assert [len(prompt["multi_modal_data"]["image"]) for prompt in [*first, *second]] == [1, 1, 2]
    assert first[0]["multi_modal_data"]["image"][0].size == (90, 60)
    assert (own, longer) == (SamplingParams(0, 24, False), SamplingParams(0, 9, False))
    assert "mm_processor_kwargs" not in first[0]
    assert second[0]["mm_processor_kwargs"] == {"dive_keep": 7}
    begin = engine.answerer.processor.tokenizer.bos_token
    assert more["tokenization_kwargs"] == {"add_special_tokens": not (begin and wanted.startswith(begin))}
    found = answers(there.out)
    decode = engine.answerer.processor.tokenizer.decode
    assert [one["answer"] for one in found] == [decode(said(prompt)).strip() for prompt in [*first, *second]]
    assert {(one["kept"], one["visual"], one["error"]) for one in found} == {(VISUAL, None, None)}


def test_vllm_is_told_the_method_and_the_budget(there):
    run(there)
    options = StandInLLM.made[0].options
    assert options["model"] == there.model
    assert options["hf_overrides"] == {
        "architectures": ["DiveLlavaForConditionalGeneration"],
        "dive": {"method": "dive", "keep": 5},
    }
    assert vllm_options(there.model, "dive:layer=1:eta=0.5", 0.25)["hf_overrides"]["dive"] == {
        "method": "dive", "keep": 0.25, "layer": 1, "eta": 0.5
    }  # fmt: skip
    assert vllm_options(there.model, "vanilla", 64) == {}


def test_a_prompt_that_vllm_refuses_fails_alone(there, tmp_path):
    rows = questions(tmp_path, 5)
    rows[1] |= {"question": "An <image> of its own"}
    rows[3] |= {"question": "This is too long"}
    found = run(replace(there, input=write(tmp_path / "rows.jsonl", rows)))
    assert [(one["line"], one["error"]) for one in found["rows"] if one["error"]] == [
        (2, "question must be without <image>, which stand for pictures, got 'An <image> of its own'"),
        (4, "The decoder prompt is too long"),
    ]


def test_a_dead_engine_fails_no_row(there, tmp_path):
    rows = questions(tmp_path, 5)
    rows[3] |= {"question": "Here it dies"}
    with pytest.raises(ValueError, match="the engine died at line 3, start again to go on: EngineDeadError"):
        run(replace(there, input=write(tmp_path / "rows.jsonl", rows), batch=2))
    assert len((there.out / "samples.jsonl").read_text().splitlines()) == 2


def test_a_vllm_that_does_not_start_is_told_in_one_line(there):
    told = "--model must be one that vLLM starts with, got '.*': RuntimeError: Engine core initialization failed. See above"
    with pytest.raises(ValueError, match=told):
        run(replace(there, llm={"max_model_len": 0}))


def test_a_budget_of_its_own_is_an_error_where_nothing_is_pruned(there, tmp_path):
    rows = questions(tmp_path, 2)
    rows[1] |= {"keep": 3}
    found = run(replace(there, input=write(tmp_path / "rows.jsonl", rows), method="vanilla"))
    assert [one["error"] for one in found["rows"]] == [
        None,
        "keep must be left out for vanilla, which keeps all, got 3",
    ]


def test_videos_go_with_what_was_taken_of_them(there):
    clip = Video(np.zeros((2, 8, 8, 3), np.uint8), [0, 5], 10, 5.0)
    turns = [{"role": "user", "content": [{"type": "text", "text": "Who?"}]}]
    asked = Item("batch", "1", "Who?", "", lambda: [clip], turns)
    given = Vllm(there)._prompt(asked)["multi_modal_data"]
    assert list(given) == ["video"]
    ((frames, about),) = given["video"]
    assert frames is clip.frames
    assert about["frames_indices"] == [0, 5]


def test_without_vllm_the_extra_is_named(job, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ValueError, match=r"engine vllm needs vLLM: pip install 'divevlm\[vllm\]'"):
        run(replace(job, engine="vllm"))
    assert not job.out.exists()


def test_what_the_command_says_already_is_not_said_again(there):
    overrides = {"hf_overrides": {"architectures": ["LlavaForConditionalGeneration"]}, "dtype": "float32"}
    with pytest.raises(
        ValueError, match=r"^--llm must be without what the command says already, got 'dtype, hf_overrides'$"
    ):
        Vllm(replace(there, llm=there.llm | overrides))
