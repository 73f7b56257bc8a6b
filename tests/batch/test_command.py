"""divevlm batch, as a shell runs it."""

import json

import pytest

from divevlm.cli import main

from .conftest import answers, questions, write


@pytest.fixture
def command(checkpoint, tmp_path, capsys):
    def call(*more, rows=None):
        path = write(tmp_path / "rows.jsonl", questions(tmp_path, 3) if rows is None else rows)
        given = ["batch", str(path), "--out", str(tmp_path / "out"), "--model", checkpoint, "--keep", "5"]
        try:
            code = main([*given, "--new-tokens", "2", *more])
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return call


def test_it_tells_how_many_rows_were_answered(command, tmp_path):
    code, out, err = command()
    assert (code, err) == (0, "")
    assert out.startswith("3 of 3 rows answered, 0 failed\nkept 5.0 of 16.0 visual tokens a row; ")
    assert out.endswith(f"answers in {tmp_path / 'out' / 'answers.jsonl'}\n")
    assert len(answers(tmp_path / "out")) == 3
    code, out, _ = command("--json")
    found = json.loads(out)
    assert code == 0
    assert [row["id"] for row in found["rows"]] == ["q0", "q1", "q2"]
    assert found["config"]["keep"] == 5


def test_rows_that_failed_are_listed_and_make_the_exit_code_1(command, tmp_path):
    code, out, err = command(rows=[*questions(tmp_path, 1), *["{"] * 7])
    assert (code, err) == (1, "")
    assert out.startswith("1 of 8 rows answered, 7 failed\n  line 2: a row must be one JSON object, got b'{'")
    assert "  and 2 more\n" in out


def test_a_shard_says_what_is_left(command, tmp_path):
    code, out, _ = command("--shards", "2", "--shard", "1", "--batch-size", "1")
    assert code == 0
    assert out.endswith("2 rows are left for other shards\n")
    assert not (tmp_path / "out" / "answers.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--new-tokens", "0"], "--new-tokens must be at least 1, got 0"),
        (["--frames", "0"], "--frames must be at least 1, got 0"),
        (["--shards", "0"], "--shards must be at least 1, got 0"),
        (["--shards", "2", "--shard", "2"], "--shard must be from 0 to 1, got 2"),
        (["--engine", "ray", "--shards", "2"], "--shards must be left out where Ray spreads the work, got 2"),
        (["--engine", "ray", "--actors", "0"], "--actors must be at least 1, got 0"),
        (["--llm", '{"a": 1}'], "--llm must be left out where vLLM does not answer, got {'a': 1}"),
        (["--method", "dvie"], "did you mean 'dive'?"),
        (["--keep", "17"], "keep must be at most 16, the visual tokens of an image, for dive, got 17"),
        (["--model", "./nowhere"], "model must be an embedded one"),
        (["--device", "cuda:99"], "device must be one that is there, got 'cuda:99'"),
    ],
)
def test_wrong_values_are_told_in_one_line_before_anything_is_asked(command, tmp_path, arguments, message):
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_llm_must_be_a_json_object(command):
    code, _, err = command("--llm", "[1]")
    assert code == 2
    assert "argument --llm: must be a JSON object, got '[1]'" in err
