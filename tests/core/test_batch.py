"""A batch gives each sample what it gets alone, on the path of CPUs (one after another) and of accelerators (together)."""

import importlib

import pytest
import torch

import divevlm
from tests.core.oracle import assert_right, states

select_module = importlib.import_module("divevlm.core.select")


@pytest.fixture(params=["one-by-one", "together"])
def together(request, monkeypatch):
    if request.param == "together":
        monkeypatch.setattr(select_module, "_parts", lambda x, counts, rule: [slice(None)])
    return request.param == "together"


def ragged(sizes, texts, d=32, fill=0.0):
    n, m = max(sizes), max(texts)
    x, q = torch.full((len(sizes), n, d), fill), torch.full((len(sizes), m, d), fill)
    valid_x, valid_q = torch.zeros(len(sizes), n, dtype=torch.bool), torch.zeros(len(sizes), m, dtype=torch.bool)
    for i, (size, text) in enumerate(zip(sizes, texts, strict=True)):
        x[i, n - size :], q[i, m - text :] = states("clustered", size, d, text, seed=i)
        valid_x[i, n - size :], valid_q[i, m - text :] = True, True
    return x, q, valid_x, valid_q


@pytest.mark.parametrize("columns", ["gram", "picked"])
@pytest.mark.parametrize("fill", [0.0, 5.0, torch.nan])
@pytest.mark.parametrize("sizes", [[50, 50, 50], [50, 9, 31]])
def test_rows_are_independent_of_their_neighbours(together, sizes, fill, columns):
    texts = [7, 3, 0]
    x, q, valid_x, valid_q = ragged(sizes, texts, fill=fill)
    batch = divevlm.select(x, q, 12, valid_x=valid_x, valid_q=valid_q, columns=columns)
    assert len(batch) == 3
    for i, size in enumerate(sizes):
        start = max(sizes) - size
        xi, qi = x[i, start:], q[i, max(texts) - texts[i] :]
        alone = divevlm.select(xi, qi, 12, columns=columns)
        assert (batch[i].order - start).tolist() == alone.order.tolist()
        torch.testing.assert_close(batch[i].scores, alone.scores, atol=1e-5, rtol=1e-5)
        assert batch[i].explained == pytest.approx(alone.explained, abs=1e-5)
        assert_right(xi, qi, divevlm.Selection(batch[i].order - start, batch[i].scores, batch[i].left))


def test_padding_is_never_picked(together):
    x, q, valid_x, valid_q = ragged([4, 20], [2, 2])
    x[0, ~valid_x[0]] = 1e3  # padding with the most attractive content
    batch = divevlm.select(x, q, 20, valid_x=valid_x, valid_q=valid_q)
    assert batch[0].indices.tolist() == [16, 17, 18, 19]
    assert batch[1].indices.tolist() == list(range(20))


def test_padded_text_is_not_heard(together):
    x, q, _, valid_q = ragged([30, 30], [6, 2])
    louder = q.clone()
    louder[1, ~valid_q[1]] = x[1, :4]
    plain, loud = (divevlm.select(x, z, 8, valid_q=valid_q, trace=True) for z in (q, louder))
    assert plain[1].order.tolist() == loud[1].order.tolist()
    torch.testing.assert_close(plain[1].trace.scores, loud[1].trace.scores)


def test_one_count_for_each_sample(together):
    x, q, _, _ = ragged([30, 30, 30], [6, 6, 6])
    batch = divevlm.select(x, q, [3, 11, 30])
    assert [len(picks) for picks in batch] == [3, 11, 30]
    for i, keep in enumerate([3, 11, 30]):
        assert batch[i].order.tolist() == divevlm.select(x[i], q[i], keep).order.tolist()


@pytest.mark.parametrize("feedback", ["last", "all"])
def test_schedules_of_samples_with_different_counts(feedback):
    x, q, _, _ = ragged([30, 30], [6, 6])
    batch = divevlm.select(x, q, [6, 17], updates=4, feedback=feedback)
    for i, keep in enumerate([6, 17]):
        assert batch[i].order.tolist() == divevlm.select(x[i], q[i], keep, updates=4, feedback=feedback).order.tolist()


def test_a_batch_behaves_like_a_list(together):
    x, q, _, _ = ragged([30, 30, 30], [6, 6, 6])
    batch = divevlm.select(x, q, 5, trace=True)
    assert [len(picks) for picks in batch] == [len(picks) for picks in batch[:2]] + [len(batch[-1])] == [5, 5, 5]
    assert [i.tolist() for i in batch.indices] == [picks.indices.tolist() for picks in batch]
    assert [o.tolist() for o in batch.order] == [picks.order.tolist() for picks in batch]
    assert batch.scores[1].tolist() == batch[1].scores.tolist()
    assert batch[1].trace.scores.shape == (5, 30)
    assert batch[1].trace.energy.shape == (6, 30)


def test_energy_target(together):
    x, q, _, _ = ragged([60, 60], [6, 6])
    x[1] = torch.randn(60, 32, generator=torch.Generator().manual_seed(5))  # needs more tokens than the clustered one
    batch = divevlm.select(x, q, divevlm.Budget(energy=0.8, max=50))
    for i, picks in enumerate(batch):
        full = divevlm.select(x[i], q[i], 50, trace=True)
        assert picks.order.tolist() == full.order[: len(picks)].tolist()
        left = full.trace.energy.sum(dim=1) / 60
        assert picks.explained >= 0.8 > 1 - left[len(picks) - 1]
    assert len(batch[0]) < len(batch[1])
    capped = divevlm.select(x, q, divevlm.Budget(energy=0.999, max=4))
    assert [len(picks) for picks in capped] == [4, 4]
