"""Every script in examples/ runs, and says what it promises."""

import runpy
import sys
from pathlib import Path

import divevlm_tiny as tiny
import pytest

from divevlm.methods import METHODS
from tests.zoo import build

EXAMPLES = Path(__file__).parents[1] / "examples"
SAYS = {
    "prune.py": "kept 64 of 576 visual tokens",
    "select_only.py": "DIVE sees objects [0, 1, 2, 3, 4]",
    "compare.py": "visionzip",
    "explore.py": "in a browser",
    "own_method.py": "kept rows and columns",
    "pictures.py": "gallery.png",
}


@pytest.fixture(autouse=True)
def a_model(monkeypatch):
    """Where the trained weights are not in the checkout, a random model of the same shape stands in."""
    if "llava" not in tiny.available():
        entry = build("llava_576")
        monkeypatch.setattr("divevlm_tiny.shipped.load", lambda name: (entry.model, entry.processor))
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS._entries))


def test_none_is_forgotten():
    assert {file.name for file in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_it_runs(name, capsys, monkeypatch, tmp_path):
    given = {"pictures.py": [str(tmp_path), "4"], "explore.py": [str(tmp_path / "page.html")]}
    monkeypatch.setattr(sys, "argv", [name, *given.get(name, [])])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert SAYS[name] in capsys.readouterr().out
