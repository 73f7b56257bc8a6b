"""The scripts beside the command: wrong values are told in one line, before anything is loaded or written."""

from functools import partial
from importlib import import_module

import pytest

from divevlm.terminal import one_line

NAMES = "look, ask8, ask12, both12, mixed24, both24, learn24, end24, count24, even24"


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("counting", "--keep 0", "--keep must be counts from 1 to 576, got '0'"),
        ("counting", "--swap 4,x", "--swap must be counts from 0 to 576, got '4,x'"),
        ("counting", "--n 0", "--n must be at least 1, got 0"),
        ("geometry", "--n 0", "--n must be at least 1, got 0"),
        ("geometry", "--model no", "model must be one of llava, qwen2vl or a folder with a trained one, got 'no'"),
        ("score", "--folder no", "--folder must hold a checkpoint.pt, got 'no'"),
        ("export", "--folder no --to to", "--folder must hold a checkpoint.pt, got 'no'"),
        ("llava", "--folder no --threads 0", "--threads must be at least 1, got 0"),
        ("llava", "--folder no --scale -1", "--scale must be at least 0, got -1.0"),
        ("llava", "--folder no --scale nan", "--scale must be a number of at least 0, got nan"),
        ("llava", "--folder no --scale inf", "--scale must be a number of at least 0, got inf"),
        ("llava", "--folder no --rate -1", "--rate must be at least 0, got -1.0"),
        ("llava", "--folder no --matrix-rate nan", "--matrix-rate must be a number of at least 0, got nan"),
        ("qwen2vl", "--folder no --stop -1", "--stop must be at least 0, got -1"),
        ("llava", "--folder no --steps x=3", f"--steps must be PHASE=N, PHASE one of {NAMES}, got 'x=3'"),
        ("llava", "--folder no --steps look", f"--steps must be PHASE=N, PHASE one of {NAMES}, got 'look'"),
        (
            "qwen2vl",
            "--folder no --go-on .",
            "--go-on must be a model that was exported after training, got '.'",
        ),
    ],
)
def test_wrong_values(capsys, monkeypatch, tmp_path, script, arguments, message):
    monkeypatch.chdir(tmp_path)
    main = import_module(f"training.{script}").main
    assert one_line(partial(main, arguments.split())) == 2
    assert capsys.readouterr().err == f"divevlm: {message}\n"
    assert not list(tmp_path.iterdir())
