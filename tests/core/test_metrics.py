"""The paper's measures against plain Python."""

import math

import pytest
import torch

from divevlm.core.metrics import redundancy, relative_average, relative_gold_likelihood


def plain_redundancy(rows):
    def cosine(a, b):
        return sum(p * q for p, q in zip(a, b, strict=True)) / math.sqrt(sum(p * p for p in a) * sum(q * q for q in b))

    best = [max(cosine(a, b) for j, b in enumerate(rows) if j != i) for i, a in enumerate(rows)]
    return sum(best) / len(best)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_redundancy(dtype):
    x = torch.randn(30, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    kept = torch.tensor([2, 5, 6, 20, 29])
    assert redundancy(x, kept) == pytest.approx(plain_redundancy(x[kept].double().tolist()), abs=1e-5)


def test_redundancy_by_hand():
    x = torch.tensor([[1.0, 0], [2, 0], [0, 3], [0.6, 0.8]])
    assert redundancy(x, torch.tensor([0, 2])) == pytest.approx(0)
    assert redundancy(x, torch.tensor([0, 1, 2])) == pytest.approx((1 + 1 + 0) / 3)
    assert redundancy(x, torch.tensor([0, 2, 3])) == pytest.approx((0.6 + 0.8 + 0.8) / 3)
    with pytest.raises(ValueError, match=r"indices must be at least two tokens, got \[1\]"):
        redundancy(x, torch.tensor([1]))


def test_relative_gold_likelihood():
    likelihood = [[0.2, 0.4, 0.1], [0.9, 0.9, 0.9]]
    result = relative_gold_likelihood(torch.tensor(likelihood).log())
    for row, values in zip(result.tolist(), likelihood, strict=True):
        mean = math.prod(values) ** (1 / 3)
        assert row == pytest.approx([(value / mean - 1) * 100 for value in values], abs=1e-4)
    tiny = relative_gold_likelihood(torch.tensor([[-900.0, -901.0]]))  # products that underflow
    assert tiny[0].tolist() == pytest.approx([(math.exp(0.5) - 1) * 100, (math.exp(-0.5) - 1) * 100])
    with pytest.raises(ValueError, match=r"log_likelihood\.shape must be"):
        relative_gold_likelihood(torch.zeros(3))


def test_relative_average_of_a_row_of_the_paper():
    """LLaVA-1.5-7B at 64 tokens: the paper prints 97.20 % for these six benchmarks (ablation table)."""
    full = {"gqa": 61.9, "mme": 1862, "pope": 85.9, "sqa": 69.5, "textvqa": 58.2, "ocr": 297}
    dive = {"gqa": 59.7, "mme": 1761, "pope": 85.7, "sqa": 69.2, "textvqa": 56.4, "ocr": 285}
    assert relative_average(dive, full) == pytest.approx(97.20, abs=0.05)
    assert relative_average(full, full) == pytest.approx(100)


def test_relative_average_refuses_other_benchmarks():
    with pytest.raises(ValueError, match="scores must be the benchmarks of full"):
        relative_average({"gqa": 1.0}, {"gqa": 1.0, "mme": 2.0})
    with pytest.raises(ValueError, match="full must be non-zero"):
        relative_average({"gqa": 1.0}, {"gqa": 0.0})
    with pytest.raises(ValueError, match="full must be at least one benchmark"):
        relative_average({}, {})
