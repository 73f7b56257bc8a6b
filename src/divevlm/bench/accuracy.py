"""What pruning does to answers: every method and budget on the questions of the embedded model."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from divevlm_tiny.splits import Sample, questions
from divevlm_tiny.words import TASKS

from divevlm.bench.timing import machine
from divevlm.core.metrics import redundancy, relative_average
from divevlm.engine.once import Once
from divevlm.experiments.tiny_answers import Answer, answer, blind, chunks, look, vanilla
from divevlm.methods import METHODS, Method, method_of, parse

ALWAYS = ("random", "grid")


def contenders(methods: Sequence[str], keeps: Sequence[int]) -> dict[tuple[str, int], Method]:
    """Every method with every budget; random and grid are always among them."""
    names = list(dict.fromkeys([*methods, *(name for name in ALWAYS if name in set(METHODS))]))
    return {
        (text, keep): method_of(name, keep, options)
        for text in names
        for name, options in [parse(text)]
        for keep in keeps
    }


def measure(
    methods: Sequence[str],
    keeps: Sequence[int],
    n: int = 1000,
    split: str = "validation",
    model: str = "llava",
    tick: Callable[..., object] = lambda text, share=None: None,
) -> dict[str, Any]:
    """Accuracy by task, likelihood, hit rate, redundancy and cost of each setting; vanilla and blind stand first."""
    from divevlm_tiny.shipped import load

    network, processor = load(model)
    if network.config.model_type != "llava":
        raise ValueError(f"--model must be a tiny-llava (for others: divevlm eval), got {model!r}")
    settings = contenders(methods, keeps)
    samples = questions(split, n)
    answers: dict[tuple[str, int], list[Answer]] = defaultdict(list)
    seconds: dict[tuple[str, int], float] = defaultdict(float)
    alike: dict[tuple[str, int], list[float]] = defaultdict(list)
    done, once = 0, Once(network)
    for chunk in chunks(samples, processor):
        look(network, chunk)
        once.forget()
        start = time.perf_counter()
        found, states = vanilla(network, chunk)
        answers["vanilla", 0] += found
        seconds["vanilla", 0] += time.perf_counter() - start
        answers["blind", 0] += blind(network, chunk)
        for key, method in settings.items():
            start = time.perf_counter()
            found = answer(network, chunk, method, once)
            seconds[key] += time.perf_counter() - start
            answers[key] += found
            alike[key] += [
                redundancy(states[number], torch.tensor(one.kept))
                for number, one in zip(chunk.scene.tolist(), found, strict=True)
                if one.kept is not None and len(one.kept) > 1
            ]
        done += len(chunk.samples)
        tick(f"{done} of {n} questions", done / n)
    full = answers["vanilla", 0]
    rows = [
        row(name, keep, found, full, seconds[name, keep], alike[name, keep]) for (name, keep), found in answers.items()
    ]
    return {"model": model, "split": split, "n": n, "rows": rows, "majority": majority(samples), "machine": machine()}


def row(
    name: str, keep: int, found: list[Answer], full: list[Answer], seconds: float, alike: list[float]
) -> dict[str, Any]:
    """The figures of one setting, accuracies in percent."""
    tasks = {task: [one.right for one in found if one.sample.task == task] for task in TASKS}
    tasks = {task: right for task, right in tasks.items() if right}
    whole = {task: _percent([one.right for one in full if one.sample.task == task]) for task in tasks}
    scores = {task: _percent(right) for task, right in tasks.items()}
    right = [one.right for one in found]
    paired = [float(one.right) - float(other.right) for one, other in zip(found, full, strict=True)]
    hits = [hit for one in found if (hit := hit_rate(one)) is not None]
    return {
        "method": name,
        "keep": keep,
        "accuracy": _percent(right),
        "error": _error(right),
        "below_full": 100 * sum(paired) / len(paired),
        "below_full_error": 100 * _spread(paired),
        "tasks": {
            task: {"accuracy": scores[task], "error": _error(tasks[task]), "n": len(tasks[task])} for task in tasks
        },
        "relative": relative_average(scores, whole) if all(whole.values()) else None,
        "likelihood": sum(one.likelihood for one in found) / len(found),
        "likelihood_error": _spread([one.likelihood for one in found]),
        "hit_rate": 100 * sum(hits) / len(hits) if hits else None,
        "redundancy": sum(alike) / len(alike) if alike else None,
        "right": "".join(str(int(one.right)) for one in found),  # question by question: see `bench compare`
        "tokens": _mean(one.tokens for one in found),
        "gflops": _mean(one.flops / 1e9 for one in found),
        "seconds": seconds,
    }


def hit_rate(one: Answer) -> float | None:
    """The share of the objects asked about that still have one of their patches; None where nothing is named or cut."""
    items = one.sample.question.items
    if one.kept is None or not items:
        return None
    kept = set(one.kept)
    return sum(not kept.isdisjoint(one.sample.scene.patches(index)) for index in items) / len(items)


def majority(samples: list[Sample]) -> dict[str, float]:
    """What always giving the most frequent answer of a task would score."""
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    for sample in samples:
        answers[sample.task][sample.answer] += 1
    return {task: 100 * counts.most_common(1)[0][1] / counts.total() for task, counts in answers.items()}


def _percent(right: list[bool]) -> float:
    return 100 * sum(right) / len(right)


def _error(right: list[bool]) -> float:
    share = sum(right) / len(right)
    return 100 * math.sqrt(share * (1 - share) / len(right))


def _spread(values: list[float]) -> float:
    """The standard error of a mean."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values)) / len(values)


def _mean(values: Any) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else None
