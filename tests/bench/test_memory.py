"""Peak extra memory of selection: at most 2 N^2 numbers with the Gram matrix, O(N K) without.

The eager loop without the matrix holds a copy of the rows besides, N d numbers."""

import pytest
import torch

import divevlm
from divevlm.bench.timing import peak_bytes


@pytest.mark.parametrize("loop", ["eager", "fused"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "keep"), [(600, 64), (900, 300)])
def test_gram(n, keep, dtype, loop):
    x, q = torch.randn(n, 2048).to(dtype), torch.randn(20, 2048).to(dtype)
    divevlm.select(x, q, 2, columns="gram", loop=loop)
    peak = peak_bytes(lambda: divevlm.select(x, q, keep, columns="gram", loop=loop))
    assert n * n * 4 < peak <= 2 * n * n * 4 + 40 * n * 4 * 4


@pytest.mark.parametrize("loop", ["eager", "fused"])
@pytest.mark.parametrize(("n", "keep"), [(2000, 50), (4000, 50), (2000, 200)])
def test_picked(n, keep, loop):
    x, q = torch.randn(n, 256), torch.randn(20, 256)
    divevlm.select(x, q, 2, columns="picked", loop=loop)
    peak = peak_bytes(lambda: divevlm.select(x, q, keep, columns="picked", loop=loop))
    assert peak <= 4 * n * (256 + 2 * keep + 120 if loop == "eager" else 5 * keep + 200)


def test_peak_bytes_counts():
    assert 8_000_000 <= peak_bytes(lambda: torch.zeros(1_000_000) + torch.zeros(1_000_000)) <= 12_100_000
