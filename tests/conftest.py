"""The models of the tests are tiny: more threads only wait for each other. Every test gets its tier (`pytest -m fast`)."""

import os
from pathlib import Path

import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before the kernel is imported

HERE = Path(__file__).parent
TIERS = {  # by folder or file; all others are fast
    "matrix": ("core/test_triton.py", "core/test_whatever_the_input.py", "engine", "zoo"),
    "lab": ("batch", "bench", "cli", "experiments", "serve", "tiny", "training", "viz", "test_examples.py"),
}
FAST = ("engine/test_session.py", "engine/test_refusals.py", "engine/test_report.py", "tiny/test_scenes.py")


def tier(path: Path) -> str:
    inside = path.relative_to(HERE).as_posix()
    if inside in FAST:
        return "fast"
    return next((name for name, places in TIERS.items() if inside.startswith(places)), "fast")


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(tier(item.path))
