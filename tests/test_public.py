"""The names of `import divevlm` are enough to prune, and to write a method or a family."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import divevlm
from divevlm import FAMILIES, METHODS, BeforeLLM, Method, Needs, Rows, Selection, Signals
from tests.engine.samples import batch
from tests.zoo import build

ROOT = Path(__file__).parents[1]


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_the_import_is_quick():
    shown = "print(*(name for name in ('torch', 'transformers') if name in sys.modules))"
    assert python(f"import sys, divevlm; {shown}") == []
    extending = (
        "FAMILIES, METHODS, Budget, Each, Family, Method, Needs, Rows, Selections, Signals, Vision, plan, select"
    )
    assert python(f"import sys; from divevlm import {extending}; {shown}") == ["torch"]


def test_every_public_name_is_there():
    assert all(getattr(divevlm, name) is not None for name in divevlm.__all__)
    assert set(divevlm.__all__) <= set(dir(divevlm))
    assert set(divevlm._MODULE_OF) | {"__version__"} == set(divevlm.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'prone'"):
        _ = divevlm.prone


@pytest.mark.parametrize("file", ["examples/own_method.py", "docs/add-a-method.md", "docs/add-a-family.md"])
def test_nothing_else_is_needed(file):
    text = (ROOT / file).read_text()
    assert re.findall(r"^(?:from|import) divevlm\b[\w.]*", text, re.MULTILINE) == ["from divevlm"]


@dataclass(frozen=True, kw_only=True)
class Loudest(Method):
    """The candidates with the longest rows, of all groups of a batch."""

    name = "loudest"

    def select(self, groups, keeps):
        return [self.one(group, keep) for group, keep in zip(groups, keeps, strict=True)]

    def one(self, signals: Signals, keep):
        length = signals.visual.norm(dim=1)
        order = length.argsort(descending=True)[:keep]
        return Selection(order, length[order])


@dataclass(frozen=True, kw_only=True)
class SalientAndRest(BeforeLLM):
    """The most salient candidates, and the mean of all others at the place of the first of them."""

    name = "salient-and-rest"
    needs = Needs(vision=("saliency",))
    merges = True

    def choose(self, signals, keep):
        order = self.tower(signals, "saliency").argsort(descending=True)
        kept, rest = order[: keep - 1].sort().values, order[keep - 1 :].sort().values
        slots = torch.cat([kept, rest[:1]])
        values = torch.cat([signals.hidden[kept], signals.hidden[rest].mean(dim=0, keepdim=True)])
        members = [[token] for token in kept.tolist()] + [rest.tolist()]
        return Selection(slots, torch.ones(keep), rows=Rows(slots, values, members))


@pytest.fixture(autouse=True)
def registries(monkeypatch):
    """What a test adds is gone behind it."""
    for registry in (METHODS, FAMILIES):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))


@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "llava_next"])
@pytest.mark.parametrize("method", [Loudest, SalientAndRest])
def test_a_method_of_ones_own_runs_by_its_name(method, name):
    METHODS.register(method.name)(method)
    entry = build(name)
    with divevlm.prune(entry.model, method.name, keep=3) as session, torch.no_grad():
        entry.model(**batch(entry, "single"))
    (sample,) = session.report.samples
    assert len(sample.order) == 3  # newline tokens are kept beside the budget
    assert session.cuts == ((0,) if method is SalientAndRest else (2,))
    assert divevlm.plan(method.name, keep=64).final == 64


def test_the_family_of_the_page_runs(monkeypatch):
    """It has the parts of LLaVA, so it keeps what LLaVA keeps."""
    code = (ROOT / "docs/add-a-family.md").read_text().split("```python\n")[1].split("```")[0]
    exec(code, {})
    entry = build("llava", fresh=True)
    given = batch(entry, "single")

    def kept():
        with divevlm.prune(entry.model, "dive", keep=5) as session, torch.no_grad():
            entry.model(**given)
        return type(session.family).__name__, session.report.samples[0].kept

    known = kept()
    monkeypatch.setattr(type(entry.model.config), "model_type", "my_vlm")
    assert known == ("Llava", kept()[1])
    assert kept()[0] == "MyVLM"


WITHOUT_TINY = """
import sys
sys.modules["divevlm_tiny"] = None
import divevlm.batch.run, divevlm.experiments.runner, divevlm.experiments.paper.reproduce, divevlm.experiments.check.findings
import divevlm.experiments.analysis.analyses, divevlm.bench.engine, divevlm.bench.selection, divevlm.serve.vllm
from divevlm.experiments.check.pictures import pictures
assert [picture.size for _, picture in pictures()] == [(336, 336), (448, 252), (640, 480)]
from divevlm.experiments.tasks import items
items(["existence"])
"""


def test_only_embedded_questions_need_the_embedded_models():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TINY], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("ModuleNotFoundError: import of divevlm_tiny halted")
    assert "in _still" in done.stderr  # everything before that line worked


def test_the_embedded_tasks_are_those_of_the_embedded_models():
    from divevlm_tiny.clips import CLIP_TASKS
    from divevlm_tiny.words import TASKS

    from divevlm.experiments import tasks

    assert (tasks.TASKS, tasks.CLIP_TASKS) == (TASKS, CLIP_TASKS)
