"""Tiny random models of the zoo as checkpoints that vLLM loads: its attention on CPUs wants heads of 32, the zoo's have 16."""

from pathlib import Path

from transformers import AutoProcessor

from divevlm.serve.vllm.checkpoint import save
from tests.zoo.entry import BUILDERS, Entry
from tests.zoo.weights import randomise

WIDTH = 128


def build(name: str, layers: int = 4) -> Entry:
    model_class, config, processor = BUILDERS[name](layers)
    text = config.text_config
    text.hidden_size, text.head_dim = WIDTH, WIDTH // text.num_attention_heads
    rope = text.rope_parameters
    if "mrope_section" in rope:
        rope["mrope_section"] = [2 * part for part in rope["mrope_section"]]
        rope["mrope_interleaved"] = name == "qwen3_vl"  # the released ones say so; transformers does not ask
    for field in ("hidden_size",) if name == "qwen2_vl" else ("out_hidden_size",):
        if hasattr(config.vision_config, field):
            setattr(config.vision_config, field, WIDTH)
    model = model_class._from_config(config, attn_implementation="sdpa").eval()
    randomise(model, seed=0, silent_tokens=sorted(processor.tokenizer.added_tokens_decoder))
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = processor.tokenizer.pad_token_id
    return Entry(name, model, processor)


def saved(name: str, folder: Path) -> Entry:
    """The model, its checkpoint in a folder, and the processor that is loaded from there, as vLLM does it."""
    entry = build(name)
    entry.model.config.dtype = "float32"
    save(entry.model, entry.processor, folder)
    for path in folder.glob("*processor_config.json"):
        path.write_text(path.read_text().replace('"Qwen2Frames"', '"Qwen2VLVideoProcessor"'))
    return Entry(name, entry.model, AutoProcessor.from_pretrained(folder))
