"""kill -9 of the command at random moments: whatever was going on, the next start ends with one answer a row."""

import multiprocessing
import os
import random
import signal
import time
from dataclasses import replace

import pytest

from divevlm.batch.job import Job
from divevlm.batch.run import run
from divevlm.cli import main
from divevlm.experiments.journal import read

from .conftest import answers

ROWS = 24
PARTS = ["divevlm.batch.engine", "divevlm.batch.run", "divevlm.cli.batch", "transformers.models.llava.modeling_llava"]


def command(job):
    """What a shell would start; in a process of its own that has imported already."""
    import torch

    torch.set_num_threads(1)
    given = {"--out": job.out, "--model": job.model, "--keep": job.keep, "--batch-size": job.batch}
    given |= {"--new-tokens": job.max_new_tokens, "--dtype": "float32"}
    os._exit(main(["batch", str(job.input), *(str(one) for pair in given.items() for one in pair)]))


@pytest.fixture(scope="module")
def start():
    """Each process is forked from one that has loaded the libraries and nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PARTS)
    started = []

    def begin(job):
        started.append(context.Process(target=command, args=(job,)))
        started[-1].start()
        return started[-1]

    yield begin
    for process in started:
        process.kill()


def done(folder):
    return sum(1 for _ in read(folder / "samples.jsonl"))


def killed(process, folder, rows, delay):
    """SIGKILL once so many rows are on disk, and a little later."""
    while process.is_alive() and done(folder) < rows:
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL, "it had ended before"


@pytest.fixture(scope="module")
def unbroken(start, engine, input_file, checkpoint, tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken") / "out"
    job = Job(input_file, out, checkpoint, keep=5, max_new_tokens=24, batch=2, dtype="float32")
    process = start(job)
    process.join()
    assert process.exitcode == 0
    return job


@pytest.mark.parametrize("seed", range(10))
def test_a_run_that_is_killed_and_started_again_gives_one_answer_a_row(start, unbroken, engine, tmp_path, seed):
    job = replace(unbroken, out=tmp_path / "out")
    moment = random.Random(seed)
    killed(start(job), job.out, moment.randrange(0, 18), moment.uniform(0, 0.1))
    before = done(job.out)
    assert before < ROWS
    assert not (job.out / "answers.jsonl").exists()
    run(job, engine)
    assert answers(job.out) == answers(unbroken.out)
    records = [int(record["sample"]) for record in read(job.out / "samples.jsonl")]
    assert sorted(records) == list(range(1, ROWS + 1))


def test_a_run_that_is_killed_ten_times_in_a_row_ends_like_an_unbroken_one(start, unbroken, tmp_path):
    job = replace(unbroken, out=tmp_path / "out")
    moment = random.Random(10)
    for _ in range(10):
        killed(start(job), job.out, done(job.out) + moment.randrange(0, 2), moment.uniform(0, 0.05))
    assert 0 < done(job.out) < ROWS
    last = start(job)
    last.join()
    assert last.exitcode == 0
    assert answers(job.out) == answers(unbroken.out)
    records = [int(record["sample"]) for record in read(job.out / "samples.jsonl")]
    assert sorted(records) == list(range(1, ROWS + 1))
