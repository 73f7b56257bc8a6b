"""Top-k, lattices and farthest points."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from divevlm.core.bins import bin_centres, grid_bins, sequence_bins
from divevlm.core.farthest import farthest_points
from divevlm.core.top import best, top_k


def test_ties_go_to_the_lower_index():
    scores = torch.tensor([1.0, 3.0, 3.0, 0.0, 3.0])
    assert top_k(scores, 3).tolist() == [1, 2, 4]
    assert best(scores) == 1
    assert best(torch.tensor([1.0, 1.0 + 1e-7, 0.5]), slack=1e-6) == 0
    assert top_k(scores, 2, mask=scores < 3).tolist() == [0, 3]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.data())
def test_top_k_is_a_stable_sort(values, data):
    k = data.draw(st.integers(0, len(values)))
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]
    assert top_k(torch.tensor(values, dtype=torch.float), k).tolist() == expected


@given(st.integers(1, 30), st.integers(1, 30), st.data())
def test_bins_are_exactly_k_full_rectangles(rows, columns, data):
    keep = data.draw(st.integers(1, rows * columns))
    grid = grid_bins(rows, columns, keep).view(rows, columns)
    assert grid.unique().tolist() == list(range(keep))
    for number in data.draw(st.lists(st.integers(0, keep - 1), max_size=5)):
        y, x = (grid == number).nonzero().T
        assert len(y) == (y.max() - y.min() + 1) * (x.max() - x.min() + 1)


@pytest.mark.parametrize(("keep", "side"), [(64, 8), (144, 12), (576, 24), (1, 1)])
def test_bins_of_a_square_are_squares_where_that_is_possible(keep, side):
    y, x = torch.arange(24) * side // 24, torch.arange(24) * side // 24
    assert torch.equal(grid_bins(24, 24, keep), (y[:, None] * side + x).flatten())


def test_the_centre_is_the_cell_nearest_to_the_middle():
    y, x = torch.cartesian_prod(torch.arange(6), torch.arange(6)).T
    assert bin_centres(grid_bins(6, 6, 4), y, x).tolist() == [7, 10, 25, 28]
    assert sequence_bins(7, 3).tolist() == [0, 0, 0, 1, 1, 2, 2]


def naive_farthest(x, keep):
    x = torch.nn.functional.normalize(x.double(), dim=1)
    mean = torch.nn.functional.normalize(x.mean(0), dim=0)
    order = [int((x @ mean).argmin())]
    while len(order) < keep:
        nearest = [-2.0 if i in order else 1 - max(float(x[i] @ x[j]) for j in order) for i in range(len(x))]
        order.append(max(range(len(x)), key=lambda i: (nearest[i], -i)))
    return order


def test_farthest_points_equal_the_naive_ones():
    x = torch.randn(40, 8, generator=torch.Generator().manual_seed(3))
    order, scores = farthest_points(x, 12)
    assert order.tolist() == naive_farthest(x, 12)
    assert (scores[2:] <= scores[1:-1] + 1e-6).all()


def test_farthest_points_of_identical_rows_come_in_input_order():
    assert farthest_points(torch.ones(5, 3), 4)[0].tolist() == [0, 1, 2, 3]
