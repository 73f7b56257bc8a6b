"""A folder of answers goes on where it was stopped, and refuses what does not belong to it."""

import json
import random
import shutil
from dataclasses import replace

import pytest

from divevlm.batch.job import Job
from divevlm.batch.run import run
from divevlm.experiments.journal import read

from .conftest import answers, questions, write


class Never:
    """An engine that must not be asked."""

    def __call__(self, rows):
        pytest.fail(f"asked again: {rows}")


@pytest.fixture(scope="module")
def whole(engine, input_file, checkpoint, tmp_path_factory):
    """An unbroken run."""
    job = Job(input_file, tmp_path_factory.mktemp("whole") / "out", checkpoint, keep=5, max_new_tokens=24, batch=2)
    run(job, engine)
    return job.out


def samples(folder):
    return [int(record["sample"]) for path in folder.glob("samples*.jsonl") for record in read(path)]


def test_a_finished_folder_asks_nothing(whole, job):
    shutil.copytree(whole, job.out)
    (job.out / "answers.jsonl").unlink()
    found = run(job, Never())
    assert answers(job.out) == answers(whole)
    assert found["answered"] == 24


@pytest.mark.parametrize("seed", range(12))
def test_a_journal_that_ends_anywhere_goes_on_there(engine, whole, job, seed):
    """Also in the middle of a line and of a batch."""
    job.out.mkdir()
    shutil.copy(whole / "run.json", job.out)
    content = (whole / "samples.jsonl").read_bytes()
    cut = random.Random(seed).randrange(1, len(content))
    (job.out / "samples.jsonl").write_bytes(content[:cut])
    run(job, engine)
    assert answers(job.out) == answers(whole)
    assert sorted(samples(job.out)) == list(range(1, 25))


def test_batches_of_a_run_that_goes_on_are_those_of_an_unbroken_one(engine, whole, job, monkeypatch):
    job.out.mkdir()
    shutil.copy(whole / "run.json", job.out)
    lines = (whole / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (job.out / "samples.jsonl").write_bytes(b"".join(lines[:9]))
    real, asked = engine.answerer.generate, []

    def generate(items, *more, **options):
        asked.append([int(item.sample) for item in items])
        return real(items, *more, **options)

    monkeypatch.setattr(engine.answerer, "generate", generate)
    run(job, engine)
    assert asked == [[line, line + 1] for line in range(9, 25, 2)]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"keep": 6}, "keep '5'"),
        ({"keep": 0.5}, "keep '5'"),
        ({"method": "random"}, "method 'dive'"),
        ({"max_new_tokens": 3}, "max_new_tokens 24"),
        ({"system": "Be brief."}, "system None"),
        ({"dtype": "bfloat16"}, "dtype None"),
        ({"engine": "vllm"}, "answers 'local'"),
        ({"engine": "ray", "actor": "vllm"}, "answers 'local'"),
        ({"frames": 3}, "frames 8"),
    ],
)
def test_other_settings_are_refused(whole, job, change, told):
    shutil.copytree(whole, job.out)
    with pytest.raises(ValueError, match=f"--out must be of a run with {told}, got"):
        run(replace(job, **change), Never())


def test_another_input_is_refused(whole, job, tmp_path):
    shutil.copytree(whole, job.out)
    other = write(tmp_path / "rows.jsonl", questions(tmp_path, 25))
    with pytest.raises(ValueError, match="--out must be of a run with input '24 rows, sha256 [0-9a-f]{16}', got"):
        run(replace(job, input=other), Never())


def test_a_first_start_that_answered_nothing_binds_nobody(engine, job, whole):
    class Fails:
        def __call__(self, rows):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(replace(job, max_new_tokens=3), Fails())
    run(job, engine)
    assert answers(job.out) == answers(whole)


@pytest.mark.parametrize("change", [{"batch": 5}, {"shards": 3, "shard": 0}])
def test_the_size_of_batches_and_the_number_of_shards_may_change(engine, whole, job, change):
    job.out.mkdir()
    shutil.copy(whole / "run.json", job.out)
    lines = (whole / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (job.out / "samples.jsonl").write_bytes(b"".join(lines[:7]))
    for shard in range(change.get("shards", 1)):
        found = run(replace(job, **change | {"shard": shard}), engine)
    assert found["left"] == 0
    assert answers(job.out) == answers(whole)
    assert sorted(samples(job.out)) == list(range(1, 25))


def test_shards_share_the_rows_and_the_last_one_sums_up(engine, whole, job):
    left = [run(replace(job, shards=3, shard=shard), engine)["left"] for shard in (2, 0, 1)]
    assert left == [16, 8, 0]
    assert {path.name for path in job.out.glob("samples*")} == {"samples.jsonl", "samples-1.jsonl", "samples-2.jsonl"}
    assert answers(job.out) == answers(whole)
    assert sorted(samples(job.out)) == list(range(1, 25))
    assert json.loads((job.out / "summary.json").read_text())["answered"] == 24
