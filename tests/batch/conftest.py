"""A tiny random LLaVA on disk, pictures and questions for it, and its answers one by one."""

import json
from pathlib import Path

import pytest

import divevlm
from divevlm.batch.engine import Local
from divevlm.batch.job import Job
from divevlm.media import read_picture
from divevlm.models import family_of
from divevlm.prompts import Prompt, inputs

from ..zoo import build, picture

ASKED = (
    "What is this?",
    "Which colour has the largest of the boxes here?",
    "How many?",
    "Is there a red box on the left?",
)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    entry = build("llava")
    entry.model.save_pretrained(folder)
    entry.processor.save_pretrained(folder)
    return str(folder)


def questions(folder, count):
    """Pictures in the folder, and a row for each."""
    for i in range(count):
        picture(i, 90, 60).save(folder / f"{i}.png")
    return [{"id": f"q{i}", "image": f"{i}.png", "question": ASKED[i % len(ASKED)]} for i in range(count)]


def write(path, rows):
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def input_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("input")
    return write(folder / "rows.jsonl", questions(folder, 24))


@pytest.fixture(scope="session")
def engine(checkpoint):
    """Loaded once; what a job says otherwise is told where it is used."""
    return Local(Job(Path(), Path(), checkpoint, keep=5, max_new_tokens=24, batch=2))


@pytest.fixture
def job(checkpoint, input_file, tmp_path):
    return Job(input_file, tmp_path / "out", checkpoint, keep=5, max_new_tokens=24, batch=2)


def alone(engine, images, question, keep=5, length=24, system=None):
    """The oracle: one prompt, one generate(), nothing of the batch's code."""
    model, processor = engine.answerer.model, engine.answerer.processor
    prompt = Prompt.of(question, [read_picture(Path(path)) for path in images], system)
    arguments = inputs(processor, family_of(model), [prompt])
    with divevlm.prune(model, "dive", keep=keep) as session:
        made = model.generate(**arguments, max_new_tokens=length, do_sample=False)
    sample = session.report.samples[0]
    text = processor.tokenizer.decode(made[0, arguments["input_ids"].shape[1] :], skip_special_tokens=True).strip()
    return {"answer": text, "kept": len(sample.kept), "visual": sample.visual}


def answers(folder):
    """The lines of answers.jsonl without times."""
    found = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    assert all((one.pop("seconds") is None) == (one["answer"] is None) for one in found)
    return found
