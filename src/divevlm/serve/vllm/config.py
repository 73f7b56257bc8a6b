"""At vLLM's start: check what is asked for, before anything is loaded."""

from __future__ import annotations

from typing import Any

from vllm.model_executor.models.config import VerifyAndUpdateConfig

from divevlm.checks import require
from divevlm.serve.vllm.settings import Settings


class Config(VerifyAndUpdateConfig):
    @staticmethod
    def verify_and_update_model_config(model_config: Any) -> None:
        config = model_config.hf_config
        settings = Settings.of(config)
        if settings.positions == "keep" and not settings.grid:
            config.mrope_section = [1, 1, 1]  # vLLM then asks the model for positions (models.py, OnALine)

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        parallel = vllm_config.parallel_config.pipeline_parallel_size
        require(parallel == 1, "pipeline_parallel_size", parallel, "1: the first stage alone knows the images")
        require(vllm_config.lora_config is None, "enable_lora", True, "False with DIVE: adapters were not tried")
        graphs = getattr(vllm_config.compilation_config, "cudagraph_mm_encoder", False)
        require(not graphs, "cudagraph_mm_encoder", graphs, "False: images of DIVE go another way")
        rate = getattr(vllm_config.model_config.get_multimodal_config(), "video_pruning_rate", None)
        require(not rate, "video_pruning_rate", rate, "left out: DIVE prunes")
