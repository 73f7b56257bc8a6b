"""Inside the wrappers that people load models with: accelerate's device maps and offloading, PEFT, quantised weights."""

import copy
import functools

import accelerate
import peft
import pytest
import torch
from accelerate.hooks import remove_hook_from_submodules
from optimum.quanto import freeze, qint8, quantize

import divevlm
from divevlm.methods import METHODS
from tests.engine.oracle import close, decoder_layers, dropped_positions
from tests.engine.samples import batch
from tests.engine.test_training import masked_loss
from tests.zoo import FAMILIES, build

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),  # peft asks for it
    pytest.mark.filterwarnings(
        "ignore:You are calling .generate.* meta:UserWarning"
    ),  # older transformers, of offloading
]

NAMES = [name for name in FAMILIES if name != "llava_576"]
GREEDY = {"max_new_tokens": 3, "do_sample": False}


def outputs(model, given, method="dive", generate=True, **options):
    with divevlm.prune(model, method, keep=4, **options) as session, torch.no_grad():
        logits = model(**given).logits
        kept = [sample.kept for sample in session.report.samples]
        ids = model.generate(**given, **GREEDY) if generate else given["input_ids"]
    return logits, kept, ids


def same(one, two):
    close(one[0], two[0])
    assert one[1] == two[1]
    assert one[2].equal(two[2])


# accelerate


# What transformers itself can't do with offloaded weights, pruned or not: Idefics3 reads a weight's device in its tower, and
# generate() encodes images outside of the model's forward, where the newline vector of these families is not loaded.
CASES = [(name, kind) for name in NAMES for kind in ("hooks", "cpu", "disk") if name != "idefics3" or kind == "hooks"]
NEWLINES = ("llava_next", "llava_next_video", "llava_onevision")


def dispatched(name, kind, folder):
    model = build(name, fresh=True).model
    if kind == "hooks":
        return accelerate.dispatch_model(model, device_map={"": "cpu"}, force_hooks=True)
    if kind == "cpu":
        return accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    places = dict.fromkeys((part for part, _ in model.named_children()), "disk")
    return accelerate.dispatch_model(model, device_map=places, main_device="cpu", offload_dir=folder, force_hooks=True)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_accelerate_rebuilds_outputs_and_moves_weights(name, kind, tmp_path):
    given, generate = batch(build(name), "mixed"), kind == "hooks" or name not in NEWLINES
    result = outputs(dispatched(name, kind, tmp_path), given, generate=generate)
    same(result, outputs(build(name).model, given, generate=generate))


@pytest.mark.parametrize(
    ("method", "kind"),
    [  # with offloaded weights the tower itself can't take a smaller image
        (method, kind) for method in METHODS for kind in ("hooks", "disk") if (method, kind) != ("downsample", "disk")
    ],
)
def test_every_method_under_accelerate(method, kind, tmp_path):
    given = batch(build("llava"), "mixed")
    same(outputs(dispatched("llava", kind, tmp_path), given, method), outputs(build("llava").model, given, method))


@pytest.mark.parametrize("kind", ["hooks", "disk"])
def test_entry_placement_under_accelerate(kind, tmp_path):
    given = batch(build("llava"), "mixed")
    model = dispatched("llava", kind, tmp_path)
    same(outputs(model, given, placement="entry"), outputs(build("llava").model, given, placement="entry"))


def test_beams_under_accelerate():
    given = batch(build("llava"), "mixed")
    beams = {**GREEDY, "num_beams": 3}
    model = dispatched("llava", "hooks", None)
    with divevlm.prune(model, keep=4):
        result = model.generate(**given, **beams)
    with divevlm.prune(build("llava").model, keep=4):
        assert result.equal(build("llava").model.generate(**given, **beams))


@pytest.mark.parametrize("method", ["dive", "tome"])
def test_accelerate_before_and_after_attaching_both_come_off(method):
    """Whoever came first, leaving puts back what was there, and nothing of the other is lost."""
    entry = build("llava", fresh=True)
    given = batch(entry, "single")
    want = outputs(entry.model, given, method)
    with torch.no_grad():
        bare = entry.model(**given).logits
    accelerate.dispatch_model(entry.model, device_map={"": "cpu"}, force_hooks=True)
    theirs = {name: vars(m).get("forward") for name, m in entry.model.named_modules()}
    same(outputs(entry.model, given, method), want)
    assert {name: vars(m).get("forward") for name, m in entry.model.named_modules()} == theirs
    remove_hook_from_submodules(entry.model)
    session = divevlm.attach(entry.model, method, keep=4)
    accelerate.dispatch_model(entry.model, device_map={"": "cpu"}, force_hooks=True)
    with torch.no_grad():
        close(entry.model(**given).logits, want[0])
        session.detach()
        assert torch.equal(entry.model(**given).logits, bare)
    same(outputs(entry.model, given, method), want)


def test_an_own_function_on_the_model_comes_back():
    entry = build("llava", fresh=True)
    base, calls = entry.model.model, []
    theirs = base.get_image_features

    @functools.wraps(theirs)
    def mine(*args, **kwargs):
        calls.append(1)
        return theirs(*args, **kwargs)

    base.get_image_features = mine
    with divevlm.prune(entry.model, keep=4):
        entry.model.generate(**batch(entry, "single"), **GREEDY)
    assert vars(base)["get_image_features"] is mine
    assert calls


# PEFT


def adapted(name, targets, **options):
    """With adapters that are not zero."""
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, target_modules=targets, init_lora_weights=False, **options)
    return peft.get_peft_model(build(name, fresh=True).model, config)


LANGUAGE = r".*(language_model|text_model).*(q_proj|v_proj|gate_proj)"
TARGETS = {
    "language": LANGUAGE,
    "attention": ["q_proj", "k_proj", "v_proj", "qkv"],
    "everything": "all-linear",
}


@pytest.mark.parametrize("part", TARGETS)
@pytest.mark.parametrize("name", ["llava", "llava_onevision", "qwen2_vl", "idefics3"])
def test_adapters_are_part_of_the_model(name, part):
    model = adapted(name, TARGETS[part])
    given = batch(build(name), "mixed")
    for method in ("dive", "fastv", "visionzip"):
        logits, kept, ids = outputs(model, given, method)
        merged = copy.deepcopy(model).merge_and_unload()
        want = outputs(merged, given, method)
        assert kept == want[1]
        close(logits, want[0], 5e-5)
        assert ids.equal(want[2])


def test_training_an_adapter_equals_the_masked_run():
    model = adapted("llava", LANGUAGE)
    given = batch(build("llava"), "mixed")
    labels = given["input_ids"].clone()
    labels[:, :-3] = -100
    with divevlm.prune(model, keep=4) as session:
        loss = model(**given, labels=labels).loss
        loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    base = model.get_base_model()
    dropped = dropped_positions(base, given["input_ids"], session.report)
    want = masked_loss(base, given, labels, dropped)
    want.backward()
    torch.testing.assert_close(loss, want, atol=1e-5, rtol=1e-5)
    assert gradients
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-5, rtol=1e-3)


def test_virtual_tokens_are_refused():
    config = peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    model = peft.get_peft_model(build("llava", fresh=True).model, config)
    with pytest.raises(ValueError, match="^model must be a PEFT model without virtual tokens, got 'prompt learning"):
        divevlm.prune(model, keep=4)


# Quantised weights


@pytest.mark.parametrize("method", ["dive", "visionzip", "prunesid", "fastv"])
def test_quantised_weights_are_used_in_the_models_own_precision(method):
    model = build("llava", fresh=True).model
    quantize(model, weights=qint8, exclude="lm_head")
    freeze(model)
    given = batch(build("llava"), "mixed")
    logits, kept, _ = outputs(model, given, method)
    twin = build("llava", fresh=True).model  # the same numbers as plain weights
    with torch.no_grad():
        for name, module in model.named_modules():
            if hasattr(module, "qweight"):
                twin.get_submodule(name).weight.copy_(module.weight.dequantize())
    want = outputs(twin, given, method)
    assert kept == want[1]
    close(logits, want[0], 1e-4)


def test_layers_are_found_inside_wrappers():
    assert len(decoder_layers(adapted("llava", LANGUAGE).get_base_model())) == 4
