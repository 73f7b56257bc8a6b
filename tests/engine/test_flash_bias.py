"""Proportional attention on flash kernels: the bias in more columns of keys and queries, against additive masks."""

import copy
import pickle

import pytest
import torch
from transformers import DynamicCache

import divevlm
from divevlm.engine import flash
from divevlm.engine.passes import HOOKS_AGAIN
from tests.engine.oracle import close, decoder_layers, extended
from tests.engine.samples import batch
from tests.engine.test_modes import flash_stand_in
from tests.zoo import FAMILIES, VIDEO_FAMILIES, build

GREEDY = {"max_new_tokens": 4, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
NAMES = [name for name in FAMILIES if name != "llava_576"]


def with_flash(name, **options):
    entry = build(name, fresh=True, **options)
    entry.model.set_attn_implementation({"text_config": "flash_stand_in"})
    return entry


def equal(plain, flash_, given, method, **options):
    results = []
    for entry in (plain, flash_):
        with divevlm.prune(entry.model, method, **options) as session:
            out = entry.model.generate(**given, **GREEDY)
        results.append((out, session.report.decisions[-1]))
    (want, decided), (got, same) = results
    assert torch.equal(decided.stay, same.stay)
    assert max(float(sizes.max()) for sizes in same.sizes) > 1
    assert torch.equal(got.sequences, want.sequences)
    close(torch.stack(got.logits, dim=1), torch.stack(want.logits, dim=1), 2e-5)


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("name", NAMES)
def test_the_same_as_with_sdpa(name, layer):
    plain, other = build(name), with_flash(name)
    for shape in ("single", "mixed", "several", *(["videos"] if name in VIDEO_FAMILIES else [])):
        equal(plain, other, batch(plain, shape), "dive", keep=4, layer=layer, proportional=0.7)


@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "qwen3_vl"])
def test_two_cuts_with_measured_groups(name):
    plain, other = build(name, layers=6), with_flash(name, layers=6)
    for shape in ("single", "mixed"):
        equal(plain, other, batch(plain, shape), "dive-plus", keep=3, first=2)


def test_from_the_entry_and_in_a_second_turn():
    plain, other = build("llava"), with_flash("llava")
    given, second = batch(plain, "mixed"), []
    turn = torch.randint(20, 60, (3, 5), generator=torch.Generator().manual_seed(1))
    equal(plain, other, given, "dive", keep=4, placement="entry", proportional=True)
    for entry in (plain, other):
        cache = DynamicCache(config=entry.model.config.get_text_config())
        with divevlm.prune(entry.model, keep=4, proportional=True):
            first = entry.model.generate(**given, **GREEDY, past_key_values=cache)
            longer = extended(given, torch.cat([first.sequences, turn], dim=1))
            text = {name: longer[name] for name in ("input_ids", "attention_mask")}
            second.append(entry.model.generate(**text, **GREEDY, past_key_values=copy.deepcopy(cache)))
    close(*(torch.stack(out.logits, dim=1) for out in reversed(second)), 2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_does_not_round_the_bias(dtype):
    """Two columns hold what one would round off: 5.3 is 5.3125 in bfloat16, before it is multiplied by the head's size."""
    gen = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 2, 9, 16, generator=gen).to(dtype) for _ in range(3))
    bias = 8 * torch.rand(2, 9, generator=gen)
    module = decoder_layers(with_flash("llava").model)[0].self_attn
    module.config = flash.Config(module.config)
    got, _ = flash.attend(module, query.float(), key.float(), value.float(), flash.Biased(bias, None), scaling=0.25)
    allowed = torch.ones(9, 9, dtype=torch.bool).tril()
    mask = bias[:, None, None].expand(-1, -1, 9, -1).masked_fill(~allowed, -torch.inf)
    whole = [z.float() for z in (query, key, value)]
    want = torch.nn.functional.scaled_dot_product_attention(*whole, attn_mask=mask, scale=0.25).transpose(1, 2)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)

    seen = []

    def watch(module, query, key, value, mask, **options):
        seen.append((query, key, value))
        return flash_stand_in(module, query, key, value, mask, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(flash.ALL_ATTENTION_FUNCTIONS._local_mapping, "flash_stand_in", watch)
        flash.attend(module, query, key, value, flash.Biased(bias, None), scaling=0.25)
    ((wide, columns, room),) = seen
    assert wide.shape[-1] == columns.shape[-1] == room.shape[-1] == 16 + flash.ROOM
    assert wide.dtype == columns.dtype == room.dtype == dtype
    told = (wide[..., 16:].float() @ columns[..., 16:].float().mT * 0.25)[:, 0, 0]
    torch.testing.assert_close(told, bias, rtol=2e-5, atol=1e-4)


def test_through_the_code_of_transformers_around_its_kernels(monkeypatch):
    """`flash_attention_2` as a user names it, all but the kernel itself, which gets [B, rows, heads, head_dim]."""
    seen = []

    def kernel(query, key, value, mask, query_length, softmax_scale, attn_implementation, **options):
        seen.append((query.shape[-1], attn_implementation))
        turned = (z.transpose(1, 2) for z in (query, key, value))
        return flash_stand_in(None, *turned, mask, scaling=softmax_scale)[0]

    monkeypatch.setattr("transformers.integrations.flash_attention._flash_attention_forward", kernel)
    plain, other = build("qwen2_vl"), build("qwen2_vl", fresh=True)
    other.model.config.get_text_config()._attn_implementation = "flash_attention_2"
    size = decoder_layers(other.model)[0].self_attn.head_dim
    for shape in ("single", "mixed"):
        equal(plain, other, batch(plain, shape), "dive", keep=4, proportional="measured")
    assert {width for width, _ in seen} == {size, size + flash.ROOM}
    assert {name for _, name in seen} == {"flash_attention_2"}


@pytest.mark.filterwarnings("ignore:.*_checkpointing_.*:FutureWarning")
@pytest.mark.skipif(HOOKS_AGAIN, reason="older versions of transformers run hooks again backwards: refused")
def test_gradients_with_checkpointing():
    plain, other = build("llava", fresh=True), with_flash("llava")
    given, found = batch(plain, "mixed"), []
    labels = given["input_ids"].clone()
    labels[:, :-2] = -100
    for entry in (plain, other):
        model = entry.model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        with divevlm.prune(model, keep=4, proportional=0.7):
            model(**given, labels=labels).loss.backward()
        found.append([p.grad for p in decoder_layers(model)[3].parameters()])
    for got, want in zip(*reversed(found), strict=True):
        close(got, want, 1e-4)


@torch.no_grad()
def test_the_model_is_put_back_and_follows_its_own_setting():
    entry = with_flash("llava")
    configs = [layer.self_attn.config for layer in decoder_layers(entry.model)]
    given = batch(entry, "single")
    with divevlm.prune(entry.model, keep=4, proportional=True):
        entry.model(**given)
        entry.model.set_attn_implementation({"text_config": "sdpa"})  # while a method is attached
        kinds = {layer.self_attn.config._attn_implementation for layer in decoder_layers(entry.model)}
        switched = entry.model(**given).logits
        copied = copy.deepcopy(entry.model)
    assert kinds == {"sdpa"}
    assert all(layer.self_attn.config is own for layer, own in zip(decoder_layers(entry.model), configs, strict=True))
    with divevlm.prune(build("llava").model, keep=4, proportional=True):
        close(switched, build("llava").model(**given).logits)
    close(copied(**given).logits, entry.model(**given).logits)


def test_heads_without_room_are_refused_before_anything_is_computed(monkeypatch):
    entry = with_flash("llava")
    layers = decoder_layers(entry.model)
    size = layers[0].self_attn.head_dim
    monkeypatch.setitem(flash.LARGEST, "flash_stand_in", size + flash.ROOM - 1)
    for layer in layers:
        layer.register_forward_hook(lambda *_: pytest.fail("a block has run"))
    wanted = f"^proportional must be False with flash_stand_in and heads of {size}, .*='sdpa', got 0.5"
    with divevlm.prune(entry.model, keep=4, proportional=0.5), pytest.raises(ValueError, match=wanted):
        entry.model(**batch(entry, "single"))


def test_what_room_kernels_leave():
    class Heads:
        head_dim = 128

    class Latent:
        qk_head_dim = 192

    flash.check("flash_attention_2", Heads, True)
    flash.check("flash_attention_2", Latent, True)
    with pytest.raises(ValueError, match="with flash_attention_4 and heads of 128"):
        flash.check("flash_attention_4", Heads, True)


@pytest.mark.parametrize("attn", ["sdpa", "flash"])
def test_a_cache_goes_on_with_its_bias_or_not_at_all(attn):
    entry = with_flash("llava") if attn == "flash" else build("llava")
    given = batch(entry, "single")
    for first, second in ((True, False), (False, True)):
        cache = DynamicCache(config=entry.model.config.get_text_config())
        with divevlm.prune(entry.model, keep=4, proportional=first):
            out = entry.model.generate(**given, **GREEDY, past_key_values=cache)
        ids = {"input_ids": torch.cat([out.sequences, torch.tensor([[30]])], dim=1)}
        refused = pytest.raises(
            ValueError, match="^past_key_values must be pruned by the same cuts .*, got 'dive before"
        )
        with divevlm.prune(entry.model, keep=4, proportional=second), refused:
            entry.model.generate(**ids, **GREEDY, past_key_values=cache)
        with divevlm.prune(entry.model, keep=2, proportional=first and 0.5):
            entry.model.generate(**ids, **GREEDY, past_key_values=cache)


def test_copies_have_the_models_own_config():
    entry = with_flash("llava")
    own = type(entry.model.config.get_text_config())
    with divevlm.prune(entry.model, keep=4, proportional=True):
        attention = decoder_layers(entry.model)[2].self_attn
        assert type(attention.config) is flash.Config
        copied = decoder_layers(copy.deepcopy(entry.model))[2].self_attn
        assert type(copied.config) is type(pickle.loads(pickle.dumps(attention)).config) is own
        attention.config.answer = 42  # what is written to it is the model's own
    assert entry.model.config.get_text_config().answer == 42
    with divevlm.prune(entry.model, keep=4, proportional=True):
        mine = attention.config = copy.deepcopy(attention.config)
    assert attention.config is mine
