"""Checkpoints that vLLM can read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"


def save(model: Any, processor: Any, folder: Path) -> Path:
    """transformers 5 calls the blocks of a CLIP or SigLIP tower vision_tower.X, the Hub and vLLM vision_tower.vision_model.X"""
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    weights = load_file(folder / WEIGHTS)
    named = {
        re.sub(r"(^|\.)vision_tower\.(?!vision_model\.)", r"\1vision_tower.vision_model.", n): w
        for n, w in weights.items()
    }
    save_file(named, folder / WEIGHTS, metadata={"format": "pt"})
    return folder
