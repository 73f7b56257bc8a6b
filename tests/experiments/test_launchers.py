"""A sweep that is killed and started again, or spread over processes, ends with the same samples as one that ran through."""

import json
import signal
import sys
from datetime import timedelta
from types import SimpleNamespace

import pytest

from divevlm.experiments import runner
from divevlm.experiments.on_ray import gpus_each
from divevlm.experiments.runner import Run, evaluate

from .runs import TASKS, arguments, python, samples, the_run

KILLED = """
import os, signal, sys
from divevlm.cli import main
from divevlm.experiments.journal import Journal

add = Journal.add
def add_and_die(self, records):
    add(self, records)
    os.kill(os.getpid(), signal.SIGKILL)
Journal.add = add_and_die
main(sys.argv[1:])
"""


def test_a_killed_run_goes_on_where_it_stopped(micro, whole, tmp_path):
    assert python("-c", KILLED, *arguments(micro, tmp_path)).returncode == -signal.SIGKILL
    assert len(samples(tmp_path)) == 4  # the first batch
    file = tmp_path / "samples.jsonl"
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
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "divevlm.cli"]
    done = python(*launch, *arguments(micro, tmp_path))
    assert done.returncode == 0, done.stderr
    assert samples(tmp_path) == samples(whole[0])
    assert len(json.loads((tmp_path / "results.json").read_text())["rows"]) == 5


def stop(*_, **__):
    raise InterruptedError


def test_processes_join_before_anything_else_can_make_a_group(micro, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *_, **options: made.append(options))
    monkeypatch.setattr(runner, "load", stop)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InterruptedError):
        evaluate(the_run(micro, tmp_path))
    assert made == [{"timeout": timedelta(days=7)}]


def test_ray_actors_do_what_one_process_does(micro, whole, tmp_path, monkeypatch):
    """With a stand-in for Ray that runs the actors here; the real one is in the tests of lmms-eval's environment."""
    asked = {}

    def flat_map(kind, fn_constructor_args, **options):
        asked.update(options)
        actor = kind(*fn_constructor_args)
        return SimpleNamespace(iter_rows=lambda: [one for row in asked["rows"] for one in actor(row)])

    def from_items(rows, **_):
        asked["rows"] = rows
        return SimpleNamespace(flat_map=flat_map)

    there = SimpleNamespace(
        init=lambda **_: None,
        cluster_resources=lambda: {"CPU": 2.0, "GPU": 1.0},
        data=SimpleNamespace(from_items=from_items),
    )
    monkeypatch.setitem(sys.modules, "ray", there)
    evaluate(Run(micro, ("grid",), (16,), tmp_path, TASKS, limit=1, batch=4, new_tokens=4))
    evaluate(the_run(micro, tmp_path, engine="ray", workers=2))
    assert samples(tmp_path) == samples(whole[0])
    assert asked["num_gpus"] == 0.5  # of the cluster, not of this machine
    assert asked["concurrency"] == 2


def test_actors_share_gpus_where_they_outnumber_them():
    assert [gpus_each(2, 0), gpus_each(2, 8), gpus_each(4, 3)] == [0, 1, 0.5]
