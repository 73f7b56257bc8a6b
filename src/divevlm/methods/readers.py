"""What methods read a prompt with, by name: `cdpruner:text=clip`, `mmtok:text=words`."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

from divevlm.checks import require
from divevlm.methods import METHODS

CLIP = "openai/clip-vit-large-patch14-336"  # the tower of LLaVA-1.5 and LLaVA-NeXT
WORDS = "words"


def check(name: str, text: str | None) -> None:
    """Refuse what no method of that name can read with; `text` None: as the method does by itself."""
    if text is None:
        return
    require(_has(name, "tokenizer"), "text", text, f"left out for {name}, which reads no words")
    tower = _has(name, "text_model")
    allowed = "'clip', or the path or id of a CLIP model" if tower else f"{WORDS!r}: the question's content words"
    require(bool(text) if tower else text == WORDS, f"text of {name}", text, allowed)


def readers(name: str, text: str | None, model: Any, processor: Any) -> dict[str, Any]:
    """The method's settings for `text`. clip: the text tower of the vision tower's checkpoint, as CDPruner's authors use it;
    words: the language model's tokenizer and embedding table, as MMTok's do."""
    check(name, text)
    if text is None:
        return {}
    require(processor is not None, f"text of {name}", text, "used with a processor, whose tokenizer reads the prompt")
    if not _has(name, "text_model"):
        table = {"embeddings": model.get_input_embeddings()} if _has(name, "embeddings") else {}
        return {"tokenizer": processor.tokenizer, **table}
    clip, words = clip_of(CLIP if text == "clip" else text, str(model.device), model.dtype)
    return {"text_model": clip, "text_tokenizer": words, "tokenizer": processor.tokenizer}


@cache
def clip_of(where: str, device: str, dtype: Any) -> tuple[Any, Any]:
    """A CLIP model without its vision blocks, and its tokenizer."""
    from transformers import AutoTokenizer, CLIPModel

    try:
        clip, tokenizer = CLIPModel.from_pretrained(where, dtype=dtype), AutoTokenizer.from_pretrained(where)
    except (OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"text must be 'clip' ({CLIP}) or a CLIP model that loads, got {where!r}: {reason}") from None
    clip.vision_model.encoder = None  # the model's own tower has these weights
    return clip.to(device).eval(), tokenizer


def _has(name: str, option: str) -> bool:
    return option in {f.name for f in fields(METHODS.get(name))}
