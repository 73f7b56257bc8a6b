"""divevlm bench, through the command: what is written, and what is refused before anything is measured."""

import json

import pytest
from divevlm_tiny import available

from divevlm.bench.accuracy import contenders
from divevlm.bench.accuracy_table import with_and_without
from divevlm.cli import main
from divevlm.methods import METHODS

SMALL = ["bench", "accuracy", "--keep", "16", "--n", "4"]
needs_model = pytest.mark.skipif("llava" not in available(), reason="the embedded model is not in this copy")


def run(capsys, *arguments):
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def strict(text):
    """JSON as the standard has it: NaN is none of it."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@needs_model
def test_a_method_that_thins_out_the_tower(capsys):
    code, out, _ = run(capsys, *SMALL, "--methods", "tome", "--json")
    assert code == 0
    rows = {row["method"]: row for row in strict(out)["rows"]}
    assert list(rows) == ["vanilla", "blind", "tome", "random", "grid"]
    assert rows["tome"]["keep"] == 16
    assert rows["tome"]["tokens"] < rows["random"]["tokens"]  # it merges before the language model


@needs_model
def test_files_are_written_whole(capsys, tmp_path):
    code, out, _ = run(
        capsys, *SMALL, "--methods", "grid", "--out", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.svg")
    )
    assert code == 0
    assert "log-likelihood" in out
    assert strict((tmp_path / "a.json").read_text())["n"] == 4
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.rstrip().endswith("</svg>")
    assert {file.name for file in tmp_path.iterdir()} == {"a.json", "a.svg"}


@needs_model
def test_what_was_right_is_kept_by_question_and_can_be_compared(capsys, tmp_path):
    file = tmp_path / "a.json"
    run(capsys, "bench", "accuracy", "--keep", "16", "--n", "8", "--methods", "grid", "--out", str(file))
    rows = json.loads(file.read_text())["rows"]
    assert [100 * row["right"].count("1") / 8 for row in rows] == [row["accuracy"] for row in rows]
    code, out, _ = run(capsys, "bench", "compare", str(file), "--against", "random", "--json")
    (grid,) = [row for row in strict(out)["rows"] if row["method"] == "grid"]
    marks = {row["method"]: row for row in rows}
    assert code == 0
    assert grid["mean"] == pytest.approx(marks["grid"]["accuracy"] - marks["random"]["accuracy"])


@needs_model
def test_every_method_with_and_without_proportional(capsys):
    code, out, _ = run(capsys, *SMALL, "--method", "dive:eta=0.5,random", "--proportional", "measured,0.5")
    assert code == 0
    (head,) = [line for line in out.splitlines() if line.split()[:1] == ["proportional"]]
    assert head.split() == ["proportional", "keep", "without", "measured", "0.5"]


def test_all_methods_and_their_values_of_proportional():
    named = [setting.method for setting in contenders(["all"], [0.25])]
    assert named == list(METHODS)
    outside = {setting.method for setting in contenders(["all"], [0.25], plain=False)}
    assert outside == {*METHODS} - {"downsample"}
    both = [setting.method for setting in contenders(["dive", "dive-plus"], [0.25], ["True", "0.5"])]
    assert both[:3] == ["dive", "dive:proportional=True", "dive:proportional=0.5"]
    assert both[3:5] == ["dive-plus:proportional=False", "dive-plus:proportional=True"]  # it is so by itself


def test_what_proportional_adds_is_paired():
    def row(method, right, keep=8):
        return {"method": method, "keep": keep, "right": right, "accuracy": 100 * right.count("1") / len(right)}

    rows = [
        row("vanilla", "1111", 0),
        row("dive:eta=0.5", "1000"),
        row("dive:eta=0.5:proportional=True", "1110"),
        row("dive:proportional=measured:eta=0.5", "0000"),
        row("dive:proportional=True", "1111"),  # never asked without
        row("dive-plus", "1111"),  # "measured" by itself
        row("dive-plus:proportional=False", "0111"),
    ]
    (text,) = with_and_without(rows)
    head, _, line, plus = text.splitlines()
    assert head.split() == ["proportional", "keep", "without", "True", "measured"]
    assert line.split() == ["dive:eta=0.5", "8", "25.0", "+50.0±25.0", "-25.0±21.7"]
    assert plus.split() == ["dive-plus", "8", "75.0", "+25.0±21.7"]
    assert with_and_without(rows[:2]) == []


KINDS = {
    "selection": "divevlm.bench.selection.measure",
    "selection --methods all": "divevlm.bench.methods.measure",
    "engine": "divevlm.bench.engine.measure",
    "accuracy": "divevlm.bench.accuracy.measure",
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_interruption_leaves_what_was_there(capsys, monkeypatch, tmp_path, kind):
    def interrupted(self, target):
        raise KeyboardInterrupt

    file = tmp_path / "a.json"
    file.write_text("before")
    monkeypatch.setattr(KINDS[kind], lambda *_, **__: {"rows": []})
    monkeypatch.setattr("pathlib.Path.replace", interrupted)
    code, _, _ = run(capsys, "bench", *kind.split(), "--json", "--out", str(file))
    assert code == 130
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_folder_is_told_before_the_work(capsys, monkeypatch, kind):
    monkeypatch.setattr(KINDS[kind], lambda *_, **__: pytest.fail("the work began"))
    code, out, err = run(capsys, "bench", *kind.split(), "--out", "/no/where/a.json")
    assert (code, out) == (2, "")
    assert err == "divevlm: --out must be a file in a folder that is there, got '/no/where/a.json'\n"


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("/no/where/a.png", "--plot must be a file in a folder that is there, got '/no/where/a.png'"),
        ("a.bmp", "--plot must be a file that ends in .png or .svg, got 'a.bmp'"),
    ],
)
def test_a_plot_that_cannot_be_is_told_before_the_work(capsys, monkeypatch, file, message):
    monkeypatch.setattr(KINDS["accuracy"], lambda *_, **__: pytest.fail("the work began"))
    code, _, err = run(capsys, *SMALL, "--plot", file)
    assert (code, err) == (2, f"divevlm: {message}\n")


def test_a_plot_without_matplotlib_is_told_before_the_work(capsys, monkeypatch):
    monkeypatch.setattr(KINDS["accuracy"], lambda *_, **__: pytest.fail("the work began"))
    monkeypatch.setattr("divevlm.files.find_spec", lambda name: None)
    code, _, err = run(capsys, *SMALL, "--plot", "a.png")
    assert (code, err) == (2, "divevlm: --plot needs matplotlib (pip install 'divevlm[plot]'), got 'a.png'\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["accuracy", "--keep", "\u00b2"], "--keep must be a count or a share, got '\u00b2'"),
        (["accuracy", "--keep", "577"], "keep must be at most 576, the visual tokens of an image, for dive, got 577"),
        (
            ["accuracy", "--method", "dive:proportional=True", "--proportional", "measured"],
            "--method must be without proportional beside --proportional, got 'dive:proportional=True'",
        ),
        (
            ["accuracy", "--proportional", "True:eta=0.5"],
            "--proportional must be measured, uniform, True or numbers, joined by commas, got 'True:eta=0.5'",
        ),
        (["accuracy", "--clips"], "--clips must be left out for a tiny-llava, which sees pictures only, got True"),
        (["selection", "--shape", "\u00b2,1,1,1"], "--shape must be N,d,M,K or N,d,M,K,B"),
        (["engine", "--shape", "3,64,1,8:577"], "and K up to 576 V, got '3,64,1,8:577'"),
    ],
)
def test_numbers_that_are_none(capsys, arguments, message):
    code, _, err = run(capsys, "bench", *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
