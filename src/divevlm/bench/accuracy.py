"""What pruning does to answers: every method and budget on the questions of an embedded model."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

import torch
from divevlm_tiny.splits import SIZES, ClipSample, Sample, clip_questions, questions
from torch import Tensor

from divevlm.checks import require
from divevlm.core.metrics import redundancy
from divevlm.engine.report import Report
from divevlm.experiments.answering import Answered, Answerer
from divevlm.experiments.loading import machine
from divevlm.experiments.results import error, known_mean, percent, relative
from divevlm.experiments.settings import Setting, check_budgets
from divevlm.experiments.tasks import CLIP_TASKS, TASKS, item_of
from divevlm.methods import METHODS, method_of, parse
from divevlm.models import family_of
from divevlm.planning import VANILLA

ALWAYS = ("random", "grid")
BLIND = "blind"
OPTION, WITHOUT = "proportional=", "False"
SCENES = 8  # asked about at once
WORDS = 1000  # fewer have only models that know drawn scenes
Asked = TypeVar("Asked", bound=Sample | ClipSample)


@dataclass
class Mark:
    """Of one question under one setting. kept: None where everything stayed; flops: of its prefill, alone;
    tokens: with padding."""

    sample: Sample | ClipSample
    right: bool
    likelihood: float  # log of the gold answer's
    seconds: float = 0.0
    kept: list[int] | None = None
    redundancy: float | None = None  # of the kept ones, by their states after two blocks of a full run
    flops: float | None = None
    tokens: float | None = None  # mean length of the sequence over the blocks


def contenders(
    methods: Sequence[str], keeps: Sequence[int | float], proportional: Sequence[str] = (), plain: bool = True
) -> list[Setting]:
    """Every method with every budget and value of `proportional`; random and grid are always among them.

    plain: of a model whose patches are visual tokens; of others "all" leaves out what works in the tower only
    """
    if list(methods) == ["all"]:
        methods = [name for name in METHODS if plain or not method_of(name, keeps[0], {}).in_tower(plain)]
    if proportional:
        methods = with_proportional(methods, proportional)
    names = dict.fromkeys([*methods, *(name for name in ALWAYS if name in set(METHODS))])
    return [Setting(name, keep).check() for name in names for keep in keeps]


def with_proportional(methods: Sequence[str], values: Sequence[str]) -> list[str]:
    """Each method without and with each value of `proportional`."""
    for value in values:
        require(":" not in value, "--proportional", value, "measured, uniform, True or numbers, joined by commas")
    for method in methods:
        given = "proportional" in parse(method)[1]
        require(not given, "--method", method, "without proportional beside --proportional")
    first = {method: "" if value_of(method) == WITHOUT else f":{OPTION}{WITHOUT}" for method in methods}
    return [f"{method}{more}" for method in methods for more in (first[method], *(f":{OPTION}{v}" for v in values))]


def value_of(method: str) -> str:
    """Of `proportional`, as a method with settings has it."""
    name, settings = parse(method)
    return str(settings.get("proportional", METHODS.get(name).proportional))


def measure(
    methods: Sequence[str],
    keeps: Sequence[int | float],
    n: int = 1000,
    split: str = "validation",
    model: str = "llava",
    clips: bool = False,
    proportional: Sequence[str] = (),
    tick: Callable[..., object] = lambda text, share=None: None,
) -> dict[str, Any]:
    """Accuracy by task, likelihood, hit rate, redundancy and cost of each setting; vanilla and (tiny-llava) blind stand first.

    methods: names with settings, or "all"; keeps: counts or shares of the visual tokens; clips: ask tiny-qwen2vl about
    clips instead of pictures; proportional: every method with these values, too
    """
    from divevlm.loading import load

    network, processor = load(model)
    tiny = len(processor.tokenizer) < WORDS
    require(tiny, "--model", model, "a tiny-llava or a tiny-qwen2vl (for others: divevlm eval)")
    plain = family_of(network).plain  # tiny-llava: pictures of one size
    require(not (clips and plain), "--clips", clips, "left out for a tiny-llava, which sees pictures only")
    settings = contenders(methods, keeps, proportional, plain)
    check_budgets(settings, network.config)
    ready = {setting: setting.ready(network, processor) for setting in settings}
    sizes = () if plain else SIZES
    samples: Sequence[Sample | ClipSample] = clip_questions(split, n) if clips else questions(split, n, sizes)
    answerer, marks = Answerer(network, processor), defaultdict[Setting, list[Mark]](list)
    done = 0
    for some in chunks(samples):
        items = [item_of(sample, str(done + i)) for i, sample in enumerate(some)]
        with visual_states(answerer, items) as states:
            marks[Setting(VANILLA, 0)] += _marks(some, answerer.forced(items, None))
        if plain:
            marks[Setting(BLIND, 0)] += _marks(some, answerer.blind(items))
        for setting, method in ready.items():
            marks[setting] += _marks(some, answerer.forced(items, method), answerer.report, states)
        done += len(some)
        tick(f"{done} of {n} questions", done / n)
    full = marks[Setting(VANILLA, 0)]
    rows = [row(setting.method, setting.keep, of_setting, full) for setting, of_setting in marks.items()]
    asked = {"model": model, "split": split, "clips": clips, "n": n}
    return {**asked, "rows": rows, "majority": majority(samples), "machine": machine()}


def chunks(samples: Sequence[Asked]) -> Iterator[list[Asked]]:
    """All questions about a few scenes or clips at a time."""
    scenes = [list(group) for _, group in groupby(samples, key=lambda sample: sample.seed)]
    for at in range(0, len(scenes), SCENES):
        yield [sample for scene in scenes[at : at + SCENES] for sample in scene]


@contextmanager
def visual_states(answerer: Answerer, items: Sequence[Any]) -> Iterator[list[Tensor]]:
    """Of each question that is answered inside, [N, d]: normed, after two blocks."""
    states: list[Tensor] = []
    family, model = family_of(answerer.model), answerer.model
    text = family.at(model, family.text)
    visual = torch.isin(
        answerer.with_gold(items)[0]["input_ids"], torch.tensor([*family.token_ids(model.config).values()])
    )

    def note(_: Any, given: tuple[Tensor, ...]) -> None:
        states.extend(text.norm(hidden[there]) for hidden, there in zip(given[0], visual, strict=True))

    hook = text.layers[2].register_forward_pre_hook(note)
    try:
        yield states
    finally:
        hook.remove()


def _marks(
    samples: Sequence[Sample | ClipSample],
    answers: list[Answered],
    report: Report | None = None,
    states: Sequence[Tensor] = (),
) -> list[Mark]:
    marks = []
    for number, (sample, answer) in enumerate(zip(samples, answers, strict=True)):
        assert answer.likelihood is not None
        mark = Mark(sample, bool(answer.score), answer.likelihood, answer.seconds)
        if report is not None:
            mark.kept = report.samples[number].kept
            mark.flops, mark.tokens = answer.flops, report.mean_tokens
            if len(mark.kept) > 1:
                mark.redundancy = redundancy(states[number], torch.tensor(mark.kept))
        marks.append(mark)
    return marks


def row(name: str, keep: int | float, marks: list[Mark], full: list[Mark]) -> dict[str, Any]:
    """The figures of one setting, accuracies in percent."""
    tasks = {task: [mark.right for mark in marks if mark.sample.task == task] for task in (*TASKS, *CLIP_TASKS)}
    tasks = {task: right for task, right in tasks.items() if right}
    whole = {task: percent([mark.right for mark in full if mark.sample.task == task]) for task in tasks}
    scores = {task: percent(right) for task, right in tasks.items()}
    right = [mark.right for mark in marks]
    paired = [float(mark.right) - float(other.right) for mark, other in zip(marks, full, strict=True)]
    hits = known_mean(hit_rate(mark) for mark in marks)
    return {
        "method": name,
        "keep": keep,
        "accuracy": percent(right),
        "error": error(right),
        "below_full": 100 * sum(paired) / len(paired),
        "below_full_error": 100 * _spread(paired),
        "tasks": {
            task: {"accuracy": scores[task], "error": error(tasks[task]), "n": len(tasks[task])} for task in tasks
        },
        "relative": relative(scores, whole),
        "likelihood": known_mean(mark.likelihood for mark in marks),
        "likelihood_error": _spread([mark.likelihood for mark in marks]),
        "hit_rate": None if hits is None else 100 * hits,
        "redundancy": known_mean(mark.redundancy for mark in marks),
        "right": "".join(str(int(mark.right)) for mark in marks),  # question by question: see `bench compare`
        "tokens": known_mean(mark.tokens for mark in marks),
        "gflops": known_mean(None if mark.flops is None else mark.flops / 1e9 for mark in marks),
        "seconds": sum(mark.seconds for mark in marks),
    }


def hit_rate(mark: Mark) -> float | None:
    """The share of the objects asked about that still have one of their patches; None where nothing is named or cut, and
    for models whose tokens are not patches."""
    scene, items = getattr(mark.sample, "scene", None), mark.sample.question.items
    if mark.kept is None or not items or scene is None or scene.whole:
        return None
    kept = set(mark.kept)
    return sum(not kept.isdisjoint(scene.patches(index)) for index in items) / len(items)


def majority(samples: Sequence[Sample | ClipSample]) -> dict[str, float]:
    """What always giving the most frequent answer of a task would score."""
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    for sample in samples:
        answers[sample.task][sample.answer] += 1
    return {task: 100 * counts.most_common(1)[0][1] / counts.total() for task, counts in answers.items()}


def _spread(values: list[float]) -> float:
    """The standard error of a mean."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values)) / len(values)
