"""What a run is going to take, told before it begins."""

import pytest
import torch
from divevlm_tiny import build
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig

from divevlm.experiments.memory import GB, estimate, told


def llava(width=4096, layers=32, mlp=11008, heads=32):
    """LLaVA-1.5's configuration: 7B by default."""
    tower = CLIPVisionConfig(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=24,
        num_attention_heads=16,
        image_size=336,
        patch_size=14,
    )
    text = LlamaConfig(
        hidden_size=width, intermediate_size=mlp, num_hidden_layers=layers, num_attention_heads=heads, vocab_size=32064
    )
    return LlavaConfig(vision_config=tower, text_config=text)


def test_weights_are_those_of_the_model():
    model = build.llava()
    assert estimate(model.config, "float32")["weights"] == 4 * sum(one.numel() for one in model.parameters())
    assert estimate(model.config, "float16")["weights"] == 2 * sum(one.numel() for one in model.parameters())


def test_the_cache_is_that_of_the_longest_prompt():
    """The paper's 318.85 MB is of 576 and about 62 text tokens; here 512 are allowed for."""
    assert estimate(llava(), "float16")["cache"] == (576 + 512) * 32 * 2 * 4096 * 2
    assert estimate(llava(), "float16", 4)["cache"] == 4 * estimate(llava(), "float16")["cache"]


def test_7b_fits_a_card_of_24_gb_and_13b_is_told_where_to_go():
    card = [24.0 * GB]
    line = told(llava(), "float16", 1, card, False)
    assert line.startswith("memory: about 14.8 GB")
    assert line.endswith("24.0 GB here")
    large = llava(5120, 40, 13824, 40)
    with pytest.raises(
        ValueError, match=r"model must be smaller than the card's 24.0 GB, or --device-map auto .* got '24.9 GB'"
    ):
        told(large, "float16", 1, card, False)
    assert told(large, "float16", 1, card * 2, True).endswith("48.0 GB here")
    assert told(llava(), "float32", 1, [26.5 * GB], False).endswith("this may not fit")
    assert told(llava(), "float16", 1, [], False).endswith("no GPU here")
    assert not torch.cuda.is_available() or told(llava(), None, 1, card, False)
