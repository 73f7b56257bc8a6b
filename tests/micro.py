"""A model of the embedded architecture with random weights, small enough to run in a test."""

import torch
from divevlm_tiny import build


def micro_llava(layers=5):
    """And its processor."""
    torch.manual_seed(1)
    text = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": layers, "num_attention_heads": 2}
    vision = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    model = build.llava({"text": text, "vision": vision}).eval()
    for parameter in model.parameters():  # fresh weights hardly look at the picture
        parameter.data.mul_(3 if parameter.dim() > 1 else 1)
    return model, build.processor()
