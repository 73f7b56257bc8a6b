"""`divevlm reproduce NAME`: what a recipe says, measured beside what the paper prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from divevlm.checks import require
from divevlm.experiments import results, tasks
from divevlm.experiments.analysis.analyses import ANALYSES, analyze
from divevlm.experiments.analysis.timing import RUNTIME, runtime
from divevlm.experiments.answering import Answerer
from divevlm.experiments.limits import Limits
from divevlm.experiments.loading import machine
from divevlm.experiments.paper.comparison import THROUGHPUT, Comparison, full_scores, number, reasons
from divevlm.experiments.paper.recipe import VANILLA, Recipe, benchmarks, recipe
from divevlm.experiments.runner import Inputs, Run, bar, evaluate
from divevlm.experiments.settings import Setting

Table = tuple[list[str], list[list[str]]]


@dataclass(frozen=True)
class Order:
    """What was asked for. model: instead of the recipe's; limits: samples of each task; out: a folder of its own."""

    scale: str
    out: Path
    model: str | None = None
    limits: Limits | None = None
    batch: int | None = None  # None: 1 at full scale, as in the paper, otherwise 16
    split: str = "validation"
    seed: int = 0
    inputs: Inputs = "stock"  # this and what follows: at full scale
    ocr: bool | None = None  # None: as the recipe says
    pad: bool = False
    dtype: str | None = None
    device_map: str | None = None

    @property
    def full(self) -> bool:
        return self.scale == "full"

    @property
    def limit(self) -> int | None:
        return None if self.limits is None else self.limits.default

    def run(self, of: Recipe, methods: tuple[str, ...], keeps: tuple[int | float, ...], **more: Any) -> Run:
        """On the model and tasks of the recipe at this scale."""
        model = self.model or (of.settings["model"] if self.full else embedded_model(of))
        wanted = of.settings["embedded"].get("tasks", [tasks.ALL])
        limits = () if self.limits is None else self.limits.named
        if self.full:
            asked = [benchmarks()[column] for column in of.benchmarks]
            wanted = list(dict.fromkeys(one["task"] for one in asked))
            if self.limits is None:
                limits = tuple((one["task"], one["limit"]) for one in asked if "limit" in one)
        few = None if self.full else of.settings["embedded"].get("limit")
        named: dict[str, Any] = {
            "limit": few if self.limit is None else self.limit,
            "limits": limits,
            "batch": self.batch or (1 if self.full else 16),
            "split": self.split,
            "seed": self.seed,
        }
        if self.full:
            ocr = of.settings.get("ocr", False) if self.ocr is None else self.ocr
            named |= {"inputs": self.inputs, "ocr": ocr, "pad": self.pad}
            named |= {"dtype": self.dtype, "device_map": self.device_map}
        return Run(model, methods, keeps, self.out, tuple(wanted), **named | more)


def asked_how(of: Recipe, order: Order) -> str:
    """For the table: which inputs ran."""
    if of.kind == "summary":
        return "Inputs as the tables it sums up have them"
    run = order.run(of, (), ())
    inputs = {
        "stock": "those of lmms-eval's own models",
        "template": "the tasks' plain text through the checkpoint's chat template",
        "chat": "the tasks' messages through the checkpoint's chat template",
    }[run.inputs]
    parts = [f"Inputs: {inputs}", f"batch {run.batch}", "OCR tokens in TextVQA's prompts" if run.ocr else ""]
    parts += ["pictures padded to squares" if run.pad else "", f"dtype {run.dtype}" if run.dtype else ""]
    asked = {benchmarks()[column]["task"]: run.limit_of(benchmarks()[column]["task"]) for column in of.benchmarks}
    parts += [f"{task}: {limit} samples" for task, limit in asked.items() if limit is not None]
    return "; ".join(part for part in parts if part)


def embedded_model(of: Recipe) -> str:
    import divevlm_tiny as tiny

    name: str = of.settings["embedded"]["model"]
    shipped = ", ".join(tiny.available()) or "none yet"
    require(name in tiny.available(), "model", name, f"given with --model where it is not shipped (shipped: {shipped})")
    return name


def scores(of: Recipe, order: Order) -> Comparison:
    """Every method and budget of a table."""
    others = [method for method in of.methods if method != VANILLA]
    names = {of.run_as(method, order.full): method for method in others}
    budgets = {budget if order.full else of.scaled(budget): budget for budget in of.budgets}
    run = order.run(of, tuple(names), tuple(budgets))
    result = evaluate(run)
    rows = full_scores(result, of) if order.full else result["rows"]
    if THROUGHPUT in of.settings.get("extra", []):
        from divevlm.experiments.paper.efficiency import throughput

        speeds, result["throughput_of"] = throughput(run, result, of.name)
        for row in rows:
            speed, whole = speeds.get(Setting(row["method"], row["keep"])), speeds.get(Setting("vanilla", 0))
            row |= {"samples_per_second": speed, "throughput": speed / whole if speed and whole else None}
    return Comparison(of, rows, names | {"vanilla": VANILLA}, {**budgets, 0: 0}, dict(result), order.full)


def _scores(of: Recipe, order: Order) -> tuple[dict[str, Any], Table]:
    measured = scores(of, order)
    return measured.result(), measured.table()


def _summary(of: Recipe, order: Order) -> tuple[dict[str, Any], Table]:
    """The tables it summarises, each run as its own recipe, then their averages."""
    sources = {name: None for name, _ in of.settings["sources"]}
    tables: dict[str, Comparison] = {}
    for name in sources:
        one = recipe(name)
        tables[name] = scores(one, replace(order, out=order.out / (name if order.full else "embedded")))
    rows: list[dict[str, Any]] = []
    for row in of.rows:
        for column, (name, budget) in zip(of.columns, of.settings["sources"], strict=True):
            value = tables[name].relative(row.method, budget)
            rows.append({"method": row.method, "column": column, "printed": row.scores[column], "measured": value})
    head = ["column", *(f"{row.method} {what}" for row in of.rows for what in ("printed", "measured"))]
    lines = []
    for column in of.columns:
        cells = [row for row in rows if row["column"] == column]
        lines.append([column, *(text for r in cells for text in (f"{r['printed']:.1f}", number(r["measured"], 1)))])
    return {"rows": rows, "machine": machine()}, (head, lines)


def _efficiency(of: Recipe, order: Order) -> tuple[dict[str, Any], Table]:
    from divevlm.experiments.paper.efficiency import efficiency

    return efficiency(of, order)


def _curves(of: Recipe, order: Order) -> tuple[dict[str, Any], Table]:
    from divevlm.experiments.paper.efficiency import curves

    return curves(of, order)


def _feedback(of: Recipe, order: Order) -> tuple[dict[str, Any], Table]:
    from divevlm.experiments.analysis import figures

    figures.check()
    schedules, budgets, printed = of.settings["schedules"], tuple(of.settings["budgets"]), of.settings["printed"]
    run = order.run(of, ANALYSES["redundancy"].methods, budgets, mode="forced")
    alike = analyze("redundancy", run)
    first = replace(run, keeps=budgets[:1])
    gains = ANALYSES["feedback"].read(first, alike["rows"], alike.records)
    few = run.items() if order.full else run.items()[: 20 if order.limit is None else order.limit]
    with bar((1 + len(few)) * len(schedules)) as tick:
        cost = runtime(
            Answerer(*(alike.loaded or run.load()), False),
            few,
            schedules,
            budgets[0],
            of.settings["new_tokens"],
            tick,
        )
    label, missing = "right, %", []
    if order.full:  # the paper's scale: answers generated and scored as a benchmark
        asked = replace(first, mode="generate", out=order.out / "mme")
        scored = full_scores(evaluate(asked, alike.loaded), of)
        missing = reasons(scored)
        if scored and not missing:  # the first process alone has scores
            label, points = "MME", {row["method"]: row["scores"]["MME"] for row in scored}
            gains = [row | {"accuracy": points[row["method"]]} for row in gains]
    files = figures.feedback(first, gains, alike.records, order.out, "figure4a", label)
    files += figures.redundancy(run, alike.records, order.out, "figure4b")
    by_updates = {figures.updates(row["method"]): row for row in gains}
    head = ["updates", "RGL, %", label, *(f"redundancy {k}" for k in budgets)]
    head += [text for name, about, _ in RUNTIME for text in ([f"{about} printed"] if name in printed else []) + [about]]
    lines = []
    for row in cost:
        gain = by_updates[row["updates"]]
        same = [
            r["redundancy"] for k in budgets for r in alike["rows"] if r["keep"] == k and r["method"] == gain["method"]
        ]
        cells = [number(gain["rgl"], 2), number(gain["accuracy"], 1), *(number(value, 4) for value in same)]
        for name, _, digits in RUNTIME:
            cells += [number(printed[name].get(str(row["updates"])), 1)] if name in printed else []
            cells.append(number(row[name], digits))
        lines.append([str(row["updates"]), *cells])
    result = {**alike, "feedback": gains, "runtime": cost, "printed": printed, "files": files}
    result["missing"] = missing
    return result, (head, lines)


def _pictures(of: Recipe, order: Order) -> tuple[dict[str, Any], Table]:
    from divevlm.experiments.analysis import figures

    figures.check()
    run = order.run(of, (), (), mode="forced")
    limit = (64 if order.full else 8) if order.limit is None else order.limit
    some = replace(run, limit=limit).items()
    model, processor = run.load()
    keep = int(of.budgets[0])
    with torch.inference_mode():
        files, facts = figures.pictures(of.kind, model, processor, some, of.methods, keep, order.out, of.name)
    head = ["question", "gold", *of.methods]
    lines = [[fact["question"], fact["gold"], *(fact["answers"][label] for label in of.methods)] for fact in facts]
    return {"rows": facts, "files": files, "machine": machine(), "model": run.model}, (head, lines)


KINDS: dict[str, Callable[[Recipe, Order], tuple[dict[str, Any], Table]]] = {
    "scores": _scores,
    "summary": _summary,
    "efficiency": _efficiency,
    "curves": _curves,
    "feedback": _feedback,
    **dict.fromkeys(("evolution", "gallery", "masks"), _pictures),
}


def reproduce(name: str, order: Order) -> tuple[dict[str, Any], Table]:
    """Run a recipe; NAME.json, NAME.md and NAME.csv (and pictures) are in the folder afterwards."""
    require(order.scale in ("embedded", "full"), "scale", order.scale, "embedded or full")
    of = recipe(name)
    order.out.mkdir(parents=True, exist_ok=True)
    result, (head, lines) = KINDS[of.kind](of, order)
    result |= {"recipe": name, "title": of.title, "scale": order.scale}
    if order.full:
        where = f"{order.model} and the paper's benchmarks" if order.model else "the paper's models and benchmarks"
        where += f". {asked_how(of, order)}"
    else:
        where = f"{order.model or 'the embedded model'} on drawn scenes, not the paper's models"
    holes = "".join(f"\n\nEmpty: {reason}." for reason in result.get("missing", []))
    results.save(order.out, name, result, head, lines, f"{name}: {of.title}\n\nMeasured on {where}.{holes}")
    return result, (head, lines)
