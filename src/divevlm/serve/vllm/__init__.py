"""DIVE on vLLM: a plugin (entry-point group vllm.general_plugins) that prunes images at the door of the language model.

    vllm serve MODEL --hf-overrides '{"architectures": ["DiveLlavaForConditionalGeneration"], "dive": {"keep": 64}}'

processor.py  in vLLM's front end: shortens the prompt, and sends with each image all that is needed to choose its tokens
pruned.py     in its workers: encodes, looks ahead (scout.py), chooses (divevlm.methods), hands on the rows that stay
models.py     vLLM's own model classes with these two in front
"""

import logging

from divevlm.serve.vllm.settings import ARCHITECTURES

__all__ = ["ARCHITECTURES", "register"]


def register() -> None:
    """Make the architectures known to vLLM. Nothing of it runs unless a deployment asks for one of them.

    vLLM calls this at every start, whoever asked: on a release that it does not fit it says so and leaves vLLM alone.
    """
    try:
        from vllm import ModelRegistry
        from vllm.model_executor.models.config import MODELS_CONFIG_MAP

        from divevlm.serve.vllm.config import Config
    except ImportError as error:
        logging.getLogger("divevlm").warning("divevlm's plugin is for vLLM 0.32 and is not there: %s", error)
        return
    for name in ARCHITECTURES:
        ModelRegistry.register_model(name, f"divevlm.serve.vllm.models:{name}")
        MODELS_CONFIG_MAP[name] = Config
