"""`build` makes one entry of the zoo: a model in eval mode and its processor."""

from dataclasses import dataclass
from functools import cache

from transformers import PreTrainedModel, ProcessorMixin

from . import llava, qwen, tiles
from .frames import taken_by_processors
from .weights import randomise

BUILDERS = {
    "llava": llava.llava,
    "llava_576": llava.llava_576,
    "llava_next": llava.llava_next,
    "llava_next_video": llava.llava_next_video,
    "llava_onevision": llava.llava_onevision,
    "qwen2_vl": qwen.qwen2_vl,
    "qwen2_5_vl": qwen.qwen2_5_vl,
    "qwen3_vl": qwen.qwen3_vl,
    "internvl": tiles.internvl,
    "idefics3": tiles.idefics3,
    "smolvlm": tiles.smolvlm,
}
FAMILIES = tuple(BUILDERS)
VIDEO_FAMILIES = (
    "llava_next_video",
    "llava_onevision",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "internvl",
    "smolvlm",
)


@dataclass(frozen=True)
class Entry:
    name: str
    model: PreTrainedModel
    processor: ProcessorMixin

    @property
    def family(self) -> str:
        """The `model_type` of transformers: "llava" for both `llava` and `llava_576`."""
        return self.model.config.model_type


def build(name: str, *, seed: int = 0, attn: str = "sdpa", layers: int = 4, fresh: bool = False) -> Entry:
    """A model with `layers` decoder layers and weights drawn from `seed`, float32, in eval mode.

    Equal calls share one entry; `fresh=True` builds a new one for tests that change the model.
    `generate` never stops early: no end token is set. It never emits a special token either (see `randomise`).
    """
    if name not in BUILDERS:
        raise ValueError(f"name: {name!r} is not in the zoo; there are {', '.join(FAMILIES)}")
    return (_build.__wrapped__ if fresh else _build)(name, seed, attn, layers)


@cache
def _build(name: str, seed: int, attn: str, layers: int) -> Entry:
    with taken_by_processors():
        model_class, config, processor = BUILDERS[name](layers)
    model = model_class._from_config(config, attn_implementation=attn).eval()
    randomise(model, seed, silent_tokens=sorted(processor.tokenizer.added_tokens_decoder))
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = processor.tokenizer.pad_token_id
    return Entry(name, model, processor)
