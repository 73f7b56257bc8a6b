"""A sweep that is killed and started again, or spread over processes, ends with the same samples as one that ran through."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from divevlm.cli import main
from divevlm.experiments.journal import Journal, read
from divevlm.experiments.runner import Run, evaluate, keeps

METHODS, KEEPS, TASKS = ("dive", "grid"), (48, 16), ("existence", "reading")


def the_run(micro, out, **more):
    return Run(micro, METHODS, KEEPS, out, TASKS, limit=4, batch=4, new_tokens=4, **more)


def samples(folder):
    """What does not depend on the clock, of every finished sample; none may be there twice."""
    found = {}
    for path in folder.glob("samples*.jsonl"):
        for record in read(path):
            key = record["method"], record["keep"], record["task"], record["sample"]
            assert key not in found
            found[key] = record["prediction"], record["score"], record["kept"]
    return found


@pytest.fixture(scope="module")
def whole(micro, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, evaluate(the_run(micro, folder))


def command(micro, folder):
    what = [
        "--method",
        ",".join(METHODS),
        "--keep",
        "48,16",
        "--tasks",
        ",".join(TASKS),
        "--limit",
        "4",
        "--batch-size",
        "4",
    ]
    return [
        sys.executable,
        "-m",
        "divevlm.cli",
        "eval",
        "--model",
        micro,
        *what,
        "--new-tokens",
        "4",
        "--out",
        str(folder),
    ]


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


def test_a_killed_run_goes_on_where_it_stopped(micro, whole, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command(micro, tmp_path), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    file = tmp_path / "samples.jsonl"
    while process.poll() is None and not (file.exists() and file.stat().st_size):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = len(samples(tmp_path))
    assert 0 < before < 40
    with file.open("a") as stream:
        stream.write('{"method": "dive", "ke')  # the kill came in the middle of a line
    first = file.read_text().split("\n")[0]
    evaluate(the_run(micro, tmp_path))
    assert samples(tmp_path) == samples(whole[0])
    assert file.read_text().split("\n")[0] == first


def test_two_processes_do_what_one_does(micro, whole, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        result = evaluate(the_run(micro, tmp_path))
        assert (tmp_path / "results.json").exists() == (rank == "0")
    assert {path.name for path in tmp_path.glob("samples*")} == {"samples.jsonl", "samples-1.jsonl"}
    assert samples(tmp_path) == samples(whole[0])
    plain = ("method", "keep", "scores", "relative", "kept")
    assert [[row[k] for k in plain] for row in result["rows"]] == [[row[k] for k in plain] for row in whole[1]["rows"]]
    monkeypatch.setenv("WORLD_SIZE", "1")
    again = evaluate(the_run(micro, tmp_path))  # nothing left to do for another number of processes
    assert samples(tmp_path) == samples(whole[0])
    assert again["rows"] == result["rows"]


def test_torchrun_waits_for_all_and_merges(micro, whole, tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29541"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launch, *command(micro, tmp_path)[1:]], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert samples(tmp_path) == samples(whole[0])
    assert len(json.loads((tmp_path / "results.json").read_text())["rows"]) == 5


def test_more_can_be_added_to_a_folder_but_not_another_model(micro, whole, tmp_path):
    evaluate(Run(micro, ("grid",), (16,), tmp_path, TASKS, limit=2, batch=4, new_tokens=4))
    result = evaluate(the_run(micro, tmp_path))
    assert samples(tmp_path) == samples(whole[0])
    assert len(result["rows"]) == 5
    with pytest.raises(ValueError, match="--out must be of a run with seed 0, got"):
        evaluate(the_run(micro, tmp_path, seed=1))


def test_a_torn_line_elsewhere_is_refused(tmp_path):
    journal = Journal(tmp_path, {})
    journal.add([{"method": "dive", "keep": 1, "task": "a", "sample": "1"}])
    journal.add([{"method": "dive", "keep": 1, "task": "a", "sample": "1"}])
    assert len(journal.file.read_text().splitlines()) == 1
    journal.file.write_text("{\n" + journal.file.read_text())
    with pytest.raises(ValueError, match="must hold one JSON object a line"):
        Journal(tmp_path, {})


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
        (["--keep", "many"], "keep must be counts or shares joined by commas, got 'many'"),
        (["--tasks", "tasting"], "need lmms-eval: pip install 'divevlm[eval]'"),
        (["--limit", "-1"], "limit must be at least 1, got -1"),
        (["--batch-size", "0"], "batch-size must be at least 1, got 0"),
        (["--model", "./nowhere"], "model must be an embedded one"),
        (["--keep", "0"], "keep must be a count of at least 1"),
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
