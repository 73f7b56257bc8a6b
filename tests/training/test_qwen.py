"""Clips are true to their questions, and the trainer of tiny-qwen2vl feeds the stock model what its processor would."""

from functools import partial
from random import Random

import pytest
import torch
from divevlm_tiny import build_qwen
from divevlm_tiny.clips import FRAMES, STEPS, ask_clip, clip
from divevlm_tiny.scene import scene
from divevlm_tiny.splits import clip_questions as questions_about_clips
from PIL import Image

from training.batches import Phase
from training.loop import train
from training.muon import optimizers
from training.qwen_batches import NUMBERS, PREFIX, batch, clip_labels, patchify
from training.qwen_forward import QwenHeads, decode, encode, losses
from training.start import OFFSETS, prepare_qwen

MICRO = {
    "text": {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 8, "num_attention_heads": 2},
    "vision": {"embed_dim": 32, "hidden_size": 64, "depth": 2, "num_heads": 2, "mlp_ratio": 2},
}


@pytest.fixture(scope="module")
def clips():
    return [shown for shown in map(clip, range(40)) if shown is not None]


def test_the_mover_moves_as_the_answer_says_and_nothing_else_does(clips):
    assert len(clips) > 10
    for shown in clips:
        start, end = shown.frame(0).items, shown.frame(FRAMES - 1).items
        moved = [item for item in start if item not in end]
        assert [(item.color, item.shape) for item in moved] == [
            (shown.first.items[shown.mover].color, shown.first.items[shown.mover].shape)
        ]
        (before,) = moved
        (after,) = (i for i in end if (i.color, i.shape) == (before.color, before.shape))
        dx, dy = STEPS[shown.direction]
        assert ((after.x - before.x) * dx + (after.y - before.y) * dy) >= 3 * (FRAMES - 1)
        assert (after.x - before.x) * dy == (after.y - before.y) * dx == 0


def test_the_earlier_of_two_comers_is_the_answer(clips):
    for shown in clips:
        answers = {question.task: question.answer for question in ask_clip(shown, Random(0))}
        if "order" not in answers:
            continue
        seen = [{f"{item.color} {item.shape}" for item in shown.frame(number).items} for number in range(FRAMES)]
        comers = {name: min(n for n in range(FRAMES) if name in seen[n]) for name in seen[-1] - seen[0]}
        assert min(comers, key=comers.get) == answers["order"]


def test_patches_are_those_of_the_image_processor():
    picture = scene(5, rows=8, columns=12, whole=True)
    found, grid = patchify(torch.tensor(picture.pixels)[None, None].expand(1, 2, -1, -1, -1).numpy())
    made = build_qwen.image_processor()(Image.fromarray(picture.pixels), return_tensors="pt")
    assert grid.tolist() == made["image_grid_thw"].tolist()
    torch.testing.assert_close(found, made["pixel_values"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("video", [False, True])
@torch.no_grad()
def test_a_packed_row_is_the_stock_model_on_each_question_alone(video):
    torch.manual_seed(0)
    model = build_qwen.qwen2vl(MICRO).eval()
    tried = (batch(Phase("test", 8, 2, 5, 1), seed=0, step=step) for step in range(40))
    made = next(made for made in tried if made["video"] == video)
    made["hidden"][:] = False
    kind, pad = ("video", build_qwen.VIDEO) if made["video"] else ("image", build_qwen.IMAGE)
    visual = encode(model, made["patches"], made["grid"])[1]
    packed = decode(model, visual, made).last
    words = [NUMBERS[word] for word in (*PREFIX, *[pad] * visual.shape[1], build_qwen.END)]
    per_row = len(made["patches"]) // 2
    for b in range(2):
        for question in range(int(made["segment"][b].max()) + 1):
            mine = made["segment"][b] == question
            ids = torch.cat([torch.tensor(words), made["ids"][b][mine]])[None]
            given = {
                f"pixel_values{'_videos' if made['video'] else ''}": made["patches"][b * per_row : (b + 1) * per_row],
                f"{kind}_grid_thw": made["grid"][b : b + 1],
                "mm_token_type_ids": (2 if made["video"] else 1) * (ids == NUMBERS[pad]).int(),
            }
            alone = model.model(input_ids=ids, **given).last_hidden_state[0, len(words) :]
            torch.testing.assert_close(packed[b][mine], alone, atol=2e-5, rtol=1e-4)


def test_it_trains_on_pictures_and_clips_and_goes_on_after_a_stop(tmp_path):
    phases = (Phase("ask", 8, 2, 3, 4),)

    def run(folder, stop=None):
        torch.manual_seed(0)
        model, heads = build_qwen.qwen2vl(MICRO), QwenHeads(64, 32)
        make = partial(lambda phase, step: batch(phase, 0, step))
        train(
            {"model": model, "heads": heads},
            optimizers(model, heads, 0.02, 3e-3),
            phases,
            make,
            partial(losses, model, heads),
            folder,
            stop=stop,
            workers=0,
        )
        return model.state_dict()

    whole = run(tmp_path / "whole")
    run(tmp_path / "parts", stop=2)
    parts = run(tmp_path / "parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_counted_tokens_are_those_that_show_the_objects():
    made = next(m for step in range(9) if not (m := batch(Phase("t", 24, 3, 4, 1, every=True), 0, step))["video"])
    assert len(made["counts"]) > 3
    for (b, _, number), objects in zip(made["counts"].tolist(), made["counted"], strict=True):
        shows = (made["labels"]["shape"][b].view(-1, 4) != 0).any(dim=1)
        middles = (made["labels"]["centre"][b].view(-1, 4) == 1).any(dim=1)
        assert objects.any(dim=1).tolist() == [k < number for k in range(4)]
        assert all(shows[tokens].all() and middles[tokens].any() for tokens in objects[:number])


def test_a_third_of_the_steps_shows_clips():
    phase = Phase("ask", 8, 1, 2, 9)
    assert 8 <= sum(batch(phase, 0, step)["video"] for step in range(40)) <= 18


def test_labels_of_a_clip_follow_what_moves(clips):
    for shown in clips[:10]:
        labels = clip_labels(shown)
        cells = shown.first.rows * shown.first.columns
        way = list(STEPS).index(shown.direction) + 1
        for number in range(FRAMES // 2):
            moving = labels["moves"][number * cells : (number + 1) * cells]
            frame = shown.frame(2 * number)
            name = (shown.first.items[shown.mover].color, shown.first.items[shown.mover].shape)
            (index,) = (i for i, item in enumerate(frame.items) if (item.color, item.shape) == name)
            assert set(moving.tolist()) == {0, way}
            assert moving.nonzero()[0].tolist() == frame.patches(index)


def test_the_heads_of_a_fresh_tower_look_at_neighbours():
    torch.manual_seed(0)
    model = build_qwen.qwen2vl()
    prepare_qwen(model)
    tower = model.model.visual
    places = torch.cartesian_prod(torch.arange(9), torch.arange(9))
    cos, sin = tower.rotary_pos_emb(torch.zeros(1), places)
    bias = tower.blocks[0].attn.qkv.bias.view(3, 6, 32)
    turned = [x[:, None] * cos + torch.cat([-x[:, 16:], x[:, :16]], dim=1)[:, None] * sin for x in bias[:2]]
    looks = torch.einsum("hd,hkd->hk", turned[0][:, 40], turned[1]).argmax(-1)  # from the middle, (4, 4)
    assert [tuple((places[k] - 4).tolist()) for k in looks] == list(OFFSETS[0])


def test_clips_of_a_split_are_the_same_each_time_and_of_several_sizes():
    found, again = questions_about_clips("validation", 60), questions_about_clips("validation", 60)
    assert [(one.text, one.answer) for one in found] == [(one.text, one.answer) for one in again]
    assert {one.task for one in found} == {"motion", "direction", "order"}
    assert {one.frames.shape for one in found[:24]} == {(8, 168, 168, 3), (8, 168, 224, 3), (8, 224, 168, 3)}
    assert not {one.seed for one in found} & {one.seed for one in questions_about_clips("test", 60)}
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        questions_about_clips("test", 0)
