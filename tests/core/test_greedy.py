"""Greedy loops (coverage, DPP, residual energy) against naive ones in float64, and the worked numbers of their papers."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from divevlm.core.coverage import greedy_coverage
from divevlm.core.dpp import greedy_dpp, kernel
from divevlm.core.select import select
from divevlm.methods.resprune import residual_energy

SQUARE = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.6, 0.8]])


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def naive_coverage(cover, keep, weight):
    cover, level, order, scores = cover.double(), torch.zeros(len(cover)).double(), [], []
    for _ in range(keep):
        gain = (cover - level[:, None]).clamp_min(0).sum(0) * weight.double()
        gain[order] = -1
        order.append(int((gain >= gain.max()).nonzero()[0]))
        scores.append(float(gain[order[-1]]))
        level = torch.maximum(level, cover[:, order[-1]])
    return order, scores


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 150), st.integers(1, 40), st.integers(0, 10**6), st.booleans())
def test_coverage_equals_the_naive_loop(n, rows, seed, weighted):
    cover = random(rows, n, seed=seed).double()
    weight = random(n, seed=seed + 1).abs().double() if weighted else torch.ones(n).double()
    keep = max(1, n // 2)
    order, scores = greedy_coverage(cover, keep, weight if weighted else None)
    expected = naive_coverage(cover, keep, weight)
    assert order.tolist() == expected[0]
    torch.testing.assert_close(scores, torch.tensor(expected[1]).double())


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 30), st.integers(0, 10**6))
def test_gains_of_coverage_never_rise(n, seed):
    x = normalize(random(n, 4, seed=seed), dim=1)
    cover = (x @ x.T).double()
    _, gains = greedy_coverage(cover, n)
    assert (gains.diff() <= 1e-12).all()
    assert float(gains.sum()) == pytest.approx(float(cover.amax(dim=1).sum()))


def test_coverage_with_nothing_to_gain_goes_in_input_order():
    cover = torch.tensor([[0.2, 0.5, 0.3, 0.1]])
    assert greedy_coverage(cover, 4)[0].tolist() == [1, 0, 2, 3]
    assert greedy_coverage(torch.zeros(3, 5), 3)[0].tolist() == [0, 1, 2]


def test_scope_by_hand():
    saliency = torch.tensor([0.4, 0.3, 0.1, 0.2])
    cosine = SQUARE @ SQUARE.T
    torch.testing.assert_close(cosine.clamp_min(0).sum(0), torch.tensor([2.4, 3.36, 2.4, 3.36]))
    order, scores = greedy_coverage(cosine, 2, saliency)
    assert order.tolist() == [1, 0]
    torch.testing.assert_close(scores, torch.tensor([1.008, 0.08]))
    covered = cosine[:, order].amax(dim=1)
    torch.testing.assert_close(covered, torch.tensor([1.0, 1.0, 0.6, 0.96]))


def test_mmtok_by_hand():
    x = normalize(torch.tensor([[1, 0], [0.9, 0.1], [0, 1], [-1, 0]]), dim=1)
    words = torch.softmax(torch.tensor([[1.0, 0.0]]) @ x.T / 0.5, dim=1)
    assert words[0].tolist() == pytest.approx([0.4670, 0.4613, 0.0632, 0.0086], abs=6e-5)
    cover = torch.cat([words, 0.5 * torch.softmax(x @ x.T / 0.5, dim=1) / 4])
    steps = [
        ([], [0.5958, 0.5930, 0.1821, 0.1291]),
        ([0], [0, 0.0036, 0.0876, 0.1047]),
        ([0, 3], [0, 0.0036, 0.0751, 0]),
    ]
    for picked, gains in steps:
        level = cover[:, picked].amax(dim=1, keepdim=True) if picked else 0
        assert (cover - level).clamp_min(0).sum(0).tolist() == pytest.approx(gains, abs=6e-5)
    order, gains = greedy_coverage(cover, 3)
    assert order.tolist() == [0, 3, 2]
    assert float(gains.sum()) == pytest.approx(0.7756, abs=6e-5)


def naive_dpp(matrix, keep):
    """The subset grows by whoever raises the determinant most."""
    matrix, order = matrix.double(), []
    for _ in range(keep):
        det = {
            i: float(torch.linalg.det(matrix[[*order, i]][:, [*order, i]]))
            for i in range(len(matrix))
            if i not in order
        }
        order.append(max(det, key=lambda i: (det[i], -i)))
    return order


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 14), st.integers(0, 10**6))
def test_dpp_equals_the_growth_of_the_determinant(n, seed):
    matrix = kernel(random(n, 20, seed=seed).double(), random(n, seed=seed + 1).abs().double() + 0.1)
    keep = min(n, 6)
    order, gains = greedy_dpp(matrix, keep)
    assert order.tolist() == naive_dpp(matrix, keep)
    chosen = matrix[order][:, order]
    torch.testing.assert_close(gains.prod(), torch.linalg.det(chosen), rtol=1e-8, atol=0)


def test_dpp_gains_multiply_to_the_determinant_in_float32():
    matrix = kernel(random(60, 40, seed=5), random(60, seed=6).abs() + 0.2)
    order, gains = greedy_dpp(matrix, 12)
    det = torch.linalg.det(matrix[order][:, order].double())
    assert float(gains.double().prod()) == pytest.approx(float(det), rel=1e-4)


def test_cdpruner_by_hand():
    relevance = torch.tensor([1.0, 0.5, 1e-6, 0.75])
    matrix = kernel(SQUARE, relevance)
    order, gains = greedy_dpp(matrix, 2)
    assert order.tolist() == [0, 3]
    torch.testing.assert_close(gains, torch.tensor([1.0, 0.36]))
    after_first = matrix.diagonal() - matrix[0].square()
    torch.testing.assert_close(after_first[1:], torch.tensor([0.09, 0.0, 0.36]))


def test_dpp_takes_equals_in_input_order_and_duplicates_last():
    assert greedy_dpp(torch.eye(5), 3)[0].tolist() == [0, 1, 2]
    x = random(4, 8)[[0, 1, 0, 2, 1, 3]]
    order = greedy_dpp(kernel(x, torch.ones(6)), 6)[0].tolist()
    assert set(order[4:]) == {2, 4}
    beyond = greedy_dpp(kernel(random(6, 2), torch.ones(6)), 6)[0].tolist()
    assert beyond[2:] == sorted(beyond[2:])


def naive_residual(x, keep, weight):
    """Modified Gram-Schmidt on the rows as they are."""
    rows, order = x.double().clone(), []
    for _ in range(keep):
        score = rows.square().sum(1) * weight.double()
        score[order] = -1
        order.append(int((score >= score.max() * (1 - 1e-9)).nonzero()[0]))
        direction = normalize(rows[order[-1]], dim=0)
        rows -= (rows @ direction)[:, None] * direction
    return order


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 40), st.integers(0, 10**6), st.booleans())
def test_residual_energy_equals_gram_schmidt(n, seed, weighted):
    x = random(n, 48, seed=seed) * (0.5 + random(n, 1, seed=seed + 1).abs())
    weight = random(n, seed=seed + 2).abs() + 0.1 if weighted else None
    keep = max(1, n // 2)
    expected = naive_residual(x, keep, torch.ones(n) if weight is None else weight)
    assert residual_energy(x, keep, weight).order.tolist() == expected


def test_resprune_by_hand():
    x = torch.tensor([[2.0, 0.0], [1.8, 0.6], [0.0, 1.0], [1.0, 1.0]])
    plain = residual_energy(x, 2)
    assert plain.order.tolist() == [0, 2]
    weighted = residual_energy(x, 2, torch.tensor([0.5, 0.9, 0.8, 0.2]))
    assert weighted.order.tolist() == [1, 2]
    scale = 4.0  # energies are in units of the longest row
    torch.testing.assert_close(plain.scores * scale, torch.tensor([4.0, 1.0]))
    torch.testing.assert_close(weighted.scores * scale, torch.tensor([3.24, 0.72]))


def test_chosen_energies_multiply_to_the_determinant_and_end_at_nothing():
    x = random(20, 6, seed=4)
    picks = residual_energy(x, 6)
    longest = float(x.norm(dim=1).max()) ** 2
    product = float((picks.scores.double() * longest).prod())
    chosen = x[picks.order].double()
    assert product == pytest.approx(float(torch.linalg.det(chosen @ chosen.T)), rel=1e-4)
    assert float(picks.left[-1] / picks.left[0]) < 1e-5


@pytest.mark.parametrize(("n", "d", "keep"), [(40, 64, 12), (120, 96, 30)])
def test_one_family_of_residual_energies(n, d, keep):
    """CDPruner = ResPrune on unit rows with relevance squared = two-sided DIVE with a frozen prompt weight."""
    x, q = random(n, d, seed=7), random(3, d, seed=8)
    relevance = random(n, seed=9).abs() + 0.05
    dpp = greedy_dpp(kernel(x, relevance), keep)[0].tolist()
    assert residual_energy(normalize(x, dim=1), keep, relevance**2).order.tolist() == dpp
    frozen = select(x, q, keep, eta=1.0, two_sided=True, weight=relevance**2)
    assert frozen.order.tolist() == dpp


@pytest.mark.parametrize("theta", [0.2, 0.5, 0.6])
def test_theta_of_cdpruner_is_lambda_of_dive(theta):
    x, phi = random(50, 64, seed=1), torch.rand(50, generator=torch.Generator().manual_seed(2))
    weight = torch.exp(theta / (2 * (1 - theta)) * phi)
    lam = theta / (1 - theta)
    assert theta != 0.6 or lam == pytest.approx(1.5)
    frozen = select(x, x[:0], 15, eta=1.0, two_sided=True, weight=torch.exp(lam * phi))
    assert greedy_dpp(kernel(x, weight), 15)[0].tolist() == frozen.order.tolist()


def test_coverage_by_greedy_is_near_the_best_of_all_subsets():
    x = normalize(random(9, 4, seed=3), dim=1)
    cover = (x @ x.T).clamp_min(0)
    order, _ = greedy_coverage(cover, 3)
    best = max(float(cover[:, list(some)].amax(dim=1).sum()) for some in itertools.combinations(range(9), 3))
    assert float(cover[:, order].amax(dim=1).sum()) >= (1 - 1 / 2.718281828) * best


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_coverage_of_what_is_no_number_is_refused_and_does_not_hang(value):
    cover = torch.rand(3, 5)
    cover[1, 2] = value
    with pytest.raises(ValueError, match="^cover must be finite, got 'inf or nan'$"):
        greedy_coverage(cover, 2)
