"""One class a family, which owns what is known of it; nothing else knows families by name."""

from __future__ import annotations

from torch import nn

from divevlm.models.base import Family
from divevlm.registry import Registry

FAMILIES: Registry[type[Family]] = Registry("family", "families")
FAMILIES.add("llava", "divevlm.models.llava:Llava")
FAMILIES.add("qwen2_vl", "divevlm.models.qwen:Qwen2VL")
FAMILIES.add("qwen2_5_vl", "divevlm.models.qwen:Qwen25VL")
FAMILIES.add("qwen3_vl", "divevlm.models.qwen:Qwen3VL")
FAMILIES.add("llava_next", "divevlm.models.llava_next:LlavaNext")
FAMILIES.add("llava_next_video", "divevlm.models.llava_next:LlavaNextVideo")
FAMILIES.add("llava_onevision", "divevlm.models.llava_next:LlavaOnevision")
FAMILIES.add("internvl", "divevlm.models.tiles:InternVL")
FAMILIES.add("idefics3", "divevlm.models.tiles:Idefics3")
FAMILIES.add("smolvlm", "divevlm.models.tiles:SmolVLM")


def family_of(model: nn.Module) -> Family:
    """The adapter of a model with a language-model head, by its config's model type."""
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if not isinstance(kind, str) or kind not in FAMILIES or not hasattr(model, "generate"):
        raise ValueError(
            f"model must be a vision-language model with generate() of the families {', '.join(FAMILIES)}, "
            f"got {type(model).__name__} of type {kind!r} (another family: CONTRIBUTING.md, 'A new model family')"
        )
    return FAMILIES.get(kind)()
