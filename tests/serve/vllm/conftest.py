"""Most of these tests need the environment of `make test-vllm`."""

import os
from importlib.util import find_spec

import pytest

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process, where its model can be looked at
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # two workers on one NUMA node
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
if not find_spec("vllm"):
    collect_ignore = ["test_families.py", "test_llava.py", "test_serve.py"]


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    """A tiny LLaVA-1.5 of 16 tokens an image, of which 5 stay; prompts are prefilled in chunks of 16 tokens."""
    from .served import Served

    served = Served("llava", tmp_path_factory.mktemp("llava"), keep=5, max_num_batched_tokens=16, max_num_seqs=4)
    yield served
    served.close()
