"""divevlm bench: measure on this machine."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from divevlm.checks import at_least, counts, keeps, names
from divevlm.cli.bench_tables import engine_table, methods_table, selection_table, vllm_table
from divevlm.files import check_picture, check_target, write
from divevlm.terminal import progress


def add(commands: Any) -> None:
    bench = commands.add_parser(
        "bench",
        help="measure on this machine",
        epilog="example: divevlm bench selection; divevlm bench accuracy --keep 64,16; each WHAT has its own --help",
    )
    kinds = bench.add_subparsers(dest="bench", required=True, metavar="WHAT")
    selection = kinds.add_parser(
        "selection",
        help="time of selection, against Algorithm 1 as printed and against the one product X X^T",
        epilog="example: divevlm bench selection --shape 576,4096,40,64 --rounds 21 --json",
    )
    selection.add_argument(
        "--shape", action="append", metavar="N,d,M,K[,B]", help="instead of the six standard shapes; repeatable"
    )
    selection.add_argument("--rounds", type=int, default=9, help="runs of each path, interleaved (default 9)")
    selection.add_argument("--slow-rounds", type=int, default=3, help="runs of the slow baselines (default 3)")
    selection.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cuda: eager, graph and Triton, and their share of a prefill",
    )
    selection.add_argument(
        "--method",
        old=["--methods"],
        metavar="NAMES",
        help="time every method's selection instead: all, or names joined by commas",
    )
    selection.set_defaults(run=run_selection)
    engine = kinds.add_parser(
        "engine",
        help="prefill, selection, decoding, KV cache and masks of a LLaVA-shaped random model, vanilla against DIVE",
        epilog="example: divevlm bench engine --shape 24,1024,1,60:192,64 --method dive,dive:proportional=True",
    )
    engine.add_argument("--method", default="dive", help="names, with settings: dive:proportional=True (default dive)")
    engine.add_argument(
        "--shape",
        action="append",
        metavar="L,d,V,M:K,K",
        help="blocks, width, views of 576 tokens, text tokens : budgets; repeatable",
    )
    engine.add_argument("--rounds", type=int, default=3, help="runs of each budget, interleaved (default 3)")
    engine.set_defaults(run=run_engine)
    accuracy = kinds.add_parser(
        "accuracy",
        help="answers of an embedded model under pruning: every method and budget, task by task",
        epilog="example: divevlm bench accuracy --method dive,fastv,dive:norm=none --keep 64,16 --limit 400",
    )
    accuracy.add_argument(
        "--method",
        old=["--methods"],
        default="dive,dive-no-update",
        help="names, with settings: dive:layer=3:eta=0.5; or all",
    )
    accuracy.add_argument(
        "--proportional", metavar="P,P", help="every method with these, too: measured, uniform, True or numbers"
    )
    accuracy.add_argument("--keep", default="192,128,64,32,16", metavar="K,K", help="counts, or shares (qwen2vl)")
    accuracy.add_argument("--limit", old=["--n"], type=int, default=1000, help="questions (default 1000)")
    accuracy.add_argument("--split", choices=("validation", "test", "shift"), default="validation")
    accuracy.add_argument("--model", default="llava", help="llava, qwen2vl, or a folder with another training of one")
    accuracy.add_argument("--clips", action="store_true", help="ask qwen2vl about clips instead of pictures")
    accuracy.add_argument("--plot", type=Path, metavar="FILE", help="also draw accuracy over the budget (.png or .svg)")
    accuracy.set_defaults(run=run_accuracy)
    compare = kinds.add_parser(
        "compare",
        help="what `bench accuracy` wrote, of one training or several: every method against one of them, paired",
        epilog="example: divevlm bench compare seed0.json seed1.json seed2.json --against dive",
    )
    compare.add_argument("files", nargs="+", type=Path, metavar="FILE", help="written by bench accuracy --out")
    compare.add_argument("--against", default="dive", metavar="METHOD", help="default: dive")
    compare.add_argument(
        "--plot", type=Path, metavar="FILE", help="also draw accuracies over the budget (.png or .svg)"
    )
    compare.set_defaults(run=run_compare)
    vllm = kinds.add_parser(
        "vllm",
        help="prompt tokens, time to first token and requests a second of `vllm serve`, with and without DIVE",
        epilog="example: divevlm bench vllm --clients 8 --keep 64 (in an environment with vLLM: docs/serving-vllm.md)",
    )
    vllm.add_argument("--keep", type=int, default=64, help="visual tokens of 576 (default 64)")
    vllm.add_argument("--clients", type=int, default=8, help="requests at a time (default 8)")
    vllm.add_argument("--rounds", type=int, default=3, help="requests of each client, alternating (default 3)")
    vllm.add_argument("--layers", type=int, default=24, help="blocks of the random model (default 24)")
    vllm.add_argument("--width", type=int, default=1024, help="its width, a multiple of 64 (default 1024)")
    vllm.add_argument("--answer", type=int, default=16, help="tokens of an answer (default 16)")
    vllm.set_defaults(run=run_vllm)
    for kind in (selection, engine, accuracy, compare, vllm):
        kind.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
        kind.add_argument("--out", type=Path, metavar="FILE", help="also write the JSON to a file")


def run_selection(options: argparse.Namespace) -> None:
    from divevlm.bench.selection import SHAPES, SelectionShape, measure, place

    check_target("--out", options.out)
    _at_least_one(options, "rounds", "slow_rounds")
    place(options.device)
    if options.method:
        if options.device != "cpu":
            raise ValueError("--device must be cpu with --method, got 'cuda'")
        run_methods(options)
        return
    shapes = [SelectionShape(*_shape(text)) for text in options.shape] if options.shape else SHAPES
    with progress("bench selection") as tick:
        result = measure(shapes, options.rounds, options.slow_rounds, options.device, tick)
    _show(options, result, selection_table)


def run_methods(options: argparse.Namespace) -> None:
    from divevlm.bench.methods import SHAPES, measure
    from divevlm.bench.selection import SelectionShape
    from divevlm.methods import METHODS

    shapes = [SelectionShape(*_shape(text)) for text in options.shape] if options.shape else SHAPES
    costly = [name for name in METHODS if METHODS.get(name).cost != "none"]
    chosen = costly if options.method == "all" else names("--method", options.method)
    with progress("bench selection") as tick:
        result = measure(chosen, shapes, options.rounds, tick)
    _show(options, result, methods_table)


def run_engine(options: argparse.Namespace) -> None:
    from divevlm.bench.engine import SHAPES, measure
    from divevlm.experiments.settings import Setting

    check_target("--out", options.out)
    _at_least_one(options, "rounds")
    shapes = [_engine_shape(text) for text in options.shape] if options.shape else SHAPES
    chosen = names("--method", options.method)
    for method in chosen:
        Setting(method, 1).check()
    with progress("bench engine") as tick:
        result = measure(shapes, chosen, options.rounds, tick=tick)
    _show(options, result, engine_table)


def run_accuracy(options: argparse.Namespace) -> None:
    from divevlm.bench.accuracy import measure
    from divevlm.bench.accuracy_table import plot, tables
    from divevlm.loading import embedded_name

    check_target("--out", options.out)
    check_picture("--plot", options.plot)
    _at_least_one(options, "limit")
    asked = options.limit, options.split, embedded_name(options.model) or options.model, options.clips
    values = () if options.proportional is None else names("--proportional", options.proportional)
    with progress("bench accuracy") as tick:
        result = measure(names("--method", options.method), keeps(options.keep), *asked, values, tick)
    _draw(options, plot, result)
    _show(options, result, tables)


def run_compare(options: argparse.Namespace) -> None:
    from divevlm.bench.compare import as_table, compare, plot, read

    check_target("--out", options.out)
    check_picture("--plot", options.plot)
    result = compare(read(options.files), options.against)
    _draw(options, plot, result)
    _show(options, result, as_table)


def run_vllm(options: argparse.Namespace) -> None:
    from divevlm.bench.vllm import TOKENS, Load, measure

    check_target("--out", options.out)
    _at_least_one(options, "clients", "rounds", "answer")
    at_least("--layers", options.layers, 3)
    counts("--keep", str(options.keep), 1, TOKENS)
    if options.width < 64 or options.width % 64:
        raise ValueError(f"--width must be a multiple of 64, got {options.width}")
    if find_spec("vllm") is None:
        raise ModuleNotFoundError("vllm is missing", name="vllm")
    names = ("layers", "width", "keep", "clients", "rounds", "answer")
    with progress("bench vllm") as tick:
        result = measure(Load(**{name: getattr(options, name) for name in names}), tick)
    _show(options, result, vllm_table)


def _draw(options: argparse.Namespace, plot: Callable[[dict[str, Any]], Any], result: dict[str, Any]) -> None:
    if options.plot:
        from divevlm.viz.canvas import rendered

        write(options.plot, rendered(plot(result), options.plot.suffix))


def _show(options: argparse.Namespace, result: dict[str, Any], as_table: Callable[[dict[str, Any]], str]) -> None:
    if options.out:
        write(options.out, json.dumps(result, indent=1) + "\n")
    print(json.dumps(result) if options.json else as_table(result))


def _at_least_one(options: argparse.Namespace, *names: str) -> None:
    for name in names:
        at_least(f"--{name.replace('_', '-')}", getattr(options, name), 1)


def _engine_shape(text: str) -> Any:
    from divevlm.bench.engine import BenchShape

    match = re.fullmatch(r"(\d+),(\d+),(\d+),(\d+):(\d+(?:,\d+)*)", text)
    numbers = [int(part) for part in match.groups()[:4]] if match else [0]
    keeps = tuple(int(part) for part in match.group(5).split(",")) if match else (0,)
    good = match and min(*numbers, *keeps) >= 1 and numbers[0] >= 3 and numbers[1] % 64 == 0 and numbers[3] >= 6
    if not good or max(keeps) > 576 * numbers[2]:
        allowed = "L,d,V,M:K,K with at least 3 blocks, d a multiple of 64, 1 view, 6 text tokens, and K up to 576 V"
        raise ValueError(f"--shape must be {allowed}, got {text!r}")
    layers, width, views, words = numbers
    return BenchShape(layers, width, views, words, keeps)


def _shape(text: str) -> list[int]:
    parts = text.split(",")
    if len(parts) not in (4, 5) or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"--shape must be N,d,M,K or N,d,M,K,B with whole numbers of at least 1, got {text!r}")
    return [int(part) for part in parts]
