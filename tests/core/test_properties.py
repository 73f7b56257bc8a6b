"""What holds for every input."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import divevlm
from tests.core.oracle import KINDS, assert_right, states

settings.register_profile("steady", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("steady")


@st.composite
def problems(draw, kinds=KINDS, texts=8):
    n, d, m = draw(st.integers(2, 60)), draw(st.integers(2, 40)), draw(st.integers(0, texts))
    x, q = states(draw(st.sampled_from(kinds)), n, d, m, seed=draw(st.integers(0, 10_000)))
    return x, q, draw(st.integers(1, n))


loops = st.sampled_from(["eager", "fused"])


@given(problems(), loops)
def test_length_uniqueness_and_order(problem, loop):
    x, q, keep = problem
    picks = divevlm.select(x, q, keep, loop=loop)
    assert len(picks) == len(set(picks.order.tolist())) == keep
    assert picks.indices.tolist() == sorted(picks.order.tolist())
    assert 0 <= min(picks.order) <= max(picks.order) < len(x)


@given(problems(), loops, st.floats(0, 3), st.floats(0.1, 1.9), st.integers(1, 9))
def test_the_picks_are_right_for_any_setting(problem, loop, lam, eta, top_h):
    x, q, keep = problem
    rule = divevlm.core.rule.Rule(lam=lam, eta=eta, top_h=top_h)
    assert_right(x, q, divevlm.select(x, q, keep, lam=lam, eta=eta, top_h=top_h, loop=loop), rule)


@given(problems(kinds=("random", "clustered", "opposed")), loops, st.integers(0, 9))
def test_scaling_a_row_changes_nothing(problem, loop, seed):
    x, q, keep = problem
    factors = torch.exp(2 * torch.randn(len(x), 1, generator=torch.Generator().manual_seed(seed)))
    assert_right(x, q, divevlm.select(factors * x, q, keep, loop=loop))
    assert_right(x, q, divevlm.select(x, 7 * q, keep, loop=loop))


@given(problems(), loops, st.integers(0, 9))
def test_turning_the_space_changes_nothing(problem, loop, seed):
    x, q, keep = problem
    turn, _ = torch.linalg.qr(torch.randn(x.shape[1], x.shape[1], generator=torch.Generator().manual_seed(seed)))
    assert_right(x, q, divevlm.select(x @ turn, q @ turn, keep, loop=loop))


@given(problems(), loops, st.integers(0, 9))
def test_the_order_of_tokens_decides_ties_only(problem, loop, seed):
    x, q, keep = problem
    shuffle = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    moved = divevlm.select(x[shuffle], q, keep, loop=loop)
    back = divevlm.Selection(shuffle[moved.order], moved.scores, moved.left)
    assert_right(x, q, back)


@given(problems(), loops)
def test_energy_never_rises_and_falls_by_proposition_1(problem, loop):
    x, q, keep = problem
    trace = divevlm.select(x, q, keep, trace=True, loop=loop).trace
    drop = trace.energy[:-1] - trace.energy[1:]
    assert drop.min() >= -1e-6
    rows = torch.nn.functional.normalize(x.double(), dim=-1)
    for t, s in enumerate(divevlm.select(x, q, keep, loop=loop).order.tolist()):
        norm = rows[s].norm()
        if norm < 1e-3:
            break
        along = (rows @ (rows[s] / norm)).clamp_min(0)
        torch.testing.assert_close(drop[t].double(), 0.96 * along**2, atol=1e-5, rtol=0)
        rows = rows - 0.8 * torch.outer(along, rows[s] / norm)


@given(st.integers(2, 20), loops, st.integers(0, 99))
def test_orthogonal_tokens_keep_their_energy(n, loop, seed):
    basis, _ = torch.linalg.qr(torch.randn(24, n, generator=torch.Generator().manual_seed(seed)))
    picks = divevlm.select(basis.T, torch.zeros(0, 24), n, trace=True, loop=loop)
    assert picks.order.tolist() == list(range(n))
    torch.testing.assert_close(picks.scores, torch.ones(n), atol=1e-5, rtol=0)


@given(problems(), loops, st.sampled_from(["last", "all"]))
def test_updates_equal_to_keep_is_the_default(problem, loop, feedback):
    x, q, keep = problem
    plain = divevlm.select(x, q, keep, loop=loop)
    assert divevlm.select(x, q, keep, updates=keep, feedback=feedback, loop=loop).order.tolist() == plain.order.tolist()


@given(problems(kinds=("random", "clustered", "duplicates")), loops)
def test_no_updates_is_the_initial_ranking(problem, loop):
    x, q, keep = problem
    frozen = divevlm.select(x, q, keep, updates=0, trace=True, loop=loop)
    first = frozen.trace.scores[0]
    lowest_kept = first[frozen.indices].min()
    dropped = torch.ones(len(x), dtype=torch.bool).index_fill(0, frozen.indices, False)
    assert not dropped.any() or first[dropped].max() <= lowest_kept + 5e-6
    assert (frozen.scores.diff() <= 1e-6).all()


@given(st.integers(3, 30), st.integers(3, 30), loops, st.integers(0, 999))
def test_a_duplicate_waits_while_others_have_more_to_offer(n, d, loop, seed):
    """Tokens 0 and n are equal. While a token that is not picked has more energy than the duplicate, that one goes first."""
    x, _ = states("random", n, d, 0, seed=seed)
    x = torch.cat([x, x[:1]])
    picks = divevlm.select(x, x[:0], n, trace=True, loop=loop)
    order, energy = picks.order.tolist(), picks.trace.energy
    if n in order:
        step = order.index(n)
        others = [i for i in range(n + 1) if i not in order[:step] and i != n]
        assert all(energy[step, i] <= energy[step, n] + 5e-6 for i in others)
        assert order.index(0) < step


@given(problems(), loops)
def test_keeping_all_is_the_identity(problem, loop):
    x, q, _ = problem
    for keep in (len(x), len(x) + 5, 1.0):
        assert divevlm.select(x, q, keep, loop=loop).indices.tolist() == list(range(len(x)))


@given(problems(kinds=("duplicates", "identical")), loops)
def test_ties_go_to_the_lower_index(problem, loop):
    x, q, keep = problem
    order = divevlm.select(x, q, keep, loop=loop).order.tolist()
    place = {s: t for t, s in enumerate(order)}
    for i in range(len(x)):
        for j in range(i + 1, len(x)):
            if torch.equal(x[i], x[j]):
                assert place.get(i, keep) <= place.get(j, keep), (i, j, order)
