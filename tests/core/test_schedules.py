"""Budgets over blocks: every number that the spec gives for matched comparisons."""

import pytest
import torch

from divevlm.core.schedules import (
    geometric_mean_share,
    geometric_stages,
    keep_for_mean,
    ratio_for_mean,
    scaled_blocks,
    tokens_per_block,
)
from divevlm.core.sparsevlm import (
    SPARSE,
    SPARSE_PLUS,
    gravity,
    raters,
    recycled,
    sparse_stages,
    split_total,
    with_recycled,
)


def mean(values):
    return sum(values) / len(values)


@pytest.mark.parametrize(
    ("blocks", "cut", "expected"),
    [(32, 2, (166, 98, 30)), (32, 3, (152, 82, 11)), (40, 2, (172, 104, 37))],
)
def test_fastv_keeps_so_many_for_a_mean_of_192_128_64(blocks, cut, expected):
    assert tuple(keep_for_mean(target, 576, blocks, cut) for target in (192, 128, 64)) == expected
    for target, keep in zip((192, 128, 64), expected, strict=True):
        assert mean(tokens_per_block(576, blocks, (cut,), (keep,))) == pytest.approx(target, abs=0.5)


@pytest.mark.parametrize(("share", "expected"), [(1 / 3, 0.2821), (0.25, 0.1923), (0.2222, 0.1624), (0.15, 0.0846)])
def test_fastv_shares_with_28_blocks(share, expected):
    assert keep_for_mean(share * 1e6, 10**6, 28, 2) / 1e6 == pytest.approx(expected, abs=6e-5)


def test_final_budgets_of_a_cut_at_block_2_have_these_means():
    assert [mean(tokens_per_block(576, 32, (2,), (keep,))) for keep in (192, 128, 64)] == [216, 156, 96]


def test_a_mean_below_what_the_first_blocks_see_is_refused():
    with pytest.raises(ValueError, match=r"keep must be between 36.94 and 576 as a mean with a cut at block 2, got 20"):
        keep_for_mean(20, 576, 32, 2)
    with pytest.raises(ValueError, match=r"keep must be a share above 0.25"):
        ratio_for_mean(128 / 576, (8, 16, 24), 32)


def test_default_ladder_of_pyramiddrop():
    stays = geometric_stages(576, 0.5, 3)
    assert stays == [288, 144, 72]
    assert mean(tokens_per_block(576, 32, (8, 16, 24), stays)) == 270
    assert mean(tokens_per_block(576, 40, (8, 16, 24), stays)) == pytest.approx(230.4)
    assert geometric_stages(576, 1.0, 3) == [576] * 3


@pytest.mark.parametrize(
    ("cuts", "blocks", "share", "ratio"),
    [
        ((8, 16, 24), 32, 192 / 576, 0.2531),
        ((2, 8, 16), 32, 192 / 576, 0.5596),
        ((2, 8, 16), 32, 128 / 576, 0.4197),
        ((2, 8, 16), 32, 64 / 576, 0.1916),
        ((2, 4, 6, 8), 32, 192 / 576, 0.6960),
        ((2, 4, 6, 8), 32, 128 / 576, 0.5868),
        ((2, 4, 6, 8), 32, 64 / 576, 0.3690),
        ((2, 8, 16), 28, 1 / 3, 0.5348),
        ((2, 8, 16), 28, 0.25, 0.4293),
        ((2, 8, 16), 28, 0.2222, 0.3873),
        ((2, 8, 16), 28, 0.15, 0.2510),
        ((2, 8, 16), 40, 192 / 576, 0.5920),
        ((2, 8, 16), 40, 128 / 576, 0.4634),
        ((2, 8, 16), 40, 64 / 576, 0.2547),
    ],
)
def test_ratios_of_pyramiddrop(cuts, blocks, share, ratio):
    result = ratio_for_mean(share, cuts, blocks)
    assert result == pytest.approx(ratio, abs=1e-4)
    assert geometric_mean_share(result, cuts, blocks) == pytest.approx(share)


@pytest.mark.parametrize(
    ("target", "stays", "average"),
    [(192, [322, 180, 100], 191.4), (128, [241, 101, 42], 127.4), (64, [110, 21, 4], 63.9)],
)
def test_ladders_of_pyramiddrop(target, stays, average):
    assert geometric_stages(576, ratio_for_mean(target / 576, (2, 8, 16), 32), 3) == stays
    assert mean(tokens_per_block(576, 32, (2, 8, 16), stays)) == pytest.approx(average, abs=0.06)


SPARSE_TABLE = [
    (192, (309, 204, 113), 192.0, 206.5, 206.8),
    (128, (312, 117, 39), 128.6, 145.4, 144.1),
    (96, (249, 55, 27), 96.9, 114.1, 113.9),
    (64, (82, 32, 18), 64.8, 82.3, 81.8),
]


@pytest.mark.parametrize(("nominal", "totals", "leaving", "entering", "plus"), SPARSE_TABLE)
def test_lists_of_sparsevlm(nominal, totals, leaving, entering, plus):
    assert with_recycled(SPARSE[nominal], 576) == totals
    assert sparse_stages(nominal, 576, mean=True) == totals
    blocks = (3, 7, 16)
    assert scaled_blocks((2, 6, 15), 32) == blocks
    into = tokens_per_block(576, 32, blocks, totals)
    assert mean(into) == pytest.approx(entering, abs=0.06)
    assert mean([*into[1:], totals[-1]]) == pytest.approx(leaving, abs=0.06)
    assert sparse_stages(nominal, 576, mean=True, plus=True) == SPARSE_PLUS[nominal]
    assert mean(tokens_per_block(576, 32, blocks, SPARSE_PLUS[nominal])) == pytest.approx(plus, abs=0.06)
    assert sparse_stages(totals[-1], 576, mean=False) == totals  # the same list, named by what is left in the end


@pytest.mark.parametrize(("nominal", "totals", "_a", "_b", "_c"), SPARSE_TABLE)
def test_totals_of_sparsevlm_split_into_its_lists(nominal, totals, _a, _b, _c):
    before = 576
    for total, kept in zip(totals, SPARSE[nominal], strict=True):
        assert split_total(total, before) == (kept, total - kept)
        before = total


@pytest.mark.parametrize(("pruned", "expected"), [(276, (83, 9)), (109, (33, 4)), (94, (29, 3))])
def test_recycled_counts(pruned, expected):
    assert recycled(pruned) == expected


def test_sparsevlm_scales_to_other_models():
    assert scaled_blocks((2, 6, 15), 40) == (4, 9, 20)  # behind blocks 3, 8 and 19
    assert scaled_blocks((2, 6, 15), 28) == (3, 6, 14)  # behind 2, 5 and 13
    assert scaled_blocks((2, 6, 15), 4) == (1, 2, 3)
    assert scaled_blocks((2, 6, 15), 2) == (1,)
    kept = [round(k * 5) for k in SPARSE[128]]
    assert sparse_stages(640, 2880, mean=True) == with_recycled(kept, 2880)


@pytest.mark.parametrize("mean_", [True, False])
@pytest.mark.parametrize("plus", [True, False])
def test_stages_of_any_budget_descend(mean_, plus):
    for tokens in (7, 64, 576, 2880):
        for keep in range(1, tokens + 1, max(1, tokens // 40)):
            stages = sparse_stages(keep, tokens, mean=mean_, plus=plus)
            assert all(a >= b >= 1 for a, b in zip((tokens, *stages), stages, strict=False))
            assert mean_ or stages[-1] == keep
    assert sparse_stages(576, 576, mean=mean_, plus=plus) == (576, 576, 576)


def test_every_total_can_be_split():
    for tokens in (2, 10, 100, 576):
        for total in range(1, tokens):
            kept, clusters = split_total(total, tokens)
            assert kept >= 1
            assert kept + clusters == total


def test_raters_by_hand():
    visual = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    text = torch.tensor([[2.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    share = torch.softmax(visual @ text.T, dim=1).mean(dim=0)
    assert share.tolist() == pytest.approx([0.6033, 0.3483, 0.0484], abs=6e-5)
    assert raters(visual, text).tolist() == [True, True, False]
    assert raters(visual, torch.ones(3, 2)).all()  # nobody is above the mean: everybody rates


def test_gravity_by_hand():
    theta = 1e4 ** -(torch.arange(2) / 2)

    def tables(positions):
        angle = torch.tensor(positions, dtype=torch.float)[:, None] * theta
        return torch.cat([angle, angle], 1).cos(), torch.cat([angle, angle], 1).sin()

    pull = gravity(tables([10]), tables([10, 9, 8, 0]))
    assert pull[0].tolist() == pytest.approx([2.0, 1.5403, 0.5837, 0.1559], abs=6e-5)
