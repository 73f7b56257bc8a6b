"""The zoo is sound: batches equal samples, every image matters, and the processors agree with the models."""

import pytest
import torch

from . import FAMILIES, VIDEO_FAMILIES, build, clip, inputs, picture

CASES = [(name, "images") for name in FAMILIES] + [(name, "videos") for name in VIDEO_FAMILIES]
SAME_FRAMES = ("llava_next_video", "llava_onevision", "internvl")


def sample(kind, seed, width, height, text):
    return {"text": text, kind: [picture(seed, width, height) if kind == "images" else clip(seed, 4, width, height)]}


def mixed(kind):
    """Wide, tall, none at all, and two in one sample."""
    wide = sample(kind, 0, 150, 90, "what is this ?")
    tall = sample(kind, 1, 70, 120, "how many ?")
    two = {"text": "same ?", kind: sample(kind, 2, 100, 100, "")[kind] + sample(kind, 3, 130, 60, "")[kind]}
    return [wide, tall, {"text": "what is the capital of nowhere ?"}, two]


@torch.no_grad()
def last_logits(entry, samples, **options):
    return entry.model(**inputs(entry, samples, **options), logits_to_keep=1).logits[:, -1]


def placeholders(entry, batch):
    config = entry.model.config
    ids = [config.image_token_id, getattr(config, "video_token_id", config.image_token_id)]
    return torch.isin(batch["input_ids"], torch.tensor(ids))


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_features_go_to_the_placeholders_and_nowhere_else(name, kind):
    entry = build(name)
    batch = inputs(entry, mixed(kind))
    seen = []
    decoder = entry.model.get_decoder()
    hook = decoder.register_forward_pre_hook(lambda *call: seen.append(call[2]["inputs_embeds"]), with_kwargs=True)
    logits = entry.model(**batch).logits
    hook.remove()
    replaced = (seen[0] != decoder.embed_tokens(batch["input_ids"])).any(-1)
    assert replaced.any()
    assert torch.equal(replaced, placeholders(entry, batch))  # the models refuse a wrong number of features
    assert logits.shape == (4, batch["input_ids"].shape[1], len(entry.processor.tokenizer))
    assert logits.isfinite().all()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_padded_batch_gives_each_sample_what_it_gets_alone(name, kind):
    entry = build(name)
    samples = mixed(kind)
    together = last_logits(entry, samples)
    alone = torch.cat([last_logits(entry, [one]) for one in samples])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_generate(name, kind):
    entry = build(name)
    samples = mixed(kind)

    def answers(chosen):
        batch = inputs(entry, chosen)
        output = entry.model.generate(**batch, max_new_tokens=5, do_sample=False)
        return output[:, batch["input_ids"].shape[1] :]

    together = answers(samples)
    assert together.shape == (4, 5)
    assert not torch.isin(together, torch.tensor(sorted(entry.processor.tokenizer.added_tokens_decoder))).any()
    assert torch.equal(together[:2], torch.cat([answers([one]) for one in samples[:2]]))


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_what_is_seen_matters(name, kind):
    entry = build(name)
    one, other = (last_logits(entry, [sample(kind, seed, 150, 90, "what is this ?")]) for seed in (0, 1))
    assert (one - other).abs().max() > 1e-2


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_no_two_visual_tokens_are_alike(name, kind):
    entry = build(name)
    batch = inputs(entry, [sample(kind, 0, 150, 90, "what is this ?")])
    states = entry.model.model(**batch).last_hidden_state[placeholders(entry, batch)]
    cosine = torch.nn.functional.normalize(states, dim=-1) @ torch.nn.functional.normalize(states, dim=-1).T
    assert cosine.fill_diagonal_(-1).max() < 0.999


@pytest.mark.parametrize("name", FAMILIES)
def test_padding_on_the_right(name):
    entry = build(name)
    samples = mixed("images")
    batch = inputs(entry, samples, padding_side="right")
    last = batch["attention_mask"].sum(-1) - 1
    right = entry.model(**batch).logits[torch.arange(len(samples)), last]
    torch.testing.assert_close(right, last_logits(entry, samples), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_attention_implementations_agree(name):
    samples = mixed("images")[:2]
    eager = build(name, attn="eager")
    assert eager.model.config.text_config._attn_implementation == "eager"
    torch.testing.assert_close(last_logits(eager, samples), last_logits(build(name), samples), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", sorted(set(VIDEO_FAMILIES) - {"smolvlm"}))
def test_images_and_videos_in_one_batch(name):
    entry = build(name)
    samples = [mixed("images")[1], mixed("videos")[0], {**mixed("videos")[1], "images": [picture(5, 90, 60)]}]
    alone = torch.cat([last_logits(entry, [one]) for one in samples])
    torch.testing.assert_close(last_logits(entry, samples), alone, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", VIDEO_FAMILIES)
def test_clips_of_different_lengths(name):
    entry = build(name)
    samples = [{"text": "what ?", "videos": [clip(seed, frames, 90, 60)]} for seed, frames in enumerate((4, 7))]
    if name in SAME_FRAMES:
        with pytest.raises(ValueError, match="pixel_values_videos"):
            inputs(entry, samples)
        return
    alone = torch.cat([last_logits(entry, [one]) for one in samples])
    first = 1 if name == "smolvlm" else 0  # its prompts name the largest number of frames in the batch
    torch.testing.assert_close(last_logits(entry, samples)[first:], alone[first:], atol=1e-4, rtol=0)


def test_smolvlm_can_not_mix_images_and_videos():
    entry = build("smolvlm")
    batch = inputs(entry, [mixed("images")[0], mixed("videos")[0]])
    with pytest.raises(ValueError, match="do not match"):
        entry.model(**batch)


@pytest.mark.parametrize(
    ("name", "size", "tokens"),
    [
        ("llava", (150, 90), 16),
        ("llava_576", (150, 90), 24 * 24),
        ("llava_next", (56, 56), 4 * 4 + 8 * (8 + 1)),
        ("llava_next", (150, 90), 4 * 4 + 4 * (8 + 1)),  # 1 x 2 views
        ("llava_onevision", (35, 35), 5 * 5 + 5 * (5 + 1)),
        ("llava_onevision", (140, 140), 5 * 5 + 15 * (15 + 1)),  # 4 x 4 views of 20 x 20, shrunk to 15 x 15
        ("qwen2_vl", (140, 84), 5 * 3),
        ("qwen2_5_vl", (140, 84), 5 * 3),
        ("qwen3_vl", (160, 96), 5 * 3),
        ("internvl", (84, 84), 9),
        ("internvl", (168, 84), (2 + 1) * 9),
        ("idefics3", (150, 90), (2 * 2 + 1) * 9),
        ("smolvlm", (168, 80), (2 * 1 + 1) * 9),
    ],
)
def test_layout(name, size, tokens):
    entry = build(name)
    batch = inputs(entry, [{"text": "what ?", "images": [picture(0, *size)]}])
    assert placeholders(entry, batch).sum() == tokens


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("llava_next_video", 4 * 2 * 2),
        ("llava_onevision", 4 * 3 * 3 + 1),
        ("qwen2_vl", 2 * 5 * 3),
        ("qwen2_5_vl", 2 * 5 * 3),
        ("qwen3_vl", 2 * 4 * 3),
        ("internvl", 4 * 9),
        ("smolvlm", 4 * 9),
    ],
)
def test_layout_of_four_frames(name, tokens):
    entry = build(name)
    batch = inputs(entry, [{"text": "what ?", "videos": [clip(0, 4, 140, 84)]}])
    assert placeholders(entry, batch).sum() == tokens


def test_building_is_repeatable_and_copies_are_independent():
    entry, copy, other = build("llava"), build("llava", fresh=True), build("llava", seed=1)
    assert entry is build("llava")
    assert entry.model is not copy.model
    samples = mixed("images")[:1]
    assert torch.equal(last_logits(entry, samples), last_logits(copy, samples))
    assert not torch.allclose(last_logits(entry, samples), last_logits(other, samples), atol=1e-2)
    assert len(build("llava", layers=6).model.model.language_model.layers) == 6


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="llava_next"):
        build("lava")
