"""divevlm doctor: what is here, what is missing, and whether the engine works."""

from __future__ import annotations

import argparse
import json
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from divevlm.terminal import progress, table

SERVING = ("fastapi", "starlette", "uvicorn", "openai")  # what transformers[serving] stands for
PARTS = {  # extra -> what it is made of, what it is for
    "(core)": (("torch", "transformers"), "pruning, selection, plans"),
    "fast": (("numba",), "a faster selection loop on CPUs"),
    "triton": (("triton",), "the selection loop in one launch on GPUs"),
    "cli": (("pillow", "rich"), "run, explore and demo; tables and progress on a terminal"),
    "demo": (("divevlm-tiny", "rich"), "the embedded models and their questions: demo, bench accuracy, eval, analyze"),
    "plot": (("matplotlib", "pillow"), "pictures: run --png, bench accuracy --plot"),
    "video": (("av",), "videos in run and explore"),
    "eval": (("lmms-eval", "pillow"), "benchmarks: eval --tasks, reproduce --scale full"),
    "ray": (("ray",), "eval and batch --engine ray"),
    "serve": (("httpx", "pillow", "prometheus-client", "transformers", *SERVING), "an OpenAI-compatible endpoint"),
    "vllm": (("vllm",), "the plugin for vLLM: bench vllm, batch --engine vllm"),
}


def add(commands: Any) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="versions, devices, extras, and a self-check of the engine",
        epilog="example: divevlm doctor --json",
    )
    doctor.add_argument("--device", default=None, help="where to check (default: every device there is)")
    doctor.add_argument("--json", action="store_true", help="print one JSON object instead of the tables")
    doctor.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from divevlm import __version__
    from divevlm.cli.selfcheck import checks
    from divevlm.loading import check_device, embedded_models, quiet

    quiet()
    versions = {"divevlm": __version__, "python": platform.python_version(), "system": platform.platform()}
    there = devices()
    if options.device is not None and options.device.split(":")[0] not in there:
        raise ValueError(f"--device must be one of {', '.join(there)}, got {options.device!r}")
    if options.device is not None:
        check_device(options.device)
    rows = []
    with progress("divevlm doctor") as tick:
        for device in [options.device] if options.device else there:
            tick(f"checking the engine on {device}")
            rows += [{"device": device} | row for row in checks(device)]
    result = versions | {"devices": there, "extras": extras(), "embedded_models": embedded_models(), "rows": rows}
    print(json.dumps(result) if options.json else as_text(result))
    if not all(row["ok"] for row in rows):
        raise ValueError("the self-check failed: pruned answers can't be trusted on this machine")


def devices() -> dict[str, str]:
    import torch

    there = {"cpu": f"{torch.get_num_threads()} threads"}
    if torch.cuda.is_available():
        there["cuda"] = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    if torch.backends.mps.is_available():
        there["mps"] = "Apple GPU"
    return there


def extras() -> list[dict[str, Any]]:
    rows = []
    for extra, (packages, use) in PARTS.items():
        versions = {package: _version(package) for package in packages}
        rows.append({"extra": extra, "packages": versions, "complete": None not in versions.values(), "for": use})
    return rows


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def as_text(result: dict[str, Any]) -> str:
    parts = [
        [
            row["extra"],
            "yes" if row["complete"] else "no",
            ", ".join(f"{name} {number or '(missing)'}" for name, number in row["packages"].items()),
            row["for"] if row["complete"] else f"{row['for']} (pip install 'divevlm[{row['extra']}]')",
        ]
        for row in result["extras"]
    ]
    rows = [
        [row["check"], row["device"], "ok" if row["ok"] else "FAILED", f"{row['seconds']:.1f} s"]
        for row in result["rows"]
    ]
    lines = [
        f"divevlm {result['divevlm']}, Python {result['python']}, {result['system']}",
        "devices: " + "; ".join(f"{name} ({what})" for name, what in result["devices"].items()),
        "embedded models: " + (", ".join(result["embedded_models"]) or "none in this copy"),
        "",
        table(head := ["extra", "installed", "made of", "for"], parts, left=head),
        "",
        table(["self-check", "device", "result", "took"], rows),
        *(f"{row['check']}: {row['problem']}" for row in result["rows"] if row["problem"]),
    ]
    return "\n".join(lines)
