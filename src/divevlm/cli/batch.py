"""divevlm batch: a file of questions about pictures and videos, each answered once, resumable."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from divevlm.checks import keep
from divevlm.cli.loading import add_model_options

EPILOG = """a row: {"image": "a.png" or ["a.png", "b.png"], "question": "What is this?"}, or with "video": "clip.mp4";
       optional "id", "keep", "max_new_tokens"; paths are relative to INPUT

examples:
  divevlm batch rows.jsonl --out answers --model llava-hf/llava-1.5-7b-hf --keep 64
  divevlm batch rows.jsonl --out answers --model PATH --shards 2 --shard 0 --device cuda:0     and the same with --shard 1
  divevlm batch rows.jsonl --out answers --model PATH --engine ray --actors 8                  (extra ray)
The same command goes on where a killed run stopped. Exit code 1: some rows failed, answers.jsonl says why."""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "batch",
        help="answer a file of questions; resumable, on one process, several, vLLM or Ray",
        epilog=EPILOG,
    )
    parser.add_argument("input", type=Path, metavar="INPUT", help="one JSON object a line")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="answers, and where to go on")
    parser.add_argument("--method", default="dive", metavar="NAME", help="with settings: dive:eta=0.5 (default dive)")
    parser.add_argument("--keep", default="64", help="visual tokens of an image: a count or a share (64)")
    parser.add_argument("--engine", choices=("local", "vllm", "ray"), default="local", help="where rows go")
    parser.add_argument("--batch-size", type=int, dest="batch", metavar="N", help="rows at a time (8; vllm: 256)")
    parser.add_argument("--shards", type=int, default=1, metavar="N", help="processes that share the rows (1)")
    parser.add_argument("--shard", type=int, default=0, metavar="I", help="the number of this one, from 0")
    parser.add_argument("--actors", type=int, default=2, metavar="N", help="of --engine ray (2)")
    parser.add_argument(
        "--actor", choices=("local", "vllm"), default="local", help="what answers inside Ray's actors (local)"
    )
    parser.add_argument(
        "--llm", type=_object, default={}, metavar="JSON", help="more for vllm.LLM: '{\"max_model_len\": 4096}'"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the summary")
    add_model_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from divevlm.batch.job import Job
    from divevlm.batch.run import run as answer
    from divevlm.loading import check_device, quiet

    same = "input out method engine actor actors batch shards shard system frames dtype device attn llm"
    if options.device is not None and options.engine == "local":
        check_device(options.device)
    quiet()
    job = Job(
        model=options.model or "llava",
        keep=keep(options.keep),
        max_new_tokens=options.new_tokens,
        **{name: getattr(options, name) for name in same.split()},
    )
    found = answer(job)
    print(json.dumps(found) if options.json else shown(found, options.out))
    if found["failed"]:
        raise SystemExit(1)


def shown(found: dict[str, Any], out: Path) -> str:
    lines = [f"{found['answered']} of {found['total']} rows answered, {found['failed']} failed"]
    failed = [one for one in found["rows"] if one["error"] is not None]
    lines += [f"  line {one['line']}: {one['error']}" for one in failed[:5]]
    if len(failed) > 5:
        lines.append(f"  and {len(failed) - 5} more")
    if found["mean_kept"] is not None:
        of = "" if found["mean_visual"] is None else f" of {found['mean_visual']:.1f}"
        lines.append(f"kept {found['mean_kept']:.1f}{of} visual tokens a row; {found['wall_seconds']:.0f} s")
    left = f"{found['left']} rows are left for other shards" if found["left"] else f"answers in {out / 'answers.jsonl'}"
    return "\n".join([*lines, left])


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text!r}")
    return found
