"""What can't be right under pruning is refused in one line, before anything is computed."""

import pytest
import torch
from transformers import AttentionInterface, GenerationConfig, StaticCache

import divevlm
from tests.engine.samples import batch
from tests.zoo import build

GREEDY = {"max_new_tokens": 5, "do_sample": False}


@pytest.fixture(params=["llava", "llava_onevision", "qwen2_vl"])
def entry(request):
    return build(request.param)


def test_unknown_attention_is_refused():
    entry = build("llava", fresh=True)
    AttentionInterface.register("mystery", print)
    entry.model.set_attn_implementation({"text_config": "mystery"})
    with pytest.raises(
        ValueError, match=r"^attn_implementation must be one with eager, sdpa or flash masks, got 'mystery'"
    ):
        divevlm.prune(entry.model, keep=4)


def test_static_caches_are_refused(entry):
    given = batch(entry, "single")
    cache = StaticCache(config=entry.model.config.get_text_config(), max_cache_len=200)
    with divevlm.prune(entry.model, keep=4), pytest.raises(ValueError, match="must be"):
        entry.model.generate(**given, **GREEDY, past_key_values=cache)
    with divevlm.prune(entry.model, keep=4), pytest.raises(ValueError, match="must be"):
        entry.model.generate(**given, **GREEDY, cache_implementation="static")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_models_are_refused():
    entry = build("llava", fresh=True)
    with pytest.raises(ValueError, match="^model must be uncompiled: compile its decoder layers"):
        divevlm.prune(torch.compile(entry.model), keep=4)
    entry.model.compile()
    with pytest.raises(ValueError, match="got 'a compiled model'"):
        divevlm.prune(entry.model, keep=4)


def test_masks_of_four_dimensions_are_refused(entry):
    given = batch(entry, "single")
    length = given["input_ids"].shape[1]
    given["attention_mask"] = torch.ones(1, 1, length, length, dtype=torch.bool)
    if entry.family == "qwen2_vl":
        given["position_ids"] = torch.arange(length).expand(3, 1, -1)
    with divevlm.prune(entry.model, keep=4), pytest.raises(ValueError, match="^attention_mask must be two-dimensional"):
        entry.model(**given)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("assistant_early_exit", 2), ("prefill_chunk_size", 8), ("cache_implementation", "static")],
)
def test_generation_that_can_not_be_right_is_refused_before_anything_is_computed(entry, setting, value):
    given = batch(entry, "single")
    ran = []
    handle = entry.model.model.register_forward_pre_hook(lambda *_: ran.append(True))
    with divevlm.prune(entry.model, keep=4) as session:
        with pytest.raises(ValueError, match=f"^{setting} must be None"):
            entry.model.generate(**given, **GREEDY, **{setting: value})
        with pytest.raises(ValueError, match=f"^{setting} must be None"):
            entry.model.generate(**given, generation_config=GenerationConfig(**GREEDY, **{setting: value}))
        assert not ran
        entry.model.generate(**given, **GREEDY)
    handle.remove()
    assert len(session.history) == 1


def test_visual_tokens_without_their_pixels_are_refused(entry):
    given = {name: value for name, value in batch(entry, "single").items() if not name.startswith("pixel")}
    with (
        divevlm.prune(entry.model, keep=4),
        pytest.raises(ValueError, match="^input_ids must be given with the pixels"),
    ):
        entry.model(**given)


def test_embeddings_without_ids_are_refused():
    entry = build("llava")
    given = dict(batch(entry, "single"))
    given["inputs_embeds"] = entry.model.get_input_embeddings()(given.pop("input_ids"))
    with divevlm.prune(entry.model, keep=4), pytest.raises(ValueError, match="^input_ids must be given under pruning"):
        entry.model(**given)


def test_windowed_blocks_are_refused():
    entry = build("qwen2_vl", fresh=True)
    entry.model.config.text_config.layer_types[3] = "sliding_attention"
    with pytest.raises(ValueError, match="got 'blocks of sliding_attention'"):
        divevlm.prune(entry.model, keep=4)


def test_a_window_without_layer_types_is_refused():
    entry = build("llava_next", fresh=True)
    divevlm.prune(entry.model, keep=4)
    entry.model.config.text_config.sliding_window = 8
    with pytest.raises(ValueError, match="got 'blocks of sliding_attention'"):
        divevlm.prune(entry.model, keep=4)
