"""The architecture of tiny-llava, its tokenizer and its processor."""

from __future__ import annotations

from typing import Any

import transformers as hf
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from divevlm_tiny.scene import GRID, PATCH, SIDE
from divevlm_tiny.words import vocabulary

IMAGE = "<image>"
CHAT = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% for part in message['content'] if part['type'] == 'image' %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] + ' ' }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
WIDTHS: dict[str, dict[str, int]] = {
    "text": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 4},
    "vision": {"hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 5, "num_attention_heads": 6},
}


def tokenizer(*visual: str, named: dict[str, str] | None = None, clips: bool = False) -> Any:
    """One token per word; upper and lower case are the same, punctuation stands alone. named: attribute -> visual token."""
    words = vocabulary(*visual, clips=clips)
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    raw.normalizer = normalizers.Lowercase()
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        padding_side="left",
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
        **(named or {f"{name[1:-1]}_token": name for name in visual}),
    )


def processor() -> Any:
    return hf.LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}),
        tokenizer(IMAGE),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT,
    )


def text_settings(tokens: Any, widths: dict[str, int]) -> dict[str, Any]:
    return {
        **widths,
        "num_key_value_heads": widths["num_attention_heads"],
        "max_position_embeddings": 2048,
        "vocab_size": len(tokens),
        "pad_token_id": tokens.pad_token_id,
        "bos_token_id": tokens.bos_token_id,
        "eos_token_id": tokens.eos_token_id,
        "tie_word_embeddings": True,
    }


def llava(widths: dict[str, dict[str, int]] = WIDTHS) -> Any:
    """A model with fresh weights (float32), from the current state of torch's generator."""
    tokens = tokenizer(IMAGE)
    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(image_size=SIDE, patch_size=PATCH, **widths["vision"]),
        text_config=hf.LlamaConfig(**text_settings(tokens, widths["text"])),
        image_token_index=tokens.convert_tokens_to_ids(IMAGE),
        image_seq_length=GRID * GRID,
        vision_feature_layer=-2,
        tie_word_embeddings=True,
    )
    model = hf.LlavaForConditionalGeneration(config)
    model.generation_config.update(
        eos_token_id=tokens.eos_token_id, pad_token_id=tokens.pad_token_id, bos_token_id=tokens.bos_token_id
    )
    return model
