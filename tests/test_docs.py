"""What the documents say is so."""

import re
from pathlib import Path

import pytest

import divevlm

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "tiny/README.md", "training/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "tiny/src/divevlm_tiny/models").glob("*/README.md")),
]
ROOTS = (ROOT, ROOT / "src/divevlm", ROOT / "tiny/src/divevlm_tiny")  # where the paths in a text begin


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_sources_that_are_named_exist(page):
    named = re.findall(r"`((?:[\w-]+/)+[\w-]+\.py|(?:src|tests|tiny|training|docs)/[\w/-]*)`", page.read_text())
    missing = [
        path for path in named if "NAME" not in path and not any((top / path).exists() for top in (*ROOTS, page.parent))
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_modules_that_are_run_exist(page):
    modules = re.findall(r"python -m ((?:divevlm|training)[\w.]*)", page.read_text())
    places = {module: module.replace(".", "/") for module in modules}
    missing = [
        module
        for module, path in places.items()
        if not any(
            (top / end).exists() for top in (ROOT, ROOT / "src") for end in (f"{path}.py", f"{path}/__main__.py")
        )
    ]
    assert missing == []


def test_budgets_print_what_the_page_says():
    shown = re.findall(r"print\((divevlm\.Budget\(.*?\))\)\s+# (.*)", (ROOT / "docs/budgets.md").read_text())
    assert len(shown) == 3
    for code, text in shown:
        assert str(eval(code, {"divevlm": divevlm})) == text


def test_the_method_that_is_explained_is_the_one_that_runs():
    explained = (ROOT / "docs/add-a-method.md").read_text().split("```python\n")[1].split("```")[0]
    assert explained.strip() in (ROOT / "examples/own_method.py").read_text()


def test_commands_that_the_readme_names_exist():
    from divevlm.cli import COMMANDS

    named = set(re.findall(r"`?divevlm ([a-z]+)\b", (ROOT / "README.md").read_text())) - {"is"}
    assert named <= set(COMMANDS)
