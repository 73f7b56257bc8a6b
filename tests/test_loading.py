"""Models by name: the embedded ones have the same names everywhere; a hub that does not answer is asked once."""

import json
import os
import socket
import subprocess
import sys

import pytest

import divevlm
from divevlm import loading
from divevlm.cli import main
from divevlm.experiments.runner import usual_inputs
from tests.test_media import write_video
from tests.zoo import picture


@pytest.mark.parametrize(("name", "family"), [("llava", "llava"), ("tiny-llava", "llava"), ("qwen2vl", "qwen2_vl"),
                                              ("tiny-qwen2vl", "qwen2_vl")])  # fmt: skip
def test_embedded_names(name, family):
    assert loading.family_name(name) == family
    assert loading.config_of(name).model_type == family
    assert usual_inputs(name) == "chat"  # not those of lmms-eval's model of that family
    assert divevlm.plan("dive", name, keep=8, tokens=64).tokens_per_layer[:3] == [64, 64, 8]


def test_other_names_are_not_embedded():
    assert loading.embedded_name("llava-hf/llava-1.5-7b-hf") is None
    assert loading.embedded_name("./llava") is None


@pytest.mark.parametrize("name", ["a.png", "a.mp4"])
def test_the_embedded_qwen_takes_pictures_and_videos_from_files(capsys, tmp_path, name):
    picture(1, 112, 112).save(tmp_path / "a.png")
    write_video(tmp_path / "a.mp4", 8)
    assert main(["run", str(tmp_path / name), "what ?", "--model", "qwen2vl", "--keep", "4", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["model"], result["family"]) == ("tiny-qwen2vl", "qwen2_vl")
    assert result["rows"][1]["kept"] < result["visual"]


@pytest.mark.parametrize("command", [["plan", "dive", "--keep", "64"], ["serve"]], ids=["plan", "serve"])
def test_a_hub_that_does_not_answer_is_asked_once(command):
    with socket.socket() as closed:  # bound, and nobody listens
        closed.bind(("127.0.0.1", 0))
        here = f"http://127.0.0.1:{closed.getsockname()[1]}"
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        done = subprocess.run(
            [sys.executable, "-m", "divevlm.cli", *command, "--model", "some/model"],
            capture_output=True,
            text=True,
            env=environment | {"HF_ENDPOINT": here},
        )
    assert done.returncode == 2
    assert f"got 'some/model': no such folder, {here} does not answer, and the cache does not hold it" in done.stderr
    assert done.stderr.count("\n") == 1  # no word of retries


def test_bad_values_are_refused_before_the_work():
    with pytest.raises(ValueError, match="dtype must be one of auto, float32, bfloat16, float16, got 'float12'"):
        loading.load("llava", "cpu", "float12")
    with pytest.raises(ValueError, match="device must be one that is there, got 'tpu7'"):
        loading.load("llava", "tpu7")
