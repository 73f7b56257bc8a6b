"""A wrong value is refused in one line that names the parameter, the value and what is allowed."""

import numpy as np
import pytest
import torch

import divevlm

X, Q = torch.eye(4), torch.eye(4)[:2]


@pytest.mark.parametrize(
    ("change", "parameter", "value"),
    [
        ({"keep": 0}, "keep", "0"),
        ({"keep": -3}, "keep", "-3"),
        ({"keep": float("nan")}, "keep", "nan"),
        ({"keep": 0.0}, "keep", "0.0"),
        ({"keep": 1.5}, "keep", "1.5"),
        ({"keep": True}, "keep", "True"),
        ({"keep": "64"}, "keep", "'64'"),
        ({"keep": None}, "keep", "None"),
        ({"keep": [2, 2]}, "keep", "[2, 2]"),
        ({"lam": float("inf")}, "lam", "inf"),
        ({"lam": float("nan")}, "lam", "nan"),
        ({"lam": "strong"}, "lam", "'strong'"),
        ({"lam": 0.0, "score": "prompt"}, "lam", "0.0"),
        ({"eta": 0.0}, "eta", "0.0"),
        ({"eta": 2}, "eta", "2"),
        ({"eta": float("nan")}, "eta", "nan"),
        ({"top_h": 0}, "top_h", "0"),
        ({"top_h": 1.5}, "top_h", "1.5"),
        ({"updates": -1}, "updates", "-1"),
        ({"feedback": "first"}, "feedback", "'first'"),
        ({"score": "visual"}, "score", "'visual'"),
        ({"columns": "some"}, "columns", "'some'"),
        ({"loop": "fast"}, "loop", "'fast'"),
        ({"q": torch.ones(2, 5)}, "q.shape", "(2, 5)"),
        ({"q": torch.ones(1, 2, 4)}, "q.shape", "(1, 2, 4)"),
        ({"x": torch.ones(3, 4, 4), "q": torch.ones(2, 2, 4)}, "q.shape", "(2, 2, 4)"),
        ({"x": torch.ones(0, 4)}, "x.shape", "(0, 4)"),
        ({"x": torch.ones(4)}, "x.shape", "(4,)"),
        ({"x": torch.ones(1, 1, 4, 4)}, "x.shape", "(1, 1, 4, 4)"),
        ({"x": torch.ones(4, 4, dtype=torch.long)}, "x.dtype", "torch.int64"),
        ({"q": torch.ones(2, 4, dtype=torch.bool)}, "q.dtype", "torch.bool"),
        ({"x": [[1.0, 0.0]]}, "x", "list"),
        ({"valid_x": torch.ones(4)}, "valid_x", "torch.float32"),
        ({"valid_x": torch.ones(3, dtype=torch.bool)}, "valid_x", "(3,)"),
        ({"valid_x": torch.zeros(4, dtype=torch.bool)}, "valid_x", "sample 0"),
        ({"valid_q": torch.ones(2, 2, dtype=torch.bool)}, "valid_q", "(2, 2)"),
        ({"two_sided": "no"}, "two_sided", "'no'"),
        ({"normalize": None}, "normalize", "None"),
        ({"trace": "yes"}, "trace", "'yes'"),
        ({"check": 1}, "check", "1"),
        ({"lam": 10**400}, "lam", "1000"),
        ({"lam": -1e31}, "lam", "-1e+31"),
        ({"x": torch.eye(4).to_sparse()}, "x.layout", "torch.sparse_coo"),
        ({"q": torch.eye(4)[:2].to_sparse()}, "q.layout", "torch.sparse_coo"),
        ({"valid_x": torch.ones(4, dtype=torch.bool).to_sparse()}, "valid_x.layout", "torch.sparse_coo"),
        ({"x": torch.eye(4, device="meta")}, "x.device", "meta"),
        ({"weight": torch.ones(3)}, "weight", "(3,)"),
        ({"weight": [1.0] * 4}, "weight", "list"),
        ({"weight": torch.ones(4, dtype=torch.complex64)}, "weight.dtype", "complex64"),
        ({"weight": torch.tensor([1.0, -1.0, 1.0, 1.0])}, "weight", "-1.0"),
    ],
)
def test_refused(change, parameter, value):
    given = {"x": X, "q": Q, "keep": 2} | change
    with pytest.raises(ValueError, match=f"^{parameter} must be ") as error:
        divevlm.select(given.pop("x"), given.pop("q"), given.pop("keep"), **given)
    assert value in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["x", "q"])
def test_not_finite_is_refused_with_the_row(name, bad):
    given = {"x": torch.ones(5, 4), "q": torch.ones(3, 4)}
    given[name][2, 1] = bad
    with pytest.raises(ValueError, match=f"^{name} must be finite.*row 2$"):
        divevlm.select(given["x"], given["q"], 2)
    batch = {key: torch.stack([torch.ones_like(z), z]) for key, z in given.items()}
    with pytest.raises(ValueError, match=rf"^{name} must be finite.*row 2"):
        divevlm.select(batch["x"], batch["q"], 2)


def test_an_invalid_row_may_hold_anything():
    x = torch.eye(4)
    x[3] = torch.nan
    valid = torch.tensor([True, True, True, False])
    assert divevlm.select(x, Q, 4, valid_x=valid).indices.tolist() == [0, 1, 2]


def test_norms_that_overflow_are_refused():
    with pytest.raises(ValueError, match="overflow in row 1"):
        divevlm.select(torch.tensor([[1.0, 0], [3e38, 3e38]]), torch.zeros(0, 2), 1)


@pytest.mark.parametrize("loop", ["eager", "fused"])
def test_without_text_energy_alone_decides(loop):
    x = torch.tensor([[1.0, 0], [0.9, 0.1], [0, 1]])
    none = torch.zeros(0, 2)
    no_valid = torch.zeros(1, dtype=torch.bool)
    expected = divevlm.select(x, none, 3, lam=0.0, loop=loop).order.tolist()
    assert divevlm.select(x, none, 3, loop=loop).order.tolist() == expected == [0, 2, 1]
    assert divevlm.select(x, x[:1], 3, valid_q=no_valid, loop=loop).order.tolist() == expected


@pytest.mark.parametrize("loop", ["eager", "fused"])
def test_more_pooled_words_than_there_are_is_all_of_them(loop):
    few, many = (divevlm.select(X, Q, 3, top_h=h, loop=loop) for h in (2, 10**30))
    assert few.order.tolist() == many.order.tolist()
    assert torch.equal(few.scores, many.scores)


def test_counts_may_be_of_any_integer_type():
    for keep in (2, np.int64(2), torch.tensor(2), 0.5, np.float32(0.5)):
        assert len(divevlm.select(X, Q, keep)) == 2


def test_more_than_there_is_keeps_everything():
    assert divevlm.select(X, Q, 1000).indices.tolist() == [0, 1, 2, 3]


def test_the_inputs_are_left_alone():
    x, q = torch.randn(30, 8), torch.randn(4, 8)
    before = x.clone(), q.clone()
    for loop in ("eager", "fused"):
        for columns in ("gram", "picked"):
            divevlm.select(x, q, 10, loop=loop, columns=columns, normalize=False)
    assert torch.equal(x, before[0])
    assert torch.equal(q, before[1])


def test_without_numba_the_loop_is_eager(monkeypatch):
    expected = divevlm.select(X, Q, 3).order.tolist()
    monkeypatch.setattr("divevlm.core.select.find_spec", lambda name: None)
    assert divevlm.select(X, Q, 3).order.tolist() == expected
    with pytest.raises(ValueError, match=r"^loop must be 'eager' or 'auto' without numba"):
        divevlm.select(X, Q, 3, loop="fused")
