"""Real Ray: actors give what one process gives, also when one of them is killed (`make test-eval` has Ray)."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

pytest.importorskip("ray")

from divevlm.batch.run import run
from divevlm.experiments.journal import read

from .conftest import answers, questions, write

LONG = 120  # tokens of an answer: actors are to be killed while they work


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asked")
    rows = questions(folder, 30)
    rows[7] |= {"image": "none.png"}
    return write(folder / "rows.jsonl", rows)


def started(job):
    """The command with two actors, as a shell starts it."""
    arguments = ["batch", job.input, "--out", job.out, "--model", job.model, "--keep", job.keep, "--batch-size", job.batch,
                 "--new-tokens", job.max_new_tokens, "--dtype", "float32", "--engine", "ray", "--actors", 2]  # fmt: skip
    own = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    return subprocess.Popen([sys.executable, "-m", "divevlm.cli", *map(str, arguments)], env=own,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # fmt: skip


def records(folder):
    return list(read(folder / "samples.jsonl"))


def workers(folder):
    return {int(record["worker"].split(":")[1]) for record in records(folder)}


def wait(process, until):
    while process.poll() is None and not until():
        time.sleep(0.005)
    assert process.poll() is None, process.stderr.read()[-3000:]


def test_an_actor_that_is_killed_loses_no_row_and_doubles_none(engine, job, asked, tmp_path):
    job = replace(job, input=asked, max_new_tokens=LONG, dtype="float32")
    process = started(job)
    wait(process, lambda: len(workers(job.out)) == 2)
    victim = records(job.out)[0]["worker"].split(":")[1]
    os.kill(int(victim), signal.SIGKILL)
    before = len(records(job.out))
    _, errors = process.communicate()
    assert process.returncode == 1, errors[-3000:]  # the row without a picture
    assert 0 < before < 26, "the kill came too late to tell"
    found = answers(job.out)
    lines = sorted(int(record["sample"]) for record in records(job.out))
    assert lines == list(range(1, 31))
    one = replace(job, out=tmp_path / "one")
    run(one, engine_of(engine, one))
    assert found == answers(one.out)
    assert [row["line"] for row in found if row["error"]] == [8]


def test_a_driver_that_is_killed_goes_on_with_ray_and_without(engine, job, asked, tmp_path):
    job = replace(job, input=asked, max_new_tokens=LONG, dtype="float32")
    process = started(job)
    wait(process, lambda: len(records(job.out)) > 3)
    process.kill()
    process.communicate()
    before = len(records(job.out))
    assert 3 < before < 26, "the kill came too late to tell"
    again = started(job)
    wait(again, lambda: len(records(job.out)) > before + 2)
    again.kill()
    again.communicate()
    run(job, engine_of(engine, job))
    assert sorted(int(record["sample"]) for record in records(job.out)) == list(range(1, 31))
    one = replace(job, out=tmp_path / "one")
    run(one, engine_of(engine, one))
    assert answers(job.out) == answers(one.out)


def test_a_model_that_no_actor_can_load_is_told_in_one_line_of_ours(engine, job, tmp_path):
    (tmp_path / "bare").mkdir()
    engine.answerer.processor.save_pretrained(tmp_path / "bare")
    engine.answerer.model.config.save_pretrained(tmp_path / "bare")
    process = started(replace(job, model=str(tmp_path / "bare")))
    _, errors = process.communicate()
    assert process.returncode == 2
    (told,) = [line for line in errors.splitlines() if line.startswith("divevlm: ")]
    assert told.startswith("divevlm: engine ray: an actor failed: ValueError: model must be an embedded one")
    assert "no file named model.safetensors" in told


def engine_of(engine, job):
    return type(engine)(job, (engine.answerer.model, engine.answerer.processor))
