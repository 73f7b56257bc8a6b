"""divevlm serve: an OpenAI-compatible endpoint for one model, with a method attached."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from divevlm.checks import at_least, keep
from divevlm.loading import ATTENTIONS, DTYPES

EXAMPLES = """examples:
  divevlm serve                                                   the embedded model on http://127.0.0.1:8000
  divevlm serve --model llava-hf/llava-1.5-7b-hf --keep 64 --dtype bfloat16 --device cuda
  divevlm serve --model PATH --method dive:eta=0.5 --keep 0.11 --host 0.0.0.0 --token-file token.txt

client.chat.completions.create(..., extra_body={"divevlm": {"keep": 32}}) changes the method for one request."""


def add(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        help="an OpenAI-compatible endpoint, pruned",
        epilog=EXAMPLES,
    )
    option = serve.add_argument
    option(
        "--model",
        default="tiny-llava",
        metavar="MODEL",
        help="a folder, a name on the hub, or an embedded one: llava (default), qwen2vl",
    )
    option("--name", help="what clients call the model (default: the last part of --model)")
    option("--method", default="dive", metavar="NAME", help="with settings: dive:eta=0.5 (default dive)")
    option("--keep", default="64", help="visual tokens of an image: a count or a share (64)")
    option("--host", default="127.0.0.1", help="default 127.0.0.1; any other than this machine needs a token")
    option("--port", type=int, default=8000, metavar="N", help="0: a free one (default 8000)")
    option("--token-file", type=Path, metavar="FILE", help="the token clients must have (or in DIVEVLM_TOKEN)")
    option("--allow-host", action="append", default=[], metavar="HOST", help="picture addresses of HOST are fetched")
    option("--queue", type=int, default=32, metavar="N", help="requests that may wait (default 32)")
    option("--max-body", type=int, default=20_000_000, metavar="BYTES", help="of a request (default 20000000)")
    option("--max-images", type=int, default=8, metavar="N", help="of a request (default 8)")
    option("--max-pixels", type=int, default=16_000_000, metavar="N", help="of a picture (default 16000000)")
    option("--max-prompt-tokens", type=int, default=8192, metavar="N", help="before pruning (default 8192)")
    option("--max-new-tokens", type=int, default=512, metavar="N", help="of an answer (default 512)")
    option("--drain", type=float, default=60, metavar="SECONDS", help="for what is under way at SIGTERM (default 60)")
    option("--dtype", choices=DTYPES, default="auto", help="of the weights (default: as they are stored)")
    option("--device", default="auto", help="cpu, cuda, cuda:1, auto (default: wherever there is room)")
    option("--attn", choices=ATTENTIONS, help="attention implementation")
    serve.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from divevlm.loading import check_device, quiet, source_of

    quiet()
    from divevlm.serve.http.limits import Limits
    from divevlm.serve.http.run import check, desk_of, serve

    limits = Limits(
        options.queue, options.max_body, options.max_images, options.max_pixels,
        options.max_prompt_tokens, options.max_new_tokens,
    )  # fmt: skip
    secret = token(options.token_file)
    check(options.host, options.port, secret)
    at_least("--drain", options.drain, 1)
    if options.device != "auto":
        check_device(options.device)
    source, name = str(source_of(options.model)), options.name or Path(options.model).name
    more = {"device": options.device, "dtype": options.dtype, "attn_implementation": options.attn}
    desk = desk_of(source, name, options.method, keep(options.keep), limits, options.allow_host, **more)
    serve(desk, options.host, options.port, secret, options.drain, lambda url: print(f"{name} at {url}", flush=True))
    print("drained")


def token(file: Path | None) -> str | None:
    """From a file or the environment: a command line can be read by others."""
    return os.environ.get("DIVEVLM_TOKEN") if file is None else file.read_text(encoding="utf-8").strip()
