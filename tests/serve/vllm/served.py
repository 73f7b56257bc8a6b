"""A random model on vLLM, and the same one on transformers as its oracle."""

import gc
from pathlib import Path

from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.multimodal import MULTIMODAL_REGISTRY

import divevlm
import divevlm.serve.vllm
from divevlm.serve.vllm.request import Request
from tests.zoo import picture

from .checkpoints import saved

ANSWER = 12  # tokens
ARCHITECTURES = {family: name for name, family in divevlm.serve.vllm.ARCHITECTURES.items()}
SAMPLES = [
    {"text": "what is this ?", "images": [picture(0, 112, 84)]},
    {"text": "how many birds sit on the tall tree", "images": [picture(1, 56, 168)]},
    {"text": "wide", "images": [picture(2, 168, 56)]},
    {"text": "what differs between these two ?", "images": [picture(3, 100, 100), picture(4, 168, 56)]},
    {"text": "no picture at all"},
    {"text": "one of them comes twice", "images": [picture(5, 84, 84), picture(6, 84, 112), picture(5, 84, 84)]},
]


class Served:
    def __init__(self, name: str, folder: Path, keep: int | float, dive: dict | None = None, **options) -> None:
        self.entry, self.keep = saved(name, folder), keep
        settings = {"architectures": [ARCHITECTURES[name]], "dive": {"keep": keep, **(dive or {})}}
        limits = {"image": 4, "video": 1} if options.pop("video", False) else {"image": 4}
        self.llm = LLM(
            str(folder), hf_overrides=settings, dtype="float32", max_model_len=1024, enforce_eager=True,
            limit_mm_per_prompt=limits, block_size=32, **options,
        )  # fmt: skip

    @property
    def model(self):
        return self.llm.llm_engine.model_executor.driver_worker.get_model()

    def ask(self, *samples, keep=None) -> list:
        """vLLM's outputs."""
        options = {} if keep is None else {"mm_processor_kwargs": {"dive_keep": keep}}
        prompts = [{**self._prompt(sample), **options} for sample in samples]
        sampling = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True)
        return self.llm.generate(prompts, sampling, use_tqdm=False)

    def answers(self, *samples, keep=None) -> list[list[int]]:
        return [list(output.outputs[0].token_ids) for output in self.ask(*samples, keep=keep)]

    def engine(self, sample, method="dive", keep=None, **settings) -> tuple[list[int], list]:
        """Answer of transformers under divevlm, choosing at the entry; and which visual tokens it kept."""
        prompt = self._prompt(sample)
        visual = {f"{kind}s": found for kind, found in prompt.get("multi_modal_data", {}).items()}
        if "videos" in visual:
            frames, known = zip(*visual["videos"], strict=True)
            visual = {"videos": list(frames), "video_metadata": list(known), "do_sample_frames": False}
        batch = self.entry.processor(text=[prompt["prompt"]], return_tensors="pt", **visual)
        keep = self.keep if keep is None else keep
        with divevlm.prune(self.entry.model, method, keep=keep, placement="entry", **settings) as session:
            output = self.entry.model.generate(**batch, max_new_tokens=ANSWER, do_sample=False)
        kept = session.report.samples[0].kept if "images" in sample else []
        return output[0, batch["input_ids"].shape[1] :].tolist(), list(kept)

    def request(self, sample, keep=None) -> Request:
        """As it reaches the worker."""
        processor = MULTIMODAL_REGISTRY.create_processor(self.llm.model_config)
        prompt = self._prompt(sample)
        items = processor.info.parse_mm_data(prompt["multi_modal_data"])
        options = {} if keep is None else {"dive_keep": keep}
        made = processor(prompt["prompt"], items, hf_processor_mm_kwargs=options)
        item = made["mm_kwargs"]["image"][0]
        return Request.unpack({name: element.data for name, element in item.items()})[0]

    def _prompt(self, sample) -> dict:
        visual = {kind: sample[f"{kind}s"] for kind in ("image", "video") if f"{kind}s" in sample}
        content = [{"type": kind} for kind, found in visual.items() for _ in found]
        content.append({"type": "text", "text": sample["text"]})
        template = self.entry.processor.chat_template
        text = self.entry.processor.apply_chat_template(
            [{"role": "user", "content": content}], chat_template=template, add_generation_prompt=True, tokenize=False
        )
        return {"prompt": text, "multi_modal_data": visual} if visual else {"prompt": text}

    def close(self) -> None:
        del self.llm
        gc.collect()
        cleanup_dist_env_and_memory()
