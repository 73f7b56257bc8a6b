"""Training of the embedded models: `python -m training.llava`."""
