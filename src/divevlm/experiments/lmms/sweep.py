"""lmms-eval's benchmarks swept by `divevlm eval` (extra eval)."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from divevlm.experiments.answering import Answerer
from divevlm.experiments.journal import Journal
from divevlm.experiments.lmms.scores import metrics, sample_lines
from divevlm.experiments.lmms.suite import Suite, check, suite
from divevlm.experiments.loading import rank
from divevlm.experiments.tasks import Item

if TYPE_CHECKING:
    from divevlm.experiments.runner import Run

__all__ = ["answer", "check", "items", "models", "score", "suite"]


def models(run: Run, asked: Suite, answerer: Answerer | None, journal: Journal | None) -> list[Any]:
    """One that lmms-eval can drive for each setting, around the same loaded model; budgets that can't be met are told here."""
    from divevlm.experiments.lmms.model import Chat, Simple

    kind = Chat if run.inputs == "chat" else Simple
    drivers = [kind.around(answerer, setting, run.batch, journal) for setting in run.settings]
    for lm in drivers:
        lm.task_dict, lm.numbers, lm.inputs, lm.pad = asked.data, asked.numbers, run.inputs, run.pad
    return drivers


def items(run: Run) -> list[Item]:
    """Documents of lmms-eval tasks as questions with one gold answer, for teacher forcing; a group's bear its name."""
    whole, plain = suite(run), run.inputs == "stock"
    from divevlm.experiments.lmms.requests import gold, media

    questions: list[Item] = []
    for name, task in whole.tasks.items():
        group = whole.group[name]
        for place, number in enumerate(whole.numbers[name]):
            document = task.eval_docs_no_media[place]
            sample = str(number) if name == group else f"{name}/{number}"
            draw = partial(_drawn, media, task, place, plain, run.pad)
            text, answer = task.doc_to_text(document), gold(task, name, document)
            questions.append(Item(group, sample, text, answer, draw, stock=plain))
    return questions


def _drawn(media: Any, task: Any, place: int, plain: bool, pad: bool) -> list[Any]:
    visuals: list[Any] = media(task.doc_to_visual, task.eval_docs[place], plain, pad)
    return visuals


def answer(run: Run, asked: Suite, answerer: Answerer, journal: Journal) -> None:
    """What the journal does not have of this process' share, on disk."""
    number, world = rank()
    mine = asked.requests()[number::world]
    for lm in models(run, asked, answerer, journal):
        lm.generate_until(mine)


def score(run: Run, asked: Suite, journal: Journal) -> dict[str, Any]:
    """Metrics of every setting and task, by lmms-eval; what each sample got is in `scores.jsonl`.

    setting -> method, keep, tasks -> metric -> value; missing -> task -> why it has no numbers
    """
    scored: dict[str, Any] = {}
    lines: list[str] = []
    for lm in models(run, asked, None, journal):
        scores: dict[str, dict[str, float]] = {}
        missing: dict[str, str] = {}
        for name, tree in asked.trees.items():
            try:
                evaluated = _evaluated(run, lm, tree)
                scores[name] = metrics(evaluated, name)
                lines += sample_lines(evaluated, lm.setting, asked.numbers)
            except (
                Exception
            ) as error:  # answers are on disk, other tasks have their numbers: this one is a hole, with its reason
                reason = " ".join(str(error).split())
                scores[name], missing[name] = {}, f"{type(error).__name__}: {reason}"
        scored[str(lm.setting)] = {
            "method": lm.setting.method,
            "keep": lm.setting.keep,
            "tasks": scores,
            "missing": missing,
        }
    if lines:
        (run.out / "scores.jsonl").write_text("\n".join(lines) + "\n")
    return scored


def _evaluated(run: Run, lm: Any, tree: dict[Any, Any]) -> Any:
    from lmms_eval.evaluator import evaluate

    random.seed(run.seed)  # some tasks guess where an answer names no option: the same answers get the same score
    torch.manual_seed(run.seed)
    options = SimpleNamespace(process_with_media=False, output_path=str(run.out / "lmms-eval"))
    with _alone():
        return evaluate(
            lm, tree, bootstrap_iters=0, verbosity="ERROR", distributed_executor_backend="torchrun", cli_args=options
        )


@contextmanager
def _alone() -> Iterator[None]:
    """One process scores what all have answered; lmms-eval asks the environment how many there are."""
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    before = {name: os.environ.get(name) for name in alone}
    os.environ |= alone
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
