"""A model of the embedded architecture with random weights, small enough to run in a test, saved where commands can load it."""

import json

import pytest
import torch
from divevlm_tiny import build

from divevlm.cli import main
from divevlm.experiments.answering import Answerer
from divevlm.loading import load

MICRO = {
    "text": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 5, "num_attention_heads": 2},
    "vision": {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2},
}


@pytest.fixture(scope="session")
def micro(tmp_path_factory):
    torch.manual_seed(1)
    model = build.llava(MICRO).eval()
    for parameter in model.parameters():  # fresh weights hardly look at the picture
        parameter.data.mul_(3 if parameter.dim() > 1 else 1)
    folder = tmp_path_factory.mktemp("micro")
    model.save_pretrained(folder)
    build.processor().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def answerer(micro):
    return Answerer(*load(micro))


@pytest.fixture
def command(micro, tmp_path, capsys):
    def run(*arguments, model=micro):
        given = [] if model is None else ["--model", model]
        code = main([*arguments, *given, "--limit", "1", "--out", str(tmp_path), "--json"])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return json.loads(captured.out)

    return run
