"""Muon for matrices, AdamW for the rest (Jordan et al., 2024): momentum, made orthogonal by Newton-Schulz steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

NEWTON = (3.4445, -4.7750, 2.0315)


def orthogonal(x: Tensor, steps: int = 4) -> Tensor:
    """Each matrix of a batch with its singular values pushed to about one. x: [B, m, n]"""
    a, b, c = NEWTON
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """Matrices of equal shape are treated in one batch; filters count as matrices."""

    def __init__(
        self, parameters: Iterable[dict[str, Any]], lr: float, momentum: float = 0.95, decay: float = 0.01
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[Any, list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes[parameter.shape].append(parameter)
            for same in shapes.values():
                m, n = same[0].shape[0], same[0][0].numel()
                moved = []
                for parameter in same:
                    assert parameter.grad is not None
                    state = self.state[parameter]
                    momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                    momentum.lerp_(parameter.grad, 1 - group["momentum"])
                    moved.append(parameter.grad.lerp(momentum, group["momentum"]).flatten(1))
                updates = orthogonal(torch.stack(moved))
                for parameter, update in zip(same, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["decay"])
                    parameter.add_(update.view_as(parameter), alpha=-group["lr"] * max(1.0, m / n) ** 0.5)


def optimizers(model: nn.Module, heads: nn.Module, matrix_rate: float, rate: float) -> list[torch.optim.Optimizer]:
    """Matrices inside the blocks, the projector and the patch filters: Muon, half as fast outside of the language model.

    Embeddings (a third as fast), norms, biases and heads: AdamW.
    """
    text: list[nn.Parameter] = []
    vision: list[nn.Parameter] = []
    words: list[nn.Parameter] = []
    others = list(heads.parameters())
    for name, parameter in model.named_parameters():
        inner = any(part in name for part in ("layers.", "blocks.", "projector", "merger", "patch_embed"))
        if parameter.dim() >= 2 and inner:
            (text if "language_model" in name else vision).append(parameter)
        else:
            (words if "embed_tokens" in name else others).append(parameter)
    matrices: list[dict[str, Any]] = [{"params": text}, {"params": vision, "lr": matrix_rate / 2}]
    rest: list[dict[str, Any]] = [{"params": others}, {"params": words, "lr": rate / 3}]
    return [Muon(matrices, matrix_rate), torch.optim.AdamW(rest, rate, betas=(0.9, 0.98), weight_decay=0.0)]
