"""Stock lmms-eval, torchrun, accelerate and Ray: all give what one process gives (`make test-eval`)."""

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("lmms_eval")

from divevlm.cli import main
from divevlm.experiments.lmms.tasks import write
from divevlm.experiments.runner import Run, evaluate

from ..runs import python
from .conftest import TASKS, evaluated, predictions

SITE = Path(__file__).parent / "site"


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    """Of the processes that are started here."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SITE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")


def test_two_processes_give_the_same_samples(micro, suite, whole, tmp_path):
    done = python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "divevlm.cli", "eval",
                 "--model", micro, "--method", "dive", "--keep", "24", "--tasks", TASKS, "--batch-size", "2",
                 "--inputs", "chat", "--include-path", suite, "--out", tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert predictions(tmp_path) == predictions(whole[0])
    assert json.loads((tmp_path / "results.json").read_text())["benchmarks"] == whole[1]["benchmarks"]


def lmms(micro, suite, tasks, *more):
    arguments = f"pretrained={micro},method=dive,keep=24,device=cpu,batch_size=2"
    return python("-m", "lmms_eval", "--model", "divevlm", "--model_args", arguments, "--include_path", suite,
                 "--tasks", tasks, "--batch_size", "2", "--device", "cpu", *more)  # fmt: skip


def test_the_stock_command_runs_with_device_told_twice(micro, suite, whole, tmp_path):
    done = lmms(micro, suite, TASKS, "--log_samples", "--output_path", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    said = {}
    for path in tmp_path.rglob("*samples*.jsonl"):
        task = next(task for task in TASKS.split(",") if task in path.name)
        for line in path.read_text().splitlines():
            record = json.loads(line)
            answer = record["filtered_resps"]
            said[task, str(record["doc_id"])] = answer if isinstance(answer, str) else answer[0]
    assert said == predictions(whole[0])


def broken(folder):
    write(folder, limit=1)
    row = json.loads((folder / "reading.jsonl").read_text())
    del row["seed"]  # nothing to draw
    (folder / "reading.jsonl").write_text(json.dumps(row) + "\n")


@pytest.mark.parametrize("more", [[], ["--force_simple"]], ids=["chat", "simple"])
def test_a_failed_sample_fails_the_stock_command(micro, suite, tmp_path, more):
    broken(tmp_path)
    done = lmms(micro, tmp_path, "divevlm_reading", *more)
    assert done.returncode == 1
    assert "divevlm: " in done.stderr
    assert "divevlm_reading 0 failed: KeyError: 'seed'" in done.stderr


def test_a_failed_sample_is_named_and_fails_our_command(micro, tmp_path, capsys):
    broken(tmp_path)
    command = ["eval", "--model", micro, "--tasks", "divevlm_reading", "--inputs", "chat"]
    command += ["--include-path", str(tmp_path)]
    assert main([*command, "--out", str(tmp_path / "out")]) == 2
    assert "divevlm: divevlm_reading 0 failed: KeyError: 'seed'" in capsys.readouterr().err


def test_ray_gives_what_one_process_gives(micro, tmp_path):
    pytest.importorskip("ray")
    same = {"tasks": ("existence", "reading"), "limit": 3, "batch": 2, "new_tokens": 4}
    one = evaluate(Run(micro, ("dive",), (24,), tmp_path / "one", **same))
    limits = ["--limit", "3", "--batch-size", "2", "--new-tokens", "4"]
    done = python("-m", "divevlm.cli", "eval", "--model", micro, "--method", "dive", "--keep", "24", *limits,
                 "--tasks", "existence,reading", "--engine", "ray", "--workers", "2", "--out", tmp_path / "two",
                 RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert predictions(tmp_path / "two") == predictions(tmp_path / "one")
    rows = json.loads((tmp_path / "two" / "results.json").read_text())["rows"]
    assert [row["scores"] for row in rows] == [row["scores"] for row in one["rows"]]


def test_ray_answers_benchmarks(micro, suite, whole, tmp_path):
    pytest.importorskip("ray")
    folder, result = whole
    done = python("-m", "divevlm.cli", "eval", "--model", micro, "--method", "dive", "--keep", "24", "--tasks", TASKS,
                 "--batch-size", "2", "--inputs", "chat", "--include-path", suite, "--engine", "ray", "--workers", "2",
                 "--out", tmp_path,
                 RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert predictions(tmp_path) == predictions(folder)
    assert predictions(tmp_path, "vanilla") == predictions(folder, "vanilla")
    assert json.loads((tmp_path / "results.json").read_text())["benchmarks"] == result["benchmarks"]
    assert (tmp_path / "scores.jsonl").read_text() == (folder / "scores.jsonl").read_text()


def test_accelerate_launch_gives_what_one_process_gives(micro, suite, tmp_path):
    one = evaluated(micro, suite, tmp_path / "one")
    launch = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0"]
    what = ["--model", micro, "--method", "dive", "--keep", "24", "--tasks", TASKS, "--inputs", "chat"]
    what += ["--include-path", suite]
    done = python(*launch, "-m", "divevlm.cli", "eval", *what, "--batch-size", "2", "--out", tmp_path / "two")
    assert done.returncode == 0, done.stderr[-3000:]
    assert predictions(tmp_path / "two") == predictions(tmp_path / "one")
    assert len(list((tmp_path / "two").glob("samples*.jsonl"))) == 2
    two = json.loads((tmp_path / "two" / "results.json").read_text())
    assert {name: entry["tasks"] for name, entry in two["benchmarks"].items()} == {
        name: entry["tasks"] for name, entry in one["benchmarks"].items()
    }
