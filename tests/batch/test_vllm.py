"""Real vLLM with the plugin answers a file as the engine does with placement "entry" (`make test-vllm` has vLLM)."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from divevlm.batch.engine import Local
from divevlm.batch.run import run

from .conftest import answers, questions, write

LLM = {"max_model_len": 1024, "enforce_eager": True, "limit_mm_per_prompt": {"image": 4}, "block_size": 32}
QUIET = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def test_a_file_on_vllm(job, tmp_path):
    pytest.importorskip("vllm")
    checkpoints = pytest.importorskip("tests.serve.vllm.checkpoints")
    rows = questions(tmp_path, 12)
    rows[3] |= {"keep": 7}
    rows[5] |= {"image": ["5.png", "6.png"]}
    rows[8] |= {"image": "gone.png"}
    entry = checkpoints.saved("llava", tmp_path / "model")
    job = replace(job, input=write(tmp_path / "rows.jsonl", rows), max_new_tokens=12, model=str(tmp_path / "model"))
    arguments = ["batch", job.input, "--out", job.out, "--model", job.model, "--keep", job.keep, "--new-tokens", 12,
                 "--dtype", "float32", "--engine", "vllm", "--batch-size", 5, "--llm", json.dumps(LLM)]  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "divevlm.cli", *map(str, arguments)], env={**os.environ, **QUIET},
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 1, done.stderr[-3000:]  # the picture that is gone
    here = replace(job, out=tmp_path / "here", method="dive:placement=entry")
    run(here, Local(here, (entry.model, entry.processor)))
    wanted = [one | {"visual": None} for one in answers(here.out)]
    assert answers(job.out) == wanted
    assert [one["kept"] for one in wanted] == [5, 5, 5, 7, 5, 10, 5, 5, None, 5, 5, 5]
