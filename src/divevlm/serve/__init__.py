"""Pruned models behind an OpenAI-compatible endpoint."""
