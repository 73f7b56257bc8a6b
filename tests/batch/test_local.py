"""Rows through the transformers engine: the answers of the engine alone, row by row, whatever stands beside a row."""

import json
import re
from dataclasses import replace

import av
import numpy as np
import pytest
import torch

import divevlm
from divevlm.batch.engine import Local
from divevlm.batch.run import run
from divevlm.media import read_clip
from divevlm.viz.asking import ask

from ..zoo import build, clip
from .conftest import alone, answers, questions, write


def told(engine, job):
    """The engine with another job."""
    return Local(job, (engine.answerer.model, engine.answerer.processor))


@pytest.mark.parametrize("size", [1, 2, 7, 24])
def test_answers_are_those_of_the_engine_alone(engine, job, size):
    found = run(replace(job, batch=size), engine)
    rows = [json.loads(line) for line in job.input.read_text().splitlines()]
    wanted = [
        {"line": line, "id": row["id"], "error": None}
        | alone(engine, [job.input.parent / row["image"]], row["question"])
        for line, row in enumerate(rows, 1)
    ]
    assert answers(job.out) == [
        {name: one[name] for name in ("line", "id", "answer", "kept", "visual", "error")} for one in wanted
    ]
    assert len({one["answer"] for one in wanted}) > 12
    assert (found["total"], found["answered"], found["failed"], found["left"]) == (24, 24, 0, 0)
    assert (found["mean_kept"], found["mean_visual"]) == (5, 16)


def test_a_row_may_have_several_pictures_a_budget_and_a_length(engine, job, tmp_path):
    rows = questions(tmp_path, 4)
    rows[1] |= {"image": ["1.png", "2.png"], "max_new_tokens": 3}
    rows[2] |= {"keep": 1.0}
    rows[3] |= {"keep": 1}
    run(replace(job, input=write(tmp_path / "rows.jsonl", rows), batch=4), engine)
    paths = [[tmp_path / "0.png"], [tmp_path / "1.png", tmp_path / "2.png"], [tmp_path / "2.png"], [tmp_path / "3.png"]]
    settings = [{}, {"length": 3}, {"keep": 1.0}, {"keep": 1}]
    wanted = [
        alone(engine, *of, **more) for *of, more in zip(paths, [r["question"] for r in rows], settings, strict=True)
    ]
    found = answers(job.out)
    assert [{name: one[name] for name in ("answer", "kept", "visual")} for one in found] == wanted
    assert [(one["kept"], one["visual"]) for one in found] == [(5, 16), (10, 32), (16, 16), (1, 16)]


def test_a_system_prompt_stands_before_the_question(engine, job):
    other = replace(job, system="Answer in French.")
    run(other, told(engine, other))
    first = job.input.parent / "0.png"
    wanted = alone(engine, [first], "What is this?", system="Answer in French.")
    assert answers(job.out)[0]["answer"] == wanted["answer"] != alone(engine, [first], "What is this?")["answer"]


def test_videos_are_read_like_those_of_divevlm_run(job, tmp_path):
    entry = build("llava_onevision")
    for number in range(2):
        with av.open(str(tmp_path / f"{number}.mp4"), "w") as container:
            stream = container.add_stream("mpeg4", rate=4)
            stream.width, stream.height = 96, 64
            for pixels in clip(number, 6, 96, 64):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")))
            container.mux(stream.encode())
    rows = [{"video": f"{number}.mp4", "question": text} for number, text in enumerate(("What moves?", "Who?"))]
    rows += questions(tmp_path, 1)
    other = replace(job, input=write(tmp_path / "rows.jsonl", rows), frames=3, batch=3)
    run(other, Local(other, (entry.model, entry.processor)))
    found = answers(job.out)
    assert [one["error"] for one in found] == [None] * 3
    for number, row in enumerate(rows[:2]):
        media = [read_clip(tmp_path / row["video"], 3)]
        methods = [("dive", divevlm.DIVE(keep=5))]
        one = ask(entry.model, entry.processor, row["question"], media, methods, max_new_tokens=24)
        assert found[number]["answer"] == one.answers[0].text
        assert (found[number]["kept"], found[number]["visual"]) == (
            len(one.answers[0].report.samples[0].kept),
            one.visual,
        )


def test_rows_that_fail_are_told_and_leave_the_rest_alone(engine, job, tmp_path):
    rows = questions(tmp_path, 3)
    (tmp_path / "broken.png").write_bytes((tmp_path / "0.png").read_bytes()[:200])
    bad = [
        ('{"image": "0.png"', "a row must be one JSON object"),
        ({"image": "0.png", "id": "mute"}, "question must be a text"),
        ({"image": "none.png", "question": "a"}, "image must be a file that is there, got '.*none.png'"),
        ({"image": "http://a/b.png", "question": "a"}, "image must be a file"),
        ({"image": "broken.png", "question": "a"}, "IMAGE must be a picture or a video, got '.*broken.png'"),
        (
            {"video": "0.png", "question": "a"},
            "model must be of a family that takes videos, for these, got 'llava'",
        ),
        ({"image": "1.png", "question": "a <image> b"}, "."),  # one picture, two marks for one
        ({"image": "1.png", "question": "a", "keep": 2.5}, "keep must be a count of at least 1 or a share"),
    ]
    mixed = [rows[0], *(row for row, _ in bad[:4]), rows[1], *(row for row, _ in bad[4:]), rows[2]]
    found = run(replace(job, input=write(tmp_path / "rows.jsonl", mixed), batch=11), engine)
    assert (found["answered"], found["failed"]) == (3, len(bad))
    lines = answers(job.out)
    assert [one["line"] for one in lines] == list(range(1, len(mixed) + 1))
    good = [one for one in lines if one["error"] is None]
    assert [one["id"] for one in good] == ["q0", "q1", "q2"]
    for one, row in zip(good, rows, strict=True):
        assert one["answer"] == alone(engine, [tmp_path / row["image"]], row["question"])["answer"]
    failed = [one for one in lines if one["error"] is not None]
    for one, (_, reason) in zip(failed, bad, strict=True):
        assert one["answer"] is None
        assert "\n" not in one["error"]
        assert re.match(reason, one["error"])


def test_a_batch_is_halved_until_the_row_that_fails_stands_alone(engine, job, monkeypatch):
    real, asked = engine.answerer.generate, []

    def generate(items, *more, **options):
        asked.append([int(item.sample) for item in items])
        if any(item.sample == "6" for item in items):
            raise RuntimeError("too much\nfor me")
        return real(items, *more, **options)

    monkeypatch.setattr(engine.answerer, "generate", generate)
    found = run(replace(job, batch=8), engine)
    assert asked[:7] == [[*range(1, 9)], [*range(1, 5)], [*range(5, 9)], [5, 6], [5], [6], [7, 8]]
    assert [(one["line"], one["error"]) for one in found["rows"] if one["error"]] == [
        (6, "RuntimeError: too much for me")
    ]


def test_an_engine_that_died_fails_no_row(engine, job, monkeypatch):
    real = engine.answerer.generate

    def dies(items, *more, **options):
        if items[0].sample == "5":
            raise torch.AcceleratorError("device-side assert")
        return real(items, *more, **options)

    with monkeypatch.context() as patch:
        patch.setattr(engine.answerer, "generate", dies)
        with pytest.raises(ValueError, match="the engine died at line 5, start again to go on: AcceleratorError"):
            run(job, engine)
    assert not (job.out / "answers.jsonl").exists()
    assert run(job, engine)["answered"] == 24
