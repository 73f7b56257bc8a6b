"""`divevlm check`: every family passes it with a checkpoint on disk, and what is broken is told."""

import json
from contextlib import nullcontext

import pytest
import torch
from transformers.utils import is_torchvision_available

from divevlm.cli import main
from divevlm.experiments.check import findings
from divevlm.experiments.check.pictures import photograph, pictures
from divevlm.processors import NoVideos, processor_of

from ..zoo import FAMILIES, VIDEO_FAMILIES, build, clip


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folders as the hub has them: a model, its processor, and the classes of both by name."""
    home, made = tmp_path_factory.mktemp("saved"), {}

    def folder(name):
        if name not in made:
            entry, made[name] = build(name), home / name
            entry.model.save_pretrained(made[name])
            entry.processor.save_pretrained(made[name])
            for path in made[name].glob("*processor_config.json"):  # the zoo's class does without torchvision
                path.write_text(path.read_text().replace('"Qwen2Frames"', '"Qwen2VLVideoProcessor"'))
        return str(made[name])

    return folder


@pytest.fixture
def check(saved, tmp_path, capsys):
    def run(name, *more, code=0):
        out = tmp_path / "report.json"
        command = ["check", saved(name), "--new-tokens", "3", "--repeats", "1", "--out", str(out), *more]
        with pytest.raises(SystemExit, match="1") if code else nullcontext():
            assert main(command) == 0
        return json.loads(out.read_text()), capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "llava_576"])
def test_every_family_passes_from_disk(check, name):
    report, text = check(name)
    assert report["family"] == build(name).family
    assert {one["check"]: one["ok"] for one in report["checks"]} == {
        "keeping all tokens changes nothing, bit for bit": True,
        "pruned logits equal those of a full run that masks the dropped tokens": True,
        "a padded batch gives each prompt what it gets alone": True,
        "afterwards the model is what it was": True,
    }
    assert [row["setting"] for row in report["rows"]] == ["all tokens", "dive"]
    assert report["rows"][1]["kept"] < report["rows"][1]["visual"]
    assert "verdict: every promise is kept" in text


def test_a_single_run_is_not_compared(check):
    _, once = check("llava")
    assert "times of one run each, too few to compare" in once
    _, twice = check("llava", "--repeats", "2")
    assert "medians of 2 runs" in twice


@pytest.mark.parametrize("more", [["--attn", "eager"], ["--dtype", "bfloat16"], ["--method", "fastv", "--keep", "4"]])
def test_it_loads_and_prunes_as_told(check, more):
    report, _ = check("llava_next", *more)
    assert report["ok"]
    assert report["attention"] == ("eager" if "eager" in more else "sdpa")
    assert report["dtype"] == ("bfloat16" if "bfloat16" in more else "float32")
    assert report["setting"] == ("fastv 4" if "fastv" in more else "dive 0.2")


def test_what_no_mask_can_say_is_not_claimed(check):
    report, text = check("llava", "--method", "visionzip")
    assert [one["ok"] for one in report["checks"]] == [True, None, True, True]
    assert "can't tell" in text
    assert "1 can not be told" in text
    report, _ = check("llava", "--keep", "16")  # all of them
    assert "nothing was dropped" in report["checks"][1]["detail"]


def test_a_wrong_choice_is_told(check, monkeypatch):
    """As if the engine dropped other tokens than it reports."""
    right = findings._without
    monkeypatch.setattr(findings, "_without", lambda places, kept: right(places, [(i + 1) % len(places) for i in kept]))
    report, text = check("llava", code=1)
    assert not report["ok"]
    assert [one["ok"] for one in report["checks"]] == [True, False, True, True]
    assert "BROKEN" in text


def test_a_model_that_stays_changed_is_told(check, monkeypatch):
    from divevlm import engine

    real = engine.Session.__exit__

    def leaves(self, *error):
        real(self, *error)
        with torch.no_grad():
            next(self.model.parameters()).mul_(1.01)

    monkeypatch.setattr(engine.Session, "__exit__", leaves)
    report, _ = check("llava", code=1)
    assert report["checks"][3]["ok"] is False


def test_a_check_that_raises_is_a_finding(check, monkeypatch):
    monkeypatch.setattr(findings.Subject, "pruned", lambda *_: 1 / 0)
    report, _ = check("llava", code=1)
    assert report["checks"][2]["detail"] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["./nowhere"], "model must be an embedded one"),
        (["llava", "--method", "vanilla"], "--method must be one that prunes, got 'vanilla'"),
        (["llava", "--method", "dvie"], "did you mean 'dive'?"),
        (["llava", "--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["llava", "--device", "cuda:77"], "device must be one that is there"),
    ],
)
def test_wrong_values_are_told_in_one_line(capsys, tmp_path, arguments, message):
    assert main(["check", *arguments, "--out", str(tmp_path / "report.json")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", VIDEO_FAMILIES)
def test_without_torchvision_processors_take_pictures_and_refuse_videos(saved, name):
    if is_torchvision_available():
        pytest.skip("torchvision is here")
    processor = processor_of(saved(name))
    assert isinstance(processor.video_processor, NoVideos)
    with pytest.raises(ValueError, match="videos need torchvision"):
        processor.video_processor(clip(0, 2, 56, 56))


def test_pictures_differ_in_shape_and_the_photograph_is_the_same_every_time():
    sizes = [picture.size for _, picture in pictures()]
    assert len(set(sizes)) == 3
    assert photograph().tobytes() == photograph().tobytes()
