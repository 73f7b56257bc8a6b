"""Pruned models that are served: an OpenAI-compatible endpoint (`http`), and vLLM (`vllm`)."""
