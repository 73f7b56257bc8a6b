"""Clips are true to their questions, and the trainer of tiny-qwen2vl feeds the stock model what its processor would."""

from functools import partial
from random import Random

import pytest
import torch
from PIL import Image

from divevlm.tiny import build_qwen
from divevlm.tiny.clips import FRAMES, STEPS, clip, clip_questions
from divevlm.tiny.scene import scene
from divevlm.tiny.training.batches import IGNORE, Phase
from divevlm.tiny.training.loop import train
from divevlm.tiny.training.muon import optimizers
from divevlm.tiny.training.qwen2vl import NUMBERS, Heads, batch, losses, pack, patchify

MICRO = {
    "text": {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2},
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
        answers = {question.task: question.answer for question in clip_questions(shown, Random(0))}
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


@torch.no_grad()
def test_a_packed_row_is_the_stock_model_on_each_question_alone():
    torch.manual_seed(0)
    model = build_qwen.qwen2vl(MICRO).eval()
    made = batch(Phase("test", 8, 2, 5, 1), seed=0, step=0)
    logs, tokens = [], 0
    visual = int(made["grid"][0].prod()) // 4
    per_row = len(made["patches"]) // 2
    for b in range(2):
        for question in range(int(made["segment"][b].max()) + 1):
            mine = made["segment"][b] == question
            context = torch.arange(mine.numel()) < visual + 5
            ids = made["ids"][b][context | mine][None]
            kind = (ids == NUMBERS[build_qwen.IMAGE]).int()
            logits = model(
                input_ids=ids,
                pixel_values=made["patches"][b * per_row : (b + 1) * per_row],
                image_grid_thw=made["grid"][b : b + 1],
                mm_token_type_ids=kind,
            ).logits[0]
            target = made["target"][b][context | mine]
            asked = target != IGNORE
            logs.append(torch.nn.functional.cross_entropy(logits[asked], target[asked], reduction="sum"))
            tokens += int(asked.sum())
    aux = losses(model, Heads(64), {key: made[key] for key in ("patches", "grid", "video")})[0]
    answer = losses(model, Heads(64), {key: value for key, value in made.items() if key != "labels"})[0] - aux
    assert float(answer) == pytest.approx(2 * float(sum(logs)) / tokens, rel=1e-4)


def test_it_trains_on_pictures_and_clips_and_goes_on_after_a_stop(tmp_path):
    phases = (Phase("ask", 8, 2, 3, 4),)

    def run(folder, stop=None):
        torch.manual_seed(0)
        model, heads = build_qwen.qwen2vl(MICRO), Heads(64)
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


def test_clips_come_every_third_step():
    phase = Phase("ask", 8, 1, 2, 9)
    assert [batch(phase, 0, step)["video"] for step in range(6)] == [False, False, True, False, False, True]
    assert pack([[]], torch.tensor([[1, 4, 4]]), build_qwen.IMAGE)["ids"].shape == (1, 10)
