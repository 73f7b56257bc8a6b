"""Fine-tuning under pruning: gradients of the masked run, with checkpointing too; labels, and what counts as the prompt."""

import pytest
import torch
import transformers

import divevlm
from divevlm.engine.passes import HOOKS_AGAIN
from divevlm.methods.base import Needs
from tests.engine.oracle import dropped_positions, extended, masked_logits
from tests.engine.samples import batch
from tests.engine.spy import Spy
from tests.engine.test_modes import flash_stand_in  # noqa: F401 - registers it
from tests.zoo import build

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*_checkpointing_.*:FutureWarning"
)  # older names, which users still use
NAMES = ("llava", "llava_onevision", "qwen2_vl", "qwen3_vl", "idefics3")


def labelled(entry, shape="mixed", answer=3):
    given = batch(entry, shape)
    labels = given["input_ids"].clone()
    labels[:, :-answer] = -100
    return given, labels


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def masked_loss(model, given, labels, dropped):
    with torch.enable_grad():
        logits = masked_logits.__wrapped__(model, given, dropped, 2 if model.config.model_type != "qwen3_vl" else 3)
    flat = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return torch.nn.functional.cross_entropy(*flat, ignore_index=-100)


@pytest.mark.skipif(HOOKS_AGAIN, reason=f"transformers {transformers.__version__} runs hooks again: refused, see below")
@pytest.mark.filterwarnings("ignore:.*requires_grad=True.*:UserWarning")  # torch's, of a tower without gradients
@pytest.mark.parametrize("checkpointing", [None, {"use_reentrant": False}, {"use_reentrant": True}])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_equal_those_of_the_masked_run(name, checkpointing):
    entry = build(name, fresh=True)
    model = entry.model.train()
    given, labels = labelled(entry)
    if checkpointing is not None:
        model.gradient_checkpointing_enable(checkpointing)
    with divevlm.prune(model, keep=4) as session:
        loss = model(**given, labels=labels).loss
        result = gradients(model, loss)
    model.gradient_checkpointing_disable()
    dropped = dropped_positions(model, given["input_ids"], session.report)
    want = masked_loss(model, given, labels, dropped)
    torch.testing.assert_close(loss, want, atol=1e-5, rtol=1e-5)
    expected = gradients(model, want)
    assert len(expected) > 20
    for weight, gradient in expected.items():
        torch.testing.assert_close(result[weight], gradient, atol=2e-5 * float(gradient.abs().max()) + 1e-7, rtol=1e-3)


@pytest.mark.skipif(not HOOKS_AGAIN, reason="this version of transformers keeps hooks out of the checkpoint: it works")
def test_checkpointing_that_runs_hooks_again_is_refused():
    entry = build("llava", fresh=True)
    entry.model.train().gradient_checkpointing_enable()
    with divevlm.prune(entry.model, keep=4), pytest.raises(ValueError, match="^gradient_checkpointing must be off"):
        entry.model(**batch(entry, "single"))


def test_labels_on_everything_are_put_right_with_a_word_about_it():
    """As trainers do: labels are the ids, of visual tokens too."""
    entry = build("llava")
    given = batch(entry, "single")
    with torch.no_grad(), divevlm.prune(entry.model, keep=4, history=2) as session:
        entry.model(**given)
        with pytest.warns(UserWarning, match="^labels") as said:
            loss = entry.model(**given, labels=given["input_ids"].clone()).loss
    texts = [str(warning.message) for warning in said]
    assert any(text.startswith("labels of visual tokens are ignored") for text in texts)
    assert any(text.startswith("labels cover every word of a sample") for text in texts)
    plain, trained = session.history
    assert plain.samples[0].order == trained.samples[0].order  # all text guides it, as without labels
    dropped = dropped_positions(entry.model, given["input_ids"], trained)
    visual = given["input_ids"] == entry.model.config.image_token_id
    labels = given["input_ids"].masked_fill(visual, -100)
    torch.testing.assert_close(loss, masked_loss(entry.model, given, labels, dropped), atol=1e-5, rtol=1e-5)


def test_the_caller_can_say_what_the_prompt_is():
    entry = build("llava")
    given = batch(entry, "mixed")
    ids = torch.cat([given["input_ids"], torch.randint(20, 60, (3, 4))], dim=1)
    longer = extended(given, ids)
    prompt = torch.zeros_like(ids, dtype=torch.bool)
    prompt[:, : given["input_ids"].shape[1]] = True
    with torch.no_grad(), divevlm.prune(entry.model, keep=4, history=2) as session:
        entry.model(**given)
        with pytest.warns(UserWarning, match="labels of visual"):
            entry.model(**longer, labels=ids.clone(), prompt_mask=prompt)
    plain, trained = session.history
    assert [s.order for s in plain.samples] == [s.order for s in trained.samples]
    assert [s.text for s in plain.samples] == [s.text for s in trained.samples]
    with (
        divevlm.prune(entry.model, keep=4),
        pytest.raises(ValueError, match=r"^prompt_mask must be of shape \(3, \d+\), got"),
    ):
        entry.model(**longer, prompt_mask=prompt[:, 1:])


def test_labels_of_one_call_do_not_stay():
    entry = build("llava")
    given, labels = labelled(entry, "single")
    with torch.no_grad(), divevlm.prune(entry.model, keep=4, history=3) as session:
        entry.model(**given)
        entry.model(**given, labels=labels)
        entry.model.model(**given)
    before, learnt, after = session.history
    assert learnt.samples[0].text < before.samples[0].text == after.samples[0].text
    assert before.samples == after.samples


@pytest.mark.parametrize("name", ["llava", "llava_onevision"])
@pytest.mark.parametrize("attn", ["sdpa", "eager"])
def test_the_first_word_behind_an_image_is_learnt_from_its_own_logits(name, attn):
    """They are those of the last visual token, which may be dropped: its output is computed, nobody sees it."""
    entry = build(name, attn=attn)
    given = batch(entry, "mixed")
    labels = given["input_ids"].clone()
    visual = labels == entry.model.config.image_token_id
    labels[~torch.nn.functional.pad(visual, (1, 0))[:, :-1] | visual] = -100
    assert ((labels != -100).sum(dim=1) == 1).all()
    with torch.no_grad(), divevlm.prune(entry.model, keep=2, newlines="drop") as session:
        loss = entry.model(**given, labels=labels).loss
    dropped = dropped_positions(entry.model, given["input_ids"], session.report)
    before = torch.nn.functional.pad(labels != -100, (0, 1))[:, 1:]
    assert (dropped & before).any()
    torch.testing.assert_close(loss, masked_loss(entry.model, given, labels, dropped), atol=1e-5, rtol=1e-5)


def test_flash_attention_refuses_what_it_can_not_compute():
    entry = build("llava", fresh=True)
    entry.model.set_attn_implementation({"text_config": "flash_stand_in"})
    given = batch(entry, "single")
    with (
        divevlm.prune(entry.model, Spy(keep=1, wants=Needs())),  # drops the last visual token
        pytest.warns(UserWarning, match="labels"),
        pytest.raises(ValueError, match="^labels must be -100 there with flash attention"),
    ):
        entry.model(**given, labels=given["input_ids"].clone())
