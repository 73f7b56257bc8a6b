"""What pruning saves `vllm serve`: the same clients on a random LLaVA-shaped model, with and without DIVE."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from divevlm.experiments.loading import machine
from divevlm.serve.vllm.checkpoint import save
from divevlm.serve.vllm.server import serving

TOKENS = 576  # of an image
OPTIONS = ("--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "16", "--enforce-eager")


@dataclass(frozen=True)
class Load:
    """layers, width: of the language model; answer: tokens a request; each round every client asks once"""

    layers: int = 24
    width: int = 1024
    keep: int = 64
    clients: int = 8
    rounds: int = 3
    answer: int = 16


def random_llava(load: Load, folder: Path) -> Path:
    """A checkpoint with 576 tokens an image; its vision tower is kept small, so that the language model is what is timed."""
    from divevlm_tiny.build import llava, processor

    heads = load.width // 64
    widths = {
        "text": {
            "hidden_size": load.width,
            "intermediate_size": load.width * 11 // 4,
            "num_hidden_layers": load.layers,
            "num_attention_heads": heads,
        },
        "vision": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 1},
    }
    torch.manual_seed(0)
    return save(llava(widths).eval(), processor(), folder)


def measure(load: Load, tick: Callable[..., object] = lambda text, share=None: None) -> dict[str, Any]:
    """Both servers run all the time, and rounds alternate between them, so that a noisy minute hits both alike."""
    overrides = {"architectures": ["DiveLlavaForConditionalGeneration"], "dive": {"keep": load.keep}}
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="divevlm-")))
        tick("writing a random model", 0.0)
        model = random_llava(load, folder / "model")
        servers = {}
        for share, (name, asked) in enumerate({"vanilla": None, "dive": overrides}.items()):
            tick(f"starting vllm serve, {name}", 0.1 + share / 10)
            log = folder / f"{name}.log"
            servers[name] = stack.enter_context(serving(model, asked, log, *OPTIONS, cache_gb=2))
        steps = 2 * 2 * (load.rounds + 1)
        for turn in range(load.rounds + 1):  # the first warms up
            for pictures in ("new pictures", "one picture"):
                for name, address in servers.items():
                    tick(f"{name}, {pictures}, round {turn}", 0.3 + 0.7 * sum(map(len, found.values())) / steps)
                    run = one_round(address, load, turn, pictures == "one picture")
                    found.setdefault((pictures, name), []).append(run)
    rows = [
        summary(pictures, name, runs[1:], found[pictures, "vanilla"][1:]) for (pictures, name), runs in found.items()
    ]
    return {"machine": machine(), "load": vars(load), "tokens": TOKENS, "rows": rows}


def one_round(address: str, load: Load, turn: int, same: bool) -> dict[str, Any]:
    """Every client asks once, all at the same time."""
    asked = [
        (picture(1000 * turn + (999 if same else client)), f"round {turn} client {client} what is there")
        for client in range(load.clients)
    ]
    if same:  # the first question on it is not what is measured
        ask(address, asked[0][0], "before", 1)
    start = time.perf_counter()
    with ThreadPoolExecutor(load.clients) as pool:
        answers = list(pool.map(lambda one: ask(address, one[0], one[1], load.answer), asked))
    return {"seconds": time.perf_counter() - start, "answers": answers}


def ask(address: str, image: str, question: str, tokens: int) -> dict[str, float]:
    from openai import OpenAI

    client = OpenAI(base_url=address, api_key="none", timeout=600, max_retries=0)
    content: Any = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": question}]
    start, first, used = time.perf_counter(), 0.0, 0
    for chunk in client.chat.completions.create(
        model="served", messages=[{"role": "user", "content": content}], max_tokens=tokens, temperature=0, stream=True,
        stream_options={"include_usage": True}, extra_body={"ignore_eos": True, "add_special_tokens": True},
    ):  # fmt: skip
        if chunk.choices and not first:
            first = time.perf_counter() - start
        if chunk.usage:
            used = chunk.usage.prompt_tokens
    return {"first": first, "prompt_tokens": used}


def picture(seed: int) -> str:
    """Noise, as a data URL."""
    from PIL import Image

    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (64, 64, 3), dtype=torch.uint8, generator=generator)
    written = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(written, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(written.getvalue()).decode()}"


def summary(
    pictures: str, name: str, runs: Sequence[dict[str, Any]], vanilla: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    def rate(of: Sequence[dict[str, Any]]) -> float:
        return float(median(len(run["answers"]) / run["seconds"] for run in of))

    answers = [answer for run in runs for answer in run["answers"]]
    return {
        "pictures": pictures,
        "method": name,
        "prompt_tokens": median(answer["prompt_tokens"] for answer in answers),
        "first_token_ms": 1e3 * median(answer["first"] for answer in answers),
        "requests_per_second": rate(runs),
        "over_vanilla": rate(runs) / rate(vanilla),
    }
