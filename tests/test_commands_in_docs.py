"""Every command line of README.md and docs/ is run here, on embedded models and few questions; what can't be run is listed,
with the reason, and parsed by the command's own parser."""

import argparse
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from divevlm.cli import COMMANDS, main, parser
from tests.zoo import picture

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELLS = ("sh", "bash", "shell", "console")
PROGRAMS = ("divevlm", "python", "torchrun", "make", "pip", "vllm", "git", "cd", "docker", "uv", "npm")

LISTED = {  # what a line holds -> why it is not run here
    "pip install": "installs; the extras it names are compared with pyproject.toml",
    "make ": "other targets: CI runs them; here they are looked up in the Makefile",
    "git clone": "fetches this repository",
    "cd divevlm": "the folder of the line before it",
    "vllm serve": "needs vLLM: make test-vllm",
    "client.chat.": "Python beside vllm serve: make test-vllm",
    "lmms_eval": "needs lmms-eval: make test-eval",
    "--tasks pope": "needs lmms-eval: make test-eval",
    "--scale full": "needs lmms-eval, data sets and GPUs",
    "--engine ray": "needs Ray: make test-eval",
    "divevlm serve": "does not end: tests/serve/http starts it as a process",
}
FEWER = {  # added to a command, so that it takes seconds
    "demo": "--limit 1",
    "run": "--new-tokens 2 --repeats 1",
    "explore": "--new-tokens 1",
    "check": "--new-tokens 2 --repeats 1",
    "batch": "--new-tokens 2",
    "eval": "--limit 1 --out runs",
    "reproduce": "--limit 1",
    "analyze": "--limit 1",
    "bench accuracy": "--limit 1",
}
FILES = [str(ROOT / f"results/accuracy/seed{i}.json") for i in range(2)]


def blocks(page, *languages):
    """Of one language; those without one are told by their first word."""
    for language, body in re.findall(r"^ *```(\w*)\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL):
        if language in languages or (not language and body.split()[0] in PROGRAMS):
            yield body


def commands():
    """Each once, as words, by the page that has it first."""
    found = {}
    for page in PAGES:
        for body in blocks(page, *SHELLS):
            for line in body.replace("\\\n", " ").splitlines():
                for part in shlex.join(shlex.split(line.removeprefix("$ "), comments=True)).split(" '&&' "):
                    found.setdefault(part, page.name)
    return {text: page for text, page in found.items() if text}


def reason(text):
    return next((why for part, why in LISTED.items() if part in text), None)


def kind(words):
    return next((name for name in FEWER if words[: len(name.split())] == name.split()), "")


def arguments(text):
    """What follows `divevlm`, with a model, pictures and files that are there."""
    words = shlex.split(text)
    words = words[words.index("divevlm" if words[0] == "divevlm" else "divevlm.cli") + 1 :]
    files = iter(FILES if words[:2] == ["bench", "compare"] else ["file.png"] * 9)
    made = []
    for word in (word.strip("[]") for word in words if word != "..."):
        if re.match(r"(Qwen|llava-hf|OpenGVLab|HuggingFace\w+)/|(PATH|MODEL)$", word):
            word = "qwen2vl" if word.startswith("Qwen/") else "llava"
        made.append(next(files) if word == "FILE" else word)
    return [*made, *FEWER.get(kind(made), "").split()]


ALL = commands()
RUN = [text for text in ALL if reason(text) is None]
PARSED = [text for text in ALL if reason(text) and (text.startswith("divevlm ") or " divevlm.cli " in text)]


def name(text):
    return f"{ALL[text]}: {text}"


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with the files that commands name."""
    picture(1, 90, 60).save(tmp_path / "photo.jpg")
    (tmp_path / "rows.jsonl").write_text('{"image": "photo.jpg", "question": "What is on the table?"}\n')
    monkeypatch.chdir(tmp_path)


def test_the_pages_have_commands():
    assert len(RUN) > 10
    assert {shlex.split(text)[1] for text in RUN if text.startswith("divevlm ")} <= set(COMMANDS)


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("text", RUN, ids=name)
def test_it_runs(text, capsys):
    """As a process where all depends on it: the installed script, other modules."""
    program, *rest = shlex.split(text)
    assert program in ("divevlm", "python"), f"{text!r} is neither run here nor listed with a reason"
    if program == "python" or rest == ["doctor"]:
        script = sys.executable if program == "python" else Path(sys.executable).with_name(program)
        done = subprocess.run([script, *rest], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout
    else:
        assert main(arguments(text)) == 0
        assert capsys.readouterr().out


@pytest.mark.parametrize("text", PARSED, ids=name)
def test_it_is_parsed(text):
    assert callable(parser().parse_args(arguments(text)).run)


def test_what_is_not_run_names_what_is_there():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    models = (ROOT / "src/divevlm/serve/vllm/models.py").read_text()
    for text in ALL:
        words = shlex.split(text)
        if words[0] == "make":
            assert words[1] in targets
        if words[0] == "pip":
            named = [part for one in re.findall(r"\[(.*?)\]", text) for part in one.split(",")]
            assert set(named) <= set(extras)
        if "--hf-overrides" in words:
            overrides = json.loads(words[words.index("--hf-overrides") + 1])
            assert all(f"class {architecture}(" in models for architecture in overrides["architectures"])


def spoken():
    """Commands inside sentences; much may be left out of them."""
    for page in PAGES:
        for text in re.findall(r"`(divevlm [a-z][^`]*)`", page.read_text()):
            yield pytest.param(text.split()[1:], id=f"{page.name}: {text}")


def options_of(words):
    """Of the command that the words begin with."""
    command = parser()
    for word in words:
        below = next((a for a in command._actions if isinstance(a, argparse._SubParsersAction)), None)
        if below is None:
            break
        assert word in below.choices
        command = below.choices[word]
    return command._option_string_actions


@pytest.mark.parametrize("words", list(spoken()))
def test_what_sentences_say_is_known(words):
    assert {word for word in words if word.startswith("-")} <= set(options_of(words))


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_of_the_help_are_parsed(command):
    below = next(a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    examples = re.findall(r"divevlm [a-z][^;\n]*", below.choices[command].epilog)
    assert examples
    for example in examples:
        text = re.split(r"\s{2,}|(?<=\d) \(", example.split("divevlm", 1)[1])[0].strip()
        parser().parse_args([*shlex.split(text.replace(" ...", "")), *FEWER.get(kind(text.split()), "").split()])
