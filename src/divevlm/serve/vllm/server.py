"""`vllm serve` as a child process, for measurements and tests."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

PATIENCE = 600  # seconds to start


@contextmanager
def serving(
    model: Path, overrides: Mapping[str, Any] | None, log: Path, *options: str, cache_gb: int = 1
) -> Iterator[str]:
    """The address of an OpenAI endpoint on this machine. overrides: as for --hf-overrides; cache_gb: KV cache on a CPU"""
    port = _free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--port", str(port), *options]
    command += ["--host", "127.0.0.1", "--served-model-name", "served"]
    if overrides is not None:
        command += ["--hf-overrides", json.dumps(overrides)]
    settings = {"VLLM_CPU_KVCACHE_SPACE": str(cache_gb), "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    with log.open("w") as written:
        process = subprocess.Popen(
            command, env={**os.environ, **settings}, stdout=written, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            _wait(process, f"http://127.0.0.1:{port}/health", log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()  # it ends its workers itself
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()


def _wait(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if process.poll() is not None:
            said = [line for line in log.read_text().splitlines() if "Error" in line]
            raise OSError(f"vllm serve stopped: {said[-1].strip() if said else 'no reason given'} (all of it: {log})")
        try:
            with urlopen(address, timeout=5):
                return
        except (URLError, OSError):
            time.sleep(1)
    raise OSError(f"vllm serve did not start within {PATIENCE} seconds (its output: {log})")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
