"""Which rows of a prompt are content words, for methods that listen to these only."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from divevlm.methods.base import Signals

# MMTok's function words, and the names that chat templates give to the speakers.
STOP = frozenset(
    re.findall(
        r"\w+",
        """a an the, am is are was were be been, have has had, do does did, i you he she it we they,
        what which who when where why how, and or but so if then, question answer,
        to for with by from at into onto upon""",
    )
)
SPEAKERS = frozenset({"user", "assistant", "system", "human", "im_start", "im_end"})
FORMATS = (
    "answer the question using a single word or phrase.",
    "answer with the option's letter from the given choices directly.",
)


def content(text: str) -> list[str]:
    """The words of a question that say what it is about, lower case; all its words if none does."""
    lower = text.lower()
    for sentence in FORMATS:
        lower = lower.replace(sentence, " ")
    words = [word for word in re.findall(r"\w+", lower) if word not in SPEAKERS]
    return [word for word in words if word not in STOP] or words


def question(signals: Signals, tokenizer: Any) -> str:
    """The prompt behind the image as text; the whole prompt where nothing is behind it."""
    if signals.ids is None:
        raise ValueError("tokenizer must be given where the prompt comes as input_ids, got embeddings")
    ids, later = signals.ids, signals.later
    if later is not None and bool(later.any()):
        ids = ids[later.to(ids.device)]
    text: str = tokenizer.decode(ids.tolist(), skip_special_tokens=True)
    return text


def content_rows(signals: Signals, tokenizer: Any | None) -> Tensor:
    """[M] bool: sub-words of the question's content words. Without a tokenizer, or where no row is found, all of them."""
    every = torch.ones(len(signals.text), dtype=torch.bool, device=signals.text.device)
    if tokenizer is None or not len(every):
        return every
    text = question(signals, tokenizer)
    ids = signals.ids
    assert ids is not None
    wanted = set(content(text))
    spelled = [word for word in re.findall(r"\w+", text) if word.lower() in wanted]
    pieces = {
        piece
        for word in spelled
        for form in (word, f" {word}")
        for piece in tokenizer(form, add_special_tokens=False)["input_ids"]
    }
    found = torch.isin(ids, torch.tensor(sorted(pieces), dtype=ids.dtype, device=ids.device)).to(every.device)
    if signals.later is not None and bool(signals.later.any()):
        found &= signals.later.to(found.device)
    return found if bool(found.any()) else every
