"""No token is picked twice and nothing but a one-line ValueError or TypeError is raised, whatever is asked for."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import divevlm
from divevlm.core.reference import reference_select
from divevlm.core.rule import Rule
from tests.core.oracle import assert_right

PATHS = [("gram", "eager"), ("picked", "eager"), ("gram", "fused"), ("picked", "fused")]
paths = st.sampled_from(PATHS)


def plain_picture(n, d, rank, kind, seed):
    """States of low rank, and worse."""
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(n, rank, generator=gen) @ torch.randn(rank, d, generator=gen)
    if kind == "constant":
        x = x[:1].expand(n, d).clone()
    if kind == "duplicates":
        x = x[torch.randint(n, (n,), generator=gen) // 3]
    if kind == "zeros":
        x[torch.rand(n, generator=gen) < 0.5] = 0
    return x


@st.composite
def pictures(draw):
    n = draw(st.integers(2, 60))
    kind = draw(st.sampled_from(["plain", "constant", "duplicates", "zeros"]))
    x = plain_picture(n, draw(st.integers(1, 40)), draw(st.integers(1, 16)), kind, draw(st.integers(0, 9999)))
    q = torch.randn(draw(st.integers(0, 6)), x.shape[1], generator=torch.Generator().manual_seed(7))
    return x, q, draw(st.integers(1, n))


strengths = st.sampled_from([0.0, 1.5, 20.0, 90.0, 1e4, 1e30, -1.5, -90.0, -1e4, -1e30])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(pictures(), paths, strengths, st.sampled_from([0.3, 0.8, 1.0, 1.9]), st.booleans())
def test_no_token_is_picked_twice(picture, path, lam, eta, two_sided):
    x, q, keep = picture
    picks = divevlm.select(x, q, keep, lam=lam, eta=eta, two_sided=two_sided, columns=path[0], loop=path[1])
    assert len(set(picks.order.tolist())) == keep
    assert picks.scores.isfinite().all()
    assert picks.left.isfinite().all()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(pictures(), paths, st.sampled_from([0.0, 1.5, 20.0, 90.0, -20.0, -90.0]))
def test_the_picks_are_right_under_a_strong_prompt(picture, path, lam):
    x, q, keep = picture
    picks = divevlm.select(x, q, keep, lam=lam, columns=path[0], loop=path[1])
    assert_right(x, q, picks, Rule(lam=lam))


@pytest.mark.parametrize(("columns", "loop"), PATHS)
@pytest.mark.parametrize("eta", [0.8, 1.0])
def test_a_plain_picture_at_full_size(eta, columns, loop):
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(576, 4, generator=gen) @ torch.randn(4, 4096, generator=gen)
    picks = divevlm.select(x, torch.randn(8, 4096, generator=gen), 192, eta=eta, columns=columns, loop=loop)
    assert len(set(picks.order.tolist())) == 192


@pytest.mark.parametrize(("columns", "loop"), PATHS)
def test_once_nothing_is_left_the_rest_comes_in_input_order(columns, loop):
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(100, 3, generator=gen)
    picks = divevlm.select(x, x[:0], 100, eta=1.0, two_sided=True, columns=columns, loop=loop)
    order = picks.order.tolist()
    assert order[3:] == sorted(order[3:])
    assert picks.scores[3:].tolist() == [0.0] * 97
    one_sided = divevlm.select(x, x[:0], 100, eta=1.0, columns=columns, loop=loop)
    live = int((one_sided.scores > 0).sum())
    assert one_sided.order[live:].tolist() == sorted(one_sided.order[live:].tolist())
    assert_right(x, x[:0], one_sided, Rule(eta=1.0))


@pytest.mark.parametrize(("columns", "loop"), PATHS)
@pytest.mark.parametrize("lam", [90.0, 700.0, 1e30, -90.0, -1e30])
def test_a_huge_lambda_picks_by_alignment(lam, columns, loop):
    """Alignments 0.2, 0.6, 1, 0.8 and nothing else in common: the prompt alone decides, from either end."""
    x = torch.eye(6)[:4] * 0.6
    x[:, 4] = torch.tensor([0.2, 0.6, 1.0, 0.8])
    x[:, 5] = (1.1 - x.square().sum(1)).clamp_min(0).sqrt() * torch.tensor([1.0, 1, -1, -1])
    q = torch.eye(6)[4:5]
    first = reference_select(x.double(), q.double(), 1, Rule(lam=lam)).order.tolist()
    assert divevlm.select(x, q, 4, lam=lam, columns=columns, loop=loop).order[:1].tolist() == first
    assert sorted(divevlm.select(x, q, 4, lam=lam, columns=columns, loop=loop).order.tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize(("columns", "loop"), PATHS)
def test_a_pick_without_energy_changes_nothing(columns, loop):
    """Row 0 has 1e-8 of the longest row's energy, which float32 can't tell from none, so no alignment: first, as lam < 0.
    Its direction is row 1's all the same; taken for a unit vector it would explain much of it."""
    x, q = torch.tensor([[1e-4, 0.0], [1.0, 0.0], [0.6, 0.8]]), torch.tensor([[1.0, 0.0]])
    picks = divevlm.select(x, q, 3, normalize=False, score="prompt", lam=-1.5, columns=columns, loop=loop)
    assert picks.order[0] == 0
    torch.testing.assert_close(picks.left[:2], torch.tensor([2.0, 2.0]), atol=1e-5, rtol=0)
    assert picks.left[2] < 1.5


def test_not_numbers_are_not_picked_twice_either():
    for bad in (torch.nan, torch.inf):
        for columns, loop in PATHS:
            x, q = torch.randn(20, 6), torch.randn(3, 6)
            x[4, 1], q[1, 2] = bad, bad
            picks = divevlm.select(x, q, 20, check=False, columns=columns, loop=loop)
            assert sorted(picks.order.tolist()) == list(range(20))


def any_call(rng, gen):
    """One call of `select`, mostly of things that are allowed."""
    n, d, m, batch = rng.randint(1, 9), rng.randint(1, 6), rng.randint(0, 4), rng.choice([0, 0, 0, 1, 2])
    shape = (batch,) if batch else ()
    dtype = rng.choice([torch.float32] * 4 + [torch.float16, torch.bfloat16, torch.float64])
    rank = rng.randint(1, d)
    x = torch.randn(*shape, n, rank, generator=gen) @ torch.randn(*shape, rank, d, generator=gen)
    x = x * rng.choice([1, 1, 1, 1e-9, 1e4, 1e25, 0]) if dtype == torch.float32 else x
    if rng.random() < 0.3:
        x = x[..., torch.randint(n, (n,), generator=gen), :]
    q = torch.randn(*shape, m, d, generator=gen)
    options = {
        "lam": rng.choice([1.5] * 6 + [0, -2, 90, -90, 1e30, 10**400, "1", float("nan")]),
        "eta": rng.choice([0.8] * 8 + [1, 1.99, 1e-9, 2, None]),
        "top_h": rng.choice([3] * 8 + [1, 10**30, 0]),
        "updates": rng.choice([None] * 8 + [0, 1, 3, 10**30, -1]),
        "feedback": rng.choice(["last", "all"]),
        "score": rng.choice(["fused", "fused", "prompt"]),
        "two_sided": rng.choice([False] * 8 + [True, True, "no"]),
        "normalize": rng.choice([True] * 8 + [False, False, None]),
        "trace": rng.choice([False, True]),
        "columns": rng.choice(["auto", "gram", "picked"]),
    }
    if rng.random() < 0.1:
        options["weight"] = torch.rand(*shape, n, generator=gen) * rng.choice([1, 1e-30, 1e30]) + rng.choice([0, 1e-40])
    if rng.random() < 0.1:
        options["valid_x"] = torch.rand(*shape, n, generator=gen) < 0.7
    if rng.random() < 0.1:
        options["valid_q"] = torch.rand(*shape, m, generator=gen) < 0.5
    keep = rng.choice([rng.randint(1, n), rng.randint(1, n), n, 0.5, 10**30, divevlm.Budget(energy=0.9)])
    return x.to(dtype), q.to(dtype), keep, options


@pytest.mark.parametrize("loop", ["eager", "fused"])
def test_fuzz(loop):
    rng, gen = random.Random(0), torch.Generator().manual_seed(0)
    picked, refused = 0, []
    for _ in range(9000):
        x, q, keep, options = any_call(rng, gen)
        try:
            result = divevlm.select(x, q, keep, loop=loop, **options)
        except (ValueError, TypeError) as error:
            refused.append(str(error))
            continue
        for picks in [result] if x.dim() == 2 else result:
            order = picks.order.tolist()
            assert len(set(order)) == len(order) >= 1
            assert picks.scores.isfinite().all()
        picked += 1
    assert picked > 3000
    assert len(refused) > 1000
    assert all(" must be " in line and "\n" not in line for line in refused)
