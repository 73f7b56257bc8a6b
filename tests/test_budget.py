import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divevlm import Budget
from divevlm.budget import Segment, divide

NEXT = [Segment(576, view=v) for v in range(5)]
VIDEO = [Segment(196, frame=f) for f in range(8)]


@pytest.mark.parametrize(
    ("budget", "n", "tokens"),
    [
        (Budget(64), 576, 64),
        (Budget(64), 30, 30),
        (Budget(1), 576, 1),
        (Budget(1.0), 576, 576),
        (Budget(1 / 3), 576, 192),
        (Budget(0.333), 576, 192),
        (Budget(0.222), 576, 128),
        (Budget(0.15), 20, 3),
        (Budget(0.15), 1568, 235),
        (Budget(0.5), 5, 3),  # halves up
        (Budget(0.001), 10, 1),  # never nothing
        (Budget(energy=0.9), 576, 576),
        (Budget(energy=0.9, max=128), 576, 128),
    ],
)
def test_tokens(budget, n, tokens):
    assert budget.tokens(n) == tokens


def keeps(budget, segments):
    return [share.keep for share in budget.shares(segments)]


def test_scopes():
    two = [Segment(100, image=0), Segment(300, image=1)]
    assert keeps(Budget(64), two) == [64, 64]
    assert keeps(Budget(64, scope="sample"), two) == [64]
    assert keeps(Budget(0.1), two) == [10, 30]
    assert keeps(Budget(0.1, scope="sample"), two) == [40]
    assert keeps(Budget(320), NEXT) == [320]
    assert keeps(Budget(64, scope="view"), NEXT) == [64] * 5
    assert keeps(Budget(10, scope="frame"), VIDEO) == [10] * 8


def test_shares_of_views_and_frames_add_up_to_the_share_of_the_image():
    assert keeps(Budget(0.222, scope="view"), NEXT) == [128, 128, 128, 128, 127]
    assert sum(keeps(Budget(0.222, scope="view"), NEXT)) == round(0.222 * 2880)
    assert sum(keeps(Budget(0.15, scope="frame"), VIDEO)) == Budget(0.15).tokens(8 * 196)


def test_shares_name_the_segments_that_compete():
    segments = [Segment(4, image=0, view=0), Segment(6, image=1, view=0), Segment(5, image=0, view=1)]
    assert [share.segments for share in Budget(3).shares(segments)] == [(0, 2), (1,)]
    assert [share.segments for share in Budget(3, scope="sample").shares(segments)] == [(0, 1, 2)]
    assert [share.segments for share in Budget(3, scope="view").shares(segments)] == [(0,), (1,), (2,)]


def test_divide_by_largest_remainder():
    assert divide(10, [40, 20, 0, 20]) == [5, 3, 0, 2]
    assert divide(0, [4, 2]) == [0, 0]
    assert divide(99, [4, 2]) == [4, 2]
    assert divide(3, []) == []


@given(st.integers(0, 5000), st.lists(st.integers(0, 900), max_size=9))
def test_divide_is_exact_fair_and_within_bounds(total, sizes):
    parts = divide(total, sizes)
    whole = sum(sizes)
    assert sum(parts) == min(total, whole)
    for part, size in zip(parts, sizes, strict=True):
        assert 0 <= part <= size
        assert abs(part - min(total, whole) * size / max(whole, 1)) < 1


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (Budget(64), "64 visual tokens of each image"),
        (Budget(1, scope="frame"), "1 visual token of each frame"),
        (Budget(0.15, scope="sample"), "15 % of the visual tokens of each sample"),
        (Budget(2 / 9), "22.22 % of the visual tokens of each image"),
        (Budget(energy=0.9), "the visual tokens that explain 90 % of the energy of each image"),
        (
            Budget(energy=0.9, max=64, scope="view"),
            "the visual tokens that explain 90 % of the energy of each view, at most 64",
        ),
    ],
)
def test_prints_itself_in_words(budget, words):
    assert str(budget) == words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep": 0}, "keep must be a count of at least 1 or a share in (0, 1], got 0"),
        ({"keep": 1.01}, "keep must be a count of at least 1 or a share in (0, 1], got 1.01"),
        ({"keep": math.nan}, "keep must be a count of at least 1 or a share in (0, 1], got nan"),
        ({"keep": False}, "keep must be a count of at least 1 or a share in (0, 1], got False"),
        ({"energy": 1.2}, "energy must be a share in (0, 1], got 1.2"),
        ({"energy": 0}, "energy must be a share in (0, 1], got 0"),
        ({"energy": 0.5, "max": 0}, "max must be a count of at least 1, got 0"),
        ({"energy": 0.5, "max": 2.5}, "max must be a count of at least 1, got 2.5"),
        ({"keep": 5, "max": 3}, "max goes with energy only, got max=3 with keep=5"),
        ({"keep": 5, "energy": 0.5}, "a Budget needs either keep or energy, got keep=5 and energy=0.5"),
        ({}, "a Budget needs either keep or energy, got keep=None and energy=None"),
        ({"keep": 5, "scope": "batch"}, "scope must be one of image, sample, view, frame, got 'batch'"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole message is compared
        Budget(**arguments)
    assert str(error.value) == message


def test_equal_budgets_are_equal():
    assert Budget.of(64) == Budget(64) == Budget.of(Budget(64))
    assert Budget(64) != Budget(64, scope="view")
    assert len({Budget(0.5), Budget(0.5)}) == 1
