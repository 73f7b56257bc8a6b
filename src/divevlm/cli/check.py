"""divevlm check: does pruning work on your checkpoint and your card? Minutes, no data set."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from divevlm.checks import at_least, keep
from divevlm.cli.loading import add_device_options
from divevlm.files import write
from divevlm.terminal import progress, table

EPILOG = """examples:
  divevlm check llava-hf/llava-1.5-7b-hf --keep 64
  divevlm check ./my-checkpoint --keep 0.2 --dtype bfloat16 --attn eager --picture photo.jpg
  divevlm check llava-hf/llava-1.5-13b-hf --device-map auto

Ends with code 0 where every promise is kept, 1 where one is broken. The file of --out says all of it: attach it to an issue."""
COLUMNS = (  # of the measurements: name, head, digits
    ("prefill_ms", "first token, ms", 1),
    ("token_ms", "further token, ms", 2),
    ("total_ms", "total, ms", 1),
    ("selection_ms", "choice, ms", 2),
    ("kv_share", "KV cache", 3),
    ("peak_gb", "GPU, GB", 2),
)


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="does pruning work on your checkpoint and card? proofs and measurements, no data set",
        epilog=EPILOG,
    )
    parser.add_argument("model", metavar="MODEL", help="a folder, a name on the hub, or an embedded model (llava)")
    parser.add_argument("--method", old=["--methods"], default="dive", help="a name with options: dive:eta=0.5")
    parser.add_argument("--keep", default="0.2", help="a count or a share of the visual tokens (default 0.2)")
    add_device_options(parser)
    parser.add_argument("--device-map", choices=("auto",), help="spread the model over all GPUs")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="one of your own beside those that are drawn")
    parser.add_argument(
        "--new-tokens",
        old=["--max-new-tokens"],
        type=int,
        default=16,
        metavar="N",
        help="generated in measurements (default 16)",
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="of each measurement (default 3)")
    parser.add_argument("--out", type=Path, default=Path("divevlm-check.json"), metavar="FILE", help="the whole report")
    parser.add_argument("--json", action="store_true", help="print the report instead of the tables")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from divevlm.experiments.check.costs import measured
    from divevlm.experiments.check.findings import Subject, findings
    from divevlm.experiments.check.pictures import pictures
    from divevlm.experiments.loading import machine
    from divevlm.experiments.settings import Setting
    from divevlm.loading import check_device, default_device, load

    at_least("--new-tokens", options.new_tokens, 2)
    at_least("--repeats", options.repeats, 1)
    if options.method == "vanilla":
        raise ValueError("--method must be one that prunes, got 'vanilla'")
    setting, whole = (Setting(options.method, share).check() for share in (keep(options.keep), 1.0))
    check_device(options.device or default_device())
    samples = pictures()
    if options.picture is not None:
        from divevlm.media import read_picture

        samples.append((str(options.picture.name), read_picture(options.picture)))
    with progress("divevlm check") as tick:
        tick("loading the model")
        model, processor = load(options.model, options.device, options.dtype, options.device_map, attn=options.attn)
        pruned, same = (budget.ready(model, processor) for budget in (setting, whole))
        assert pruned is not None
        assert same is not None
        subject = Subject(model, processor, pruned, same, samples)
        results = findings(subject, tick)
        tick("measuring")
        times = measured(subject, options.new_tokens, options.repeats)
    text = model.config.get_text_config()
    broken = [result.check for result in results if result.ok is False]
    report = {
        "model": options.model,
        "family": model.config.model_type,
        "setting": str(setting),
        "dtype": str(model.dtype).removeprefix("torch."),
        "attention": text._attn_implementation,
        "device": str(model.device),
        "device_map": {name: str(where) for name, where in (getattr(model, "hf_device_map", None) or {}).items()},
        "blocks": text.num_hidden_layers,
        "machine": machine(),
        "ok": not broken,
        "checks": [asdict(result) for result in results],
        "repeats": options.repeats,
        "rows": times,
    }
    write(options.out, json.dumps(report, indent=1) + "\n")
    if options.json:
        print(json.dumps(report))
    else:
        _show(report, options.out)
    if broken:
        raise SystemExit(1)


def _show(report: dict[str, Any], out: Path) -> None:
    about = ("family", "setting", "dtype", "attention", "device")
    print(f"{report['model']}: {', '.join(str(report[name]) for name in about)}\n")
    words = {True: "ok", False: "BROKEN", None: "can't tell"}
    print(table(["promise", "", "found"], [[c["check"], words[c["ok"]], c["detail"]] for c in report["checks"]]))
    there = [column for column in COLUMNS if any(column[0] in row for row in report["rows"])]
    lines = [
        [row["setting"], *(f"{row[name]:.{digits}f}" if name in row else "" for name, _, digits in there)]
        for row in report["rows"]
    ]
    print("\n" + table(["measured", *(head for _, head, _ in there)], lines))
    full, pruned = report["rows"]
    first, total = (full[name] / pruned[name] for name in ("prefill_ms", "total_ms"))
    faster = f"first token x{first:.2f}, total x{total:.2f}, medians of {report['repeats']} runs"
    print(
        f"\nkept {pruned['kept']:.0f} of {pruned['visual']:.0f} visual tokens of a photograph; "
        + ("times of one run each, too few to compare" if report["repeats"] == 1 else faster)
    )
    unsure = sum(check["ok"] is None for check in report["checks"])
    verdict = "every promise is kept" if report["ok"] else "BROKEN: please open an issue"
    print(f"verdict: {verdict}{f', {unsure} can not be told' if unsure and report['ok'] else ''}; all of it in {out}")
