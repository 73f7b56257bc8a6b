"""divevlm run, explore and doctor."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
import torch

from divevlm.cli import COMMANDS, main
from divevlm.cli.doctor import PARTS, SERVING
from divevlm.loading import load
from divevlm.viz.asking import MethodAnswer
from tests.zoo import build, picture


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    entry = build("llava")
    entry.model.save_pretrained(folder)
    entry.processor.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    file = tmp_path_factory.mktemp("photo") / "a.png"
    picture(1, 90, 60).save(file)
    return str(file)


def run(capsys, *arguments):
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_run_tells_what_each_method_keeps(capsys, model, photo, tmp_path):
    arguments = ["run", photo, "What is this?", "--model", model, "--keep", "5", "--max-new-tokens", "3"]
    code, out, _ = run(capsys, *arguments, "--compare", "fastv,random,dive:eta=0.5", "--json")
    assert code == 0
    result = json.loads(out)
    assert (result["family"], result["visual"]) == ("llava", 16)
    rows = {row["method"]: row for row in result["rows"]}
    assert list(rows) == ["vanilla", "dive", "fastv", "random", "dive:eta=0.5"]
    assert rows["vanilla"]["kept"] == 16
    for name in ("dive", "fastv", "random"):
        assert rows[name]["kept"] == len(rows[name]["indices"]) == 5
        assert rows[name]["kv_bytes"] < rows["vanilla"]["kv_bytes"]
    page, drawn = tmp_path / "page.html", tmp_path / "kept.svg"
    code, out, _ = run(capsys, *arguments, "--html", str(page), "--png", str(drawn))
    assert code == 0
    assert "first token" in out
    assert f"wrote {page}" in out
    assert "\x1b" not in out
    assert "Content-Security-Policy" in page.read_text()
    assert b"<svg" in drawn.read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["kept.svg", "page.html"]


def test_times_are_medians_of_several_runs(capsys, model, photo, monkeypatch):
    """A clock that says 1, 2, 9 seconds for the model as it is, and 4, 1, 2 for DIVE, in turn."""
    clock = iter([1, 4, 2, 1, 9, 2] * 2)

    def generate(network, processor, arguments, label, length):
        if label == "dive":
            network.generate(**arguments, max_new_tokens=1)
        seconds = next(clock)
        return MethodAnswer(label, None, "red", 3, seconds, 2 * seconds, 4 * seconds, None)

    monkeypatch.setattr("divevlm.viz.asking._generate", generate)
    arguments = ["run", photo, "What?", "--model", model, "--keep", "5", "--method", "dive"]
    rows = json.loads(run(capsys, *arguments, "--json")[1])["rows"]
    assert [row["prefill_ms"] for row in rows] == [2000, 2000]
    assert [row["first_token_ms"] for row in rows] == [4000, 4000]
    assert [row["speedup"] for row in rows] == [1, 1]
    out = run(capsys, *arguments)[1]
    assert "times: medians of 3 runs" in out
    clock = iter([1, 4])
    out = run(capsys, *arguments, "--repeats", "1")[1]
    assert "times of one run each, too few to compare" in out
    assert "x  " not in out  # no speed-up of single runs


def test_run_takes_a_system_prompt_and_several_images(capsys, model, photo):
    code, out, _ = run(
        capsys, "run", photo, photo, "Same?", "--model", model, "--keep", "0.25", "--system", "Be brief.", "--json",
        "--max-new-tokens", "1", "--dtype", "float32", "--device", "cpu", "--attn", "eager",
    )  # fmt: skip
    assert code == 0
    result = json.loads(out)
    assert result["visual"] == 32
    assert result["rows"][1]["kept"] == 8
    assert result["text"] > len("Be brief.")


def test_explore_writes_a_page(capsys, model, photo, tmp_path):
    page = tmp_path / "page.html"
    code, out, _ = run(
        capsys, "explore", photo, "What?", "--model", model, "-o", str(page), "--keep", "6,3", "--methods", "dive,random",
        "--lam", "0", "--eta", "1", "--max-new-tokens", "1", "--json",
    )  # fmt: skip
    assert code == 0
    result = json.loads(out)
    assert result["bytes"] == page.stat().st_size
    settings = [row["setting"] for row in result["rows"]]
    assert settings[1:] == [
        "dive 6",
        "dive 6, lam 0",
        "dive 6, eta 1",
        "dive 3",
        "dive 3, lam 0",
        "dive 3, eta 1",
        "random 6",
        "random 3",
    ]


def test_doctor_checks_the_engine(capsys):
    code, out, _ = run(capsys, "doctor", "--device", "cpu", "--json")
    assert code == 0
    result = json.loads(out)
    assert len(result["rows"]) == 5
    assert all(row["ok"] for row in result["rows"])
    assert result["extras"][0]["packages"]["torch"]
    _, out, _ = run(capsys, "doctor", "--device", "cpu")
    assert "self-check" in out
    assert "FAILED" not in out


def test_doctor_knows_every_extra():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    told = {extra: set(packages) - set(SERVING) for extra, (packages, _) in PARTS.items()}
    extras = {"(core)": project["dependencies"]} | project["optional-dependencies"]
    del extras["dev"]  # for those who work on divevlm itself
    assert told == {extra: {re.match(r"[\w-]+", one)[0] for one in needed} for extra, needed in extras.items()}


@pytest.fixture
def embedded(model, tmp_path, monkeypatch):
    """A random model in place of the trained one."""
    (tmp_path / "llava").symlink_to(model)
    monkeypatch.setattr("divevlm_tiny.shipped.MODELS", tmp_path)


@pytest.mark.usefixtures("embedded")
@pytest.mark.parametrize("name", ["llava", "tiny-llava"])
def test_the_embedded_model_is_what_the_command_asks_for(name):
    """dtype, attention and device hold for it, too."""
    for options, dtype, attention in [({}, torch.float32, "sdpa"),
                                      ({"dtype": "bfloat16", "attn": "eager"}, torch.bfloat16, "eager")]:  # fmt: skip
        network, _ = load(name, "cpu", **options)
        assert (network.device.type, network.dtype) == ("cpu", dtype)
        text = network.model.language_model
        assert text.config._attn_implementation == attention
        assert text.rotary_emb.inv_freq.dtype == torch.float32  # positions keep their precision


@pytest.mark.usefixtures("embedded")
@pytest.mark.skipif(torch.cuda.is_available(), reason="flash attention may work here")
def test_an_attention_that_is_not_there_is_refused_by_the_embedded_model(capsys, photo):
    code, out, err = run(capsys, "run", photo, "What?", "--keep", "4", "--attn", "flash_attention_2")
    assert (code, out) == (2, "")
    assert "a name on the hub that loads with attention flash_attention_2, got 'tiny-llava'" in err


def test_doctor_tells_what_is_wrong(capsys, monkeypatch):
    monkeypatch.setattr("divevlm.cli.selfcheck._cache", lambda device: False)
    code, out, err = run(capsys, "doctor", "--device", "cpu")
    assert code == 2
    assert "FAILED" in out
    assert "the self-check failed" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "What is this?"], "IMAGE must come before the question"),
        (["run", "{nowhere}", "What?"], "IMAGE must be a file, got"),
        (["run", "https://example.org/a.png", "What?"], "download it first"),
        (["run", "{photo}", "What?", "--model", "./nowhere"], "model must be an embedded one"),
        (["run", "{photo}", "What?", "--model", "{model}", "--method", "divee"], "did you mean 'dive'?"),
        (
            ["run", "{photo}", "What?", "--model", "{model}", "--compare", "dive:speed=2"],
            "options of dive must be among",
        ),
        (["run", "{photo}", "What?", "--model", "{model}", "--keep", "0"], "keep must be a count of at least 1"),
        (["run", "{photo}", "What?", "--model", "{model}", "--max-new-tokens", "0"], "must be at least 1, got 0"),
        (["run", "{photo}", "What?", "--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["run", "{photo}", "What?", "--model", "{model}", "--device", "tpu7"], "device must be one that is there"),
        (["run", "{photo}", "What?", "--model", "{model}", "--keep", "5", "--html", "/no/where/a.html"], "/no/where"),
        (["run", "{photo}", "What?", "--model", "{model}", "--keep", "5", "--png", "kept.bmp"], ".png or .svg"),
        (
            ["explore", "{photo}", "What?", "--model", "{model}", "--keep", "x"],
            "--keep must be a count or a share",
        ),
        (["doctor", "--device", "tpu"], "--device must be one of cpu"),
        (["doctor", "--device", "cpu:x"], "device must be one that is there, got 'cpu:x'"),
        (["run", "{photo}", "What?", "--model", "{model}", "--device", "meta"], "device must be one that is there"),
        (["run", "{photo}", "<image>?", "--model", "{model}"], "refuses these pictures or the question '<image>?'"),
        (["run", "{photo}", "a\udcff", "--model", "{model}"], "refuses these pictures or the question 'a\\udcff'"),
    ],
)
def test_errors_are_one_line(capsys, model, photo, arguments, message):
    code, _, err = run(capsys, *(a.format(model=model, photo=photo, nowhere="nowhere.png") for a in arguments))
    assert code == 2
    assert message in err
    assert err.strip().count("\n") == 0


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model.safetensors", "cut"),
        ("tokenizer.json", "{}"),
        ("processor_config.json", "[]"),
        ("config.json", "{"),
        ("config.json", '{"model_type": "llava", "text_config": {"model_type": "llama", "hidden_size": "x"}}'),
    ],
)
def test_a_broken_model_is_one_line(capsys, model, photo, tmp_path, file, content):
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    assert (folder / file).is_file()
    (folder / file).write_text(content)
    code, out, err = run(capsys, "run", photo, "What?", "--model", str(folder))
    assert (code, out) == (2, "")
    assert f"a folder or a name on the hub that loads, got '{folder}'" in err
    assert err.strip().count("\n") == 0


def test_a_picture_that_cannot_be_drawn_is_told_before_the_work(capsys, monkeypatch, photo):
    monkeypatch.setattr("divevlm.files.find_spec", lambda name: None)
    monkeypatch.setattr("divevlm.loading.load", lambda *_, **__: pytest.fail("the work began"))
    code, _, err = run(capsys, "run", photo, "What?", "--png", "kept.png")
    assert code == 2
    assert "--png needs matplotlib (pip install 'divevlm[plot]'), got 'kept.png'" in err


def test_a_page_shows_scores_beyond_all_numbers(capsys, model, photo, tmp_path):
    arguments = ["explore", photo, "What?", "--model", model, "--keep", "4", "--methods", "dive", "--lam", "1000"]
    code, _, err = run(capsys, *arguments, "--max-new-tokens", "1", "-o", str(tmp_path / "page.html"))
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModuleNotFoundError("No module named 'PIL'", name="PIL"), "this needs PIL: pip install 'divevlm[cli]'"),
        (torch.OutOfMemoryError("out of memory\nand more"), "out of memory and more"),
    ],
)
def test_what_is_missing_is_one_line(capsys, monkeypatch, error, message):
    def fail(options):
        raise error

    monkeypatch.setattr("divevlm.cli.doctor.run", fail)
    code, _, err = run(capsys, "doctor")
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [[], *([name] for name in COMMANDS), *(["bench", what] for what in ("selection", "engine", "accuracy"))],
    ids=" ".join,
)
def test_help_has_examples(capsys, command):
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    out = capsys.readouterr().out
    assert "example" in out
    assert f"divevlm {' '.join(command)}".strip() in out.split("example")[1]


def test_a_video_is_sampled_and_said_so(capsys, monkeypatch, tmp_path):
    from tests.test_media import write_video

    write_video(tmp_path / "a.mp4", 12)
    entry = build("llava_onevision")  # its processor can't be loaded from a folder without torchvision
    monkeypatch.setattr("divevlm.loading.load", lambda *_, **__: (entry.model, entry.processor))
    code, out, err = run(
        capsys,
        "run",
        str(tmp_path / "a.mp4"),
        "What moves?",
        "--frames",
        "3",
        "--keep",
        "4",
        "--max-new-tokens",
        "1",
        "--json",
    )
    assert code == 0
    assert "3 of 12 frames, evenly spaced, of a video at 10 frames a second" in err
    assert json.loads(out)["visual"] == 3 * 9 + 1
    entry = build("llava")
    monkeypatch.setattr("divevlm.loading.load", lambda *_, **__: (entry.model, entry.processor))
    code, _, err = run(capsys, "run", str(tmp_path / "a.mp4"), "What moves?", "--keep", "4")
    assert code == 2
    assert "model must be of a family that takes videos" in err
