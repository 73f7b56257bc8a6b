"""The Qwen-VL line: variable grids, 2 x 2 patches merged into a token, M-RoPE."""

import transformers as hf
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

from .frames import Qwen2Frames, without_torchvision
from .tokens import chat_template, text_sizes, tokenizer

CHAT = chat_template(
    image="<|vision_start|><|image_pad|><|vision_end|>",
    video="<|vision_start|><|video_pad|><|vision_end|>",
)
SIZE = {"shortest_edge": 56 * 56, "longest_edge": 196 * 196}  # pixels of an image or a frame
CLIP_SIZE = {"shortest_edge": 64 * 64, "longest_edge": 8 * 128 * 128}  # Qwen3-VL: pixels of all frames together


def _tokens():
    return tokenizer(
        image_token="<|image_pad|>",
        video_token="<|video_pad|>",
        vision_start_token="<|vision_start|>",
        vision_end_token="<|vision_end|>",
    )


def _ids(tokens) -> dict:
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    return {name: getattr(tokens, name) for name in names}


def qwen2_vl(layers: int):
    tokens = _tokens()
    processor = hf.Qwen2VLProcessor(
        Qwen2VLImageProcessorPil(size=SIZE),
        tokens,
        Qwen2Frames(size=SIZE, cap_pixels_per_frame=False),
        chat_template=CHAT,
    )
    config = hf.Qwen2VLConfig(
        vision_config={"depth": 3, "embed_dim": 32, "num_heads": 4, "mlp_ratio": 2, "hidden_size": 64},
        text_config={"rope_parameters": _rope([2, 3, 3]), **text_sizes(tokens, layers)},
        **_ids(tokens),
    )
    return hf.Qwen2VLForConditionalGeneration, config, processor


def qwen2_5_vl(layers: int):
    """Blocks 0 and 2 of the tower attend within windows of 2 x 2 tokens, blocks 1 and 3 everywhere."""
    tokens = _tokens()
    processor = hf.Qwen2_5_VLProcessor(
        Qwen2VLImageProcessorPil(size=SIZE),
        tokens,
        Qwen2Frames(size=SIZE, cap_pixels_per_frame=False),
        chat_template=CHAT,
    )
    config = hf.Qwen2_5_VLConfig(
        vision_config={
            "depth": 4,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 4,
            "out_hidden_size": 64,
            "window_size": 56,
            "fullatt_block_indexes": [1, 3],
            "tokens_per_second": 2,
        },
        text_config={"rope_parameters": _rope([2, 3, 3]), **text_sizes(tokens, layers)},
        **_ids(tokens),
    )
    return hf.Qwen2_5_VLForConditionalGeneration, config, processor


def qwen3_vl(layers: int):
    """Features of tower blocks 0, 1 and 2 are added after decoder layers 0, 1 and 2 (deepstack)."""
    tokens = _tokens()
    processor = hf.Qwen3VLProcessor(
        Qwen2VLImageProcessorPil(size={"shortest_edge": 64 * 64, "longest_edge": 224 * 224}, patch_size=16),
        tokens,
        without_torchvision(Qwen3VLVideoProcessor)(size=CLIP_SIZE, do_sample_frames=False, cap_pixels_per_frame=False),
        chat_template=CHAT,
    )
    config = hf.Qwen3VLConfig(
        vision_config={
            "depth": 4,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 4,
            "out_hidden_size": 64,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1, 2],
        },
        text_config={"rope_parameters": _rope([4, 2, 2]), "head_dim": 16, **text_sizes(tokens, layers)},
        **_ids(tokens),
    )
    return hf.Qwen3VLForConditionalGeneration, config, processor


def _rope(sections: list[int]) -> dict:
    """Time, rows and columns share the 8 frequencies of a head of 16."""
    return {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections}
