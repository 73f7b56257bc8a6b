"""divevlm methods, plan and bench selection --methods."""

import json
import re
from pathlib import Path

import pytest

from divevlm.cli import main
from divevlm.methods import METHODS

README = Path(__file__).parents[2] / "README.md"


def run(capsys, *arguments):
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_table_of_the_readme_is_what_the_command_prints(capsys):
    _, out, _ = run(capsys, "methods", "--markdown")
    text = README.read_text()
    shown = text.split("<!-- methods -->\n")[1].split("<!-- /methods -->")[0]
    assert shown == out


def test_the_families_of_the_readme_are_what_the_command_prints(capsys):
    _, out, _ = run(capsys, "models", "--markdown")
    shown = README.read_text().split("<!-- families -->\n")[1].split("<!-- /families -->")[0]
    assert shown == out


def test_methods_tell_what_they_are(capsys):
    _, out, _ = run(capsys, "methods", "--json")
    rows = {row["method"]: row for row in json.loads(out)["rows"]}
    assert set(rows) == set(METHODS)
    assert rows["visionzip"]["merges"]
    assert rows["visionzip"]["stage"] == "vision tower"
    assert rows["cdpruner"]["reads_text"]
    assert rows["tome"]["paper"] == "Bolya et al., ICLR 2023"
    assert rows["dart"]["settings"] == {"visual_pivots": 4, "text_pivots": 4, "faithful": False}
    _, out, _ = run(capsys, "methods")
    assert all(name in out for name in METHODS)


def test_papers_are_linked(capsys):
    for name in METHODS:
        kind = METHODS.get(name)
        assert bool(re.fullmatch(r"\d{4}\.\d{5}", kind.arxiv)) == ("et al." in kind.paper), name
    assert "[Chen et al., ECCV 2024](https://arxiv.org/abs/2403.06764)" in run(capsys, "methods", "--markdown")[1]
    assert "https://arxiv.org/abs/2403.06764" in run(capsys, "methods", "fastv")[1]


def test_plan_of_one_method(capsys):
    _, out, _ = run(capsys, "plan", "fastv", "--keep", "64", "--match", "layer-mean")
    assert "576 x 2, 30 x 30" in out
    _, out, _ = run(capsys, "plan", "fastv", "--keep", "64", "--match", "layer-mean", "--layers", "40", "--json")
    (row,) = json.loads(out)["rows"]
    assert row["final"] == 37
    assert row["setting"] == {"keep": 37}
    assert len(row["tokens_per_layer"]) == 40


def test_plan_of_all_methods(capsys):
    arguments = ["plan", "all", "--keep", "20", "--match", "layer-mean"]
    code, out, _ = run(capsys, *arguments, "--json")
    assert code == 0
    rows = {row["method"]: row for row in json.loads(out)["rows"]}
    assert set(rows) == {"vanilla", *METHODS}
    assert "keep must be between 36.94" in rows["fastv"]["error"]
    assert rows["scope"]["final"] == 20
    _, out, _ = run(capsys, *arguments)
    assert "fastv: keep must be between 36.94 and 576" in out
    _, out, _ = run(capsys, "plan", "all", "--keep", "0.2", "--tokens", "2880", "--views", "5")
    assert out.count("576 x 32") >= 5


def test_plan_reads_the_shape_of_a_model(capsys, tmp_path):
    from transformers import LlavaNextConfig

    LlavaNextConfig().save_pretrained(tmp_path)
    _, out, _ = run(capsys, "plan", "visionzip", "--model", str(tmp_path), "--keep", "320", "--json")
    (row,) = json.loads(out)["rows"]
    assert row["setting"] == {"keep": 320, "dominant": 54, "contextual": 10, "views": 5}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "fastvv", "--keep", "64"], "did you mean 'fastv'?"),
        (["plan", "fastv", "--keep", "0"], "keep must be a count of at least 1"),
        (["plan", "fastv", "--keep", "64", "--layers", "0"], "layers must be a whole number of at least 1, got 0"),
        (["plan", "all", "--keep", "64", "--tokens", "-1"], "tokens must be a whole number of at least 1, got -1"),
        (["plan", "fastv", "--keep", "64", "--model", "./nowhere"], "model must be an embedded one"),
        (["bench", "selection", "--methods", "dive,scopo"], "did you mean 'scope'?"),
    ],
)
def test_errors_are_one_line(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_bench_of_every_method(capsys):
    arguments = ["bench", "selection", "--methods", "all", "--shape", "80,32,8,10", "--rounds", "1"]
    code, out, _ = run(capsys, *arguments, "--json")
    assert code == 0
    rows = {row["method"]: row for row in json.loads(out)["rows"]}
    assert set(rows) == {*METHODS, "cdpruner, views together"} - {"downsample"}  # 80 tokens are five views
    assert rows["dive"]["of_dive"] == 1
    assert all(row["kept"] == 10 for row in rows.values())
    _, out, _ = run(capsys, "bench", "selection", "--methods", "scope", "--shape", "36,16,4,6", "--rounds", "1")
    assert "of DIVE" in out
    assert "views together" not in out
