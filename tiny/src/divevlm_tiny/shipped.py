"""The models inside the package: where they are, how they are loaded and saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from divevlm_tiny import build_qwen

MODELS = Path(__file__).parent / "models"


def available() -> list[str]:
    """The names of the models that are shipped."""
    return sorted(path.parent.name for path in MODELS.glob("*/model.safetensors"))


def load(name: str | Path = "llava") -> tuple[Any, Any]:
    """An embedded model, or one of another training in a folder, in float32 and eval mode, and its processor."""
    folder = MODELS / name if name in available() else Path(name)
    if not (folder / "model.safetensors").exists():
        raise ValueError(
            f"model must be one of {', '.join(available())} or a folder with a trained one, got {str(name)!r}"
        )
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), processor_of(folder)


def processor_of(folder: Path) -> Any:
    """Of an embedded model. The stock one of Qwen2-VL needs torchvision, which CPU-only machines lack."""
    if AutoConfig.from_pretrained(folder).model_type == "qwen2_vl":
        return build_qwen.processor()
    return AutoProcessor.from_pretrained(folder)


def save(model: Any, processor: Any, folder: Path) -> None:
    """Weights as bfloat16; the configuration says float32, so that a plain `from_pretrained` computes in that."""
    weights = model.dtype
    model.to(torch.bfloat16).save_pretrained(folder)
    model.to(weights)
    processor.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for part in (config, config.get("text_config", {}), config.get("vision_config", {})):
        if "dtype" in part:
            part["dtype"] = "float32"
    path.write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
