"""The other families: tall, wide, several images a request, clips where vLLM can."""

import os

import pytest
from vllm.exceptions import VLLMValidationError

from tests.zoo import clip

from .served import SAMPLES, Served

KNOWN = {"fps": 2.0, "total_num_frames": 4, "frames_indices": [0, 1, 2, 3], "duration": 2.0}
CLIP = {"text": "what moves ?", "videos": [(clip(0, 4, 84, 56), KNOWN)]}
CLIPS = ("qwen2_vl", "qwen2_5_vl", "llava_onevision")


@pytest.fixture(scope="module", params=["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava_next", "llava_onevision"])
def served(request, tmp_path_factory):
    name = request.param
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"  # a second engine in one process does not start
    chunks = {"max_num_batched_tokens": 32, "max_num_seqs": 4}
    made = Served(name, tmp_path_factory.mktemp(name), keep=5, video=name in CLIPS, **chunks)
    yield made
    made.close()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def test_a_mixed_batch_in_chunks_answers_as_the_engine(served):
    assert served.answers(*SAMPLES) == [served.engine(sample)[0] for sample in SAMPLES]


def test_it_answers_the_same_from_its_caches(served):
    assert served.answers(*SAMPLES) == served.answers(*reversed(SAMPLES))[::-1]


def test_a_request_may_bring_its_own_budget(served):
    assert served.answers(*SAMPLES[:4], keep=3) == [served.engine(sample, keep=3)[0] for sample in SAMPLES[:4]]


def test_clips_are_pruned_as_the_engine_does_it(served):
    if served.entry.name in CLIPS:
        assert served.answers(CLIP) == [served.engine(CLIP)[0]]
    else:
        with pytest.raises(VLLMValidationError, match=r"At most 0 video\(s\)"):
            served.ask(CLIP)
