"""The training forward pass is the stock model: on windows of full size, and with many questions in one row."""

import math

import pytest
import torch
from divevlm_tiny import build
from divevlm_tiny.words import vocabulary

from training.batches import IGNORE, Phase, batch
from training.forward import PREFIX, decode, encode
from training.hints import gaze_loss

MICRO = {
    "text": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 8, "num_attention_heads": 2},
    "vision": {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2},
}
NUMBERS = {word: number for number, word in enumerate(vocabulary(build.IMAGE))}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return build.llava(MICRO).eval()


@torch.no_grad()
def test_a_packed_row_gives_each_question_what_the_stock_model_gives_it_alone(model):
    made = batch(NUMBERS, Phase("test", 24, 2, 9, 1), seed=3, step=5)
    made["hidden"][:] = False
    visual, _, _ = encode(model, made["pixels"], made["places"])
    packed = decode(model, NUMBERS, visual, made).last
    processor = build.processor()
    for b in range(2):
        pixels = processor.image_processor(made["pixels"][b].numpy(), return_tensors="pt")["pixel_values"]
        for question in range(int(made["segment"][b].max()) + 1):
            mine = made["segment"][b] == question
            prompt = torch.tensor([NUMBERS[word] for word in (*PREFIX, *[build.IMAGE] * 576)])
            ids = torch.cat([prompt, made["ids"][b][mine]])[None]
            alone = model.model(input_ids=ids, pixel_values=pixels).last_hidden_state[0, len(prompt) :]
            torch.testing.assert_close(packed[b][mine], alone, atol=2e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("cut", [2, 4])
def test_on_hidden_rows_words_see_the_picture_from_a_block_on(model, cut):
    made = batch(NUMBERS, Phase("test", 24, 2, 9, 1), seed=3, step=5)
    made["hidden"][:] = True
    visual, _, _ = encode(model, made["pixels"], made["places"])
    shown, other = (decode(model, NUMBERS, given, made, cut) for given in (visual, visual.flip(1)))
    assert torch.equal(shown.after[cut], other.after[cut])
    assert not torch.allclose(shown.after[cut + 1], other.after[cut + 1])


def test_the_tokens_of_a_row_are_those_of_the_processor():
    made = batch(NUMBERS, Phase("test", 24, 3, 16, 1), seed=1, step=1)
    tokens = build.tokenizer(build.IMAGE)
    for b in range(3):
        for question in range(int(made["segment"][b].max()) + 1):
            ids = made["ids"][b][made["segment"][b] == question].tolist()
            text = tokens.decode(ids[:-1])
            assert tokens(text.upper(), add_special_tokens=False)["input_ids"] == ids[:-1]
            assert tokens.unk_token_id not in ids
            target = made["target"][b][made["segment"][b] == question]
            assert target[target != IGNORE].tolist() == ids[ids.index(NUMBERS["assistant"]) + 2 :]


def test_where_counting_words_look_is_the_attention_of_the_stock_model(model):
    made = batch(NUMBERS, Phase("test", 24, 1, 12, 1), seed=3, step=2)
    made["hidden"][:] = False
    looks = decode(model, NUMBERS, encode(model, made["pixels"], made["places"])[0], made).looks.detach().exp()
    assert looks.shape == (4, len(made["counts"]), 577)  # two heads of two blocks
    pixels = build.processor().image_processor(made["pixels"][0].numpy(), return_tensors="pt")["pixel_values"]
    prompt = torch.tensor([NUMBERS[word] for word in (*PREFIX, *[build.IMAGE] * 576)])
    model.set_attn_implementation("eager")
    for number, (_, place, amount) in enumerate(made["counts"].tolist()):
        mine = made["segment"][0] == made["segment"][0, place]
        ids = torch.cat([prompt, made["ids"][0][mine]])[None]
        with torch.no_grad():
            maps = model.model(input_ids=ids, pixel_values=pixels, output_attentions=True).attentions
        row = len(prompt) + place - int(mine.nonzero()[0])
        stock = torch.cat([maps[2][0, :2, row], maps[3][0, :2, row]])
        torch.testing.assert_close(looks[:, number], stock[:, [0, *range(3, 579)]], atol=1e-6, rtol=1e-4)
        assert amount == made["counted"][number].any(dim=1).sum()
    model.set_attn_implementation("sdpa")


def test_a_counting_word_should_look_at_each_object_as_much_as_at_the_first_token():
    counts, counted = torch.tensor([[0, 5, 2]]), torch.zeros(1, 4, 5, dtype=torch.bool)
    counted[0, 0, [1, 2]] = counted[0, 1, 4] = True  # two objects: patches 1 and 2, and patch 4

    def loss(*shares):
        return gaze_loss(torch.tensor([[shares]]).clamp_min(1e-9).log(), counts, counted)

    assert loss(1 / 3, 0, 1 / 3, 0, 0, 1 / 3) == pytest.approx(math.log(3), abs=1e-5)
    assert loss(1 / 3, 0, 1 / 6, 1 / 6, 0, 1 / 3) == pytest.approx(
        math.log(3), abs=1e-5
    )  # whichever patch of an object
    assert loss(1 / 3, 0, 0.4, 0, 0, 0.8 / 3) > math.log(3) + 0.01
    assert loss(0.5, 0, 0.25, 0, 0, 0.25) > math.log(3) + 0.1
    assert loss(1 / 3, 1 / 3, 0, 0, 0, 1 / 3) > math.log(3) + 1
