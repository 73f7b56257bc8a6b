"""The models of the tests are tiny: more threads only wait for each other. Every test gets its tier (`pytest -m fast`)."""

import os
import shutil
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before the kernel is imported

HERE = Path(__file__).parent
TIERS = {  # by folder or file; all others are fast
    "matrix": ("core/test_triton.py", "core/test_whatever_the_input.py", "engine", "zoo"),
    "lab": ("batch", "bench", "cli", "experiments", "serve", "tiny", "training", "viz", "test_commands_in_docs.py",
            "test_examples.py", "test_snippets_in_docs.py"),
}  # fmt: skip
FAST = ("engine/test_session.py", "engine/test_refusals.py", "engine/test_report.py", "tiny/test_scenes.py")


def tier(path: Path) -> str:
    inside = path.relative_to(HERE).as_posix()
    if inside in FAST:
        return "fast"
    return next((name for name, places in TIERS.items() if inside.startswith(places)), "fast")


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(tier(item.path))


# Chromium as root, and nothing that it wants to look up by itself
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync")  # fmt: skip


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        pytest.fail("the page tests need Chromium: `make browser` installs it, or CHROMIUM=/path/to/it names one")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        yield started
        started.close()
