"""A pruned cache is right wherever a cache can go, or refused: copied, reordered, repeated, cropped, reset, in other hands."""

import copy

import pytest
import torch
from transformers import DynamicCache

import divevlm
from tests.engine.oracle import close, dropped_positions, extended, masked_logits
from tests.engine.samples import batch, picture, sample
from tests.zoo import build, inputs

NAMES = ("llava", "llava_onevision", "qwen2_vl", "qwen3_vl")
GREEDY = {"max_new_tokens": 4, "do_sample": False}
TURN = torch.randint(20, 60, (3, 5), generator=torch.Generator().manual_seed(3))


@pytest.fixture(params=NAMES)
def entry(request):
    return build(request.param)


def prefilled(entry, given, method="dive", **options):
    """A session that is still attached, and the cache of a prefill."""
    session = divevlm.attach(entry.model, method, keep=4, **options)
    cache = DynamicCache(config=entry.model.config.get_text_config())
    with torch.no_grad():
        entry.model(**given, past_key_values=cache)
    return session, cache


def second_turn(entry, given, cache, rows=None):
    """Logits of TURN behind the prompt, for the rows of the batch that the cache holds."""
    rows = torch.arange(len(given["input_ids"])) if rows is None else rows
    ids = torch.cat([given["input_ids"], TURN[: len(given["input_ids"])]], dim=1)
    longer = extended(given, ids)
    with torch.no_grad():
        out = entry.model(
            input_ids=ids[rows, -5:],
            attention_mask=longer["attention_mask"][rows],
            position_ids=positions(entry, longer)[..., rows, -5:],
            past_key_values=cache,
        )
    return out.logits, longer


def positions(entry, longer):
    """As generate() numbers them."""
    if "mm_token_type_ids" in longer:
        given = {k: v for k, v in longer.items() if k in ("input_ids", "attention_mask", "mm_token_type_ids")}
        grids = {k: v for k, v in longer.items() if k.endswith("grid_thw")}
        return entry.model.model.get_rope_index(**given, **grids)[0]
    return (longer["attention_mask"].cumsum(-1) - 1).clamp_min(0)


def prompted(entry, given):
    """The batch with the positions of its prompt, so that the second turn goes on where it ends."""
    return {**given, "position_ids": positions(entry, given)}


def expected(entry, longer, report, layer):
    dropped = dropped_positions(entry.model, longer["input_ids"], report)
    return masked_logits(entry.model, prompted(entry, longer), dropped, layer)[:, -5:]


@pytest.mark.parametrize("layer", [0, 2])
def test_a_copy_goes_on_by_itself(entry, layer):
    """The usual way to reuse a prefix: prefill once, copy the cache for each question."""
    given = batch(entry, "mixed")
    session, cache = prefilled(entry, prompted(entry, given), layer=layer)
    with session_of(session):
        copies = [copy.deepcopy(cache) for _ in range(2)]
        (first, longer), (again, _) = (second_turn(entry, given, c) for c in copies)
        assert {c.get_seq_length() for c in copies} == {longer["input_ids"].shape[1]}
        assert cache.get_seq_length() == given["input_ids"].shape[1]
        last, _ = second_turn(entry, given, cache)
    assert torch.equal(first, again)
    assert torch.equal(first, last)
    close(first, expected(entry, longer, session.report, layer))


@pytest.mark.parametrize("method", ["dive", "pdrop", "visionzip"])
def test_copies_with_compact_positions(method):
    entry = build("llava")
    given = batch(entry, "mixed")
    session, cache = prefilled(entry, prompted(entry, given), method, positions="compact")
    with session_of(session):
        twin = copy.deepcopy(cache)
        one, _ = second_turn(entry, given, cache)
        two, _ = second_turn(entry, given, twin)
    assert torch.equal(one, two)


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("how", ["reorder", "select", "repeat"])
def test_rows_of_a_padded_batch_can_be_reordered_selected_and_repeated(entry, how, layer):
    given = batch(entry, "mixed")
    session, cache = prefilled(entry, prompted(entry, given), layer=layer)
    with session_of(session):
        plain, _ = second_turn(entry, given, copy.deepcopy(cache))
        if how == "reorder":
            rows = torch.tensor([2, 0, 1])
            cache.reorder_cache(rows)
        elif how == "select":
            rows = torch.tensor([2, 1])
            cache.batch_select_indices(rows)
        else:
            rows = torch.arange(3).repeat_interleave(2)
            cache.batch_repeat_interleave(2)
        logits, _ = second_turn(entry, given, cache, rows)
    close(logits, plain[rows], 2e-5)


@pytest.mark.parametrize("layer", [0, 2])
def test_text_behind_the_image_can_be_cropped(entry, layer):
    given = batch(entry, "mixed")
    session, cache = prefilled(entry, prompted(entry, given), layer=layer)
    length = given["input_ids"].shape[1]
    with session_of(session):
        plain, _ = second_turn(entry, given, copy.deepcopy(cache))
        second_turn(entry, given, cache)
        cache.crop(-5)
        assert cache.get_seq_length() == length
        again, _ = second_turn(entry, given, cache)
        close(again, plain)
        widths = [layer.keys.shape[-2] for layer in cache.layers]
        with pytest.raises(ValueError, match=r"^crop\(\) of a pruned cache must be of at most \d+ tokens .* got 40"):
            cache.crop(-40)
        assert [layer.keys.shape[-2] for layer in cache.layers] == widths  # nothing was lost


def test_an_emptied_cache_is_as_good_as_new(entry):
    given = batch(entry, "single")
    with torch.no_grad():
        plain = entry.model(**given).past_key_values
    plain.reset()
    session, cache = prefilled(entry, given)
    with session_of(session), torch.no_grad():
        want = entry.model(**given).logits
        cache.reset()
        if plain.get_seq_length():  # older versions of transformers leave a cache its length: it stays what it was
            assert cache.get_seq_length() == plain.get_seq_length()
            return
        assert cache.get_seq_length() == 0
        assert torch.equal(entry.model(**given, past_key_values=cache).logits, want)
    cache.reset()
    with torch.no_grad():
        plain = entry.model(**given).logits
        assert torch.equal(entry.model(**given, past_key_values=cache).logits, plain)


@pytest.mark.parametrize("layer", [0, 2])
def test_without_its_method_a_pruned_cache_is_refused_and_stays_whole(entry, layer):
    given = batch(entry, "single")
    session, cache = prefilled(entry, prompted(entry, given), layer=layer)
    want, _ = second_turn(entry, given, copy.deepcopy(cache))
    session.detach()
    with pytest.raises(
        ValueError, match=r"^past_key_values must be used with the method that pruned it attached .* \(dive"
    ):
        second_turn(entry, given, cache)
    with (
        divevlm.prune(entry.model, "dive", keep=4, layer=1),
        pytest.raises(ValueError, match="^past_key_values must be pruned by the same cuts"),
    ):
        second_turn(entry, given, cache)
    with pytest.raises(ValueError, match="^past_key_values must be used with the method"):
        longer = extended(given, torch.cat([given["input_ids"], TURN[:1]], dim=1))
        text = {k: v for k, v in longer.items() if k in ("input_ids", "attention_mask", "mm_token_type_ids")}
        entry.model.generate(**text, **GREEDY, past_key_values=cache)
    with divevlm.prune(
        entry.model, "random", keep=9, layer=layer
    ):  # cuts in the same way: goes on where the other left
        again, _ = second_turn(entry, given, cache)
    assert torch.equal(again, want)


def test_a_failed_pass_announces_nothing():
    entry = build("llava")
    given = batch(entry, "single")
    session, cache = prefilled(entry, given)
    handle = session.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        second_turn(entry, given, copy.deepcopy(cache))
    handle.remove()
    assert all(layer.coming is None for layer in cache.layers)
    session.detach()


@pytest.mark.parametrize("name", ["llava", "qwen2_vl"])
def test_prefixes_of_text_are_shared_between_images(name):
    """A system prompt in an unpruned cache, copied for each picture."""
    entry = build(name)
    pictures = [inputs(entry, [sample(n, picture(n, 80, 60))]) for n in range(2)]
    system = TURN[:1]
    with torch.no_grad(), divevlm.prune(entry.model, keep=4) as session:
        prefix = entry.model(input_ids=system, use_cache=True).past_key_values
        for given in pictures:
            ids = torch.cat([system, given["input_ids"]], dim=1)
            both = {**given, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
            if "mm_token_type_ids" in given:
                both["mm_token_type_ids"] = torch.cat([torch.zeros_like(system), given["mm_token_type_ids"]], dim=1)
            where = positions(entry, both)
            some = {**given, "attention_mask": both["attention_mask"], "position_ids": where[..., system.shape[1] :]}
            logits = entry.model(**some, past_key_values=copy.deepcopy(prefix)).logits
            dropped = torch.cat(
                [torch.zeros_like(system).bool(), dropped_positions(entry.model, given["input_ids"], session.report)], 1
            )
            session_report = session.report
            with bare(session):
                want = masked_logits(entry.model, {**both, "position_ids": where}, dropped, 2)[:, system.shape[1] :]
            stay = ~dropped[:, system.shape[1] :]
            close(logits[stay], want[stay])
            assert len(session_report.samples[0].kept) == 4


class session_of:  # noqa: N801 - reads as `with session_of(session):`
    """Detaches at the end."""

    def __init__(self, session):
        self.session = session

    def __enter__(self):
        return self.session

    def __exit__(self, *_):
        self.session.detach()


class bare:  # noqa: N801
    """The model without the session for a while."""

    def __init__(self, session):
        self.session = session

    def __enter__(self):
        self.session.detach()

    def __exit__(self, *_):
        self.session.attach()
