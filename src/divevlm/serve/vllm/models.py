"""vLLM's own models with pruning in front. The names are what --hf-overrides asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.models import llava, llava_next, llava_onevision, qwen2_5_vl, qwen2_vl, qwen3_vl
from vllm.multimodal import MULTIMODAL_REGISTRY

from divevlm.serve.vllm.processor import pruned
from divevlm.serve.vllm.pruned import Pruned
from divevlm.serve.vllm.scout import embedded


class OnALine(Pruned):
    """Models whose positions are plain numbers. vLLM counts them itself, without the gaps of dropped tokens; only of M-RoPE
    models it asks. So config.py has it take these for such, and the language model gets one of three equal rows."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        config = vllm_config.model_config.hf_config.get_text_config()
        most = config.max_position_embeddings
        try:  # RoPE's table must reach behind the dropped tokens; nothing else is read from this
            config.max_position_embeddings = 2 * most
            super().__init__(vllm_config=vllm_config, prefix=prefix)
        finally:
            config.max_position_embeddings = most

    def full_positions(self, ids: Sequence[int], features: list[Any]) -> tuple[Tensor, int]:
        return torch.arange(len(ids)).expand(3, -1).clone(), 0

    def forward(self, input_ids: Any, positions: Tensor, *args: Any, **kwargs: Any) -> Any:
        line = positions if positions.dim() == 1 else positions[0]
        return super().forward(input_ids, line, *args, **kwargs)  # type: ignore[misc]


@MULTIMODAL_REGISTRY.register_processor(
    pruned(llava.LlavaMultiModalProcessor), info=llava.LlavaProcessingInfo, dummy_inputs=llava.LlavaDummyInputsBuilder
)
class DiveLlavaForConditionalGeneration(OnALine, llava.LlavaForConditionalGeneration):
    pass


@MULTIMODAL_REGISTRY.register_processor(
    pruned(llava_next.LlavaNextMultiModalProcessor),
    info=llava_next.LlavaNextProcessingInfo,
    dummy_inputs=llava.LlavaDummyInputsBuilder,
)
class DiveLlavaNextForConditionalGeneration(OnALine, llava_next.LlavaNextForConditionalGeneration):
    pass


@MULTIMODAL_REGISTRY.register_processor(
    pruned(llava_onevision.LlavaOnevisionMultiModalProcessor),
    info=llava_onevision.LlavaOnevisionProcessingInfo,
    dummy_inputs=llava_onevision.LlavaOnevisionDummyInputsBuilder,
)
class DiveLlavaOnevisionForConditionalGeneration(OnALine, llava_onevision.LlavaOnevisionForConditionalGeneration):
    pass


@MULTIMODAL_REGISTRY.register_processor(
    pruned(qwen2_vl.Qwen2VLMultiModalProcessor),
    info=qwen2_vl.Qwen2VLProcessingInfo,
    dummy_inputs=qwen2_vl.Qwen2VLDummyInputsBuilder,
)
class DiveQwen2VLForConditionalGeneration(Pruned, qwen2_vl.Qwen2VLForConditionalGeneration):
    pass


@MULTIMODAL_REGISTRY.register_processor(
    pruned(qwen2_5_vl.Qwen2_5_VLMultiModalProcessor),
    info=qwen2_5_vl.Qwen2_5_VLProcessingInfo,
    dummy_inputs=qwen2_5_vl.Qwen2_5_VLDummyInputsBuilder,
)
class DiveQwen2_5_VLForConditionalGeneration(Pruned, qwen2_5_vl.Qwen2_5_VLForConditionalGeneration):  # noqa: N801
    pass


class ImagesOnly(qwen3_vl.Qwen3VLProcessingInfo):
    """A clip of Qwen3-VL is many runs of tokens with times between them, and vLLM gives it one key and one item."""

    def get_supported_mm_limits(self) -> dict[str, int | None]:
        return {"image": None, "video": 0}


@MULTIMODAL_REGISTRY.register_processor(
    pruned(qwen3_vl.Qwen3VLMultiModalProcessor), info=ImagesOnly, dummy_inputs=qwen3_vl.Qwen3VLDummyInputsBuilder
)
class DiveQwen3VLForConditionalGeneration(Pruned, qwen3_vl.Qwen3VLForConditionalGeneration):
    """Its visual rows carry what is added behind the first blocks (deepstack) beside what enters them."""

    def entering(self, ids: Tensor, visual: Tensor, rows: Tensor) -> tuple[Tensor, list[Tensor]]:
        first, *deeper = rows.split(self.visual_dim, dim=-1)
        embeds = embedded(self.text.embed_input_ids, ids, visual, first)
        deep = [torch.zeros_like(embeds) for _ in deeper]
        for added, part in zip(deep, deeper, strict=True):
            added[visual] = part.to(added)
        return embeds, deep
