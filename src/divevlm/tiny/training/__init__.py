"""Training of the embedded models: `python -m divevlm.tiny.training.llava`."""
