"""lmms-eval (extra eval): our models registered with it, and its benchmarks swept by `divevlm eval`."""

from __future__ import annotations

from typing import Any


def manifests() -> list[Any]:
    """For the entry point `lmms_eval.models`: --model divevlm, with chat templates or (--force_simple) plain prompts."""
    from lmms_eval.models.registry_v2 import ModelManifest

    where = "divevlm.experiments.lmms.model"
    return [ModelManifest("divevlm", simple_class_path=f"{where}.Simple", chat_class_path=f"{where}.Chat")]
