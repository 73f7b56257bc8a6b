"""Groups, crops, regions: who gets how many places."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from divevlm.core.crops import crop_places, crop_scores, crop_sizes, variance
from divevlm.core.principal import group_places, principal_groups, suppressed
from divevlm.core.regions import apportion, marked_in_bands, region_sums


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


TOKENS = torch.tensor([[4, 4, -4, -4, 0, 0], [4, 4, -4, -4, 0, 0.5], [-3, 3, 3, -3, 1, 0], [-3, 3, 3, -3, 0, 1]])


def test_principal_groups_by_hand():
    group, loading = principal_groups(TOKENS, 2)
    assert group.tolist() == [0, 0, 1, 1]
    expected = torch.tensor([[0.7036, 0.0388], [0.7088, 0.0311], [0.0294, 0.7065], [0.0405, 0.7060]])
    torch.testing.assert_close(loading, expected, atol=6e-5, rtol=0)
    rows = torch.sigmoid(TOKENS)
    singular = torch.linalg.svdvals(rows - rows.mean(dim=1, keepdim=True))
    torch.testing.assert_close(singular[:2], torch.tensor([1.3659, 1.2937]), atol=6e-5, rtol=0)


def test_principal_groups_are_those_of_the_singular_vectors():
    x = random(30, 50, seed=1)
    rows = torch.sigmoid(x.double())
    left = torch.linalg.svd(rows - rows.mean(dim=1, keepdim=True)).U[:, :6]
    group, loading = principal_groups(x, 6)
    torch.testing.assert_close(loading.double(), left.abs(), atol=1e-4, rtol=0)
    assert group.tolist() == left.abs().argmax(dim=1).tolist()  # signs of components do not matter


def naive_suppressed(cosine, group, importance, threshold):
    order = sorted(range(len(group)), key=lambda i: (-importance[i], i))
    survivors, gone = [], [False] * len(group)
    for i in order:
        gone[i] = any(group[j] == group[i] and cosine[i][j] > threshold for j in survivors)
        if not gone[i]:
            survivors.append(i)
    return gone


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 5), st.floats(-0.5, 1), st.integers(0, 10**6))
def test_suppression_equals_the_naive_one(n, groups, threshold, seed):
    x = normalize(random(n, 3, seed=seed), dim=1)
    cosine, importance = x @ x.T, random(n, seed=seed + 1).round(decimals=1)
    group = torch.randint(groups, (n,), generator=torch.Generator().manual_seed(seed))
    expected = naive_suppressed(cosine.tolist(), group.tolist(), importance.tolist(), threshold)
    assert suppressed(cosine, group, importance, threshold).tolist() == expected


def test_places_of_prunesid_by_hand():
    assert group_places([6, 3, 2, 1], [10, 6, 5, 3], keep=12, reserved=1) == [5, 2, 2, 2]  # and CLS


@given(st.data())
def test_places_of_groups_are_exactly_the_budget(data):
    sizes = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=10))
    total = sum(sizes)
    if total < 2:
        return
    survivors = [data.draw(st.integers(min(1, n), n)) for n in sizes]
    reserved = data.draw(st.integers(0, 1))
    keep = data.draw(st.integers(1, total))
    places = group_places(survivors, sizes, keep, reserved)
    assert sum(places) == min(keep - reserved, total)
    assert all(0 <= place <= n for place, n in zip(places, sizes, strict=True))


def naive_variance(x):
    x = normalize(x, dim=1)
    n = len(x)
    spreads = []
    for i in range(n):
        row = [0.0 if i == j else float(x[i] @ x[j]) for j in range(n)]
        mean = sum(row) / (n - 1)
        spreads.append(sum((value - mean) ** 2 for value in row) / (n - 1))
    return spreads


F = torch.tensor([[1, 0], [1, 0], [0, 1], [0, 1], [1, 0], [0.8, 0.6]])
A = torch.tensor([0.1, 0.2, 0.05, 0.05, 0.3, 0.3])


def test_holov_by_hand():
    assert variance(F[:3]).tolist() == pytest.approx([0.375, 0.375, 0], abs=1e-6)
    assert variance(F[3:]).tolist() == pytest.approx([0.135, 0.24, 0.255], abs=1e-6)
    assert naive_variance(F[3:]) == pytest.approx([0.135, 0.24, 0.255], abs=1e-6)
    sizes = crop_sizes(6, 2)
    scores, tokens = crop_scores(F, A, sizes)
    assert tokens.tolist() == pytest.approx([115.75, 215.75, 50.0, 62.54, 322.29, 323.68], abs=6e-3)
    assert scores.tolist() == pytest.approx([127.17, 236.17], abs=6e-3)
    assert (scores / scores.sum()).tolist() == pytest.approx([0.35, 0.65], abs=1e-3)
    assert crop_places(scores, sizes, 4) == [1, 3]


def test_variety_cancels_within_crops_but_not_over_all():
    x, a = random(60, 5, seed=2), random(60, seed=3).abs()
    sizes = crop_sizes(60, 7)
    means = torch.stack([part.mean() for part in a.split(sizes)])
    torch.testing.assert_close(crop_scores(x, a, sizes)[0], 1.09 * 1000 * means, rtol=1e-3, atol=0)
    assert not torch.allclose(crop_scores(x, a, sizes, "all")[0], 1.09 * 1000 * means, rtol=1e-3, atol=0)


def test_crops_are_runs_of_nearly_equal_length():
    assert crop_sizes(10, 4) == [3, 3, 2, 2]
    assert crop_sizes(576, 16) == [36] * 16


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=12), st.integers(1, 30), st.data())
def test_what_a_crop_cannot_hold_goes_to_others(scores, size, data):
    sizes = [size] * len(scores)
    keep = data.draw(st.integers(1, sum(sizes)))
    places = crop_places(torch.tensor(scores), sizes, keep)
    assert sum(places) == keep
    assert max(places) <= size
    lost = crop_places(torch.tensor(scores), sizes, keep, overflow=False)
    assert all(a <= b for a, b in zip(lost, places, strict=True))


MARKED = (0, 1, 2, 3, 4, 5, 10, 11)


def test_hired_by_hand():
    heat = torch.zeros(16)
    heat[list(MARKED)] = 1
    sums = region_sums(heat.view(4, 4), [0, 0.5, 1], [0, 0.5, 1])
    assert sums.flatten().tolist() == [4, 2, 0, 2]
    assert [int(10 * share / 8) for share in (4, 2, 0, 2)] == [5, 2, 0, 2]
    assert apportion(10, sums.flatten().tolist(), [16] * 4) == [5, 3, 0, 2]
    bands = marked_in_bands(heat, 8, 4)
    assert bands == [4, 2, 2, 0]
    assert [int(10 * share / 8) for share in bands] == [5, 2, 2, 0]


def test_regions_divide_cells_by_area():
    heat = random(5, 7, seed=6).abs()
    sums = region_sums(heat, [0, 1 / 3, 2 / 3, 1], [0, 0.5, 1])
    assert float(sums.sum()) == pytest.approx(float(heat.sum()), rel=1e-6)
    top = heat[0] + heat[1] * (5 / 3 - 1)
    assert float(sums[0, 0]) == pytest.approx(float(top[:3].sum() + top[3] / 2), rel=1e-5)


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 9)), min_size=1, max_size=9), st.integers(0, 60))
def test_apportion_is_exact_and_within_limits(parties, total):
    weights, limits = [w for w, _ in parties], [limit for _, limit in parties]
    places = apportion(total, weights, limits)
    assert sum(places) == min(total, sum(limits))
    assert all(0 <= place <= limit for place, limit in zip(places, limits, strict=True))
