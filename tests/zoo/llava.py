"""The LLaVA line. Each function returns the model class, its configuration and its processor."""

from itertools import product

import transformers as hf
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.llava_next_video.video_processing_llava_next_video import LlavaNextVideoVideoProcessor
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.llava_onevision.video_processing_llava_onevision import LlavaOnevisionVideoProcessor

from .frames import without_torchvision
from .tokens import chat_template, text_sizes, tokenizer

TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
CHAT = chat_template(image="<image>\n", video="<video>\n")
NEXT_SIDE = 28  # a view of 4 x 4 tokens
NEXT_GRIDS = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]  # height, width: one to three views as in LLaVA-1.6
ONEVISION_SIDE = 35  # a view of 5 x 5 tokens, odd as the real 27 x 27, pooled to 3 x 3 in videos
ONEVISION_GRIDS = [[35 * rows, 35 * columns] for rows, columns in product(range(1, 5), repeat=2)]


def llava(layers: int, side: int = 56):
    """LLaVA-1.5: (side / 14)^2 tokens, 4 x 4 by default."""
    tokens = tokenizer(image_token="<image>")
    processor = hf.LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size={"height": side, "width": side}),
        tokens,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT,
    )
    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(image_size=side, patch_size=14, **TOWER),
        text_config=hf.LlamaConfig(**text_sizes(tokens, layers, kv_heads=4)),
        image_token_index=tokens.image_token_id,
        image_seq_length=(side // 14) ** 2,
    )
    return hf.LlavaForConditionalGeneration, config, processor


def llava_576(layers: int):
    """The layout of the released LLaVA-1.5: 336 pixels, 24 x 24 tokens."""
    return llava(layers, side=336)


def _next_images() -> LlavaNextImageProcessorPil:
    return LlavaNextImageProcessorPil(
        size={"shortest_edge": NEXT_SIDE},
        crop_size={"height": NEXT_SIDE, "width": NEXT_SIDE},
        image_grid_pinpoints=NEXT_GRIDS,
    )


def llava_next(layers: int):
    """LLaVA-1.6 on Mistral (grouped-query attention)."""
    tokens = tokenizer(image_token="<image>")
    processor = hf.LlavaNextProcessor(
        _next_images(),
        tokens,
        patch_size=7,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT,
    )
    config = hf.LlavaNextConfig(
        vision_config=hf.CLIPVisionConfig(image_size=NEXT_SIDE, patch_size=7, **TOWER),
        text_config=hf.MistralConfig(sliding_window=None, **text_sizes(tokens, layers)),
        image_token_index=tokens.image_token_id,
        image_grid_pinpoints=NEXT_GRIDS,
    )
    return hf.LlavaNextForConditionalGeneration, config, processor


def llava_next_video(layers: int):
    """Images as in LLaVA-1.6; a frame of a video is pooled from 4 x 4 to 2 x 2 tokens."""
    tokens = tokenizer(image_token="<image>", video_token="<video>")
    video = without_torchvision(LlavaNextVideoVideoProcessor)
    processor = hf.LlavaNextVideoProcessor(
        video(size={"shortest_edge": NEXT_SIDE}, crop_size={"height": NEXT_SIDE, "width": NEXT_SIDE}),
        _next_images(),
        tokens,
        patch_size=7,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT,
    )
    config = hf.LlavaNextVideoConfig(
        vision_config=hf.CLIPVisionConfig(image_size=NEXT_SIDE, patch_size=7, **TOWER),
        text_config=hf.LlamaConfig(**text_sizes(tokens, layers, kv_heads=4)),
        image_token_index=tokens.image_token_id,
        video_token_index=tokens.video_token_id,
        image_grid_pinpoints=NEXT_GRIDS,
    )
    return hf.LlavaNextVideoForConditionalGeneration, config, processor


def llava_onevision(layers: int):
    """One image: any resolution up to 4 x 4 views, shrunk beyond about 9. Several images: one view each. Videos: pooled."""
    tokens = tokenizer(image_token="<image>", video_token="<video>")
    side = {"height": ONEVISION_SIDE, "width": ONEVISION_SIDE}
    processor = hf.LlavaOnevisionProcessor(
        LlavaOnevisionImageProcessorPil(size=side, image_grid_pinpoints=ONEVISION_GRIDS),
        tokens,
        without_torchvision(LlavaOnevisionVideoProcessor)(size=side),
        num_image_tokens=(ONEVISION_SIDE // 7) ** 2,
        vision_feature_select_strategy="full",
        chat_template=CHAT,
    )
    config = hf.LlavaOnevisionConfig(
        vision_config=hf.SiglipVisionConfig(image_size=ONEVISION_SIDE, patch_size=7, vision_use_head=False, **TOWER),
        text_config=hf.Qwen2Config(**text_sizes(tokens, layers)),
        image_token_index=tokens.image_token_id,
        video_token_index=tokens.video_token_id,
        image_grid_pinpoints=ONEVISION_GRIDS,
    )
    return hf.LlavaOnevisionForConditionalGeneration, config, processor
