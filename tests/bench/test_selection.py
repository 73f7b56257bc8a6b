"""divevlm bench selection, whole: on a CPU, and as a GPU machine runs it, with Triton's interpreter in place of the GPU."""

import importlib
import json

import pytest
import torch

from divevlm.bench import selection
from divevlm.cli import main
from tests.core.test_operations import captured  # noqa: F401

pytest.importorskip("triton")
SMALL = ["bench", "selection", "--shape", "20,16,3,5", "--rounds", "2"]


@pytest.fixture
def a_gpu(captured, monkeypatch):  # noqa: F811
    """Its tensors stay here, its graphs are noted operations, its blocks are small ones."""
    module = importlib.import_module("divevlm.core.select")
    monkeypatch.setattr(module, "_loop", lambda call, *_: "eager" if call.loop == "auto" else call.loop)
    monkeypatch.setattr(selection, "place", lambda device: torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    real = selection.prefill
    monkeypatch.setattr(selection, "prefill", lambda tokens, device: real(tokens, device, 32, 64, 4))


def test_on_a_gpu(a_gpu, capsys):
    assert main([*SMALL, "--device", "cuda", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["machine"]["gpu"] == "a card"
    rows = {row["path"]: row for row in result["rows"]}
    assert list(rows) == ["floor", "reference", "eager", "graph", "triton"]
    assert all(row["ms"] > 0 and row["of_prefill"] > 0 for row in rows.values())
    assert [rows[name]["same_picks"] for name in list(rows)[1:]] == [True] * 4
    times = {name: row["ms"] for name, row in rows.items()}
    assert rows["triton"]["over_reference"] == pytest.approx(times["reference"] / times["triton"])


def test_the_table_on_a_gpu(a_gpu, capsys):
    assert main([*SMALL, "--device", "cuda"]) == 0
    out = capsys.readouterr().out
    assert "of prefill" in out
    assert "32 blocks of a 7B Llama in bfloat16" in out
    assert out.count("equal") == 4


def test_on_a_cpu(capsys):
    assert main([*SMALL, "--json"]) == 0
    rows = {row["path"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert {"floor", "reference", "in place", "fast", "gram", "picked"} <= set(rows)
    assert all(row["same_picks"] for name, row in rows.items() if name != "floor")
    assert not any("of_prefill" in row for row in rows.values())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_refused_before_the_work(capsys):
    assert main([*SMALL, "--device", "cuda"]) == 2
    assert capsys.readouterr().err == "divevlm: --device must be cpu where torch finds no GPU, got 'cuda'\n"
