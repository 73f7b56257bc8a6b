"""Small cases whose numbers are derived by hand."""

import math

import pytest
import torch

import divevlm

PATHS = [("gram", "eager"), ("picked", "eager"), ("gram", "fused"), ("picked", "fused")]
NONE = torch.zeros(0, 2)


@pytest.fixture(params=PATHS, ids="-".join)
def select(request):
    columns, loop = request.param
    return lambda *args, **options: divevlm.select(*args, columns=columns, loop=loop, **options)


def rows(*values):
    return torch.tensor(values, dtype=torch.float32)


def test_energy_alone(select):
    """All start with energy 1, so the lowest index wins. u = (1, 0): row 1 loses 0.8 of its 0.8, leaving (0.16, 0.6) and
    0.0256 + 0.36 = 0.3856; row 2 is orthogonal and keeps 1. Then u = (0, 1): row 1 becomes (0.16, 0.12), energy 0.04."""
    picks = select(rows([1, 0], [0.8, 0.6], [0, 1]), NONE, 3)
    assert picks.order.tolist() == [0, 2, 1]
    torch.testing.assert_close(picks.scores, torch.tensor([1.0, 1.0, 0.04]), atol=1e-6, rtol=0)


def test_explained_energy(select):
    """As above: after two picks row 0 holds (0.2, 0), row 1 (0.16, 0.12), row 2 (0, 0.2): 0.04 + 0.04 + 0.04 of 3."""
    picks = select(rows([1, 0], [0.8, 0.6], [0, 1]), NONE, 2)
    assert picks.indices.tolist() == [0, 2]
    assert picks.explained == pytest.approx(1 - 0.12 / 3, abs=1e-6)


def test_the_prompt_pulls_and_is_answered(select):
    """q = (0, 1). Alignments 0, 0.6, 1 give phi 0, 0.6, 1 and scores 1, e^0.9, e^1.5: token 2 first.
    Then u = (0, 1): q = (0, 0.2), row 1 = (0.8, 0.12) with energy 0.6544. It is the only one aligned, so phi = 1 and its
    score e^1.5 * 0.6544. Last, u = (0.8, 0.12) / sqrt(0.6544): row 0 has 0.64 / 0.6544 along it squared."""
    picks = select(rows([1, 0], [0.8, 0.6], [0, 1]), rows([0, 1]), 3)
    assert picks.order.tolist() == [2, 1, 0]
    norm = math.sqrt(0.6544)
    u, along = (0.8 / norm, 0.12 / norm), 0.2 * 0.12 / norm
    q = (-0.8 * along * u[0], 0.2 - 0.8 * along * u[1])
    x = (1 - 0.8 * u[0] * u[0], -0.8 * u[0] * u[1])
    last_energy = 1 - 0.96 * 0.64 / 0.6544
    aligned = q[0] * x[0] + q[1] * x[1] > 0
    expected = [math.exp(1.5), math.exp(1.5) * 0.6544, last_energy * (math.exp(1.5) if aligned else 1)]
    torch.testing.assert_close(picks.scores, torch.tensor(expected), atol=5e-4, rtol=0)


def test_one_sided_keeps_what_points_the_other_way(select):
    """u = (1, 0): row 1 is opposed and keeps its energy 1; row 2 has 1 - 0.96 * 0.36 = 0.6544 left.
    Two-sided, row 1 becomes (-0.2, 0) with energy 0.04."""
    x = rows([1, 0], [-1, 0], [0.6, 0.8])
    one, two = select(x, NONE, 3), select(x, NONE, 3, two_sided=True)
    assert one.order.tolist() == [0, 1, 2]
    assert two.order.tolist() == [0, 2, 1]
    torch.testing.assert_close(one.scores[1], torch.tensor(1.0))
    torch.testing.assert_close(two.scores[1], torch.tensor(0.6544), atol=1e-6, rtol=0)


def test_top_h_pooling(select):
    """Three prompt tokens along (1, 0), one along (0, 1). Mean of the best three: token 0 gets 1, token 1 gets 1/3, token 2
    (0.6, 0.8) gets (0.8 + 0.6 + 0.6) / 3 = 2/3. With h = 1 tokens 0 and 1 both get 1 and token 2 gets 0.8."""
    x, q = rows([1, 0], [0, 1], [0.6, 0.8]), rows([1, 0], [1, 0], [1, 0], [0, 1])
    three = select(x, q, 3, updates=0, trace=True).trace.alignment[0]
    one = select(x, q, 3, updates=0, top_h=1, trace=True).trace.alignment[0]
    torch.testing.assert_close(three, torch.tensor([1, 1 / 3, 2 / 3]), atol=1e-5, rtol=0)
    torch.testing.assert_close(one, torch.tensor([1, 1, 0.8]), atol=1e-5, rtol=0)


def test_frozen_scores_are_the_initial_ranking(select):
    """phi 1, 0.6, 0.8, scores e^1.5, e^0.9, e^1.2 and none of them changes."""
    picks = select(rows([1, 0], [0.6, 0.8], [0.8, 0.6]), rows([1, 0]), 3, updates=0)
    assert picks.order.tolist() == [0, 2, 1]
    torch.testing.assert_close(picks.scores, torch.tensor([1.5, 1.2, 0.9]).exp(), atol=1e-4, rtol=0)


def test_the_two_readings_of_a_sparse_schedule(select):
    """One update among three picks comes after the second. All tie at first, so tokens 0 and 1 are picked.
    "last" removes direction (0, 1, 0) only: token 2 = (1, 0, 0) keeps energy 1.
    "all" removes both, and token 4 = (0.8, 0, 0.6) has 0.64 * 0.04 + 0.36 = 0.3856 left against 0.04 of token 2."""
    x = rows([1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0], [0.8, 0, 0.6])
    none = torch.zeros(0, 3)
    last = select(x, none, 3, updates=1)
    everything = select(x, none, 3, updates=1, feedback="all")
    assert last.order.tolist() == [0, 1, 2]
    assert everything.order.tolist() == [0, 1, 4]
    assert everything.scores[2].item() == pytest.approx(0.64 * 0.04 + 0.36, abs=1e-6)


@pytest.mark.parametrize(
    ("updates", "steps"), [(0, []), (1, [3]), (2, [2, 5]), (4, [1, 3, 4, 6]), (7, [0, 1, 2, 3, 4, 5, 6])]
)
def test_schedule_splits_the_picks_evenly(updates, steps):
    from divevlm.core.rule import Rule

    assert sorted(Rule(updates=updates).update_steps(8)) == steps
    assert sorted(Rule(updates=8).update_steps(8)) == sorted(Rule().update_steps(8)) == list(range(8))
    assert Rule(updates=99).update_steps(8) == Rule().update_steps(8)


def test_without_energy_left_the_rest_comes_in_input_order(select):
    """Four equal rows and eta = 1: after the first pick nothing is left anywhere."""
    picks = select(rows([0.6, 0.8]).expand(4, 2), NONE, 4, eta=1.0)
    assert picks.order.tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(picks.scores, torch.tensor([1.0, 0, 0, 0]), atol=1e-6, rtol=0)


def test_zero_rows_come_last_in_input_order(select):
    picks = select(rows([0, 0], [1, 0], [0, 0], [0, 1]), rows([1, 1]), 4)
    assert picks.order.tolist() == [1, 3, 0, 2]


def test_a_fixed_weight_replaces_the_prompt(select):
    """Weights r^2 with r = 1, 0.5, ~0, 0.75, and projection: 0 first, then 0.36 of token 3 against 0.09 of token 1."""
    f = rows([1, 0], [0.8, 0.6], [0, 1], [0.6, 0.8])
    weight = torch.tensor([1, 0.5, 1e-6, 0.75]) ** 2
    picks = select(f, NONE, 2, weight=weight, two_sided=True, eta=1.0)
    assert picks.order.tolist() == [0, 3]
    torch.testing.assert_close(picks.scores, torch.tensor([1, 0.36]), atol=1e-6, rtol=0)


def test_raw_rows(select):
    """Spec example of ResPrune, alpha 0: energies 4, 3.6, 1, 2 (here in units of the largest, 4): 0, then the tie 2."""
    v = rows([2, 0], [1.8, 0.6], [0, 1], [1, 1])
    picks = select(v, NONE, 2, normalize=False, two_sided=True, eta=1.0, lam=0.0)
    assert picks.order.tolist() == [0, 2]
    torch.testing.assert_close(picks.scores, torch.tensor([1, 0.25]), atol=1e-6, rtol=0)
