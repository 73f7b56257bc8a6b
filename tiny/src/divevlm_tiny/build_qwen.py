"""The architecture of tiny-qwen2vl, its tokenizer and its processor: pictures of any size, and clips."""

from __future__ import annotations

from typing import Any

import transformers as hf
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from divevlm_tiny.build import text_settings, tokenizer
from divevlm_tiny.frames import Qwen2VLProcessor, Qwen2VLVideoProcessor
from divevlm_tiny.scene import PATCH, SIDE

VISUAL = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
IMAGE, VIDEO, START, END = VISUAL
WIDTHS: dict[str, dict[str, int]] = {
    "text": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 4},
    "vision": {"embed_dim": 192, "hidden_size": 256, "depth": 4, "num_heads": 6, "mlp_ratio": 4},
}
CHAT = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% for part in message['content'] %}{% if part['type'] in ('image', 'video') %}"
    "{{ '<|vision_start|><|' + part['type'] + '_pad|><|vision_end|>\n' }}{% endif %}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] + ' ' }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


def tokens() -> Any:
    names = dict(zip(("image_token", "video_token", "vision_start_token", "vision_end_token"), VISUAL, strict=True))
    return tokenizer(*VISUAL, named=names, clips=True)


def image_processor() -> Any:
    return Qwen2VLImageProcessorPil(size={"shortest_edge": 56 * 56, "longest_edge": SIDE * SIDE}, patch_size=PATCH)


def processor() -> Any:
    return Qwen2VLProcessor(image_processor(), tokens(), Qwen2VLVideoProcessor(), chat_template=CHAT)


def qwen2vl(widths: dict[str, dict[str, int]] = WIDTHS) -> Any:
    """A model with fresh weights (float32), from the current state of torch's generator."""
    words = tokens()
    part = widths["text"]["hidden_size"] // widths["text"]["num_attention_heads"] // 16
    # the columns of a picture get the slowest waves: they must still turn within a dozen tokens
    rope = {"rope_type": "default", "rope_theta": 10.0, "mrope_section": [part, 7 * part // 2, 7 * part // 2]}
    config = hf.Qwen2VLConfig(
        vision_config={**widths["vision"], "patch_size": PATCH},
        text_config={"rope_parameters": rope, **text_settings(words, widths["text"])},
        tie_word_embeddings=True,
        **{
            f"{name}_token_id": words.convert_tokens_to_ids(token)
            for name, token in zip(("image", "video", "vision_start", "vision_end"), VISUAL, strict=True)
        },
    )
    model = hf.Qwen2VLForConditionalGeneration(config)
    model.generation_config.update(
        eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id, bos_token_id=words.bos_token_id
    )
    return model
