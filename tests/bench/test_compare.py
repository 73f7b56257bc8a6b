"""divevlm bench compare: paired differences that can be done by hand."""

import json
import math
from pathlib import Path

import pytest

from divevlm.bench.compare import compare, plot, read
from divevlm.cli import main


def written(path, n=4, split="validation", model="llava", **marks):
    rows = [{"method": name, "keep": 0 if name == "vanilla" else 16, "right": right} for name, right in marks.items()]
    path.write_text(json.dumps({"model": model, "split": split, "n": n, "rows": rows}))
    return str(path)


def told(capsys, *arguments):
    code = main(["bench", "compare", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def two(tmp_path):
    return [
        written(tmp_path / "a.json", vanilla="1111", dive="1100", grid="0100"),
        written(tmp_path / "b.json", model="runs/two", vanilla="1111", dive="1110", grid="0010"),
    ]


def test_differences_are_paired(capsys, two):
    code, out, _ = told(capsys, *two, "--json")
    rows = {row["method"]: row for row in json.loads(out)["rows"]}
    assert code == 0
    assert rows["grid"]["accuracy"] == [25, 25]
    assert rows["grid"]["difference"] == [-25, -50]  # (-1, 0, 0, 0) and (-1, -1, 0, 0)
    assert rows["grid"]["error"] == pytest.approx([100 * math.sqrt(3) / 8, 25])
    assert (rows["grid"]["mean"], rows["grid"]["mean_error"]) == (
        -37.5,
        pytest.approx(25 * math.sqrt(0.6875)),
    )  # of (-1, -0.5, 0, 0)
    assert rows["dive"]["difference"] == [0, 0]
    assert "difference" not in rows["vanilla"]


def test_the_table_has_a_column_for_each_training(capsys, two):
    _, out, _ = told(capsys, *two)
    head, _, full, dive, grid = out.splitlines()[:5]
    assert head.split("  ")[0] == "method"
    assert "two, minus dive" in head
    assert full.split() == ["vanilla", "-", "100.0", "100.0"]
    assert dive.split() == ["dive", "16", "50.0", "75.0"]
    assert grid.split() == ["grid", "16", "25.0", "25.0", "-25.0±21.7", "-50.0±25.0", "-37.5±20.7"]


def test_a_picture_has_a_panel_for_each_training(capsys, two, tmp_path):
    code, _, _ = told(capsys, *two, "--plot", str(tmp_path / "seeds.svg"))
    drawn = (tmp_path / "seeds.svg").read_text()
    assert code == 0
    assert drawn.rstrip().endswith("</svg>")
    assert told(capsys, *two, "--plot", "a.bmp")[2].startswith(
        "divevlm: --plot must be a file that ends in .png or .svg"
    )


def test_the_panels_show_each_training_and_method(two):
    figure = plot(compare(read([Path(file) for file in two])))
    assert [axes.get_title() for axes in figure.axes] == ["llava", "two"]
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[1].lines}
    assert list(lines["grid"]) == [25]
    assert list(lines["dive"]) == [75]
    assert list(lines["all tokens"]) == [100, 100]


def test_a_single_file_has_the_error_of_its_questions(capsys, two):
    _, out, _ = told(capsys, two[0], "--json", "--against", "grid")
    (dive,) = [row for row in json.loads(out)["rows"] if row["method"] == "dive"]
    assert (dive["mean"], [dive["mean_error"]]) == (25, dive["error"])


def test_trainings_that_agree_are_no_surer_than_their_questions(capsys, tmp_path):
    files = [written(tmp_path / f"{name}.json", dive="1110", grid="0110") for name in "abc"]
    _, out, _ = told(capsys, *files, "--json")
    (grid,) = [row for row in json.loads(out)["rows"] if row["method"] == "grid"]
    assert grid["mean_error"] == pytest.approx(100 * math.sqrt(3) / 8)


def test_trainings_that_differ_are_no_surer_than_their_spread(capsys, tmp_path):
    files = [written(tmp_path / f"{mark}.json", dive="1111", grid=4 * mark) for mark in "01"]
    _, out, _ = told(capsys, *files, "--json")
    (grid,) = [row for row in json.loads(out)["rows"] if row["method"] == "grid"]
    assert (grid["difference"], grid["error"], grid["mean_error"]) == ([-100, 0], [0, 0], pytest.approx(50))


def test_everything_can_be_compared_with_all_tokens(capsys, two):
    _, out, _ = told(capsys, *two, "--json", "--against", "vanilla")
    assert {row["method"]: row["difference"] for row in json.loads(out)["rows"]} == {
        "vanilla": [0, 0],
        "dive": [-50, -25],
        "grid": [-75, -75],
    }


def test_the_same_file_twice(capsys, two):
    code, _, err = told(capsys, two[0], two[0])
    assert (code, err) == (2, f"divevlm: FILE must be given once, got {two[0]!r} twice\n")


def test_only_what_all_files_have_is_compared(capsys, tmp_path, two):
    more = written(tmp_path / "c.json", vanilla="1111", dive="1100", random="0000")
    _, out, _ = told(capsys, two[0], more, "--json")
    assert [row["method"] for row in json.loads(out)["rows"]] == ["vanilla", "dive"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("no JSON", "FILE must be what `divevlm bench accuracy --out` writes"),
        ("[]", "FILE must be what"),
        ('{"model": "m", "n": 4, "split": "test", "rows": []}', "FILE must be what"),
        ('{"model": "m", "n": 2, "split": "test", "rows": [{"method": "dive", "keep": 16}]}', "(older ones lack it)"),
        ('{"model": "m", "n": 2, "split": "test", "rows": [{"right": "11"}]}', "FILE must be what"),
        ('{"n": 2, "split": "test", "rows": [{"method": "dive", "keep": 16, "right": "11"}]}', "FILE must be what"),
        (
            '{"model": "m", "n": 4, "split": "test", "rows": [{"method": "dive", "keep": 16, "right": "11"}]}',
            "FILE must be what",
        ),
        (
            '{"model": "m", "n": 2, "split": "test", "rows": [{"method": "dive", "keep": 16, "right": "1x"}]}',
            "FILE must be what",
        ),
    ],
)
def test_files_of_something_else(capsys, tmp_path, content, message):
    file = tmp_path / "a.json"
    if content is not None:
        file.write_text(content)
    code, out, err = told(capsys, str(file))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_other_questions(capsys, tmp_path, two):
    code, _, err = told(capsys, two[0], written(tmp_path / "c.json", split="shift", dive="1111"))
    assert code == 2
    assert "must hold the same questions as the others, got 4 of shift" in err


def test_a_method_that_is_not_there(capsys, two):
    code, _, err = told(capsys, *two, "--against", "fastv")
    assert code == 2
    assert err == "divevlm: --against must be a method in all files (vanilla, dive, grid), got 'fastv'\n"
