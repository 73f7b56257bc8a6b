"""The figures of `divevlm bench vllm`, and what it refuses."""

from importlib.util import find_spec

import pytest

from divevlm.bench.vllm import picture, summary
from divevlm.cli import main
from divevlm.cli.bench_tables import vllm_table


def run(seconds: float, tokens: int) -> dict:
    return {"seconds": seconds, "answers": [{"first": seconds / 2, "prompt_tokens": tokens}] * 4}


def test_rates_are_medians_over_rounds_and_compared_with_vanilla():
    vanilla, dive = [run(8, 589), run(4, 589), run(40, 589)], [run(2, 77), run(1, 77), run(4, 77)]
    row = summary("new pictures", "dive", dive, vanilla)
    assert row["prompt_tokens"] == 77
    assert row["requests_per_second"] == 2.0
    assert row["over_vanilla"] == 4.0
    assert row["first_token_ms"] == 1000.0
    load = {"clients": 4, "rounds": 3, "layers": 3, "width": 64, "keep": 64}
    shown = vllm_table({"rows": [row], "load": load, "tokens": 576, "machine": {}})
    assert "4.00x" in shown
    assert "K/N = 64/576" in shown


def test_every_client_has_a_picture_of_its_own():
    assert picture(1) == picture(1) != picture(2)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--width=100", "--width must be a multiple of 64, got 100"),
        ("--keep=577", "--keep must be counts from 1 to 576, got '577'"),
        ("--clients=0", "--clients must be at least 1, got 0"),
        ("--layers=2", "--layers must be at least 3, got 2"),
    ],
)
def test_bad_options_are_refused_in_one_line(option, message, capsys):
    assert main(["bench", "vllm", option]) == 2
    assert capsys.readouterr().err.strip() == f"divevlm: {message}"


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_it_says_so(capsys):
    assert main(["bench", "vllm"]) == 2
    assert "this needs vllm" in capsys.readouterr().err
