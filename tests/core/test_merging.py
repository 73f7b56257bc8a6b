"""Clustering, merging and matching: worked numbers, conservation, and naive versions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from divevlm.core.bipartite import best_matches, match, merged, schedule
from divevlm.core.cluster import (
    contextual_rows,
    density_peaks,
    distances,
    means,
    measured_sizes,
    merged_sizes,
    nearest_target,
    row_sizes,
    target_places,
)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def naive_peaks(x, clusters):
    x = x.double()
    n, d = x.shape
    far = [[float((x[i] - x[j]).norm()) / d**0.5 for j in range(n)] for i in range(n)]
    density = [2.718281828459045 ** -(sum(v * v for v in sorted(row)[:clusters]) / clusters) for row in far]
    denser = lambda j, i: (density[j], -j) > (density[i], -i)  # noqa: E731
    top = max(max(row) for row in far)
    apart = [min((far[i][j] for j in range(n) if denser(j, i)), default=top) for i in range(n)]
    centres = sorted(range(n), key=lambda i: (-density[i] * apart[i], i))[:clusters]
    label = [min(range(clusters), key=lambda c: far[i][centres[c]]) for i in range(n)]
    for number, centre in enumerate(centres):
        label[centre] = number
    return centres, label, density, apart


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 25), st.integers(0, 10**6), st.data())
def test_density_peaks_equal_the_naive_ones(n, seed, data):
    clusters = data.draw(st.integers(1, n))
    x = random(n, 5, seed=seed).double()
    centres, label = density_peaks(x, clusters)
    expected = naive_peaks(x, clusters)
    assert centres.tolist() == expected[0]
    assert label.tolist() == expected[1]


def test_two_rows_that_are_nearest_to_each_other_are_equally_dense():
    x = random(17, 5, seed=4437).double()  # a product of matrices may differ in the last bit across the diagonal
    assert torch.equal(distances(x), distances(x).T)
    assert density_peaks(x, 2)[0].tolist() == naive_peaks(x, 2)[0] == [0, 5]


def test_recycling_by_hand():
    x = torch.tensor([0, 0.1, 0.3, 5, 5.4, 5.5, 9])[:, None]
    _, _, density, apart = naive_peaks(x, 3)
    assert density == pytest.approx([0.9672, 0.9835, 0.9576, 0.8723, 0.9449, 0.9170, 0.0002], abs=6e-5)
    assert apart == pytest.approx([0.1, 9, 0.2, 0.4, 5.1, 0.1, 3.5], abs=1e-5)
    centres, label = density_peaks(x, 3)
    assert centres.tolist() == [1, 4, 3]
    assert label.tolist() == [0, 0, 0, 2, 1, 1, 1]
    torch.testing.assert_close(means(x, label, 3)[:, 0], torch.tensor([0.1333, 6.6333, 5.0]), atol=1e-4, rtol=0)


def test_equal_points_are_clustered_without_chance():
    centres, label = density_peaks(torch.ones(6, 3), 2)
    assert centres.tolist() == [0, 1]
    assert label.tolist() == [0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("rest", "contextual", "last"), [(415, 30, 377), (469, 20, 437), (523, 10, 468), (550, 5, 440)]
)
def test_targets_of_visionzip_are_evenly_spaced(rest, contextual, last):
    targets = target_places(rest, contextual)
    assert len(targets) == contextual
    assert int(targets[-1]) == last
    assert targets.diff().unique().tolist() == [rest // contextual]


def test_more_targets_than_tokens_are_all_of_them():
    assert target_places(3, 5).tolist() == [0, 1, 2]
    assert target_places(4, 0).tolist() == []


def test_contextual_rows_by_hand():
    keys = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    x = torch.tensor([[1.0], [2.0], [3.0], [5.0]])
    targets = target_places(4, 2)
    assert targets.tolist() == [0, 2]
    joined = nearest_target(keys, targets)
    assert joined.tolist() == [0, 0, 1, 1]
    assert contextual_rows(x, targets, joined)[:, 0].tolist() == [3.0, 8.0]
    assert contextual_rows(x, targets, joined, "mean")[:, 0].tolist() == [1.5, 4.0]


def test_a_target_that_nobody_joins_stays_as_it_is():
    keys = normalize(torch.eye(3), dim=1)
    targets = target_places(3, 3)
    joined = nearest_target(keys, targets)
    x = random(3, 4)
    torch.testing.assert_close(contextual_rows(x, targets, joined), x)
    torch.testing.assert_close(contextual_rows(x, targets, joined, "mean"), x)


KEYS = torch.tensor([[1, 0], [1, 0.1], [0, 1], [0.2, 1], [1, 1], [-1, 0]])


def test_bipartite_matching_by_hand():
    score, partner = best_matches(KEYS)
    torch.testing.assert_close(score, torch.tensor([0.9950, 0.9806, 0.8321]), atol=6e-5, rtol=0)
    assert partner.tolist() == [0, 1, 1]
    x = torch.arange(6.0)[:, None]
    for r, values, sizes in [(1, [2, 4, 0.5, 3, 5], [1, 1, 2, 1, 1]), (2, [4, 0.5, 2.5, 5], [1, 2, 2, 1])]:
        rows, size = merged(x, torch.ones(6), match(KEYS, r))
        assert rows[:, 0].tolist() == values
        assert size.tolist() == sizes


def naive_merge(x, metric, sizes, r, protected):
    metric = normalize(metric.double(), dim=1)
    n = len(x)
    pairs = []
    for a in range(0, n, 2):
        odd = [b for b in range(1, n, 2) if b >= protected]
        if a >= protected and odd:
            best = max(odd, key=lambda b: (round(float(metric[a] @ metric[b]), 12), -b))
            pairs.append((-round(float(metric[a] @ metric[best]), 12), a, best))
    groups = {i: [i] for i in range(n)}
    for _, a, b in sorted(pairs)[: min(r, (n - protected) // 2)]:
        groups[b] += groups.pop(a)
    order = [i for i in range(0, n, 2) if i in groups] + list(range(1, n, 2))
    weight = sizes.double()
    rows = [sum(weight[j] * x[j].double() for j in groups[i]) / sum(weight[j] for j in groups[i]) for i in order]
    return torch.stack(rows), order


def merge(x, keys, sizes, r, protected=0):
    matching = match(keys, r, protected)
    return *merged(x, sizes, matching), matching.stay


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 21), st.integers(0, 12), st.integers(0, 1), st.integers(0, 10**6))
def test_merging_equals_the_naive_one_and_conserves_sums(n, r, protected, seed):
    x, keys = random(n, 3, seed=seed), random(n, 4, seed=seed + 1)
    sizes = torch.randint(1, 5, (n,), generator=torch.Generator().manual_seed(seed)).float()
    rows, size, place = merge(x, keys, sizes, r, protected)
    expected, order = naive_merge(x, keys, sizes, r, protected)
    assert place.tolist() == order
    torch.testing.assert_close(rows.double(), expected, atol=1e-5, rtol=1e-5)
    assert len(rows) == n - min(r, (n - protected) // 2)
    assert float(size.sum()) == float(sizes.sum())
    torch.testing.assert_close((rows * size[:, None]).sum(0), (x * sizes[:, None]).sum(0), atol=1e-4, rtol=1e-4)
    if protected:
        assert place[0] == 0
        torch.testing.assert_close(rows[0], x[0])


def test_merging_nothing_only_reorders():
    x = random(7, 3)
    rows, size, place = merge(x, x, torch.ones(7), 0)
    torch.testing.assert_close(rows, x[place])
    assert size.tolist() == [1] * 7


@pytest.mark.parametrize("proportional", [True, False])
def test_merging_twins_changes_no_attention_if_it_is_proportional(proportional):
    keys, values = random(6, 4, seed=2), random(6, 3, seed=3)
    keys[1], values[1] = keys[0], values[0]  # the best match of token 0 is its twin
    query = random(1, 4, seed=4)
    before = torch.softmax(query @ keys.T, dim=1) @ values
    merged_keys, size, _ = merge(keys, keys, torch.ones(6), 1)
    merged_values, _, _ = merge(values, keys, torch.ones(6), 1)
    logits = query @ merged_keys.T + (size.log() if proportional else 0)
    after = torch.softmax(logits, dim=1) @ merged_values
    assert torch.allclose(before, after, atol=1e-6) is proportional


@pytest.mark.parametrize(
    ("keep", "first", "then"), [(192, (17, 16), (16, 7)), (128, (20, 11), (19, 12)), (64, (23, 6), (22, 17))]
)
def test_schedules_that_reach_a_budget_in_23_blocks(keep, first, then):
    assert schedule(576, keep, 23) == [first[0]] * first[1] + [then[0]] * then[1]
    assert 576 - sum(schedule(576, keep, 23)) == keep


def test_groups_are_the_most_similar_kept_tokens():
    gen = torch.Generator().manual_seed(0)
    states = torch.randn(30, 8, generator=gen)
    kept, before = torch.tensor([3, 7, 20]), torch.randint(1, 5, (30,), generator=gen).float()
    sizes = merged_sizes(states, kept, before)
    unit = states / states.norm(dim=1, keepdim=True)
    naive = [float(before[k]) for k in kept]
    for i in set(range(30)) - set(kept.tolist()):
        cosines = [float(unit[i] @ unit[k]) for k in kept]
        naive[cosines.index(max(cosines))] += float(before[i])
    assert sizes.tolist() == naive
    assert float(sizes.sum()) == float(before.sum())


def test_who_is_in_no_merged_row_joins_the_most_similar_one():
    states = torch.tensor([[1.0, 0], [0, 1], [1, 0.1], [0.2, 1], [-1, 0.1], [1, 1]])
    rows = torch.tensor([[1.0, 0.2], [0, 2], [-3, 0]])  # of tokens 0 and 5, of token 1, of none
    sizes = row_sizes(states, rows, [[0, 5], [1], []], torch.tensor([1.0, 2, 4, 8, 16, 32]))
    assert sizes.tolist() == [1 + 32 + 4, 2 + 8, 1 + 16]


def test_no_token_stands_for_more_than_there_are():
    states = torch.randn(30, 8, generator=torch.Generator().manual_seed(0))
    shares = torch.full((30,), 1 / 30)
    kept = torch.tensor([3, 7, 20])
    shares[3], shares[7] = 0.0, 1e-42
    sizes = measured_sizes(states, kept, torch.ones(30), shares)
    assert sizes[:2].tolist() == [30, 30]
    assert 1 <= float(sizes[2]) < 30
    assert measured_sizes(states, kept, torch.ones(30), torch.zeros(30)).tolist() == [1, 1, 1]
