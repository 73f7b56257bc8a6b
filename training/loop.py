"""The training loop: phases, checkpoints that survive any kill, and a log of one JSON object per line."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from divevlm.checks import at_least
from training.batches import Phase

CHECKPOINT = "checkpoint.pt"
Made = dict[str, Any]
Maker = Callable[[Phase, int], Made]  # (phase, step) -> batch
Loss = Callable[[Made], tuple[Tensor, dict[str, Any]]]


class Stream(Dataset[Made]):
    """The batches of a schedule, by step: nothing but the step number is needed to go on after a stop."""

    def __init__(self, phases: Sequence[Phase], make: Maker, start: int) -> None:
        self.phases, self.make, self.start = phases, make, start

    def __len__(self) -> int:
        return sum(phase.steps for phase in self.phases) - self.start

    def __getitem__(self, index: int) -> Made:
        step = self.start + index
        return self.make(at(self.phases, step)[0], step)


def at(phases: Sequence[Phase], step: int) -> tuple[Phase, float]:
    """The phase of a step, and the factor on the learning rates."""
    for phase in phases:
        if step < phase.steps:
            first, last = phase.rate
            return phase, first + (last - first) * step / phase.steps
        step -= phase.steps
    raise ValueError(f"step must be before the end of the schedule, got {step} steps beyond it")


def scheduled(phases: Sequence[Phase], changes: Sequence[str], scale: float) -> list[Phase]:
    """Phases with other numbers of steps: "ask24=500", all of them times `scale`."""
    at_least("--scale", scale, 0)
    names = [phase.name for phase in phases]
    steps = {}
    for change in changes:
        name, _, number = change.partition("=")
        if name not in names or not number.isdecimal():
            raise ValueError(f"--steps must be PHASE=N, PHASE one of {', '.join(names)}, got {change!r}")
        steps[name] = int(number)
    return [replace(phase, steps=round(scale * steps.get(phase.name, phase.steps))) for phase in phases]


def train(
    modules: dict[str, nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    phases: Sequence[Phase],
    make: Maker,
    loss: Loss,
    folder: Path,
    *,
    every: float = 180.0,
    stop: int | None = None,
    workers: int = 1,
    half: bool = False,
) -> int:
    """Train to the end of the schedule (or to step `stop`), going on from the folder's checkpoint. Returns the step reached.

    A polite kill (SIGTERM) saves first; any other loses at most `every` seconds. half: products in bfloat16.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    step, spent = restore(folder, modules, optimizers)
    tally, values, began, saved = Counter[str](), Counter[str](), time.monotonic(), time.monotonic()
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    for made in _loaded(Stream(phases, make, step), workers):
        if ended or (stop is not None and step >= stop):
            break
        phase, factor = at(phases, step)
        for optimizer, base in zip(optimizers, rates, strict=True):
            for group, rate in zip(optimizer.param_groups, base, strict=True):
                group["lr"] = rate * factor * min(1.0, (step + 1) / 40)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            value, log = loss(made)
        value.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step += 1
        _count(tally, values, log)
        now = time.monotonic()
        if step % 20 == 0:
            _write(folder, step, phase, spent + now - began, tally, values)
            tally, values = Counter(), Counter()
        if now - saved > every:
            save(folder, modules, optimizers, step, spent + now - began)
            saved = now
    save(folder, modules, optimizers, step, spent + time.monotonic() - began)
    return step


def _loaded(stream: Stream, workers: int) -> Iterator[Made]:
    if len(stream) <= 0:
        return
    if not workers:
        yield from (stream[index] for index in range(len(stream)))
        return
    yield from DataLoader(stream, batch_size=None, num_workers=workers, prefetch_factor=4)


def save(
    folder: Path, modules: dict[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer], step: int, spent: float
) -> None:
    """Written beside the old one and then put in its place, so that a kill leaves one of the two."""
    state = {
        "step": step,
        "spent": spent,
        "modules": {name: module.state_dict() for name, module in modules.items()},
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
    }
    torch.save(state, folder / "checkpoint.new")
    (folder / "checkpoint.new").replace(folder / CHECKPOINT)


def loaded(folder: Path) -> dict[str, Any]:
    """The checkpoint in a folder."""
    if not (folder / CHECKPOINT).exists():
        raise ValueError(f"--folder must hold a {CHECKPOINT}, got {str(folder)!r}")
    state: dict[str, Any] = torch.load(folder / CHECKPOINT, map_location="cpu", weights_only=True)
    return state


def restore(
    folder: Path, modules: dict[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer]
) -> tuple[int, float]:
    if not (folder / CHECKPOINT).exists():
        return 0, 0.0
    state = loaded(folder)
    for name, module in modules.items():
        module.load_state_dict(state["modules"][name])
    if state["optimizers"]:  # none in a checkpoint that was made of an exported model
        for optimizer, values in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(values)
    return int(state["step"]), float(state["spent"])


def _count(tally: Counter[str], values: Counter[str], log: dict[str, Any]) -> None:
    for name, (right, asked) in log.pop("right").items():
        tally[f"{name} right"] += right
        tally[f"{name} asked"] += asked
    for name, value in log.items():
        values[name] += value
        tally[f"{name} steps"] += 1


def _write(folder: Path, step: int, phase: Phase, spent: float, tally: Counter[str], values: Counter[str]) -> None:
    names = [key.removesuffix(" asked") for key in tally if key.endswith(" asked") and tally[key]]
    line = {
        "step": step,
        "phase": phase.name,
        "minutes": round(spent / 60, 2),
        **{name: round(value / tally[f"{name} steps"], 4) for name, value in values.items()},
        "accuracy": {name: round(tally[f"{name} right"] / tally[f"{name} asked"], 4) for name in names},
    }
    with (folder / "log.jsonl").open("a") as stream:
        stream.write(json.dumps(line) + "\n")
