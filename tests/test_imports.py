"""Who may import whom: the library knows nothing of what measures and shows it, and nothing imports the command."""

import ast
from graphlib import TopologicalSorter

import pytest

from .imports import LIBRARY, PACKAGES, PICTURE, RANK, draw, edges, imported, node_of, reduced

IMPORTS = edges()
INSIDE = {pair: where for pair, where in IMPORTS.items() if set(pair) <= set(RANK)}
INSTALLED = ("checks", "budget", "registry", "core", "methods", "models", "engine", "planning")


def places(*pairs):
    return {pair: IMPORTS[pair] for pair in pairs if pair in IMPORTS}


def test_imports_are_seen_wherever_they_stand():
    source = "import a.b\nfrom c import d, e\ndef f():\n    from g.h import i\nif TYPE_CHECKING:\n    import j as k\n"
    assert {name for _, name in imported(source)} == {"a.b", "c.d", "c.e", "g.h.i", "j"}
    assert node_of("divevlm.prune", {"prune": "divevlm.engine.prune"}) == "engine"
    assert node_of("divevlm.core.select.select", {}) == "core"
    assert node_of("divevlm.budget.Budget", {}) == "budget"
    assert INSIDE["cli", "terminal"]  # not an empty graph
    assert INSIDE["engine", "models"]


def test_every_folder_and_file_of_the_library_has_its_layer():
    there = {path.stem for path in LIBRARY.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert there - {"__init__", "__pycache__"} <= set(RANK)


def test_imports_lead_to_lower_layers_only():
    assert {pair: where for pair, where in INSIDE.items() if RANK[pair[0]] <= RANK[pair[1]]} == {}


def test_there_is_no_cycle_between_folders():
    inner = [pair for pair in IMPORTS if set(pair) <= {*RANK, *PACKAGES}]
    before = {one: {b for a, b in inner if a == one} for one, _ in inner}
    assert list(TopologicalSorter(before).static_order())  # raises on a cycle


def test_core_knows_torch_and_not_transformers():
    assert ("core", "torch") in IMPORTS
    assert places(("core", "transformers")) == {}


def test_the_library_never_imports_the_embedded_models():
    assert places(*((name, "divevlm_tiny") for name in INSTALLED)) == {}


def test_nothing_that_is_installed_imports_the_training():
    assert places(*((name, "training") for name in (*RANK, "divevlm_tiny"))) == {}


def test_the_embedded_models_stand_alone():
    assert places(*(("divevlm_tiny", name) for name in RANK)) == {}


def test_nothing_imports_the_command():
    assert places(*((name, "cli") for name in (*RANK, *PACKAGES))) == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_are_absolute(package):
    trees = {path: ast.walk(ast.parse(path.read_text())) for path in PACKAGES[package].rglob("*.py")}
    assert [path for path, nodes in trees.items() for node in nodes if getattr(node, "level", 0)] == []


def test_the_picture_leaves_out_what_a_longer_way_says():
    assert reduced({("c", "b"), ("b", "a"), ("c", "a"), ("d", "a")}) == {("c", "b"), ("b", "a"), ("d", "a")}


def test_the_picture_in_the_docs_is_the_graph_of_today():
    assert PICTURE.read_text() == draw(), "python tests/imports.py draws it anew"
