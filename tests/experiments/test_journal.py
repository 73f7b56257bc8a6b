"""A folder of finished samples: one run writes to it at a time, what made it is known, and damage is named."""

import subprocess
import sys

import pytest

from divevlm.experiments.journal import Journal, read

ONE = {"method": "dive", "keep": 1, "task": "a", "sample": "1"}
RUN = {"model": "m", "seed": 0}


@pytest.fixture
def folder(tmp_path):
    with Journal(tmp_path, RUN) as journal:
        journal.add([ONE])
    return tmp_path


def test_a_sample_is_written_once(folder):
    with Journal(folder, RUN) as journal:
        journal.add([ONE, ONE | {"sample": "2"}])
        assert ("dive", 1, "a", "2") in journal
    assert [record["sample"] for record in read(folder / "samples.jsonl")] == ["1", "2"]


def test_a_second_run_on_the_folder_is_refused_until_the_first_ends(folder):
    other = f"from pathlib import Path; from divevlm.experiments.journal import Journal; Journal(Path({str(folder)!r}), {RUN})"
    with Journal(folder, RUN):
        done = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True)
        assert "--out must be a folder that no other run is writing to" in done.stderr
    assert subprocess.run([sys.executable, "-c", other]).returncode == 0


@pytest.mark.parametrize("damage", [None, "", "{}", "[", '{"seed": 0}'])
def test_samples_whose_origin_is_unknown_are_refused(folder, damage):
    path = folder / "run.json"
    path.unlink() if damage is None else path.write_text(damage)
    with pytest.raises(ValueError, match="run.json|of a run with model None"):
        Journal(folder, RUN)
    with pytest.raises(ValueError, match="run.json|of a run with model None"):  # the lock is free again
        Journal(folder, RUN)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "samples.jsonl",
            '{\n{"method": 1}\n',
            r"samples.jsonl must hold one JSON object of a sample a line, .* in line 1",
        ),
        ("samples-1.jsonl", '{"method": "dive"}\n', r"samples-1.jsonl must hold one JSON object of a sample a line"),
        ("samples.jsonl", "\ufffd\n", "samples.jsonl must hold one JSON object"),
        ("wall.json", "", r"wall.json is empty or damaged"),
        ("wall.json", '"soon"', r"wall.json is empty or damaged"),
    ],
)
def test_damaged_files_are_named(folder, name, text, message):
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        Journal(folder, RUN)


def test_a_line_is_read_once_and_those_of_other_processes_are_caught_up_with(folder, monkeypatch):
    with Journal(folder, RUN) as first, Journal(folder, RUN, rank=1) as second:
        second.add([ONE | {"sample": "2"}])
        assert len(first.done) == 1
        assert len(first.catch_up()) == 2
        monkeypatch.setattr("divevlm.experiments.journal.json.loads", lambda text: pytest.fail(f"read again: {text}"))
        assert len(first.catch_up()) == 2


def test_an_empty_folder_of_ours_goes_again(tmp_path):
    with Journal(tmp_path / "new", RUN):
        assert (tmp_path / "new").exists()
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with Journal(tmp_path / "old", RUN):
        pass
    assert (tmp_path / "old").exists()
