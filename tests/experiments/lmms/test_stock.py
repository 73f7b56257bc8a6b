"""With `inputs` "stock" a model gets what lmms-eval's own model of its class would give it: the same ids, the same pixels."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("lmms_eval")
pytest.importorskip("decord")

from lmms_eval.models.simple.llava_hf import LlavaHf
from lmms_eval.models.simple.qwen2_vl import Qwen2_VL
from transformers.image_utils import OPENAI_CLIP_MEAN

from divevlm.experiments import stock
from divevlm.experiments.answering import Answerer
from divevlm.experiments.lmms.model import Simple
from divevlm.experiments.runner import Run
from divevlm.experiments.settings import Setting
from divevlm.loading import load

from ...zoo import picture
from . import hub

OWN = {"llava": LlavaHf, "llava_next": LlavaHf, "llava_onevision": LlavaHf, "qwen2_vl": Qwen2_VL}
VIDEO = ("llava_onevision", "qwen2_vl")
TEXTS = {
    "plain": "What is this?\nAnswer the question using a single word or phrase.",
    "newline": "Question:What moved?\nOption:\n(A) cat\n(B) dog\nOnly give the best option.\n",
    "marked": "<image>\nWhat is this?",
}
TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{% endfor %}{% if add_generation_prompt %} >{% endif %}"
)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """With the chat template where the hub has it: with the processor; LLaVA's tokenizers have none."""
    home = tmp_path_factory.mktemp("checkpoints")
    return {name: str(hub.checkpoint(name, home / name, layers=2)) for name in OWN}


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Of four seconds (two frames a second: 8 of 16) and of 24 (48 of 48, of which 32 stay)."""
    home = tmp_path_factory.mktemp("clips")
    return [hub.video(home / "short.mp4", 4, 4), hub.video(home / "long.mp4", 24, 2)]


def request(text, media, **options):
    return SimpleNamespace(args=(text, {"max_new_tokens": 3, **options}, lambda _: media, 0, "see", "test"))


def theirs(kind, path, text, media, template=None):
    """The arguments that the stock model hands to generate(), and what it makes of an answer."""
    lm = kind(path, device="cpu", device_map="cpu")
    if template:
        lm.tokenizer.chat_template = template
    lm.task_dict = {"see": {"test": [None]}}
    caught = {}

    def generate(**arguments):
        caught.update(arguments)
        return torch.cat([arguments["input_ids"], arguments["input_ids"][:, :3]], dim=1)

    lm._model.generate = generate
    (answer,) = lm.generate_until([request(text, media)])
    return caught, answer


def ours(path, text, media, template=None):
    run = Run(path, (), (), None, ("pope",), inputs="stock")
    model, processor = run.load()
    if template:
        processor.tokenizer.chat_template = template
    lm = Simple.around(Answerer(model, processor, shared=False), Setting("vanilla", 0), 1)
    lm.inputs, lm.task_dict = "stock", {"see": {"test": [None]}}
    item = lm._read(request(text, media))
    return lm, item, lm.answerer.inputs([item])


def same(found, wanted):
    names = {name for name, value in wanted.items() if isinstance(value, torch.Tensor)}
    assert names == set(found)
    for name in names:
        assert found[name].shape == wanted[name].shape, name
        assert torch.equal(found[name], wanted[name]), name


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("family", OWN)
def test_pictures_have_the_ids_and_pixels_of_the_stock_model(checkpoints, family, text):
    shown = [picture(3, 150, 90)]
    wanted, _ = theirs(OWN[family], checkpoints[family], TEXTS[text], shown)
    _, _, found = ours(checkpoints[family], TEXTS[text], shown)
    same(found, wanted)


@pytest.mark.parametrize("size", [(640, 480), (1400, 900), (30, 28)])
def test_pixel_limits_are_those_of_the_stock_model(checkpoints, size):
    wanted, _ = theirs(Qwen2_VL, checkpoints["qwen2_vl"], "What?", [picture(1, *size)])
    _, _, found = ours(checkpoints["qwen2_vl"], "What?", [picture(1, *size)])
    same(found, wanted)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("family", VIDEO)
def test_videos_have_the_frames_of_the_stock_model(checkpoints, clips, family, number):
    wanted, _ = theirs(OWN[family], checkpoints[family], TEXTS["newline"], [clips[number]])
    _, _, found = ours(checkpoints[family], TEXTS["newline"], [clips[number]])
    same(found, wanted)


def test_vicunas_system_sentence_stands_in_front_where_the_tokenizer_has_no_template(checkpoints):
    lm, _, found = ours(checkpoints["llava"], "What?", [picture(0, 60, 60)])
    text = lm.answerer.processor.tokenizer.decode(found["input_ids"][0], skip_special_tokens=True)
    assert text.startswith("A chat between a curious user and an artificial intelligence assistant.")
    assert text.endswith("\nWhat? ASSISTANT:")


def test_a_template_of_the_tokenizer_goes_first(checkpoints):
    shown = [picture(0, 60, 60)]
    wanted, _ = theirs(LlavaHf, checkpoints["llava_next"], "What?", shown, TEMPLATE)
    _, _, found = ours(checkpoints["llava_next"], "What?", shown, TEMPLATE)
    same(found, wanted)
    assert len(found["input_ids"][0]) < 200


@pytest.mark.parametrize("family", OWN)
def test_answers_end_as_those_of_the_stock_model(checkpoints, family):
    shown = [picture(3, 90, 90)]
    wanted, answer = theirs(OWN[family], checkpoints[family], TEXTS["plain"], shown)
    lm, _, _ = ours(checkpoints[family], TEXTS["plain"], shown)
    caught = {}

    def generate(**arguments):
        caught.update(arguments)
        return torch.cat([arguments["input_ids"], arguments["input_ids"][:, :3]], dim=1)

    lm.answerer.model.generate = generate
    (record,) = lm.records([request(TEXTS["plain"], shown)])
    assert record["prediction"] == answer
    for name in ("eos_token_id", "pad_token_id", "max_new_tokens", "do_sample", "num_beams"):
        assert caught[name] == wanted[name], name


@pytest.mark.parametrize(
    ("family", "until", "answer"),
    [
        ("llava", "ASSISTANT:", " yes ASSISTANT: no\n"),
        ("qwen2_vl", "ASSISTANT:", "yes"),
        ("qwen2_vl", ["x", "no"], "yes ASSISTANT:"),
    ],
)
def test_stop_words_count_where_the_stock_model_has_them_count(family, until, answer):
    assert stock.said(" yes ASSISTANT: no\n", family, until) == answer


def test_padding_to_a_square_is_llavas_own():
    """Twice as wide as high: bars of the mean colour above and below."""
    square = stock.padded(picture(0, 80, 40), OPENAI_CLIP_MEAN)
    assert square.size == (80, 80)
    assert square.getpixel((5, 5)) == (122, 116, 104)
    assert square.crop((0, 20, 80, 60)).tobytes() == picture(0, 80, 40).tobytes()


def test_families_without_a_stock_model_are_refused(tmp_path):
    hub.checkpoint("internvl", tmp_path / "internvl", layers=4)
    with pytest.raises(ValueError, match="inputs must be chat or template for internvl"):
        Run(str(tmp_path / "internvl"), ("dive",), (4,), tmp_path, ("pope",), inputs="stock").check()
    hub.checkpoint("qwen2_vl", tmp_path / "qwen", layers=4)
    with pytest.raises(ValueError, match="pad must be False for qwen2_vl"):
        Run(str(tmp_path / "qwen"), ("dive",), (4,), tmp_path, ("pope",), inputs="stock", pad=True).check()


def test_a_saved_checkpoint_says_what_its_processor_is(checkpoints):
    """The stand-ins load as the hub's do: by the classes that their files name."""
    for name, path in checkpoints.items():
        _, processor = load(path)
        assert type(processor).__name__.lower().startswith(name.replace("_", ""))
