"""Answers of a batch, with shared blocks, are those of single plain runs."""

import pytest
import torch
from divevlm_tiny.splits import CLIP_SIZES, questions

from divevlm import prune
from divevlm.experiments.answering import IGNORE, Answerer, noting
from divevlm.experiments.settings import Setting, grid
from divevlm.experiments.tasks import f1, item_of, items, right
from divevlm.methods import METHODS, method_of, parse
from divevlm.methods.base import Signals

SETTINGS = [
    Setting("vanilla", 0),
    Setting("dive", 24),
    Setting("fastv", 48),
    Setting("visionzip", 24),
    Setting("tome", 64),
]


def plain(model, processor, item, setting):
    """One question by itself: the answer that generate() gives and the log-likelihood of the gold one."""
    turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": item.text}]}]
    text = processor.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
    asked = processor(text=text, images=item.draw(), return_tensors="pt")
    gold = [*processor.tokenizer(item.gold, add_special_tokens=False)["input_ids"], processor.tokenizer.eos_token_id]
    ids = torch.cat([asked["input_ids"], torch.tensor([gold])], dim=1)
    labels = torch.where(torch.arange(ids.shape[1]) < ids.shape[1] - len(gold), -100, ids)
    method = setting.ready(model)
    with torch.inference_mode():
        if method is None:
            made = model.generate(**asked, max_new_tokens=6, do_sample=False)
            logits = model(input_ids=ids, pixel_values=asked["pixel_values"], labels=labels).logits
        else:
            with prune(model, method):
                made = model.generate(**asked, max_new_tokens=6, do_sample=False)
            with prune(model, method):
                logits = model(input_ids=ids, pixel_values=asked["pixel_values"], labels=labels).logits
    said = processor.decode(made[0, asked["input_ids"].shape[1] :], skip_special_tokens=True).strip()
    logs = logits[0, -len(gold) - 1 : -1].log_softmax(-1)
    return said, float(logs[range(len(gold)), gold].sum())


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "separate"])
def test_a_batch_gives_what_single_runs_give(answerer, shared):
    model, processor = answerer.model, answerer.processor
    some = items(["existence", "reading"], 2)
    several = Answerer(model, processor, shared)
    for setting in SETTINGS:
        method = setting.ready(model)
        made, forced = several.generate(some, method, 6), several.forced(some, method)
        for item, one, other in zip(some, made, forced, strict=True):
            said, likelihood = plain(model, processor, item, setting)
            assert one.prediction == said
            assert one.score == right(said, item.gold)
            assert other.likelihood == pytest.approx(likelihood, abs=2e-3)
            assert one.kept == other.kept == (setting.keep or None)
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("method", ["dive", "fastv", "pdrop", "sparsevlm", "visionzip"])
def test_costs_are_those_of_a_sample_alone(answerer, method):
    some = items(["existence", "reading"], 3)
    ready = Setting(method, 48).ready(answerer.model)
    several = Answerer(answerer.model, answerer.processor, shared=False)
    costs = [(one.kept, one.flops, one.kv, one.kv_full) for one in several.generate(some, ready, 1)]
    alone = [several.generate([item], ready, 1)[0] for item in some]
    assert costs == [(one.kept, one.flops, one.kv, one.kv_full) for one in alone]
    assert len(set(costs)) > 1  # questions of several lengths
    with prune(answerer.model, ready) as session:
        answerer.model.generate(**several.inputs(some[-1:]), max_new_tokens=1)
    report = session.report
    assert (report.flops, report.kv_bytes, report.kv_bytes_full) == costs[-1][1:]


def test_redundancy_is_that_of_the_states_at_the_cut(answerer):
    (one,) = answerer.forced(items(["existence"], 1), method_of("dive", 8, {}))
    assert 0 < one.redundancy <= 1
    seen = []
    method = noting(method_of("dive", 3, {}), seen)
    x, q = torch.randn(20, 4), torch.randn(2, 4)
    signals = Signals(x, q, torch.zeros(20, 3), method.budget)
    method.select([signals], [3])
    ((shown, selection),) = seen
    assert shown.visual is x
    assert selection.order.tolist() == method_of("dive", 3, {}).select([signals], [3])[0].order.tolist()
    assert method.name == "dive"
    frames = answerer.forced(items(["existence"], 1), method_of("dive", 8, {"scope": "frame"}))
    assert frames[0].redundancy == one.redundancy  # one group
    single = answerer.forced(items(["existence"], 1), method_of("dive", 1, {}))
    assert single[0].redundancy is None


def test_blind_is_the_full_sequence_with_the_picture_masked(answerer):
    some = items(["existence", "reading"], 2)
    inputs, labels = answerer.with_gold(some)
    ids, present = inputs["input_ids"], inputs["attention_mask"]
    words = (ids != answerer.model.config.image_token_id) & present.bool()
    positions = (present.cumsum(1) - 1).clamp_min(0)
    with torch.inference_mode():
        logits = answerer.model(input_ids=ids, attention_mask=words.long(), position_ids=positions).logits
    wanted = labels[:, 1:]
    gold = logits.log_softmax(-1)[:, :-1].gather(-1, wanted.clamp_min(0)[..., None])[..., 0] * (wanted != IGNORE)
    blind = answerer.blind(some)
    assert [one.likelihood for one in blind] == pytest.approx(gold.sum(1).tolist(), abs=1e-3)
    assert {one.kept for one in blind} == {None}


def test_a_picture_with_several_questions_runs_through_the_tower_once(answerer):
    some = [item_of(sample, str(sample.number)) for sample in questions("validation", 10)]
    rows = []
    block = answerer.model.model.vision_tower.encoder.layers[0]
    hook = block.mlp.register_forward_hook(lambda module, given, output: rows.append(len(given[0])))
    fresh = Answerer(answerer.model, answerer.processor)
    for method in (method_of("visionzip", 24, {}), method_of("visionzip", 12, {}), method_of("dive", 12, {}), None):
        fresh.forced(some, method)
    hook.remove()
    assert rows == [3]


@pytest.mark.parametrize("name", ["dive", "grid", "visionzip", "tome", "dive:layer=1", "fastv"])
def test_sharing_changes_nobody_who_is_kept(answerer, name):
    some = items(["existence", "reading"], 2)
    plain = Answerer(answerer.model, answerer.processor, shared=False)
    method = Setting(name, 24).ready(answerer.model)
    answers, alone = answerer.forced(some, method), plain.forced(some, method)
    assert [one.kept for one in answerer.report.samples] == [one.kept for one in plain.report.samples]
    assert [one.likelihood for one in answers] == pytest.approx([one.likelihood for one in alone], abs=1e-5)


def test_clips_are_asked_about():
    some = items(["motion", "order"], 2)
    assert [item.task for item in some].count("order") == 2
    assert {item.draw()[0].frames.shape for item in items(["motion"], 9)} == {
        (8, 14 * rows, 14 * columns, 3) for rows, columns in CLIP_SIZES
    }
    assert some[0].text == "What moved?"


def test_items_are_the_first_of_each_task():
    few, more = items(["embedded"], 2), items(["counting", "embedded"], 3)
    assert [sum(item.task == task for item in few) for task in {item.task for item in few}] == [2] * 8
    assert {item.sample for item in few} < {item.sample for item in more}
    assert few[0].draw()[0].size == (336, 336)
    with pytest.raises(ValueError, match="tasks must be among embedded, existence, .* got 'tasting'"):
        items(["tasting"], 1)
    with pytest.raises(ValueError, match="limit must be at least 1, got 0"):
        items(["counting"], 0)


def test_settings_are_read_and_vanilla_stands_first_once(answerer):
    assert [str(s) for s in grid(["vanilla", "dive:eta=0.5", "dive:eta=0.5"], [8, 0.25])] == [
        "vanilla",
        "dive:eta=0.5 8",
        "dive:eta=0.5 0.25",
    ]
    assert parse("pdrop:match=layer-mean:faithful=True") == ("pdrop", {"match": "layer-mean", "faithful": True})
    assert Setting("dive:eta=0.5:layer=1", 8).ready(answerer.model).layer == 1
    with pytest.raises(ValueError, match="did you mean 'dive'"):
        grid(["dvie"], [8])
    with pytest.raises(ValueError, match="method must be NAME or NAME:option=value"):
        parse("dive:eta")


def test_a_mean_budget_is_matched_by_keeping_fewer(answerer):
    kept = Setting("fastv:match=layer-mean", 300).ready(answerer.model).keep
    assert (2 * 576 + 3 * kept) / 5 == pytest.approx(300, abs=1)
    share = Setting("fastv:match=layer-mean", 0.5).ready(answerer.model).keep
    assert (2 + 3 * share) / 5 == pytest.approx(0.5)
    assert Setting("sparsevlm:match=layer-mean", 300).ready(answerer.model).match == "layer-mean"
    with pytest.raises(ValueError, match="keep must be above 0.400 with match=layer-mean, got 0.2"):
        Setting("fastv:match=layer-mean", 0.2).ready(answerer.model)
    with pytest.raises(ValueError, match="match must be 'final' or 'layer-mean', got 'mean'"):
        Setting("fastv:match=mean", 64).ready(answerer.model)


def test_answers_are_compared_by_their_words():
    assert right(" Red Circle.", "red circle")
    assert not right("red", "red circle")
    assert f1(["yes", "yes", "no", "no"], ["yes", "no", "yes", "no"]) == 50
    assert len(METHODS) >= 20
