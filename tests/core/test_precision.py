"""What others allow for their products (autocast, TF32, bfloat16) does not reach the selection, nor does it touch that."""

import pytest
import torch

import divevlm
from divevlm.core.products import _parts, fill_gram, fill_product, reduced
from tests.core.oracle import assert_right, states


@pytest.fixture(params=["medium", "high"])
def allowed(request):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("loop", ["eager", "fused"])
@pytest.mark.parametrize("columns", ["gram", "picked"])
def test_picks_are_the_same_under_every_setting(allowed, columns, loop, monkeypatch):
    x, q = states("clustered", 300, 256, 8)
    torch.set_float32_matmul_precision("highest")
    expected = divevlm.select(x, q, 60, columns=columns, loop=loop)
    torch.set_float32_matmul_precision(allowed)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda _: pytest.fail("the setting is not ours"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        picks = divevlm.select(x, q, 60, columns=columns, loop=loop)
    monkeypatch.undo()
    assert torch.get_float32_matmul_precision() == allowed
    assert picks.order.tolist() == expected.order.tolist()
    assert picks.scores.dtype == torch.float32
    assert_right(x, q, picks)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("out", [torch.float32, torch.float64])
def test_products_keep_their_digits_under_every_setting(allowed, dtype, out):
    assert reduced(torch.device("cpu")) == (torch.backends.mkldnn.matmul.fp32_precision not in ("ieee", "none"))
    x, q = (z.to(dtype) for z in states("random", 300, 700, 9))
    gram, cross = torch.empty(300, 300, dtype=out), torch.empty(9, 300, dtype=out)
    scale, query = torch.rand(300, dtype=out), torch.rand(9, dtype=out)
    fill_gram(gram, x, scale)
    fill_product(cross, q, x, query, scale)
    wide = x.double() * scale.double()[:, None]
    torch.testing.assert_close(gram.double(), wide @ wide.T, atol=2e-4, rtol=1e-6)
    torch.testing.assert_close(cross.double(), (q.double() * query.double()[:, None]) @ wide.T, atol=2e-4, rtol=1e-6)


def test_three_parts_that_no_setting_rounds_make_a_number():
    z = torch.randn(999, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.linspace(-20, 15, 999)
    parts = _parts(z)
    assert all(torch.equal(part, part.bfloat16().float()) for part in parts)
    assert torch.equal(sum(part.double() for part in parts), z.double())


def rounded(z):
    return z.bfloat16().float() if z.dtype == torch.float32 else z


@pytest.mark.parametrize("out", [torch.float32, torch.float64])
def test_products_on_a_machine_that_rounds(allowed, out, monkeypatch):
    """As a GPU with TF32 would, or a CPU with bfloat16: float32 factors are rounded before they are multiplied."""
    mm, addmm, matmul = torch.mm, torch.Tensor.addmm_, torch.Tensor.__matmul__
    monkeypatch.setattr(torch, "mm", lambda a, b, **rest: mm(rounded(a), rounded(b), **rest))
    monkeypatch.setattr(torch.Tensor, "addmm_", lambda z, a, b: addmm(z, rounded(a), rounded(b)))
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: matmul(rounded(a), rounded(b)))
    x, _ = states("random", 300, 700, 9)
    gram = torch.empty(300, 300, dtype=out)
    fill_gram(gram, x, torch.ones(300, dtype=out))
    wide = x.double()
    torch.testing.assert_close(gram.double(), wide @ wide.T, atol=2e-4, rtol=1e-6)
    assert float((x @ x.T - wide @ wide.T).abs().max()) > 0.05  # a plain product would not do
