"""The question inside a prompt, and its content words, for methods that read these only."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from divevlm.methods.base import Signals

# MMTok's function words.
STOP = frozenset(
    re.findall(
        r"\w+",
        """a an the, is are was were be been being, have has had, do does did, i you he she it we they,
        what which who when where why how, and or but so if then, question answer,
        to for with by from at into onto upon""",
    )
)
# How long the answer shall be: LLaVA's sentences, which say nothing about the picture.
FORMAT = re.compile(
    r"answer the question using a single word or phrase\.|answer with the option's letter from the given choices directly\.",
    re.IGNORECASE,
)
# What chat templates put before and behind a turn.
BEFORE = re.compile(r"\A\s*(?:(?:USER|User|Human):|user\n|\[INST\])\s*")
BEHIND = re.compile(r"(?:\s*\b(?:ASSISTANT|Assistant):|\n\s*assistant|\s*\[/INST\])\s*\Z")


def question(signals: Signals, tokenizer: Any) -> str:
    """The bare question: the prompt behind the image (the whole prompt where nothing is behind it) without the names of the
    speakers at its ends and without sentences about the form of the answer."""
    text, _ = _decoded(signals, tokenizer)
    return FORMAT.sub("", BEHIND.sub("", BEFORE.sub("", text))).strip()


def content(text: str) -> list[str]:
    """The words of a question that are no function words, as they are written; all its words if there is none."""
    words = re.findall(r"\w+", FORMAT.sub(" ", text))
    return [word for word in words if word.lower() not in STOP] or words


def word_ids(signals: Signals, tokenizer: Any) -> Tensor:
    """[m] ids of the content words, tokenized by themselves: what MMTok's authors look up in the embedding table."""
    ids = tokenizer(" ".join(content(question(signals, tokenizer))), add_special_tokens=False)["input_ids"]
    return torch.tensor(ids, dtype=torch.long, device=signals.text.device)


def content_rows(signals: Signals, tokenizer: Any | None) -> Tensor:
    """[M] bool: rows of the prompt that are part of a content word of the question, by where their letters are. Without a
    tokenizer, or where no row is part of one, all of them."""
    every = torch.ones(len(signals.text), dtype=torch.bool, device=signals.text.device)
    if tokenizer is None or not len(every):
        return every
    text, rows = _decoded(signals, tokenizer)
    bare = _blank(FORMAT, _blank(BEHIND, _blank(BEFORE, text)))
    words = list(re.finditer(r"\w+", bare))
    wanted = [word for word in words if word[0].lower() not in STOP] or words
    ids = signals.ids
    assert ids is not None
    ends = [len(tokenizer.decode(ids[rows[: i + 1]].tolist(), skip_special_tokens=True)) for i in range(len(rows))]
    inside = torch.zeros_like(every)
    for row, start, end in zip(rows.tolist(), [0, *ends], ends, strict=False):
        inside[row] = any(start < word.end() and word.start() < end for word in wanted)
    return inside if bool(inside.any()) else every


def rows_behind_image(signals: Signals) -> Tensor:
    """[m] numbers of the prompt's rows behind the last visual token; of all rows where none is behind it."""
    later = signals.later
    if later is None or not bool(later.any()):
        return torch.arange(len(signals.text))
    return later.nonzero()[:, 0]


def _decoded(signals: Signals, tokenizer: Any) -> tuple[str, Tensor]:
    """The prompt behind the image as text, or all of it; and the numbers of its rows."""
    if signals.ids is None:
        raise ValueError("tokenizer must be given where the prompt comes as input_ids, got embeddings")
    rows = rows_behind_image(signals).to(signals.ids.device)
    text: str = tokenizer.decode(signals.ids[rows].tolist(), skip_special_tokens=True)
    return text, rows


def _blank(pattern: re.Pattern[str], text: str) -> str:
    """The same length, with spaces where the pattern was."""
    return pattern.sub(lambda match: " " * len(match[0]), text)
