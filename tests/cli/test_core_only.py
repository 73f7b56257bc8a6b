"""An environment of torch, transformers and what they need, and nothing else: links to what is installed here.

Every command works in it, or ends with exit code 2 and one line that names the extra to install.
"""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from divevlm.cli import COMMANDS
from tests.zoo import build, picture

ROOT = Path(__file__).parents[2]


def needed(name, found, extras=()):
    """The distribution and all that it asks for, by their folders."""
    try:
        one = distribution(name)
    except PackageNotFoundError:  # optional on this system
        return
    if one.name in found:
        return
    found[one.name] = one
    for line in one.requires or ():
        other = Requirement(line)
        if other.marker is None or any(other.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            needed(other.name, found, other.extras)


@pytest.fixture(scope="session")
def core(tmp_path_factory):
    """run(*words) -> the finished process"""
    site, found = tmp_path_factory.mktemp("site"), {}
    for name in ("torch", "transformers"):
        needed(name, found)
    assert not {"pillow", "numba", "httpx", "fastapi", "divevlm-tiny"} & set(found)
    for one in found.values():
        for top in {Path(str(file)).parts[0] for file in one.files} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(one.locate_file(top))
    (site / "divevlm").symlink_to(ROOT / "src/divevlm")
    script = "import sys; from divevlm.cli import main; sys.exit(main(sys.argv[1:]))"
    environment = os.environ | {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}

    def run(*words):
        return subprocess.run(
            [sys.executable, "-S", "-c", script, *words], capture_output=True, text=True, env=environment
        )

    return run


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    entry = build("llava")
    entry.model.save_pretrained(folder / "model")
    entry.processor.save_pretrained(folder / "model")
    picture(1, 90, 60).save(folder / "a.png")
    (folder / "a.mp4").touch()
    (folder / "rows.jsonl").write_text('{"image": "a.png", "question": "What?"}\n')
    return folder


WORKS = [
    "doctor", "models", "methods dive", "plan all --keep 64", "plan dive --keep 4 --model {files}/model",
    "bench selection --shape 36,16,4,6 --rounds 1", "bench engine --shape 3,64,1,8:16 --rounds 1", "reproduce --list",
    f"bench compare {ROOT}/results/accuracy/seed0.json {ROOT}/results/accuracy/seed1.json",
]  # fmt: skip


@pytest.mark.parametrize("words", WORKS)
def test_it_works(core, files, words):
    done = core(*words.format(files=files).split())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


NEEDS = {  # command -> extra
    "demo": "demo",
    "bench accuracy": "demo",
    "bench vllm": "vllm",
    "eval --out {out}": "demo",
    "eval --out {out} --keep 4 --model {files}/model": "demo",
    "eval --out {out} --tasks pope --model {files}/model": "eval",
    "reproduce table1 --out {out}": "demo",
    "reproduce table1 --out {out} --scale full": "eval",
    "analyze ablation --out {out}": "demo",
    "plan dive --keep 64 --model llava": "demo",
    "check {files}/model --out {out}": "cli",
    "run {files}/a.png What? --model {files}/model": "cli",
    "run {files}/a.png What? --png {out}.png": "plot",
    "run {files}/a.mp4 What?": "video",
    "explore {files}/a.png What? -o {out}": "cli",
    "batch {files}/rows.jsonl --out {out}": "demo",
    "batch {files}/rows.jsonl --out {out} --model {files}/model --keep 4": "cli",
    "batch {files}/rows.jsonl --out {out} --model {files}/model --keep 4 --engine vllm": "vllm",
    "batch {files}/rows.jsonl --out {out} --model {files}/model --keep 4 --engine ray": "ray",
    "serve --model {files}/model": "serve",
}


@pytest.mark.parametrize("words", NEEDS)
def test_it_names_the_extra(core, files, tmp_path, words):
    done = core(*words.format(files=files, out=tmp_path / "out").split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert f"pip install 'divevlm[{NEEDS[words]}]'" in done.stderr


def test_no_command_is_forgotten():
    assert {words.split()[0] for words in (*WORKS, *NEEDS)} == set(COMMANDS)


def test_the_doctor_says_what_is_missing(core):
    extras = {row["extra"]: row for row in json.loads(core("doctor", "--json").stdout)["extras"]}
    assert extras["(core)"]["complete"]
    assert extras["cli"]["packages"]["pillow"] is None
    assert not any(extras[name]["complete"] for name in ("cli", "demo", "fast", "plot", "video", "serve"))
