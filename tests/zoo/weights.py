"""Random weights under which every token matters.

The initialisation of the models (std 0.02) makes tiny models nearly constant: all hidden states are alike, all attention
is uniform, and a test of equality proves nothing. Here a matrix keeps the scale of what goes through it.
"""

import torch
from torch import nn

TOKEN_LIKE = ("embed_tokens", "class_embedding", "cls_token", "image_newline")


@torch.no_grad()
def randomise(model: nn.Module, seed: int, silent_tokens: list[int]) -> None:
    """Draw all parameters of `model` from `seed`; logits of `silent_tokens` are 0, so that greedy decoding never emits one."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in sorted(model.named_parameters()):
        noise = torch.randn(weight.shape, generator=generator)
        if any(part in name for part in TOKEN_LIKE):
            weight.copy_(noise)
        elif "pos" in name and "embed" in name:
            weight.copy_(0.5 * noise)
        elif weight.ndim > 1:
            weight.copy_(1.3 * noise * weight[0].numel() ** -0.5)
        elif name.endswith("bias"):
            weight.copy_(0.1 * noise)
        else:  # scales of norms and of residual branches
            weight.copy_(1 + 0.1 * noise)
    model.get_output_embeddings().weight[silent_tokens] = 0
