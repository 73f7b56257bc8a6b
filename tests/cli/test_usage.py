"""Help, typos, and old names of options."""

import json
import subprocess
import sys

import pytest
from PIL import Image

from divevlm.checks import keep, keeps
from divevlm.cli import main
from divevlm.cli.doctor import PARTS
from divevlm.terminal import EXTRAS
from tests.zoo import picture


def run(capsys, *arguments):
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_help_does_not_import_torch():
    script = "import sys; from divevlm.cli import main\ntry: main([])\nfinally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: divevlm")  # a command alone shows what there is


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "did you mean 'run'?"),
        (["bench", "selction"], "did you mean 'selection'?"),
        (["plan", "dive", "--keep", "64", "--mach", "final"], "does not know --mach final: did you mean '--match'?"),
        (["plan", "dive", "--kepe=64", "--keep", "64"], "did you mean '--keep'?"),
        (["plan", "dive", "--keep", "64", "--match", "finale"], "did you mean 'final'?"),
        (["plan", "dive", "--kepe", "64"], "divevlm plan does not know --kepe: did you mean '--keep'?"),
        (["--verison"], "divevlm does not know --verison: did you mean '--version'?"),
        (["reproduce", "tabel1"], "got 'tabel1': did you mean 'table1'?"),
        (["plan", "dive"], "the following arguments are required: --keep"),
        (["methods", "dvie"], "did you mean 'dive'?"),
        (["run", "{photo}", " "], "QUESTION must be a text, got ' '"),
        (["run", "{photo}", "What?", "--compare", "fastv,,random"], "--compare must be values joined by commas"),
        (["run", "{moving}", "What?"], "an animation of 2 frames: save one of them, or all as a video"),
        (["plan", "dive", "--keep", "much"], "--keep must be a count or a share, got 'much'"),
        (["explore", "{photo}", "What?", "--lam", "x"], "--lam must be numbers joined by commas, got 'x'"),
    ],
)
def test_mistakes_are_one_line_that_says_what_was_meant(capsys, tmp_path, arguments, message):
    files = {"photo": tmp_path / "a.png", "moving": tmp_path / "a.gif"}
    picture(1, 60, 40).save(files["photo"])
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue")]
    frames[0].save(files["moving"], save_all=True, append_images=frames[1:])
    code, out, err = run(capsys, *(word.format(**files) for word in arguments))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_method_tells_its_settings(capsys):
    code, out, _ = run(capsys, "methods", "dive")
    assert code == 0
    assert "lam              1.5" in out
    assert "needed: a count or a share" in out
    assert [row["method"] for row in json.loads(run(capsys, "methods", "dive", "--json")[1])["rows"]] == ["dive"]


def test_old_names_of_options_still_work(capsys):
    arguments = ["bench", "selection", "--shape", "36,16,4,6", "--rounds", "1", "--json"]
    old, new = (json.loads(run(capsys, *arguments, name, "scope")[1])["rows"] for name in ("--methods", "--method"))
    assert [row["method"] for row in old] == [row["method"] for row in new]
    with pytest.raises(SystemExit):
        main(["bench", "selection", "--help"])
    assert "--methods" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "value"), [("64", 64), ("1", 1), ("1.0", 1.0), ("0.25", 0.25), ("1e-1", 0.1), (".5", 0.5)]
)
def test_a_budget_reads_the_same_everywhere(text, value):
    assert keep(text) == value
    assert type(keep(text)) is type(value)
    assert keeps(f"{text}, 7") == (value, 7)


def test_a_plan_says_where_a_method_counts_otherwise(capsys):
    _, out, _ = run(capsys, "plan", "all", "--keep", "64", "--match", "layer-mean")
    notes = [line for line in out.splitlines() if "its authors' lists" in line]
    assert notes == ["sparsevlm: its authors' lists, which match the tokens that leave a block"]


def test_every_extra_that_is_named_is_there():
    assert set(EXTRAS.values()) <= set(PARTS)
