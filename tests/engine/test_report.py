"""What a report says, as lines and as data."""

import json

import pytest
import torch

import divevlm
from tests.engine.samples import batch
from tests.zoo import FAMILIES, build

GREEDY = {"max_new_tokens": 5, "do_sample": False}


def test_the_report_reads_well_and_travels():
    entry = build("llava_576")
    given = batch(entry, "single")
    with divevlm.prune(entry.model, keep=64, trace=True, history=5) as session:
        entry.model.generate(**given, **GREEDY)
        entry.model.generate(**given, **GREEDY)
    assert len(session.history) == 2
    report = session.report
    lines = str(report).splitlines()
    assert lines[0] == "dive      kept 64 of 576 visual tokens (64 visual tokens of each image)"
    assert len(lines) == 5
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain == report.to_dict()
    assert plain["samples"][0]["kept"] == report.samples[0].kept
    assert sorted(plain["samples"][0]["order"]) == plain["samples"][0]["kept"]
    assert report.samples[0].segments[0].trace.scores.shape == (64, 576)
    assert report.flops < report.flops_full
    assert report.selection_ms > 0
    text = report.samples[0].text
    assert report.tokens_per_layer == [576 + text] * 2 + [64 + text] * 2


def test_pipeline():
    from transformers import pipeline

    entry = build("llava")
    run = pipeline("image-text-to-text", model=entry.model, processor=entry.processor)
    from tests.zoo import picture

    messages = [
        {
            "role": "user",
            "content": [{"type": "image", "image": picture(1, 60, 60)}, {"type": "text", "text": "what ?"}],
        }
    ]
    with divevlm.prune(entry.model, keep=4) as session:
        out = run(text=messages, generate_kwargs=GREEDY)
    assert out[0]["generated_text"]
    assert len(session.report.samples[0].kept) == 4


@pytest.mark.parametrize("name", FAMILIES)
def test_the_report_tells_what_each_token_shows(name):
    entry = build(name)
    given = batch(entry, "several")
    with divevlm.prune(entry.model, keep=3) as session, torch.no_grad():
        entry.model(**given)
    for sample, images in zip(session.report.samples, (2, 1), strict=True):
        assert len(sample.cells) == len(sample.views) == len(sample.images) == sample.visual
        assert sorted(set(sample.images)) == list(range(images))
        places = [where for where in zip(sample.images, sample.views, sample.cells, strict=True) if where[2][1] >= 0]
        assert len(set(places)) == len(places)
    json.dumps(session.report.to_dict())
