"""divevlm demo: the story, told by whatever model is embedded."""

import json

import pytest
from divevlm_tiny import available

from divevlm.cli import main
from tests.zoo import build


@pytest.fixture
def any_model(monkeypatch):
    """A random model in place of the trained one: the same shape of story, other answers."""
    entry = build("llava_576")
    monkeypatch.setattr("divevlm.loading.load", lambda model: (entry.model, entry.processor))


def run(capsys, *arguments):
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_demo_compares_and_writes_the_page(capsys, any_model, tmp_path):
    page = tmp_path / "page.html"
    code, out, _ = run(capsys, "demo", "--questions", "2", "-o", str(page), "--json")
    assert code == 0
    result = json.loads(out)
    rows = {row["setting"]: row for row in result["rows"]}
    assert list(rows) == ["all tokens", "DIVE 64", "frozen 64", "random 64", "DIVE 16", "frozen 16", "random 16"]
    assert rows["all tokens"]["objects_seen"] == 1
    assert rows["DIVE 16"]["kv_bytes"] < rows["DIVE 64"]["kv_bytes"] < rows["all tokens"]["kv_bytes"]
    assert len(result["questions"]) == 2
    assert set(result["questions"][0]["answers"]) == set(rows)
    assert "Content-Security-Policy" in page.read_text()


def test_demo_tells_a_story(capsys, any_model, tmp_path, monkeypatch):
    threads = []
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    _, out, _ = run(capsys, "demo", "--questions", "1", "-o", str(tmp_path / "page.html"))
    assert "objects seen" in out
    assert "medians of 3 runs on one core" in out
    assert threads == [1]
    assert max(map(len, out.splitlines())) <= 80 or str(tmp_path) in max(out.splitlines(), key=len)
    assert str(tmp_path / "page.html") in out
    drawn = [line for line in out.splitlines() if set(line) <= set(".#@? ") and len(line) > 24]
    assert len(drawn) == 24
    assert sum(line.count("#") + line.count("@") for line in drawn) == 2 * 16
    assert "\x1b" not in out  # no colours in a pipe


def test_without_the_model_it_is_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("divevlm_tiny.shipped.MODELS", tmp_path)
    code, out, err = run(capsys, "demo", "-o", str(tmp_path / "page.html"))
    assert (code, out) == (2, "")
    assert err == (
        "divevlm: model 'llava' is embedded in divevlm-tiny, which is missing: pip install 'divevlm[demo]'\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--questions", "0"], ["-o", "/no/where/page.html"]])
def test_bad_options(capsys, arguments):
    code, _, err = run(capsys, "demo", *arguments)
    assert code == 2
    assert err.count("\n") == 1


def test_the_real_thing(capsys, tmp_path):
    """With the weights in the checkout it answers in words; without them it says so."""
    page = tmp_path / "page.html"
    code, out, err = run(capsys, "demo", "--questions", "2", "-o", str(page), "--json")
    if "llava" not in available():
        assert (code, err.count("\n")) == (2, 1)
        return
    assert code == 0
    for question in json.loads(out)["questions"]:
        assert all(answer.replace(" ", "").isalnum() for answer in question["answers"].values())
    assert page.stat().st_size < 3_000_000
