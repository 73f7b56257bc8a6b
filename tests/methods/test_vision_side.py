"""Methods that choose by the vision tower, merge, or look at nothing: the worked numbers of the spec."""

from dataclasses import replace

import pytest
import torch

from divevlm.core.bins import grid_bins
from divevlm.core.principal import principal_groups
from divevlm.methods.farthest import Farthest
from divevlm.methods.grid import Grid
from divevlm.methods.hired import HiRED
from divevlm.methods.holov import HoloV
from divevlm.methods.pool import Pool
from divevlm.methods.prunesid import PruneSID
from divevlm.methods.random import Random
from divevlm.methods.scope import SCOPE
from divevlm.methods.tome import ToMe
from divevlm.methods.views import per_view, units
from divevlm.methods.visionzip import VisionZip, split
from tests.methods.signals import choose, frames, plain, tiled


def zip_signals(cls=True, pools=False):
    signals = plain(6, 1, d=1, cls=cls, pools=pools)
    hidden = torch.tensor([10.0, 1, 2, 20, 3, 5])[:, None]
    signals.hidden = signals.visual = hidden
    signals.vision.saliency = torch.tensor([0.30, 0.05, 0.10, 0.25, 0.02, 0.08])
    signals.vision.keys = torch.tensor([[9, 9], [1, 0], [1, 0.1], [9, 9], [0, 1], [0.1, 1]])
    signals.vision.features = hidden
    if not pools:
        signals.vision.project = lambda rows: rows
    if cls and not pools:
        signals.vision.cls = torch.tensor([[-7.0]])
    return signals


def test_visionzip_by_hand():
    selection = choose(VisionZip(keep=5, contextual=2), zip_signals(), 5)
    assert selection.rows.values[:, 0].tolist() == [-7, 10, 20, 3, 8]
    assert selection.rows.slots.tolist() == [2, 0, 3, 1, 4]  # CLS stands where the first dropped token was
    assert selection.rows.members == [[], [0], [3], [1, 2], [4, 5]]
    mean = choose(VisionZip(keep=5, contextual=2, merge="mean"), zip_signals(), 5)
    assert mean.rows.values[:, 0].tolist() == [-7, 10, 20, 1.5, 4]


def test_visionzip_merges_in_place_where_rows_are_pooled():
    selection = choose(VisionZip(keep=4, contextual=2), zip_signals(pools=True), 4)
    assert selection.rows.slots.tolist() == [0, 1, 3, 4]
    assert selection.rows.values[:, 0].tolist() == [10, 3, 20, 8]


def test_visionzip_without_cls_has_one_more_dominant_token():
    selection = choose(VisionZip(keep=5, contextual=2), zip_signals(cls=False), 5)
    assert selection.rows.slots[:3].tolist() == [0, 2, 3]


@pytest.mark.parametrize(("keep", "parts"), [(192, (162, 30)), (128, (108, 20)), (64, (54, 10)), (32, (27, 5))])
def test_visionzip_splits_its_places(keep, parts):
    assert split(keep) == parts


def test_visionzip_on_tiles_puts_cls_and_merged_rows_of_the_mosaic_behind_it():
    signals = tiled()
    selection = choose(VisionZip(keep=40, contextual=2), signals, 40)
    assert per_view(signals, 40)[0][1] == 8  # 40 / 5 each
    view = signals.views[selection.rows.slots]
    assert view.tolist() == [0] * 8 + [1] * 32
    empty = [i for i, members in enumerate(selection.rows.members) if not members]
    assert empty == [
        0,
        *range(8 + 20, 8 + 24),
    ]  # CLS: first of the base view, behind the 4 x 5 dominant ones of the tiles
    dominant = selection.rows.slots[8:28]
    assert (dominant.diff() > 0).all()
    together = choose(VisionZip(keep=40, contextual=10, apart=False), signals, 40)
    assert len(together) == 40


def test_places_of_views_leave_the_rest_to_the_base_view():
    signals = tiled()
    assert [place for _, place in per_view(signals, 64)] == [16, 12, 12, 12, 12]
    assert [place for _, place in per_view(signals, 33)] == [9, 6, 6, 6, 6]
    assert [place for _, place in per_view(signals, 3)] == [3]
    assert [place for _, place in per_view(frames(), 6)] == [2, 2, 1, 1]
    assert units(plain()).unique().tolist() == [0]


def test_scope_by_hand():
    signals = plain(2, 2)
    signals.vision.features = torch.tensor([[1, 0], [0.8, 0.6], [0, 1], [0.6, 0.8]])
    signals.vision.saliency = torch.tensor([0.4, 0.3, 0.1, 0.2])
    selection = choose(SCOPE(keep=2), signals, 2)
    assert selection.order.tolist() == [1, 0]
    assert selection.scores.tolist() == pytest.approx([1.008, 0.08])


def test_scope_with_alpha_0_is_plain_facility_location():
    signals = plain()
    even = plain()
    even.vision.saliency = torch.full((36,), 0.5)
    assert choose(SCOPE(keep=9, alpha=0.0), signals, 9).order.tolist() == choose(SCOPE(keep=9), even, 9).order.tolist()


def test_prunesid_keeps_cls_and_something_of_every_group():
    signals = plain(8, 8, seed=2)
    selection = choose(PruneSID(keep=16), signals, 16)
    assert selection.rows.members[0] == []
    torch.testing.assert_close(selection.rows.values[0], signals.vision.project(signals.vision.cls)[0])
    kept = torch.tensor(selection.rows.members[1:])[:, 0]
    assert (kept.diff() > 0).all()
    group, _ = principal_groups(signals.vision.features, 4)
    assert set(group[kept].tolist()) == set(group.tolist())
    original = choose(PruneSID(keep=16, faithful=True), signals, 16)
    assert original.rows.slots[0] == selection.rows.slots[0]
    assert sorted(original.rows.slots.tolist()) == sorted(selection.rows.slots.tolist())
    order = group[original.rows.slots[1:]]
    assert (order.diff() >= 0).all()  # group by group


def test_prunesid_puts_near_duplicates_behind_the_others():
    signals = plain(pools=True)
    signals.hidden = torch.randn(36, 16, generator=torch.Generator().manual_seed(3))
    signals.hidden[18:] = signals.hidden[:18]
    selection = choose(PruneSID(keep=10), signals, 10)
    assert len({i % 18 for i in selection.order.tolist()}) == 10


def test_hired_divides_by_what_the_base_view_saw_first():
    heat = torch.zeros(16)
    heat[[0, 1, 2, 3, 4, 5, 10, 11]] = 1
    signals = tiled()
    signals.vision.first_saliency[:16] = heat
    unit = units(signals)
    assert HiRED(keep=20).places(signals, unit, 20) == [10, 5, 3, 0, 2]
    assert HiRED(keep=20, faithful=True).places(signals, unit, 20) == [10, 5, 2, 2, 0]
    assert HiRED(keep=12, alpha=1.0).places(signals, unit, 12) == [12, 0, 0, 0, 0]
    selection = choose(HiRED(keep=20), signals, 20)
    for number, place in enumerate([10, 5, 3, 0, 2]):
        members = (unit == number).nonzero()[:, 0]
        best = members[signals.vision.saliency[members].argsort(descending=True)[:place]]
        assert set(best.tolist()) == set(selection.order.tolist()) & set(members.tolist())


def test_hired_weighs_each_tile_by_the_base_view_inside_it():
    signals = tiled(2, 3, side=6, d=2)
    first = signals.vision.first_saliency
    heat = first[:36].view(6, 6)
    by_hand = [
        float(heat[3 * row : 3 * row + 3, 2 * column : 2 * column + 2].sum()) for row in (0, 1) for column in range(3)
    ]
    assert HiRED(keep=20).weights(signals, units(signals), first) == pytest.approx(by_hand)


def test_hired_budget_of_five_views():
    signals = tiled(side=24, d=2)
    places = HiRED(keep=576).places(signals, units(signals), int(5 * 576 * 0.2))
    assert places[0] == 288
    assert sum(places[1:]) == 288


def test_hired_divides_frames_by_their_own_first_attention():
    signals = frames()
    signals.vision.first_saliency = torch.cat([torch.full((9,), w) for w in (4.0, 2.0, 0.0, 2.0)])
    assert HiRED(keep=10).places(signals, units(signals), 10) == [5, 3, 0, 2]


def holov_signals():
    signals = plain(6, 1, d=2)
    signals.visual = signals.hidden = torch.tensor([[1, 0], [1, 0], [0, 1], [0, 1], [1, 0], [0.8, 0.6]])
    signals.vision.saliency = torch.tensor([0.1, 0.2, 0.05, 0.05, 0.3, 0.3])
    return signals


def test_holov_by_hand():
    selection = choose(HoloV(keep=4, crops=2), holov_signals(), 4)
    assert selection.indices.tolist() == [1, 3, 4, 5]


def test_holov_with_one_crop_is_top_k_by_attention():
    signals = plain()
    top = signals.vision.saliency.argsort(descending=True)[:9]
    assert choose(HoloV(keep=9, crops=1), signals, 9).order.tolist() == top.tolist()


@pytest.mark.parametrize(("keep", "crops"), [(64, 16), (128, 8), (192, 5)])
def test_holov_chooses_its_crops(keep, crops, monkeypatch):
    seen = []
    monkeypatch.setattr("divevlm.methods.holov.crop_sizes", lambda n, p: seen.append(p) or [n])
    choose(HoloV(keep=keep), plain(24, 24, d=2), keep)
    assert seen == [crops]


def test_holov_as_released_sends_zero_rows_for_places_it_lost():
    signals = holov_signals()
    signals.vision.saliency = torch.tensor([0.01, 0.02, 0.01, 0.5, 0.4, 0.6])
    released = choose(HoloV(keep=5, crops=2, faithful=True), signals, 5)
    assert released.rows.slots[:3].tolist() == [3, 4, 5]  # all of the crop, in input order
    assert released.rows.values[3:].abs().sum() == 0
    assert choose(HoloV(keep=5, crops=2), signals, 5).indices.tolist() == [0, 1, 3, 4, 5]


def test_holov_as_released_orders_by_attention_where_a_crop_is_cut():
    signals = holov_signals()
    released = choose(HoloV(keep=4, crops=2, faithful=True), signals, 4)
    assert released.rows.slots.tolist() == [1, 3, 4, 5]
    assert choose(HoloV(keep=3, crops=2, faithful=True), signals, 3).rows.slots.tolist() == [1, 4, 5]


def test_holov_as_released_hardly_hears_a_crop_of_one_token():
    """Crops of 2, 2 and 1: the last has all attention but a thousandth of its weight, so it waits for a place."""
    signals = holov_signals()
    signals = replace(signals, visual=signals.visual[:5], hidden=signals.hidden[:5], cells=signals.cells[:5])
    signals.vision.saliency = torch.tensor([0.1, 0.2, 0.1, 0.1, 0.5])
    assert 4 in choose(HoloV(keep=3, crops=3), signals, 3).indices.tolist()
    assert 4 not in choose(HoloV(keep=3, crops=3, faithful=True), signals, 3).rows.slots[:3].tolist()


def test_tome_conserves_the_sum_of_rows():
    signals = plain(seed=5)
    selection = choose(ToMe(keep=7), signals, 7)
    sizes = torch.tensor([float(len(members)) for members in selection.rows.members])
    assert selection.scores.tolist() == sizes.tolist()
    assert sizes.sum() == 36
    torch.testing.assert_close(
        (selection.rows.values * sizes[:, None]).sum(0), signals.hidden.sum(0), atol=1e-4, rtol=1e-4
    )
    for value, members in zip(selection.rows.values, selection.rows.members, strict=True):
        torch.testing.assert_close(value, signals.hidden[members].mean(0), atol=1e-4, rtol=1e-4)
    assert all(
        slot in members for slot, members in zip(selection.rows.slots.tolist(), selection.rows.members, strict=True)
    )


def test_tome_merges_duplicates_first():
    signals = plain(4, 4)
    signals.hidden = torch.eye(8).repeat_interleave(2, 0)  # twins side by side: one even, one odd
    selection = choose(ToMe(keep=8), signals, 8)
    assert selection.rows.members == [[2 * i, 2 * i + 1] for i in range(8)]
    torch.testing.assert_close(selection.rows.values, torch.eye(8))


def test_pool_is_the_mean_of_rectangles():
    signals = plain()
    selection = choose(Pool(keep=4), signals, 4)
    grid = signals.hidden.view(6, 6, -1)
    quarters = torch.stack([grid[y : y + 3, x : x + 3].mean((0, 1)) for y in (0, 3) for x in (0, 3)])
    torch.testing.assert_close(selection.rows.values, quarters)
    assert selection.rows.slots.tolist() == [7, 10, 25, 28]


def test_grid_is_a_lattice_in_every_view():
    assert choose(Grid(keep=4), plain(), 4).order.tolist() == [7, 10, 25, 28]
    places = choose(Grid(keep=20), tiled(), 20).indices
    assert (places < 16).sum() == 4
    assert len({int(i) // 9 for i in choose(Grid(keep=4), frames(), 4).order}) == 4
    assert len(choose(Grid(keep=2), frames(), 2)) == 2


def test_grid_on_something_that_is_no_rectangle_is_a_stride():
    signals = plain()
    signals.cells = signals.cells.clone()
    signals.cells[:18] = signals.cells[18:]  # two images one upon the other
    gaps = choose(Grid(keep=6), signals, 6).indices
    assert len(gaps.unique()) == 6
    assert torch.equal(grid_bins(1, 36, 6), torch.arange(36) // 6)


def test_random_depends_on_seed_prompt_and_nothing_else():
    signals = plain()
    draw = lambda seed, some: choose(Random(keep=8, seed=seed), some, 8).order.tolist()  # noqa: E731
    state = torch.get_rng_state()
    first = draw(0, signals)
    assert first == draw(0, plain(seed=9))  # other states, same prompt
    assert torch.equal(state, torch.get_rng_state())
    assert first != draw(1, signals)
    assert first != draw(0, replace(signals, ids=signals.ids + 1))
    counts = torch.zeros(36)
    for seed in range(300):
        counts[draw(seed, signals)] += 1
    assert 35 < counts.min() <= counts.max() < 105  # 300 * 8 / 36 = 66.7, more than 4 deviations either way


def test_farthest_sees_directions_only():
    signals = plain()
    longer = replace(
        signals, visual=signals.visual * torch.rand(36, 1, generator=torch.Generator().manual_seed(1)).add(0.1)
    )
    assert choose(Farthest(keep=9), signals, 9).order.tolist() == choose(Farthest(keep=9), longer, 9).order.tolist()
