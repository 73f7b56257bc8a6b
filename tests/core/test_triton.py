"""The kernel, run by Triton's interpreter: the picks of Algorithm 1, whether one program or several take a sample."""

import importlib
import os
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import divevlm
from divevlm.core.reference import reference_select
from divevlm.core.rule import Rule
from tests.core.oracle import KINDS, assert_right, states
from tests.core.test_batch import ragged
from tests.core.test_equals_reference import RULES

pytest.importorskip("triton")
select_module = importlib.import_module("divevlm.core.select")


@pytest.fixture(params=["one-program", "split"])
def form(request, monkeypatch):
    launch(monkeypatch, whole=0 if request.param == "split" else 1 << 20, share=16)
    return request.param


def launch(monkeypatch, **sizes):
    """The kernel with other sizes than those chosen for a GPU."""
    kernel = importlib.import_module("divevlm.core.kernel")
    monkeypatch.setattr(kernel, "kernel_picks", partial(kernel.kernel_picks, **sizes))


def select(x, q, keep, **options):
    picks = divevlm.select(x, q, keep, loop="triton", **options)
    assert (picks if isinstance(picks, divevlm.Selection) else picks[0]).loop == "triton"
    return picks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n", "d", "m", "keep", "columns"), [(24, 20, 4, 6, "gram"), (20, 20, 4, 6, "picked"), (17, 8, 1, 17, "gram")]
)
def test_picks(form, kind, n, d, m, keep, columns):
    x, q = states(kind, n, d, m)
    assert_right(x, q, select(x, q, keep, columns=columns))


@pytest.mark.parametrize("name", [name for name in RULES if name != "five-updates-all"])
def test_rules(form, name):
    x, q = states("clustered", 36, 48, 6, seed=1)
    if name == "raw-rows":
        x *= torch.linspace(0.1, 3, 36)[:, None]
    picks = select(x, q, 8, **RULES[name])
    assert_right(x, q, picks, Rule(**RULES[name]))
    plain = reference_select(x, q, 8, Rule(**RULES[name]), dtype=torch.float64)
    assert picks.order.tolist() == plain.order.tolist()
    torch.testing.assert_close(picks.left.double(), plain.left, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("rank", [1, 4])
@pytest.mark.parametrize(("eta", "lam"), [(0.8, 1.5), (1.0, 90.0), (1.0, -90.0), (1.0, 1e30)])
def test_no_token_is_picked_twice(form, rank, eta, lam):
    gen = torch.Generator().manual_seed(rank)
    x = torch.randn(12, rank, generator=gen) @ torch.randn(rank, 30, generator=gen)
    picks = select(x, torch.randn(2, 30, generator=gen), 12, eta=eta, lam=lam)
    assert sorted(picks.order.tolist()) == list(range(12))
    assert picks.scores.isfinite().all()


def test_a_pick_without_energy_changes_nothing(form):
    x, q = torch.tensor([[1e-4, 0.0], [1.0, 0.0], [0.6, 0.8]]), torch.tensor([[1.0, 0.0]])
    picks = select(x, q, 3, normalize=False, score="prompt", lam=-1.5)
    assert picks.order[0] == 0
    torch.testing.assert_close(picks.left[:2], torch.tensor([2.0, 2.0]), atol=1e-5, rtol=0)


def test_once_nothing_is_left_the_rest_comes_in_input_order(form):
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    order = select(x, x[:0], 20, eta=1.0, two_sided=True).order.tolist()
    assert order[3:] == sorted(order[3:])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("columns", ["gram", "picked"])
def test_dtypes(form, dtype, columns):
    x, q = (z.to(dtype) for z in states("clustered", 30, 70, 4))
    expected = reference_select(x.double(), q.double(), 6).order.tolist()
    assert select(x, q, 6, columns=columns).order.tolist() == expected


@pytest.mark.parametrize("columns", ["gram", "picked"])
def test_a_ragged_batch(form, columns, monkeypatch):
    monkeypatch.setattr(select_module, "_parts", lambda x, counts, rule: [slice(None)])
    sizes, texts, keeps = [30, 9, 25], [4, 3, 0], [6, 9, 3]
    x, q, valid_x, valid_q = ragged(sizes, texts, fill=torch.nan)
    batch = select(x, q, keeps, valid_x=valid_x, valid_q=valid_q, columns=columns)
    for i, (size, text, keep) in enumerate(zip(sizes, texts, keeps, strict=True)):
        picks = batch[i]
        xi, qi = x[i, 30 - size :], q[i, 4 - text :]
        assert_right(xi, qi, divevlm.Selection(picks.order - (30 - size), picks.scores, picks.left))
        assert len(picks) == keep


@pytest.mark.parametrize(("n", "keep", "columns"), [(1100, 3, "gram"), (16384, 2, "picked"), (200, 60, "gram")])
def test_sizes_with_the_form_that_is_chosen_for_them(n, keep, columns):
    x, q = states("clustered", n, 12, 2)
    assert_right(x, q, select(x, q, keep, columns=columns))


def test_many_picks(monkeypatch):
    """So many updates to replay that they take several tiles; a wide tile, as the interpreter pays by the operation."""
    launch(monkeypatch, tile=32)
    x, q = states("clustered", 160, 12, 2)
    assert_right(x, q, select(x, q, 150, columns="gram"))


def test_weights_and_a_target(form):
    x, _ = states("clustered", 24, 40, 3)
    weight = torch.rand(24, generator=torch.Generator().manual_seed(1)) + 0.1
    plain = divevlm.select(x, x[:0], 5, weight=weight, loop="eager")
    picks = select(x, x[:0], 5, weight=weight)
    assert picks.order.tolist() == plain.order.tolist()
    torch.testing.assert_close(picks.scores, plain.scores, atol=1e-5, rtol=1e-5)
    budget = divevlm.Budget(energy=0.6, max=8)
    assert select(x, x[:0], budget).order.tolist() == divevlm.select(x, x[:0], budget, loop="eager").order.tolist()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"trace": True}, "with trace=True"),
        ({"updates": 3, "feedback": "all"}, "with feedback='all'"),
        ({"top_h": 17}, "with more than 16 pooled words of 20"),
        ({"x": torch.randn(9, 4, dtype=torch.float64)}, "with float64 states"),
    ],
)
def test_what_the_kernel_cannot_do_is_refused(options, why):
    given = {"x": torch.randn(9, 4), "q": torch.randn(20, 4)} | options
    with pytest.raises(ValueError, match=rf"^loop must be 'eager' or 'auto' {why}, got 'triton'$"):
        divevlm.select(given.pop("x"), given.pop("q"), 3, loop="triton", **given)


def test_without_triton_it_is_refused_and_nothing_else_changes(monkeypatch):
    real = select_module.find_spec
    monkeypatch.setattr(select_module, "find_spec", lambda name: None if name == "triton" else real(name))
    with pytest.raises(
        ValueError, match=r"^loop must be 'eager' or 'auto' without Triton \(pip install 'divevlm\[triton\]'\)"
    ):
        divevlm.select(torch.eye(4), torch.eye(4), 2, loop="triton")
    assert divevlm.select(torch.eye(4), torch.eye(4), 2).loop == "fused"


def chosen(monkeypatch, loop="auto", device="cuda", compiler="/usr/bin/cc", **options):
    """The loop that `select` would run on a device."""
    monkeypatch.setattr("divevlm.core.kernel.interpreted", lambda: False)
    monkeypatch.setattr(select_module, "which", lambda name: compiler)
    monkeypatch.delenv("CC", raising=False)
    given = {"rule": Rule(), "trace": False} | options
    call = select_module._Call(given["rule"], "auto", loop, None, given["trace"], True)
    x = SimpleNamespace(device=SimpleNamespace(type=device), shape=(2, 30, 8))
    return select_module._loop(call, x, 20, torch.float32)


def test_auto_takes_the_kernel_on_a_gpu_or_else_the_graph(monkeypatch):
    assert chosen(monkeypatch) == "triton"
    assert chosen(monkeypatch, rule=Rule(updates=3, feedback="all")) == "graph"
    assert chosen(monkeypatch, compiler=None) == "graph"
    assert chosen(monkeypatch, trace=True) == "eager"
    assert chosen(monkeypatch, loop="eager") == "eager"
    assert chosen(monkeypatch, device="mps") == "eager"
    with pytest.raises(ValueError, match="^loop must be 'eager' or 'auto' without a C compiler, which Triton needs"):
        chosen(monkeypatch, loop="triton", compiler=None)
    with pytest.raises(ValueError, match=r"^loop must be 'eager' or 'auto' on cpu, unless Triton interprets"):
        chosen(monkeypatch, loop="triton", device="cpu")


COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from divevlm.core import kernel
names = kernel._loop.arg_names
floats = ["E", "R", "C", "pairs", "scale", "weight", "soft", "bests", "tops", "left"]
kinds = dict.fromkeys(floats, "*fp32") | {"used": "*i32", "order": "*i64"}
kinds |= dict.fromkeys(["lam", "eta", "tie", "floor"], "fp32")
kinds |= dict.fromkeys(["begin", "end", "n", "m", "d", "keep", "batch"], "i32")
for options in ({"LAZY": False, "BLOCK": 1024}, {"LAZY": True, "BLOCK": 256, "KIND": 1, "H": 0, "ROWS": 1, "TWO_SIDED": True}):
    given = {"KIND": 0, "TWO_SIDED": False, "H": 3, "ROWS": 4, "SCAN": 1024, "REPLAY": 8, "WIDE": 8, "WORDS": 8} | options
    kinds["start"] = "*bf16" if given["LAZY"] else "*fp32"
    source = ASTSource(
        fn=kernel._loop,
        signature={name: kinds.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in given.items()},
    )
    built = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"num_warps": 8})
    print(len(built.asm["cubin"]))
"""


def test_the_kernel_compiles_for_a_gpu():
    """Not interpreted: Triton's compiler makes machine code for an A100, which needs none."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(int(size) > 1000 for size in done.stdout.split())
    assert len(done.stdout.split()) == 2
