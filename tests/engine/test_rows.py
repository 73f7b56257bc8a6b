"""Methods that merge: their rows go on in the order they say, at the positions they say."""

import pytest
import torch

import divevlm
from tests.engine.oracle import close, decoder_layers, visual_positions
from tests.engine.samples import batch, picture, sample
from tests.engine.spy import Merger
from tests.zoo import build, inputs

NAMES = ("llava", "llava_next", "llava_onevision", "qwen2_vl", "qwen3_vl", "idefics3")

GRIDS = ("qwen2_vl", "qwen3_vl")  # have positions on a grid, which can't be compacted
CASES = [(name, how) for name in NAMES for how in ("keep", "compact") if how == "keep" or name not in GRIDS]


def merged(hidden, tokens):
    """What Merger does with the rows `tokens` of a sequence -> the rows that go on, and whose places they take."""
    kept, dropped = tokens[::2], tokens[1::2]
    rows = torch.cat([hidden[kept], hidden[dropped].mean(dim=0, keepdim=True)])
    return rows, torch.cat([kept, dropped[:1]])


@torch.no_grad()
def by_hand(entry, given, cuts, positions):
    """Logits at the last position of one sample: the blocks run one by one, the sequence rebuilt before each cut."""
    model = entry.model
    text = divevlm.prune(model, keep=1).text
    caught = []
    with divevlm.prune(model, keep=1.0, scope="sample") as session:
        handle = decoder_layers(model)[0].register_forward_pre_hook(
            lambda m, args, kwargs: caught.append((args[0], kwargs["position_embeddings"])), with_kwargs=True
        )
        model(**given)
        handle.remove()
    (hidden, tables), *_ = caught
    deep = deepstack(entry, given)
    hidden, tables = hidden[0], [table[..., 0, :, :] for table in tables]
    (tokens,) = [segment.kept for segment in session.report.samples[0].segments]
    where = visual_positions(model, given["input_ids"])[0].nonzero()[:, 0]
    left = torch.arange(len(hidden))  # which position each row has
    alive = where[tokens]
    for number, layer in enumerate(decoder_layers(model)):
        if deep and 0 < number <= len(deep):
            extra = torch.zeros(given["input_ids"].shape[1], hidden.shape[-1])
            extra[where] = deep[number - 1]
            hidden = hidden + extra[left]
        if number in cuts:
            spots = torch.tensor([left.tolist().index(token) for token in alive])
            rows, slots = merged(hidden, spots)
            sequence, states = [], []
            queue = iter(range(len(rows)))
            for spot in range(len(left)):
                if spot in spots and spot not in slots:
                    continue
                if spot in slots:
                    i = next(queue)
                    sequence.append(int(left[slots[i]]))
                    states.append(rows[i])
                else:
                    sequence.append(int(left[spot]))
                    states.append(hidden[spot])
            alive = [position for position in sequence if position in set(left[slots].tolist())]
            hidden, left = torch.stack(states), torch.tensor(sequence)
        if positions == "compact" and len(left) < given["input_ids"].shape[1]:
            now = text.rotary_emb(hidden[None], position_ids=torch.arange(len(left))[None])
        else:
            now = tuple(
                table[..., left, :][..., None, :, :] if table.dim() > 2 else table[left][None] for table in tables
            )
        mask = torch.ones(len(left), len(left), dtype=torch.bool).tril()[None, None]
        hidden = layer(hidden[None], attention_mask=mask, position_embeddings=now)[0]
    return model.lm_head(text.norm(hidden[-1:]))


def deepstack(entry, given):
    """Features that the model adds after its first blocks, where it does."""
    caught = []
    handle = divevlm.prune(entry.model, keep=1).text.register_forward_pre_hook(
        lambda m, args, kwargs: caught.append(kwargs.get("deepstack_visual_embeds")), with_kwargs=True
    )
    entry.model(**given)
    handle.remove()
    return caught[0]


@pytest.mark.parametrize("layer", [0, 2, None])
@pytest.mark.parametrize(("name", "positions"), CASES)
def test_merged_rows_go_on_as_listed(name, layer, positions):
    entry = build(name)
    given = batch(entry, "single")
    cuts = (1, 3) if layer is None else (layer,)
    method = Merger(keep=2, scope="sample", layer=layer, positions=positions)
    with divevlm.prune(entry.model, method) as session, torch.no_grad():
        logits = entry.model(**given).logits[0, -1:]
    close(logits, by_hand(entry, given, cuts, positions))
    (segment,) = session.report.samples[0].segments
    assert len(segment.merged) == len(segment.kept) == len(segment.order) + 1
    assert session.report.to_dict()["samples"][0]["segments"][0]["merged"] == segment.merged


@pytest.mark.parametrize("layer", [0, None])
@pytest.mark.parametrize("name", NAMES)
def test_a_padded_batch_merges_as_alone(name, layer):
    entry = build(name)
    given = batch(entry, "several")
    with divevlm.prune(entry.model, Merger(keep=2, layer=layer)), torch.no_grad():
        together = entry.model(**given).logits[:, -1]
    alone = inputs(entry, [sample(0, picture(1, 150, 80), picture(3, 60, 60))])
    with divevlm.prune(entry.model, Merger(keep=2, layer=layer)), torch.no_grad():
        close(together[0], entry.model(**alone).logits[0, -1])


@pytest.mark.parametrize("name", NAMES)
def test_decoding_goes_on_behind_merged_rows(name):
    """Generating with the cache equals a prefill of what was generated so far."""
    entry = build(name)
    given = batch(entry, "single")
    method = Merger(keep=2, positions="keep")
    with divevlm.prune(entry.model, method):
        out = entry.model.generate(
            **given, max_new_tokens=4, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
        bare = entry.model.generate(
            **given,
            max_new_tokens=4,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            use_cache=False,
        )
    close(torch.stack(out.logits), torch.stack(bare.logits))
