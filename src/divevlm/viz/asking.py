"""One question to a model, with all visual tokens and under pruning methods: answers, costs, and who was kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from divevlm.core.select import select
from divevlm.engine import prune
from divevlm.engine.report import Report
from divevlm.media import Video
from divevlm.methods import Method
from divevlm.models import family_of
from divevlm.prompts import Prompt, inputs
from divevlm.timing import Clock
from divevlm.viz.places import Panel, panels

if TYPE_CHECKING:
    from PIL import Image

GREEDY: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None, "num_beams": 1}


@dataclass
class MethodAnswer:
    """Of one setting. `report` and `method` are None where all tokens stayed."""

    label: str
    method: Method | None
    text: str
    tokens: int  # generated
    prefill_seconds: float  # of the language model, with the choice of tokens
    first_seconds: float  # until the first token: the tower, the prefill, the choice
    seconds: float  # in all
    report: Report | None

    @property
    def token_seconds(self) -> float | None:
        return (self.seconds - self.first_seconds) / (self.tokens - 1) if self.tokens > 1 else None


@dataclass
class Comparison:
    """A question, where its visual tokens are, and the answers."""

    question: str
    model: str
    family: str
    words: list[str]  # the prompt's text tokens, as they come
    visual: int  # N
    panels: list[Panel]
    answers: list[MethodAnswer]


def ask(
    model: Any,
    processor: Any,
    question: str,
    media: Sequence[Image.Image | Video],
    methods: Iterable[tuple[str, Method | None]],
    *,
    system: str | None = None,
    max_new_tokens: int = 32,
    name: str = "",
    tick: Callable[..., object] = lambda text, share=None: None,
) -> Comparison:
    """Ask once for each method (label, method; None: all tokens stay). Greedy decoding, times of one run each."""
    family = family_of(model)
    prompt = Prompt.of(question, media, system)
    arguments = inputs(processor, family, [prompt]).to(model.device, model.dtype)
    _warm_up(model, arguments)
    answers: list[MethodAnswer] = []
    settings = list(methods)
    for number, (label, method) in enumerate(settings):
        tick(label, number / len(settings))
        answers.append(_answer(model, processor, arguments, label, method, max_new_tokens))
    sample = next((answer.report.samples[0] for answer in answers if answer.report is not None), None)
    if sample is None:
        raise ValueError("methods must have at least one that prunes, got none")
    ids = arguments["input_ids"][0].cpu()
    visual = torch.isin(ids, torch.tensor(sorted(family.token_ids(model.config).values())))
    words = [_word(processor.tokenizer, number) for number in ids[~visual].tolist()]
    pictures = panels(family, processor, sample.visuals, media)
    return Comparison(question, name or type(model).__name__, family.name, words, sample.visual, pictures, answers)


def _word(tokenizer: Any, number: int) -> str:
    """A token as it reads, with the space before it (some tokenizers drop that of a first word)."""
    text: str = tokenizer.decode([number])
    marked = str(tokenizer.convert_ids_to_tokens(number)).startswith("\u2581")
    return f" {text.lstrip()}" if marked else text


def _answer(model: Any, processor: Any, arguments: Any, label: str, method: Method | None, length: int) -> MethodAnswer:
    if method is None:
        return _generate(model, processor, arguments, label, length)
    traced = getattr(method, "trace", False)
    with prune(model, replace(method, trace=False) if traced else method) as session:  # type: ignore[call-arg]
        answer = _generate(model, processor, arguments, label, length)
        answer.method, answer.report = method, session.report
    if traced:  # recording takes time: not while the clock runs
        with prune(model, method) as session:
            _generate(model, processor, arguments, label, 1)
            answer.report.samples = session.report.samples
    return answer


@torch.inference_mode()
def _generate(model: Any, processor: Any, arguments: Any, label: str, length: int) -> MethodAnswer:
    with Clock(model) as clock:
        sequences = model.generate(**arguments, max_new_tokens=length, **GREEDY)
    tokens = sequences[0, arguments["input_ids"].shape[1] :]
    text = processor.tokenizer.decode(tokens, skip_special_tokens=True).strip()
    return MethodAnswer(label, None, text, len(tokens), clock.prefill, clock.first, clock.total, None)


def _warm_up(model: Any, arguments: Any) -> None:
    """What only a first run pays for: memory, kernels, the compiled loop."""
    with torch.inference_mode():
        model.generate(**arguments, max_new_tokens=1, **GREEDY)
    rows = torch.arange(584.0 * 8).view(-1, 8).sin()
    select(rows[8:], rows[:8], 4)
