"""What methods ask to see is what the model computes: attention, keys, embeddings."""

import pytest
import torch
from transformers import DynamicCache

import divevlm
from divevlm.methods.base import Needs
from tests.engine.oracle import decoder_layers, visual_positions
from tests.engine.samples import batch, picture, sample
from tests.engine.spy import Spy
from tests.zoo import FAMILIES, build, inputs


def close(one, two):
    torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


def places(entry, given):
    """Of each row: positions of the visual tokens that compete, and of its text."""
    with divevlm.prune(entry.model, keep=1.0, scope="sample") as session, torch.no_grad():
        entry.model(**given)
    visual, present = visual_positions(entry.model, given["input_ids"]), given["attention_mask"].bool()
    for row, report in enumerate(session.report.samples):
        tokens = [token for segment in report.segments for token in segment.kept]
        yield visual[row].nonzero()[:, 0][tokens], (present & ~visual)[row].nonzero()[:, 0]


def spied(entry, given, **options):
    """What a spy was shown at its last cut, and the maps of eager attention in that very pass."""
    spy = Spy(keep=3, scope="sample", **options)
    with divevlm.prune(entry.model, spy), torch.no_grad():
        maps = entry.model(**given, output_attentions=True).attentions
    return spy.seen[-1], maps


@pytest.mark.parametrize(("block", "number"), [("before", 1), ("after", 2)])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", FAMILIES)
def test_attention_equals_the_eager_maps(name, side, block, number):
    entry = build(name, attn="eager")
    given = batch(entry, "mixed", padding_side=side)
    with torch.no_grad():
        maps = entry.model(**given, output_attentions=True).attentions[number]
    groups, _ = spied(entry, given, wants=Needs(attention="text", block=block))
    (last, *_), _ = spied(entry, given, wants=Needs(attention="last", block=block))
    for row, (visual, text) in enumerate(places(entry, given)):
        close(groups[row].attention, maps[row][:, text][..., visual])
        assert groups[row].ids.equal(given["input_ids"][row, text])
        assert groups[row].later.equal(text > visual_positions(entry.model, given["input_ids"])[row].nonzero().max())
    close(last.attention, groups[0].attention[:, -1:])


@pytest.mark.parametrize("placement", ["layer", "entry"])
@pytest.mark.parametrize("name", ["llava", "qwen2_vl"])
def test_sdpa_and_entry_show_the_same_attention(name, placement):
    given = batch(build(name), "mixed")
    seen = []
    for attn in ("eager", "sdpa"):
        spy = Spy(keep=3, wants=Needs(attention="text", keys=True), placement=placement if attn == "sdpa" else "layer")
        with divevlm.prune(build(name, attn=attn).model, spy), torch.no_grad():
            build(name, attn=attn).model(**given, use_cache=attn == "eager")
        seen.append(spy.seen[0])
    for one, two in zip(*seen, strict=True):
        close(one.attention, two.attention)
        close(one.visual_keys, two.visual_keys)


@pytest.mark.parametrize("block", ["before", "after"])
@pytest.mark.parametrize("name", ["llava", "llava_next", "qwen2_vl", "idefics3"])
def test_a_second_cut_sees_the_shortened_sequence(name, block):
    """With one sample and no newline kept, the rows of the maps are the text and the visual tokens that are left."""
    entry = build(name, attn="eager")
    given = batch(entry, "single")
    (group,), maps = spied(entry, given, wants=Needs(attention="text", block=block), cuts=(1, 3), newlines="drop")
    ((visual, text),) = places(entry, given)
    left = torch.cat([visual[:4], text]).sort().values  # the first cut leaves one more than the second
    assert len(group.visual) == 4
    rows, columns = torch.searchsorted(left, text), torch.searchsorted(left, visual[:4])
    if block == "before":
        close(group.attention, maps[2][0][:, rows][..., columns])
    else:
        again = build(name, attn="eager")
        spy = Spy(keep=4, scope="sample", wants=Needs(), cuts=(1,), newlines="drop")
        with divevlm.prune(again.model, spy), torch.no_grad():
            uncut = again.model(**given, output_attentions=True).attentions[3]
        close(group.attention, uncut[0][:, rows][..., columns])


@pytest.mark.parametrize("block", ["before", "after"])
@pytest.mark.parametrize("name", ["llava", "internvl"])
def test_what_came_before_takes_its_share_of_the_attention(name, block):
    entry = build(name, attn="eager")
    first, second = (inputs(entry, [sample(i, picture(i, 60, 60))]) for i in (1, 2))
    spy = Spy(keep=3, scope="sample", wants=Needs(attention="text", block=block), newlines="drop")
    cache = DynamicCache()
    length = first["input_ids"].shape[1] + second["input_ids"].shape[1]
    turn = {**second, "attention_mask": torch.ones(1, length, dtype=torch.long)}
    with divevlm.prune(entry.model, spy), torch.no_grad():
        entry.model(**first, past_key_values=cache)
        maps = entry.model(**turn, past_key_values=cache, output_attentions=True).attentions
    ((visual, text),) = places(entry, second)
    if block == "before":
        close(spy.seen[-1][0].attention, maps[1][0][:, text][..., visual + first["input_ids"].shape[1]])
        return
    shown = spy.seen[-1][0].attention[
        :, text > visual[-1]
    ]  # of block 2, which remembers 3 visual tokens of the first turn
    left = torch.cat([visual[:3], text]).sort().values
    rows, columns = torch.searchsorted(left, text[text > visual[-1]]), torch.searchsorted(left, visual[:3])
    past = maps[2].shape[-1] - len(left)
    late = maps[2][0][:, rows][..., past + columns]  # softmax over fewer columns: equal up to one factor a row and head
    ratio = late / shown[..., :3]
    close(ratio, ratio[..., :1].expand_as(ratio))
    rest = maps[2][0][:, rows].sum(dim=-1) - maps[2][0][:, rows][..., past + columns].sum(dim=-1)
    close(rest / ratio[..., 0], 1 - shown.sum(dim=-1))  # what text and past get, with the same normaliser


@pytest.mark.parametrize("name", FAMILIES)
def test_keys_are_those_of_the_cache(name):
    entry = build(name)
    given = batch(entry, "mixed")
    cache = DynamicCache()
    with torch.no_grad():
        entry.model(**given, past_key_values=cache)
    groups, _ = spied(build(name, attn="eager"), given, wants=Needs(keys=True))
    keys = cache.layers[1].keys
    heads = entry.model.config.get_text_config().num_attention_heads
    keys = keys.repeat_interleave(heads // keys.shape[1], dim=1).transpose(1, 2).flatten(2)
    for row, (visual, text) in enumerate(places(entry, given)):
        close(groups[row].visual_keys, keys[row, visual])
        close(groups[row].text_keys, keys[row, text])


@pytest.mark.parametrize("name", FAMILIES)
def test_embeddings_are_what_enters_the_first_block(name):
    entry = build(name)
    given = batch(entry, "mixed")
    caught = []
    handle = decoder_layers(entry.model)[0].register_forward_pre_hook(lambda m, args: caught.append(args[0]))
    with torch.no_grad():
        entry.model(**given)
    handle.remove()
    groups, _ = spied(build(name, attn="eager"), given, wants=Needs(embeds=True))
    for row, (visual, text) in enumerate(places(entry, given)):
        close(groups[row].visual_embeds, caught[0][row, visual])
        close(groups[row].text_embeds, caught[0][row, text])


def test_all_embeddings_stay_known_at_later_cuts():
    entry = build("llava")
    spy = Spy(keep=3, wants=Needs(embeds=True), cuts=(1, 3))
    with divevlm.prune(entry.model, spy), torch.no_grad():
        entry.model(**batch(entry, "single"))
    (first,), (second,) = spy.seen
    assert len(second.visual_embeds) == 4
    assert second.all_embeds.equal(first.visual_embeds)
    assert second.visual_embeds.equal(first.visual_embeds[:4])


@pytest.mark.parametrize("name", ["llava", "qwen2_vl"])
def test_gravity_is_the_attention_of_equal_states(name):
    """With q = k = 1 everywhere, logits are RoPE's own doing."""
    entry = build(name)
    given = batch(entry, "single")
    (group,), _ = spied(build(name, attn="eager"), given, wants=Needs(attention="text", gravity=True))
    caught = []
    handle = decoder_layers(entry.model)[1].register_forward_pre_hook(
        lambda m, args, kwargs: caught.append(kwargs["position_embeddings"]), with_kwargs=True
    )
    with torch.no_grad():
        entry.model(**given)
    handle.remove()
    cos, sin = (table.reshape(-1, *table.shape[-2:])[0] for table in caught[0])
    ((visual, text),) = places(entry, given)
    if caught[0][0].dim() > 3:
        return  # one table each for time, height and width (older versions): merged elsewhere
    half = cos.shape[1] // 2
    for m, i in ((0, 0), (3, 5), (-1, -1)):
        p, v = text[m], visual[i]
        angle = [(cos[p, f] + 1j * sin[p, f]) * (cos[v, f] - 1j * sin[v, f]) for f in range(half)]
        close(group.gravity[m, i], sum(2 * a.real for a in angle) / cos.shape[1] ** 0.5)


def test_a_method_that_looks_back_can_not_cut_before_the_first_block():
    with pytest.raises(ValueError, match="^layer must be at least 1 for spy"):
        divevlm.prune(build("llava").model, Spy(keep=3, cuts=(0,), wants=Needs(attention="last")))
    divevlm.prune(build("llava").model, Spy(keep=3, cuts=(0,), wants=Needs(attention="last", block="after")))
