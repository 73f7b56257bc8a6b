"""Families that cut an image into tiles and add the whole image as one more: InternVL, Idefics3, SmolVLM.

A tile has 6 x 6 patches and 3 x 3 tokens.
"""

import transformers as hf
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.smolvlm import processing_smolvlm
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor

from .frames import Frames, without_torchvision
from .tokens import chat_template, text_sizes, tokenizer

SIDE, TILE_TOKENS = 84, 9
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
TILES = {"size": {"longest_edge": 2 * SIDE}, "max_image_size": {"longest_edge": SIDE}}  # at most 2 x 2


def internvl(layers: int):
    tokens = tokenizer(
        start_image_token="<img>",
        end_image_token="</img>",
        context_image_token="<IMG_CONTEXT>",
        video_token="<video>",
    )
    side = {"height": SIDE, "width": SIDE}
    processor = hf.InternVLProcessor(
        GotOcr2ImageProcessorPil(size=side, max_patches=4),
        tokens,
        Frames(size=side),
        image_seq_length=TILE_TOKENS,
        chat_template=chat_template(image="<IMG_CONTEXT>\n", video="<video>\n"),
    )
    config = hf.InternVLConfig(
        vision_config=hf.InternVLVisionConfig(image_size=SIDE, patch_size=14, **TOWER),
        text_config=hf.Qwen2Config(**text_sizes(tokens, layers)),
        image_token_id=tokens.context_image_token_id,
        image_seq_length=TILE_TOKENS,
        tie_word_embeddings=False,
    )
    return hf.InternVLForConditionalGeneration, config, processor


def _idefics_tokens(**named: str):
    cells = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    special = ["<fake_token_around_image>", "<end_of_utterance>", "<global-img>", *cells]
    return tokenizer(special, image_token="<image>", **named)


def idefics3(layers: int):
    tokens = _idefics_tokens()
    processor = hf.Idefics3Processor(
        Idefics3ImageProcessorPil(**TILES),
        tokens,
        image_seq_len=TILE_TOKENS,
        chat_template=chat_template(image="<image>"),
    )
    config = hf.Idefics3Config(
        vision_config={"image_size": SIDE, "patch_size": 14, **TOWER},
        text_config=hf.LlamaConfig(**text_sizes(tokens, layers)),
        image_token_id=tokens.image_token_id,
        scale_factor=2,
    )
    return hf.Idefics3ForConditionalGeneration, config, processor


def smolvlm(layers: int):
    if processing_smolvlm.num2words is None:  # an optional package that spells the number of frames
        processing_smolvlm.num2words = str
    tokens = _idefics_tokens(video_token="<video>")
    processor = hf.SmolVLMProcessor(
        SmolVLMImageProcessorPil(**TILES),
        tokens,
        without_torchvision(SmolVLMVideoProcessor)(**TILES),
        image_seq_len=TILE_TOKENS,
        chat_template=chat_template(image="<image>", video="<video>"),
    )
    config = hf.SmolVLMConfig(
        vision_config={"image_size": SIDE, "patch_size": 14, **TOWER},
        text_config=hf.LlamaConfig(**text_sizes(tokens, layers)),
        image_token_id=tokens.image_token_id,
        scale_factor=2,
    )
    return hf.SmolVLMForConditionalGeneration, config, processor
