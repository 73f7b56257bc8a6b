"""A sweep: what it leaves on disk, what may be added to it, what it refuses."""

import json
from pathlib import Path

import pytest
import transformers

from divevlm.checks import keeps
from divevlm.cli import main
from divevlm.experiments import runner
from divevlm.experiments.runner import Run, evaluate
from divevlm.loading import load

from .runs import KEEPS, METHODS, TASKS, samples, the_run


def test_one_run_has_every_sample_once_and_says_what_it_ran_on(whole):
    folder, result = whole
    assert len(samples(folder)) == (1 + 2 * 2) * 2 * 4
    assert [(row["method"], row["keep"]) for row in result["rows"]] == [
        ("vanilla", 0), ("dive", 48), ("dive", 16), ("grid", 48), ("grid", 16)
    ]  # fmt: skip
    assert all(row["n"] == {"existence": 4, "reading": 4} for row in result["rows"])
    assert result["rows"][1]["kept"] == 48
    assert result["config"]["seed"] == 0
    assert {"torch", "transformers", "divevlm", "cores"} <= set(result["machine"])
    assert result["wall_seconds"] > 0
    assert json.loads((folder / "results.json").read_text())["rows"] == result["rows"]
    assert (folder / "results.csv").read_text().startswith("method,keep,existence,reading,all,relative\n")
    assert "| vanilla | all |" in (folder / "results.md").read_text()


def test_more_can_be_added_to_a_folder_but_not_another_model(micro, whole, tmp_path):
    evaluate(Run(micro, ("grid",), (16,), tmp_path, TASKS, limit=2, batch=4, new_tokens=4))
    result = evaluate(the_run(micro, tmp_path))
    assert samples(tmp_path) == samples(whole[0])
    assert len(result["rows"]) == 5
    with pytest.raises(ValueError, match="--out must be of a run with seed 0, got"):
        evaluate(the_run(micro, tmp_path, seed=1))


def stop(*_, **__):
    raise InterruptedError


def test_a_model_that_does_not_load_leaves_the_folder_free(micro, tmp_path):
    out = tmp_path / "new"
    with pytest.raises(ValueError, match="model must be"):
        evaluate(the_run("./nowhere", out))
    assert not out.exists()
    (tmp_path / "run.json").write_text('{"model": "./nowhere"}')  # of a session that finished no sample
    evaluate(Run(micro, ("grid",), (16,), tmp_path, TASKS, limit=1, new_tokens=1))
    assert json.loads((tmp_path / "run.json").read_text())["model"] == micro


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"seed": 1}, "seed 0"),
        ({"new_tokens": 9}, "new_tokens 4"),
        ({"dtype": "bfloat16"}, "dtype None"),
        ({"model": "./nowhere"}, "model '"),
    ],
)
def test_what_changes_answers_is_refused_before_a_model_is_loaded(micro, whole, monkeypatch, other, message):
    monkeypatch.setattr(runner, "load", stop)
    same = {"model": micro, "methods": METHODS, "keeps": KEEPS, "out": whole[0], "tasks": TASKS, "new_tokens": 4}
    with pytest.raises(ValueError, match=f"--out must be of a run with {message}"):
        evaluate(Run(**same | other))


def test_tasks_are_held_to_what_they_depend_on(tmp_path):
    def run(**more):
        return Run("llava", ("dive",), (8,), tmp_path, **more)

    def same(**more):
        return run(**more).same

    def journal(**more):
        return run(**more).journal()

    assert same(new_tokens=4) != same()
    assert same(new_tokens=4, mode="forced") == same(mode="forced")
    assert same(new_tokens=4, tasks=("pope",)) == same(tasks=("pope",))
    assert same(include=Path("a"), tasks=("pope",)) != same(include=Path("b"), tasks=("pope",))
    assert same(include=Path("a")) == same()
    one = {"method": "dive", "keep": 8, "task": "reading", "sample": "1"}
    with journal() as first:
        first.add([one])
    with journal(tasks=("pope",), include=Path("a")) as more:  # may be added
        more.add([one | {"task": "pope"}])
    with pytest.raises(ValueError, match="of a run with include"):
        journal(tasks=("pope",))
    with pytest.raises(ValueError, match="of a run with new_tokens 16"):
        journal(new_tokens=4)


def test_the_seed_reaches_methods_that_draw(tmp_path):
    run = Run("llava", ("random", "random:seed=5", "dive"), (8,), tmp_path, seed=3)
    _, drawn, own, dive = [setting.ready(None) for setting in run.settings]
    assert (drawn.seed, own.seed) == (3, 5)
    assert not hasattr(dive, "seed")
    assert [setting.method for setting in run.settings] == ["vanilla", "random", "random:seed=5", "dive"]


def test_seconds_add_up_over_sessions(micro, tmp_path):
    run = Run(micro, ("grid",), (16,), tmp_path, ("reading",), limit=1, new_tokens=1)
    first = evaluate(run)["wall_seconds"]
    assert json.loads((tmp_path / "wall.json").read_text()) >= first
    (tmp_path / "wall.json").write_text("1000")  # a killed session has noted it with its last sample
    assert 1000 < evaluate(run)["wall_seconds"] < 2000


@pytest.mark.parametrize(
    ("error", "reason"), [(ImportError("needs torchvision\nmore"), "needs torchvision"), (OSError(""), "OSError")]
)
def test_a_model_that_cannot_be_loaded_is_told_in_one_line(micro, monkeypatch, error, reason):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", fails)
    with pytest.raises(ValueError, match=f"a name on the hub that loads, got '.*': {reason}$"):
        load(micro)


def test_the_command_prints_a_table_or_json(micro, whole, capsys, tmp_path):
    arguments = ["eval", "--model", micro, "--method", "grid", "--keep", "16", "--tasks", "reading", "--limit", "2"]
    arguments += ["--new-tokens", "4", "--out", str(tmp_path)]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "vanilla" in out
    assert "results in" in out
    assert main([*arguments, "--json"]) == 0
    assert [row["method"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["vanilla", "grid"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "dvie"], "did you mean 'dive'?"),
        (["--keep", "many"], "--keep must be a count or a share, got 'many'"),
        (["--tasks", "tasting"], "need lmms-eval: pip install 'divevlm[eval]'"),
        (["--limit", "-1"], "limit must be a count of at least 1 or all"),
        (["--limit", "2,3"], "TASK=COUNT joined by commas (vqav2=2000,all), got '2,3'"),
        (["--limit", "tasting=3,2"], "limit must be of tasks that are asked (none), got 'tasting'"),
        (["--keep", "577"], "keep must be at most 576, the visual tokens of an image, for dive, got 577"),
        (["--batch-size", "0"], "batch-size must be at least 1, got 0"),
        (["--model", "./nowhere"], "model must be an embedded one"),
        (["--keep", "0"], "keep must be a count of at least 1"),
        (["--model", "./nowhere", "--method", "dive,dive:ete=1"], "options of dive must be among"),
        (["--model", "./nowhere", "--method", "fastv:layer=-1"], "layer must be a block number"),
        (["--model", "./nowhere", "--method", "vanilla:eta=1"], "method must be without options where it is vanilla"),
    ],
)
def test_wrong_values_are_told_in_one_line(micro, capsys, tmp_path, arguments, message):
    code = main(["eval", "--model", micro, "--tasks", "reading", "--out", str(tmp_path), *arguments])
    error = capsys.readouterr().err
    assert code == 2
    assert message in error
    assert error.count("\n") == 1


def test_budgets_are_counts_and_shares():
    assert keeps("192,0.25") == (192, 0.25)


def test_one_question_has_no_error(micro, tmp_path, capsys):
    for command in (["eval", "--method", "grid", "--keep", "16"], ["analyze", "feedback", "--keep", "16"]):
        more = ["--model", micro, "--tasks", "existence", "--limit", "1", "--out", str(tmp_path / command[0])]
        assert main([*command, *more, "--json"]) == 0
        row = json.loads(capsys.readouterr().out)["rows"][-1]
        assert row["error"] is None
        assert row.get("rgl_error") is None
        assert main([*command, *more]) == 0
        assert "± 0" not in capsys.readouterr().out
