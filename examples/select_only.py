"""Selection alone: tensors in, picks out. No model, no hook."""

import torch

import divevlm

torch.manual_seed(0)
objects = torch.randn(5, 64)
x = objects.repeat_interleave(20, dim=0) + 0.1 * torch.randn(100, 64)  # 100 tokens: 20 near-copies of each of 5 objects
q = objects[3:4] + 0.5 * torch.randn(4, 64)  # a prompt about the fourth

picks = divevlm.select(x, q, keep=5)
frozen = divevlm.select(x, q, keep=5, updates=0)
print(
    "DIVE sees objects",
    sorted({i // 20 for i in picks.order.tolist()}),
    "in the order",
    [i // 20 for i in picks.order.tolist()],
)
print("frozen scores see", sorted({i // 20 for i in frozen.order.tolist()}))

enough = divevlm.select(x, q, divevlm.Budget(energy=0.9, max=50))
print(f"{len(enough)} tokens explain {100 * enough.explained:.0f} % of the visual energy")
