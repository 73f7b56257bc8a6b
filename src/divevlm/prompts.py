"""Prompts as a model takes them: pictures and videos, then the question, through the checkpoint's own chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from divevlm.checks import require
from divevlm.media import Video
from divevlm.models.base import Family

Turn = dict[str, Any]  # of a conversation, as chat templates take it


@dataclass(frozen=True)
class Prompt:
    """A conversation, and its pictures (PIL) and videos in their order."""

    turns: Sequence[Turn]
    media: Sequence[Any] = ()

    @classmethod
    def of(cls, question: str, media: Sequence[Any] = (), system: str | None = None) -> Prompt:
        """One turn: the media, then the question."""
        parts = [{"type": "video" if isinstance(medium, Video) else "image"} for medium in media]
        turns: list[Turn] = [{"role": "user", "content": [*parts, {"type": "text", "text": question}]}]
        if system:
            turns.insert(0, {"role": "system", "content": [{"type": "text", "text": system}]})
        return cls(turns, media)

    @property
    def question(self) -> str:
        """The text of the last turn."""
        content = self.turns[-1]["content"]
        return content if isinstance(content, str) else " ".join(part["text"] for part in content if "text" in part)


def text_of(processor: Any, prompt: Prompt) -> str:
    """As the chat template writes it, up to where the answer begins."""
    require(bool(getattr(processor, "chat_template", None)), "model", "no chat template", "one with a chat template")
    try:
        text: str = processor.apply_chat_template(list(prompt.turns), add_generation_prompt=True, tokenize=False)
    except Exception as error:  # a template may refuse a turn by any exception of its own
        raise ValueError(f"the model's chat template refuses this prompt: {error}") from error
    return text


def inputs(processor: Any, family: Family, prompts: Sequence[Prompt]) -> Any:
    """The model's arguments for one prompt or several, which are padded on the left."""
    texts = [text_of(processor, prompt) for prompt in prompts]
    begin = processor.tokenizer.bos_token
    written = bool(begin) and texts[0].startswith(begin)  # by the template
    arguments = _media(family, prompts) | ({"add_special_tokens": False} if written else {})
    if len(prompts) > 1:
        arguments |= {"padding": True, "padding_side": "left"}
    try:
        return processor(text=texts, return_tensors="pt", **arguments)
    except Exception as error:  # by any exception too: a mark of the model's own in the question, say
        reason = " ".join(f"{type(error).__name__} {error}".split())
        questions = ", ".join(repr(prompt.question) for prompt in prompts)
        raise ValueError(
            f"the model's processor refuses these pictures or the question {questions}: {reason}"
        ) from error


def _media(family: Family, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """The processor's arguments for pictures and videos."""
    images = [[medium for medium in prompt.media if not isinstance(medium, Video)] for prompt in prompts]
    videos = [[medium for medium in prompt.media if isinstance(medium, Video)] for prompt in prompts]
    arguments: dict[str, Any] = {}
    if any(images):
        arguments["images"] = images if family.nested_images else list(chain(*images))
    if any(videos):
        require(bool(family.videos), "model", family.name, "of a family that takes videos, for these")
        frames = [[video.frames for video in row] for row in videos]
        arguments["videos"] = frames if family.nested_videos else list(chain(*frames))
        arguments |= {"video_metadata": [video.metadata for video in chain(*videos)], "do_sample_frames": False}
    return arguments
