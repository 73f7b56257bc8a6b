"""Items of an experiment as a model's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from divevlm.experiments import stock
from divevlm.experiments.tasks import Item
from divevlm.models import FAMILIES
from divevlm.prompts import Prompt, inputs


def batch(processor: Any, family: str, items: Sequence[Item]) -> Any:
    """By the checkpoint's chat template, or as lmms-eval's own model makes them."""
    if items[0].stock:
        return stock.batch(processor, family, items)
    media = [item.draw() for item in items]
    prompts = [
        Prompt.of(item.text, shown) if item.turns is None else Prompt(item.turns, shown)
        for item, shown in zip(items, media, strict=True)
    ]
    return inputs(processor, FAMILIES.get(family)(), prompts)
