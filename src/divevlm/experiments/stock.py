"""Inputs as lmms-eval's own models make them: the same ids and pixels, and the same end of an answer.

LLaVA-1.5, LLaVA-NeXT and LLaVA-OneVision as `llava_hf` has them, Qwen2-VL as `qwen2_vl`. Tested sample by sample against both.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from divevlm.checks import require
from divevlm.experiments.tasks import Item
from divevlm.models import FAMILIES

QWEN = "qwen2_vl"  # lmms-eval's name of its model; the other one that we know is llava_hf
PIXELS = {"min_pixels": 3136, "max_pixels": 602112}  # of Qwen2-VL: a picture, or a frame
SYSTEM = "You are a helpful assistant."
FRAMES = 32


def name(family: str) -> str:
    """Of lmms-eval's own model of that family; empty if there is none."""
    return FAMILIES.get(family).lmms_eval if family in FAMILIES else ""


def pixels(family: str) -> dict[str, int] | None:
    """Limits of a picture that its model sets."""
    return PIXELS if name(family) == QWEN else None


def check(family: str) -> None:
    known = ", ".join(other for other in FAMILIES if name(other))
    allowed = f"chat or template for {family}: lmms-eval's own inputs are known of {known}"
    require(bool(name(family)), "inputs", "stock", allowed)


def batch(processor: Any, family: str, items: Sequence[Item]) -> Any:
    """The model's arguments. Items hold what the task gave: its text, pictures as they are, videos as paths."""
    media = [item.draw() for item in items]
    if name(family) == QWEN:
        return _qwen(processor, items, media)
    texts = [_llava(processor, item.text, shown) for item, shown in zip(items, media, strict=True)]
    arguments: dict[str, Any] = {"text": texts, "padding": True, "return_tensors": "pt"}
    pictures = [[visual for visual in shown if not isinstance(visual, str)] for shown in media]
    paths = [visual for shown in media for visual in shown if isinstance(visual, str)]
    if any(pictures):
        nested = FAMILIES.get(family).nested_images and len(items) > 1
        arguments["images"] = pictures if nested else list(chain(*pictures))
    if paths:
        arguments["videos"] = [_frames(path) for path in paths]
    return processor(**arguments)


def _llava(processor: Any, text: str, shown: Sequence[Any]) -> str:
    """The tokenizer's chat template, or Vicuna's with its system sentence where it has none of its own (a folder that was saved
    by a newer transformers gives it the processor's, for turns of parts, with which the stock model fails)."""
    from lmms_eval.models.simple.llava_hf import VICUNA_CHAT_TEMPLATE

    if shown and "<image>" not in text:
        text = " ".join("<video>" if isinstance(visual, str) else "<image>" for visual in shown) + f"\n{text}"
    template = processor.tokenizer.chat_template
    if template is None or template == processor.chat_template:
        template = VICUNA_CHAT_TEMPLATE
    turn = [{"role": "user", "content": text}]
    written: str = processor.tokenizer.apply_chat_template(
        turn, chat_template=template, tokenize=False, add_generation_prompt=True
    )
    return written


def _frames(path: str) -> Any:
    """Evenly spaced from the first to the last; a short video has some of them twice."""
    import numpy as np

    reader = _decord().VideoReader(path)
    return reader.get_batch(np.linspace(0, len(reader) - 1, FRAMES, dtype=int).tolist()).asnumpy()


def _qwen(processor: Any, items: Sequence[Item], media: Sequence[Sequence[Any]]) -> Any:
    """A system turn, pictures as JPEG of quality 85, frames at two a second and of these at most 32."""
    import numpy as np
    from qwen_vl_utils import process_vision_info

    conversations = []
    for item, shown in zip(items, media, strict=True):
        parts = [*map(_part, shown), {"type": "text", "text": item.text.replace("<image>", "")}]
        conversations.append([{"role": "system", "content": SYSTEM}, {"role": "user", "content": parts}])
    if any(isinstance(visual, str) for shown in media for visual in shown):
        _decord()
    texts = [
        processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True) for turns in conversations
    ]
    images, videos = process_vision_info(conversations)
    if videos is not None:
        videos = [video[np.unique(np.linspace(0, len(video) - 1, FRAMES, dtype=int))] for video in videos]
    processor.tokenizer.padding_side = "left"
    return processor(text=texts, images=images, videos=videos, padding=True, return_tensors="pt")


def _part(visual: Any) -> dict[str, Any]:
    from lmms_eval.models.model_utils.media_encoder import encode_image_to_data_url

    if isinstance(visual, str):
        return {"type": "video", "video": visual, **PIXELS}
    coded = encode_image_to_data_url(visual, image_format="JPEG", mime_type="image/jpeg", convert_rgb=True, quality=85)
    return {"type": "image", "image": coded, **PIXELS}


def _decord() -> Any:
    """Other decoders turn YUV to RGB a little otherwise."""
    try:
        import decord
    except ImportError:
        raise ValueError(
            "inputs stock needs decord for videos, as lmms-eval's own models do: pip install decord"
        ) from None
    return decord


def ending(tokenizer: Any, family: str) -> dict[str, Any]:
    """Arguments of generate(): where an answer ends."""
    end = tokenizer.eos_token_id
    pad = tokenizer.pad_token_id if name(family) == QWEN and tokenizer.pad_token_id is not None else end
    return {"eos_token_id": end, "pad_token_id": pad}


def said(text: str, family: str, until: str | Sequence[str] | None) -> str:
    """The answer: of LLaVA as it was generated, of Qwen2-VL up to the task's stop words."""
    if name(family) != QWEN:
        return text
    stops = [until] if isinstance(until, str) else until or []
    return text[: min((text.index(stop) for stop in stops if stop and stop in text), default=len(text))].strip()


def padded(picture: Any, mean: Sequence[float]) -> Any:
    """LLaVA's own way with a picture that is no square: bars of the mean colour, where llava-hf crops it."""
    from PIL import Image

    picture = picture.convert("RGB")
    width, height = picture.size
    side = max(width, height)
    square = Image.new("RGB", (side, side), tuple(int(255 * value) for value in mean))
    square.paste(picture, ((side - width) // 2, (side - height) // 2))
    square.info["bars"] = (side - height) / 2 / side, (side - width) / 2 / side  # above and below, left and right
    return square
