"""The analyses: their tables, what they refuse, and what they cost."""

import sys
from importlib.util import find_spec

import pytest

from divevlm.cli import main
from divevlm.experiments import tasks
from divevlm.experiments.analysis import figures, timing
from divevlm.experiments.answering import Answerer

from ..zoo import build, picture


@pytest.mark.parametrize(
    ("what", "rows", "figure"),
    [
        ("feedback", 7, "rgl"),
        ("redundancy", 22, "redundancy"),
        ("runtime", 7, "overhead_ms"),
        ("sensitivity", 16, "likelihood"),
        ("ablation", 15, "likelihood"),
        ("positions", 9, "likelihood"),
        ("placement", 9, "kv"),
        ("energy", 65, "visual"),
    ],
)
def test_analyses(command, tmp_path, what, rows, figure):
    result = command("analyze", what, "--tasks", "existence,reading")
    assert len(result["rows"]) == rows
    assert figure in result["rows"][-1]
    assert (tmp_path / f"{what}.md").exists()
    assert all((tmp_path / name).exists() for name in result.get("files", []))
    if what == "feedback":
        assert sum(row["rgl"] for row in result["rows"]) == pytest.approx(0, abs=1)  # means of ratios to a common mean
    if what == "energy":
        assert result["rows"][0]["visual"] == 1
        assert all(a["visual"] >= b["visual"] for a, b in zip(result["rows"], result["rows"][1:], strict=False))


@pytest.mark.skipif(find_spec("lmms_eval") is not None, reason="lmms-eval is installed")
def test_analyses_on_benchmarks_need_lmms_eval(capsys, tmp_path):
    assert main(["analyze", "ablation", "--tasks", "pope", "--out", str(tmp_path)]) == 2
    assert "tasks pope need lmms-eval: pip install 'divevlm[eval]'" in capsys.readouterr().err


def test_redundancy_of_any_budgets_and_of_this_run_only(command, tmp_path, monkeypatch):
    drawn = []
    densities = figures.viz.redundancy_densities
    monkeypatch.setattr(figures.viz, "redundancy_densities", lambda values: drawn.append(values) or densities(values))
    asked = ("analyze", "redundancy", "--tasks", "existence", "--keep")
    command(*asked, "300,8")
    command(*asked, "4,8,16,32,0.25")
    assert [set(budgets) for budgets in drawn[1].values()] == [{4, 8, 16, 32, 0.25}] * 7
    assert (tmp_path / "redundancy.svg").stat().st_size > 1000


def test_every_budget_of_a_plot_has_a_look_of_its_own():
    made = figures.viz.redundancy_densities({0: {2 + k: [0.1 * k, 0.1 * k + 0.05] for k in range(20)}, 2: {}})
    looks = {(line.get_color(), line.get_linestyle()) for line in made.axes[0].lines}
    assert len(looks) == 20
    assert len({colour for colour, _ in looks}) == 6
    assert len(made.legends[0].get_texts()) == 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["redundancy", "--keep", "64,1"], "keep must be at least 2 for redundancy, or shares, got '64,1'"),
        (["runtime", "--keep", "64,32"], "keep must be one budget for runtime, got '64,32'"),
        (["energy", "--keep", "64,32"], "keep must be one budget for energy, got '64,32'"),
        (["energy", "--method", "fastv"], "method must be left out for energy, which is about DIVE alone, got 'fastv'"),
        (["runtime", "--method", "dive"], "method must be left out for runtime, which is about DIVE alone, got 'dive'"),
        (["ablation", "--new-tokens", "4"], "new-tokens must be left out for ablation, which generates nothing, got 4"),
        (["runtime", "--new-tokens", "0"], "new-tokens must be at least 1, got 0"),
        (["runtime", "--keep", "1.5"], "keep must be a count of at least 1 or a share in (0, 1], got 1.5"),
        (["energy", "--limit", "0"], "limit must be at least 1, got 0"),
        (["energy", "--batch-size", "0"], "batch-size must be at least 1, got 0"),
        (["energy", "--keep", "576"], "keep must be less than the visual tokens of a picture"),
        (["energy", "--keep", "1.0"], "keep must be less than the visual tokens of a picture"),
    ],
)
def test_what_an_analysis_does_not_use_is_refused(micro, capsys, tmp_path, arguments, message):
    given = ["--model", micro, "--tasks", "existence", "--limit", "1", "--out", str(tmp_path)]
    assert main(["analyze", arguments[0], *given, *arguments[1:]]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_pictures_need_matplotlib_before_the_work(micro, capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for what in (
        ["analyze", "redundancy"],
        ["analyze", "feedback"],
        ["reproduce", "figure3"],
        ["reproduce", "figure4"],
    ):
        assert main([*what, "--model", micro, "--out", str(tmp_path)]) == 2
        assert "pictures need matplotlib: pip install 'divevlm[plot]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_shares_are_shares(command):
    assert len(command("analyze", "energy", "--tasks", "existence", "--keep", "0.01")["rows"]) == 1 + 6  # of 576
    result = command("analyze", "runtime", "--tasks", "existence", "--keep", "1.0", "--new-tokens", "2")
    assert "100 % of the visual tokens" in result["about"]
    assert result["rows"][0]["setting"] == "dive:updates=0 1.0"


def test_energy_of_pictures_of_several_sizes():
    entry = build("qwen2_vl")
    sizes = ((112, 84), (84, 140), (112, 112))
    some = [tasks.Item("see", str(i), "what ?", "a", lambda i=i: [picture(i, *sizes[i])]) for i in range(3)]
    rows = timing.energy(Answerer(entry.model, entry.processor, shared=False), some, 0.5, 2)
    assert [row["picks"] for row in rows] == list(range(len(rows)))
    assert (rows[0]["visual"], rows[0]["samples"], rows[-1]["samples"]) == (1, 3, 2)
