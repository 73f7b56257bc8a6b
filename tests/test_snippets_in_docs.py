"""Every Python block of the pages runs: here with a model and inputs, or where RUN_BY says."""

import re
from pathlib import Path

import divevlm_tiny
import pytest
import torch

import divevlm

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "tiny/README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN_BY = {  # page -> how many of its first blocks, by whom
    "README.md": (2, "test_docs.py"),
    "docs/start.md": (2, "test_docs.py"),
    "docs/budgets.md": (1, "test_docs.py"),
    "docs/conversations.md": (2, "test_docs.py"),
    "docs/add-a-method.md": (1, "test_docs.py"),
    "docs/add-a-family.md": (1, "test_public.py"),
    "docs/serving.md": (1, "serve/http/test_chat.py"),
}


def blocks():
    for page in PAGES:
        where = page.relative_to(ROOT).as_posix()
        found = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        for number, code in enumerate(found[RUN_BY.get(where, (0, ""))[0] :], 1):
            yield pytest.param(where, code, id=f"{where}-{number}")


def world(name):
    """Names that the blocks use without making them."""
    model, processor = divevlm_tiny.load(name)
    sample = divevlm_tiny.questions("validation", 1)[0]
    turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": sample.text}]}]
    text = processor.apply_chat_template(turn, add_generation_prompt=True)
    inputs = processor(text=text, images=sample.image, return_tensors="pt")
    labels = torch.full_like(inputs["input_ids"], -100)
    labels[:, -2:] = inputs["input_ids"][:, -2:]
    modules = {"divevlm": divevlm, "divevlm_tiny": divevlm_tiny, "Needs": divevlm.Needs}
    return modules | {"model": model, "processor": processor, "inputs": inputs, "labels": labels}


@pytest.mark.parametrize(("page", "code"), list(blocks()))
def test_it_runs(page, code):
    names = world("qwen2vl" if "qwen" in page else "llava")
    exec(code, names)
    if "session" in names:
        sample = names["session"].report.samples[0]
        assert 0 < len(sample.kept) < sample.visual
    if "loss" in names:
        assert any(parameter.grad is not None for parameter in names["model"].parameters())


def test_others_run_what_they_are_said_to_run():
    there = {page.relative_to(ROOT).as_posix() for page in PAGES if "```python" in page.read_text()}
    for page in there & set(RUN_BY):
        assert Path(page).name in (ROOT / "tests" / RUN_BY[page][1]).read_text()
