"""Two exact forms of a bias on the columns of one attention call: a mask, or more columns of keys and queries.

`python -m training.bias_forms`: how long each takes on this machine, without a bias = 1.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.functional import scaled_dot_product_attention as attend

from divevlm.engine.flash import ROOM
from divevlm.terminal import table

HEADS, SIZE = 32, 128
COLUMNS = (124, 252, 380, 700, 1340)


def with_mask(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    rows, columns = query.shape[2], key.shape[2]
    allowed = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
    return attend(query, key, value, attn_mask=bias.expand(rows, -1).masked_fill(~allowed, -torch.inf))


def with_columns(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Queries are as many as keys, or one."""
    scale, size = query.shape[-1] ** -0.5, value.shape[-1]
    ones = pad(torch.ones_like(query[..., :1]), (0, ROOM - 1))
    more = pad(bias[:, None] / scale, (0, ROOM - 1)).expand(*key.shape[:2], -1, -1)
    query, key, value = torch.cat([query, ones], dim=-1), torch.cat([key, more], dim=-1), pad(value, (0, ROOM))
    return attend(query, key, value, is_causal=query.shape[2] > 1, scale=scale)[..., :size]


def without(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    return attend(query, key, value, is_causal=query.shape[2] > 1)


def milliseconds(form: Callable[..., Tensor], given: tuple[Tensor, ...], runs: int) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        form(*given)
        times.append(time.perf_counter() - start)
    return 1e3 * median(times)


@torch.no_grad()
def main() -> None:
    lines = []
    for columns in COLUMNS:
        query, key, value = (torch.randn(1, HEADS, columns, SIZE) for _ in range(3))
        bias, cells = 3 * torch.rand(columns), [str(columns)]
        for rows, runs in ((columns, 40), (1, 200)):
            given = query[:, :, -rows:], key, value, bias
            plain, *forms = (milliseconds(form, given, runs) for form in (without, with_mask, with_columns))
            cells += [f"{plain:.2f} ms", *(f"{form / plain:.2f}" for form in forms)]
        lines.append(cells)
    print(
        table(["columns", "prefill", "mask", "more columns", "next token", "mask", "more columns"], lines),
        f"\n{HEADS} heads of {SIZE}, float32, {torch.get_num_threads()} threads, medians",
    )


if __name__ == "__main__":
    main()
