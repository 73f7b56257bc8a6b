"""divevlm eval: methods and budgets on questions, sample by sample, resumable."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from divevlm.checks import keeps, names
from divevlm.terminal import table

EPILOG = """examples:
  divevlm eval --method dive,fastv --keep 128,64 --out runs/first                  the embedded model and its tasks
  divevlm eval --model llava-hf/llava-1.5-7b-hf --method dive --keep 64 --tasks pope,gqa --out runs/pope      (extra eval)
  torchrun --nproc-per-node 8 -m divevlm.cli eval ...                              the same, on eight GPUs
The same command goes on where a killed run stopped; more methods, budgets and tasks may be added to the same folder."""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "eval",
        help="answers under pruning: methods, budgets, tasks; resumable",
        epilog=EPILOG,
    )
    parser.add_argument("--model", default="llava", metavar="ID", help="an embedded model (llava), a path or an id")
    parser.add_argument(
        "--method", old=["--methods"], default="dive", help="names joined by commas, with options: dive:eta=0.5:layer=3"
    )
    parser.add_argument("--keep", default="64", help="counts or shares joined by commas")
    parser.add_argument("--tasks", default="embedded", help="embedded, some of its eight tasks, or lmms-eval names")
    parser.add_argument(
        "--limit",
        help="samples of each task, or of some: vqav2=2000,all (embedded: 125; benchmarks: all); every category is among them",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="results, and where to go on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, dest="batch", help="benchmarks: 1, as in the paper; embedded: 16")
    parser.add_argument(
        "--split", default="validation", choices=("validation", "test", "shift"), help="of the embedded tasks"
    )
    parser.add_argument(
        "--new-tokens", old=["--max-new-tokens"], type=int, default=16, help="longest answer to an embedded question"
    )
    parser.add_argument(
        "--engine", choices=("process", "ray"), default="process", help="ray: Ray Data actors (extra ray)"
    )
    parser.add_argument("--workers", type=int, default=2, help="actors of --engine ray")
    parser.add_argument("--separate", action="store_true", help="compute nothing once for all methods: times compare")
    parser.add_argument(
        "--inputs",
        choices=("stock", "template", "chat"),
        help="of benchmarks: as lmms-eval's own model makes them (default where it has one), or by the chat template: "
        "the task's plain text or its messages",
    )
    parser.add_argument("--ocr", action="store_true", help="OCR tokens in TextVQA's prompts")
    parser.add_argument("--pad", action="store_true", help="LLaVA-1.5: pictures padded to squares instead of cropped")
    parser.add_argument("--device-map", choices=("auto",), help="spread the model over all GPUs of this process")
    parser.add_argument("--include-path", type=Path, dest="include", metavar="DIR", help="lmms-eval tasks of your own")
    parser.add_argument("--dtype", help="auto, float32, float16 or bfloat16")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from divevlm.experiments.limits import Limits
    from divevlm.experiments.lmms import scores as lmms_scores
    from divevlm.experiments.loading import rank
    from divevlm.experiments.results import cells
    from divevlm.experiments.runner import Run, evaluate, usual_inputs
    from divevlm.experiments.tasks import is_embedded

    same = ("model", "out", "seed", "split", "new_tokens", "engine", "workers", "ocr", "pad", "device_map", "dtype",
            "include")  # fmt: skip
    limits, tasks = Limits.parse(options.limit), names("--tasks", options.tasks)
    asks = any(not is_embedded(name) for name in tasks)
    results = evaluate(
        Run(
            limit=limits.default,
            limits=limits.named,
            methods=names("--method", options.method),
            keeps=keeps(options.keep),
            tasks=tasks,
            batch=options.batch if options.batch is not None else 1 if asks else 16,
            inputs=options.inputs or (usual_inputs(options.model) if asks else "chat"),
            shared=not options.separate,
            **{name: getattr(options, name) for name in same},
        )
    )
    if rank()[0]:  # not the first of several processes
        return
    if options.json:
        print(json.dumps(results))
        return
    if results["rows"]:
        print(table(*cells(results["rows"])))
    if "benchmarks" in results:
        print(table(*lmms_scores.cells(results["benchmarks"])))
    print(f"\nresults in {options.out}; {results['wall_seconds']:.0f} s")
