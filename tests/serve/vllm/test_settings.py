"""What a deployment asks for is checked before anything is loaded."""

import sys
from types import ModuleType

import pytest

import divevlm.serve.vllm
from divevlm.methods import METHODS
from divevlm.serve.vllm.cache import Recent
from divevlm.serve.vllm.settings import Settings, servable_by_name
from tests.zoo import build

NAMED = {
    "dive", "dive-no-language", "dive-no-visual", "dive-no-update", "cdpruner", "farthest", "random", "grid",
}  # fmt: skip


def settings(name="llava", **dive):
    config = build(name).model.config
    config.dive = dive
    try:
        return Settings.of(config)
    finally:
        del config.dive


def test_methods_that_need_embeddings_or_states_alone_are_served():
    assert {name for name in METHODS if servable_by_name(name)} >= NAMED
    for name in NAMED:
        assert settings(method=name, keep=5).method().name == name


@pytest.mark.parametrize("name", ["fastv", "visionzip", "pdrop", "sparsevlm", "dart", "tome", "pool", "downsample"])
def test_others_are_refused_by_name(name):
    with pytest.raises(ValueError, match=rf"^method must be one of cdpruner, dive, .* on vLLM, got '{name}'$"):
        settings(method=name, keep=5)


@pytest.mark.parametrize(
    ("dive", "message"),
    [
        ({}, r"^dive in --hf-overrides must be an object with at least \"keep\".*got \{\}$"),
        ({"keep": 0}, r"^keep must be a count of at least 1"),
        ({"keep": 5, "layer": 4}, r"^layer must be a block number from 0 to 3, got 4$"),
        ({"keep": 5, "scope": "sample"}, r"^scope must be 'image', 'view' or 'frame' on vLLM, got 'sample'$"),
        ({"keep": 5, "placement": "layer"}, r"^dive must be without it"),
        ({"keep": 5, "proportional": True}, r"^dive must be without it"),
        ({"keep": 5, "colour": 3}, r"^options of dive must be among .*, got colour$"),
        ({"keep": 5, "cache_bytes": -1}, r"^cache_bytes must be a whole number of bytes of at least 0, got -1$"),
        ({"keep": 5, "method": "dvie"}, r"did you mean"),
    ],
)
def test_bad_settings_are_refused_in_one_line(dive, message):
    with pytest.raises(ValueError, match=message) as refused:
        settings(**dive)
    assert "\n" not in str(refused.value)


def test_positions_are_the_engines():
    assert settings(keep=5).positions == "keep"
    assert settings(keep=5, positions="compact").positions == "compact"
    assert settings(keep=5, method="cdpruner").positions == "compact"
    assert settings("qwen2_vl", keep=5, method="cdpruner").positions == "keep"
    with pytest.raises(ValueError, match="^positions must be 'keep' for qwen2_vl"):
        settings("qwen2_vl", keep=5, positions="compact")


def test_the_cache_holds_the_most_recent_within_its_bound():
    import torch

    recent, rows = Recent(100), [torch.zeros(10)]  # 40 bytes
    for name in ("a", "b"):
        recent.put(name, rows)
    recent.get("a")
    recent.put("c", rows)
    assert [recent.get(name) is not None for name in "abc"] == [True, False, True]
    assert recent.held == 80
    recent.put("huge", [torch.zeros(26)])
    assert recent.get("huge") is None
    assert recent.held == 80


def test_on_another_release_of_vllm_it_steps_aside(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    divevlm.serve.vllm.register()
    assert "is for vLLM 0.32 and is not there" in caplog.text
