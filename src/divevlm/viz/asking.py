"""One question to a model, with all visual tokens and under pruning methods: answers, costs, and who was kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from divevlm.core.select import select
from divevlm.engine import prune
from divevlm.engine.report import Report
from divevlm.methods import Method
from divevlm.models import family_of
from divevlm.timing import Clock
from divevlm.viz.media import Clip
from divevlm.viz.places import Panel, panels

if TYPE_CHECKING:
    from PIL import Image

GREEDY: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None, "num_beams": 1}
NESTED = ("llava_onevision", "idefics3", "smolvlm")  # their processors want to know whose image it is


@dataclass
class Answer:
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
class Asked:
    """A question, where its visual tokens are, and the answers."""

    question: str
    model: str
    family: str
    words: list[str]  # the prompt's text tokens, as they come
    visual: int  # N
    panels: list[Panel]
    answers: list[Answer]


def ask(
    model: Any,
    processor: Any,
    question: str,
    media: Sequence[Image.Image | Clip],
    methods: Iterable[tuple[str, Method | None]],
    *,
    system: str | None = None,
    max_new_tokens: int = 32,
    name: str = "",
    tick: Callable[..., object] = lambda text, share=None: None,
) -> Asked:
    """Ask once for each method (label, method; None: all tokens stay). Greedy decoding, times of one run each."""
    family = family_of(model)
    inputs = prepare(processor, family.name, question, media, system).to(model.device, model.dtype)
    _warm_up(model, inputs)
    answers: list[Answer] = []
    wanted = list(methods)
    for number, (label, method) in enumerate(wanted):
        tick(label, number / len(wanted))
        answers.append(_answer(model, processor, inputs, label, method, max_new_tokens))
    sample = next((answer.report.samples[0] for answer in answers if answer.report is not None), None)
    if sample is None:
        raise ValueError("methods must have at least one that prunes, got none")
    ids = inputs["input_ids"][0].cpu()
    visual = torch.isin(ids, torch.tensor(sorted(family.token_ids(model.config).values())))
    words = [_word(processor.tokenizer, number) for number in ids[~visual].tolist()]
    placed = panels(family.name, processor, sample.visuals, media)
    return Asked(question, name or type(model).__name__, family.name, words, sample.visual, placed, answers)


def prepare(processor: Any, family: str, question: str, media: Sequence[Image.Image | Clip], system: str | None) -> Any:
    """The model's arguments: the pictures in their order, then the question, as the model's chat template writes it."""
    if not getattr(processor, "chat_template", None):
        raise ValueError("model must have a chat template, got one whose processor has none")
    content = [{"type": "video" if isinstance(shown, Clip) else "image"} for shown in media]
    turns = [{"role": "user", "content": [*content, {"type": "text", "text": question}]}]
    if system:
        turns.insert(0, {"role": "system", "content": [{"type": "text", "text": system}]})
    try:
        text = processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    except Exception as error:  # a template may refuse a turn by any exception of its own
        raise ValueError(f"the model's chat template refuses this prompt: {error}") from None
    images = [shown for shown in media if not isinstance(shown, Clip)]
    clips = [shown for shown in media if isinstance(shown, Clip)]
    given: dict[str, Any] = {}
    if images:
        given["images"] = [images] if family in NESTED else images
    if clips:
        if getattr(processor, "video_processor", None) is None:
            raise ValueError(f"IMAGE must be pictures for {family}, which takes no videos")
        frames = [clip.frames for clip in clips]
        given["videos"] = [frames] if family == "smolvlm" else frames
        given |= {"video_metadata": [clip.metadata for clip in clips], "do_sample_frames": False}
    begin = processor.tokenizer.bos_token
    if begin and text.startswith(begin):  # the template has written it already
        given["add_special_tokens"] = False
    try:
        return processor(text=[text], return_tensors="pt", **given)
    except Exception as error:  # by any exception too: a mark of the model's own in the question, say
        told = " ".join(f"{type(error).__name__} {error}".split())
        raise ValueError(f"the model's processor refuses these pictures or the question {question!r}: {told}") from None


def _word(tokenizer: Any, number: int) -> str:
    """A token as it reads, with the space before it (some tokenizers drop that of a first word)."""
    text: str = tokenizer.decode([number])
    marked = str(tokenizer.convert_ids_to_tokens(number)).startswith("\u2581")
    return f" {text.lstrip()}" if marked else text


def _answer(model: Any, processor: Any, inputs: Any, label: str, method: Method | None, length: int) -> Answer:
    if method is None:
        return _generate(model, processor, inputs, label, length)
    traced = getattr(method, "trace", False)
    with prune(model, replace(method, trace=False) if traced else method) as session:  # type: ignore[call-arg]
        made = _generate(model, processor, inputs, label, length)
        made.method, made.report = method, session.report
    if traced:  # recording takes time: not while the clock runs
        with prune(model, method) as session:
            _generate(model, processor, inputs, label, 1)
            made.report.samples = session.report.samples
    return made


@torch.inference_mode()
def _generate(model: Any, processor: Any, inputs: Any, label: str, length: int) -> Answer:
    with Clock(model) as clock:
        made = model.generate(**inputs, max_new_tokens=length, **GREEDY)
    answer = made[0, inputs["input_ids"].shape[1] :]
    text = processor.tokenizer.decode(answer, skip_special_tokens=True).strip()
    return Answer(label, None, text, len(answer), clock.prefill, clock.first, clock.total, None)


def _warm_up(model: Any, inputs: Any) -> None:
    """What only a first run pays for: memory, kernels, the compiled loop."""
    with torch.inference_mode():
        model.generate(**inputs, max_new_tokens=1, **GREEDY)
    rows = torch.arange(584.0 * 8).view(-1, 8).sin()
    select(rows[8:], rows[:8], 4)
