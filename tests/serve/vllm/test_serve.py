"""`vllm serve` on the embedded models: the engine's answers, question by question."""

import base64
import io
from concurrent.futures import ThreadPoolExecutor

import pytest
from divevlm_tiny import SIZES, load, questions
from openai import BadRequestError, OpenAI
from transformers import AutoProcessor

import divevlm
from divevlm.serve.vllm.checkpoint import save
from divevlm.serve.vllm.server import serving

KEEP, CLIENTS, TOKENS = 64, 8, 6
MODELS = {
    "llava": ("DiveLlavaForConditionalGeneration", questions("validation", 40), ()),
    "qwen2vl": (
        "DiveQwen2VLForConditionalGeneration",
        questions("validation", 24, SIZES),
        ("--tensor-parallel-size", "2", "--enforce-eager"),
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def served(request, tmp_path_factory):
    """Name, engine's model, processor and a client."""
    folder = tmp_path_factory.mktemp(request.param)
    model, processor = load(request.param)
    save(model, processor, folder)
    for path in folder.glob("*processor_config.json"):
        path.write_text(path.read_text().replace('"Frames"', '"Qwen2VLVideoProcessor"'))
    architecture, _, options = MODELS[request.param]
    overrides = {"architectures": [architecture], "dive": {"keep": KEEP}}
    options = ("--dtype", "float32", "--max-model-len", "1024", "--trust-request-mm-kwargs", *options)
    with serving(folder, overrides, folder / "log.txt", *options) as address:
        client = OpenAI(base_url=address, api_key="none", max_retries=0)
        yield request.param, model, AutoProcessor.from_pretrained(folder), client


def ask(client, sample, **options):
    written = io.BytesIO()
    sample.image.save(written, format="PNG")
    url = f"data:image/png;base64,{base64.b64encode(written.getvalue()).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": sample.text}]
    return client.chat.completions.create(
        model="served", messages=[{"role": "user", "content": content}], max_tokens=TOKENS, temperature=0,
        extra_body={"add_special_tokens": True, **options},
    )  # fmt: skip


def inputs(processor, sample):
    turn = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": sample.text}]}
    text = processor.apply_chat_template([turn], add_generation_prompt=True, tokenize=False)
    return processor(text=[text], images=[sample.image], return_tensors="pt")


def engine(model, processor, sample) -> str:
    batch = inputs(processor, sample)
    with divevlm.prune(model, "dive", keep=KEEP, placement="entry"):
        output = model.generate(**batch, max_new_tokens=TOKENS, do_sample=False)
    return processor.decode(output[0, batch["input_ids"].shape[1] :], skip_special_tokens=True)


def test_answers_are_the_engines_question_by_question(served):
    name, model, processor, client = served
    samples = MODELS[name][1]
    with ThreadPoolExecutor(CLIENTS) as pool:
        replies = pool.map(lambda sample: ask(client, sample), samples)
        answers = [reply.choices[0].message.content.strip() for reply in replies]
    assert answers == [engine(model, processor, sample) for sample in samples]
    right = [answer == sample.answer for answer, sample in zip(answers, samples, strict=True)]
    assert sum(right) > len(right) / 2  # it is no echo of a broken model


def test_usage_shows_the_saving(served):
    name, model, processor, client = served
    sample = MODELS[name][1][0]
    ids = inputs(processor, sample)["input_ids"][0]
    dropped = int((ids == model.config.image_token_id).sum()) - KEEP
    assert dropped > 0
    assert ask(client, sample).usage.prompt_tokens == len(ids) - dropped
    assert ask(client, sample, mm_processor_kwargs={"dive_keep": 1.0}).usage.prompt_tokens == len(ids)


def test_a_bad_budget_is_the_clients_fault_and_the_server_lives(served):
    name, _, _, client = served
    sample = MODELS[name][1][0]
    with pytest.raises(BadRequestError, match="keep must be a count of at least 1 or a share"):
        ask(client, sample, mm_processor_kwargs={"dive_keep": 0})
    assert ask(client, sample).choices[0].message.content
