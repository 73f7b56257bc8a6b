"""A micro model, saved where commands can load it."""

import json

import pytest

from divevlm.cli import main
from divevlm.experiments.answering import Answerer
from divevlm.experiments.runner import evaluate
from divevlm.loading import load
from tests.micro import micro_llava

from .runs import the_run


@pytest.fixture(scope="session")
def micro(tmp_path_factory):
    folder = tmp_path_factory.mktemp("micro")
    for part in micro_llava():
        part.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def answerer(micro):
    return Answerer(*load(micro))


@pytest.fixture(scope="session")
def whole(micro, tmp_path_factory):
    """A sweep that ran through: its folder and result."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, evaluate(the_run(micro, folder))


@pytest.fixture
def command(micro, tmp_path, capsys):
    def run(*arguments, model=micro):
        given = [] if model is None else ["--model", model]
        code = main([*arguments, *given, "--limit", "1", "--out", str(tmp_path), "--json"])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return json.loads(captured.out)

    return run
