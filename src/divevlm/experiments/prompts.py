"""Questions with pictures or clips, a whole batch at a time, as each family's processor wants them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from divevlm.checks import require
from divevlm.experiments import stock
from divevlm.experiments.tasks import Item
from divevlm.viz.asking import NESTED
from divevlm.viz.media import Clip


def turns(item: Item, media: Sequence[Any]) -> list[dict[str, Any]]:
    """The item's own conversation, or one turn: what is shown, then what is asked."""
    if item.turns is not None:
        return item.turns
    shown = [{"type": "video" if isinstance(one, Clip) else "image"} for one in media]
    return [{"role": "user", "content": [*shown, {"type": "text", "text": item.text}]}]


def batch(processor: Any, family: str, items: Sequence[Item]) -> Any:
    """The model's arguments for these items, padded on the left."""
    if items[0].stock:
        return stock.batch(processor, family, items)
    require(bool(getattr(processor, "chat_template", None)), "model", "no chat template", "one with a chat template")
    media = [item.draw() for item in items]
    texts = [
        processor.apply_chat_template(turns(item, shown), add_generation_prompt=True, tokenize=False)
        for item, shown in zip(items, media, strict=True)
    ]
    images = [[one for one in shown if not isinstance(one, Clip)] for shown in media]
    clips = [[one for one in shown if isinstance(one, Clip)] for shown in media]
    given: dict[str, Any] = {}
    if any(images):
        given["images"] = images if family in NESTED else [one for some in images for one in some]
    if any(clips):
        takes = getattr(processor, "video_processor", None) is not None
        require(takes, "model", family, "of a family that takes videos for these tasks")
        flat = [clip for some in clips for clip in some]
        given["videos"] = (
            [[c.frames for c in some] for some in clips] if family == "smolvlm" else [c.frames for c in flat]
        )
        given |= {"video_metadata": [clip.metadata for clip in flat], "do_sample_frames": False}
    begin = processor.tokenizer.bos_token
    if begin and texts[0].startswith(begin):  # the template has written it already
        given["add_special_tokens"] = False
    processor.tokenizer.padding_side = "left"
    return processor(text=texts, padding=True, return_tensors="pt", **given)
