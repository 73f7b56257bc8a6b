"""`--engine vllm`: vLLM with DIVE's plugin, in this process or inside Ray actors (extra vllm)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from divevlm.batch.engine import Engine, told
from divevlm.checks import require
from divevlm.experiments.journal import Record
from divevlm.experiments.tasks import Item
from divevlm.loading import config_of
from divevlm.media import Video
from divevlm.methods import parse
from divevlm.models import FAMILIES
from divevlm.planning import VANILLA
from divevlm.processors import processor_of
from divevlm.prompts import Prompt, text_of

if TYPE_CHECKING:
    from divevlm.batch.job import Job


def vllm_options(model: str, method: str, keep: int | float) -> dict[str, Any]:
    """What vllm.LLM is told so that the plugin prunes; nothing of it changes the checkpoint."""
    name, settings = parse(method)
    if name == VANILLA:
        return {}
    kinds = [f"Dive{kind}" for kind in config_of(model).architectures]
    return {"hf_overrides": {"architectures": kinds, "dive": {"method": name, "keep": keep, **settings}}}


def keep_of_row(keep: int | float) -> dict[str, Any]:
    """What a request is told where its budget is its own."""
    return {"mm_processor_kwargs": {"dive_keep": keep}}


class Vllm(Engine):
    """The prompt is written by the checkpoint's chat template, as for the engine here. vLLM tells how many visual tokens it has
    kept, not how many there were (`visual` is None)."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        try:
            import vllm
            from vllm.v1.engine.exceptions import EngineDeadError
        except ImportError:
            raise ValueError("engine vllm needs vLLM: pip install 'divevlm[vllm]'") from None
        self.dead, self.params = (EngineDeadError,), vllm.SamplingParams
        config = config_of(job.model)
        where = config.name_or_path  # of an embedded model: its folder
        self.processor = processor_of(where)
        given = {"model": where, "dtype": job.dtype or "auto", **vllm_options(job.model, job.method, job.keep)}
        ours = sorted(set(given) & set(job.llm))
        require(not ours, "--llm", ", ".join(ours), "without what the command says already")
        try:
            self.llm = vllm.LLM(**given, **job.llm)
        except Exception as error:  # a process of vLLM's own that does not start tells it by any exception
            raise ValueError(f"--model must be one that vLLM starts with, got {job.model!r}: {told(error)}") from None
        self.marks = sorted(FAMILIES.get(config.model_type)().token_ids(config).values())

    def answers(self, items: Sequence[Item], keep: int | float | None, length: int) -> list[Record]:
        prunes = parse(self.job.method)[0] != VANILLA
        require(prunes or keep is None, "keep", keep, f"left out for {self.job.method}, which keeps all")
        prompts = [self._prompt(item) | ({} if keep is None else keep_of_row(keep)) for item in items]
        begin = self.processor.tokenizer.bos_token
        written = bool(begin) and prompts[0]["prompt"].startswith(begin)  # by the template already
        start = time.perf_counter()
        made = self.llm.generate(
            prompts,
            self.params(
                temperature=0, max_tokens=length, detokenize=False
            ),  # it would hold back a torn letter at the end
            use_tqdm=False,
            tokenization_kwargs={"add_special_tokens": not written},
        )
        share = (time.perf_counter() - start) / len(items)
        return [
            {
                "answer": self.processor.tokenizer.decode(one.outputs[0].token_ids, skip_special_tokens=True).strip(),
                "kept": sum(token in self.marks for token in one.prompt_token_ids),
                "seconds": share,
            }
            for one in made
        ]

    def _prompt(self, item: Item) -> dict[str, Any]:
        media = item.draw()
        strange = [mark for mark in self.processor.tokenizer.convert_ids_to_tokens(self.marks) if mark in item.text]
        require(not strange, "question", item.text, f"without {', '.join(strange)}, which stand for pictures")
        prompt = Prompt.of(item.text, media) if item.turns is None else Prompt(item.turns, media)
        clips = [(one.frames, one.metadata) for one in media if isinstance(one, Video)]
        images = [one for one in media if not isinstance(one, Video)]
        given = {name: some for name, some in (("image", images), ("video", clips)) if some}
        return {"prompt": text_of(self.processor, prompt), "multi_modal_data": given}
