"""What holds for every method: exactly K, no doubles, no chance, everything if everything fits."""

import re
from dataclasses import fields, replace

import pytest
import torch

from divevlm import DIVE, Budget
from divevlm.core.select import select as core_select
from divevlm.methods import METHODS, method_of
from divevlm.methods.dive import padded
from tests.methods.signals import COMPARED, MERGING, SETS, choose, frames, permuted, plain, tiled, without

KINDS = {
    "view": plain,
    "no-cls": lambda: plain(cls=False),
    "pooled": lambda: plain(pools=True),
    "wide": lambda: plain(3, 11),
    "tiles": tiled,
    "row-of-tiles": lambda: tiled(1, 3),
    "frames": frames,
    "half": lambda: plain(dtype=torch.bfloat16),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", COMPARED)
def test_exactly_k_distinct_tokens(name, kind):
    signals = KINDS[kind]()
    n = len(signals.visual)
    for keep in (1, 2, 4, 7, n // 2, n - 1):
        selection = choose(METHODS.get(name)(keep=keep), signals, keep)
        assert sorted(set(selection.order.tolist())) == selection.indices.tolist()
        assert len(selection) == len(selection.scores) == keep
        assert 0 <= int(selection.indices[0]) <= int(selection.indices[-1]) < n
        if selection.rows is not None:
            assert sorted(selection.rows.slots.tolist()) == selection.indices.tolist()
            assert selection.rows.values.shape == (keep, signals.hidden.shape[1])
            assert selection.rows.values.dtype == signals.hidden.dtype
            assert len(selection.rows.members) == keep


@pytest.mark.parametrize("name", COMPARED)
def test_everything_stays_where_everything_fits(name):
    signals = plain()
    for keep in (36, 40):
        selection = choose(METHODS.get(name)(keep=keep), signals, keep)
        assert selection.indices.tolist() == list(range(36))
        assert selection.rows is None


@pytest.mark.parametrize("name", COMPARED)
def test_groups_do_not_disturb_each_other(name):
    groups = [plain(seed=1), plain(4, 5, seed=2), plain(seed=1)]
    method = METHODS.get(name)(keep=5)
    together = method.select(groups, [5, 3, 5])
    for group, keep, selection in zip(groups, [5, 3, 5], together, strict=True):
        assert choose(method, group, keep).order.tolist() == selection.order.tolist()
    assert together[0].order.tolist() == together[2].order.tolist()


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("kind", ["view", "pooled"])
def test_the_order_of_tokens_does_not_matter(name, kind):
    signals = KINDS[kind]()
    order = torch.randperm(36, generator=torch.Generator().manual_seed(1))
    method = METHODS.get(name)(keep=9)
    straight = choose(method, signals, 9).order.tolist()
    shuffled = choose(method, permuted(signals, order), 9).order
    assert sorted(order[shuffled].tolist()) == sorted(straight)


@pytest.mark.parametrize("name", sorted(set(COMPARED) - set(MERGING)))
def test_methods_that_only_drop_send_no_rows(name):
    selection = choose(METHODS.get(name)(keep=6), plain(pools=True), 6)
    assert selection.rows is None


@pytest.mark.parametrize("name", COMPARED)
def test_a_missing_signal_is_refused_in_one_line(name):
    method = METHODS.get(name)(keep=4)
    needs = method.needs
    missing = [
        *(["attention"] if needs.attention else []),
        *(["visual_keys"] if needs.keys else []),
        *(["text_embeds"] if needs.embeds else []),
        *(part for part in needs.vision),
    ]
    for signal in missing:
        with pytest.raises(ValueError, match=rf"^{name} must be used where there are .*, got none$"):
            choose(method, without(plain(), signal), 4)
    if needs.vision:
        with pytest.raises(ValueError, match=f"^{name} must be used"):
            choose(method, replace(plain(), vision=None), 4)


@pytest.mark.parametrize("name", COMPARED)
def test_an_energy_target_is_refused(name):
    with pytest.raises(ValueError, match=f"keep must be a count or a share for {name}"):
        METHODS.get(name)(keep=Budget(energy=0.9))


@pytest.mark.parametrize("name", list(METHODS))
def test_the_table_has_what_it_needs(name):
    kind = METHODS.get(name)
    assert kind.name == name
    assert kind.paper
    assert kind.cost.startswith("O(") or kind.cost == "none"
    assert kind.stage in ("vision tower", "before the LLM", "LLM block")
    assert (kind.stage == "LLM block") == (kind.default_layer is None)
    method = kind(keep=4)
    for blocks in (2, 3, 4, 28, 32, 40):
        cuts = method.blocks(blocks, min(2, blocks - 1))
        assert list(cuts) == sorted(set(cuts))
        assert 0 <= cuts[0] <= cuts[-1] < blocks
        stays = [method.stay(cut, 4, 36, blocks) for cut in range(len(cuts))]
        assert stays == sorted(stays, reverse=True)
        assert stays[-1] == 4
        assert all(method.stay(cut, 36, 36, blocks) == 36 for cut in range(len(cuts)))


@pytest.mark.parametrize("name", MERGING)
@pytest.mark.parametrize("kind", KINDS)
def test_no_token_is_in_two_merged_rows(name, kind):
    selection = choose(METHODS.get(name)(keep=20), KINDS[kind](), 20)
    members = [token for group in selection.rows.members for token in group]
    assert len(members) == len(set(members))


def test_centred_states_are_states_without_their_means():
    given = plain(seed=4)
    moved = replace(given, visual=given.visual + 3.0, text=given.text - 2.0)
    same = replace(given, visual=given.visual - given.visual.mean(0), text=given.text - given.text.mean(0))
    dive = METHODS.get("dive")
    centred = dive(keep=8, centre=True)
    expected = choose(dive(keep=8), same, 8).order.tolist()
    assert choose(centred, given, 8).order.tolist() == choose(centred, moved, 8).order.tolist() == expected
    assert choose(dive(keep=8), moved, 8).order.tolist() != expected


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dart", {"visual_pivots": "x"}, "visual_pivots of dart must be int, got 'x'"),
        ("random", {"seed": 1.5}, "seed of random must be int, got 1.5"),
        ("dive", {"centre": 7}, "centre of dive must be bool, got 7"),
        ("dive", {"lam": True}, "lam of dive must be float, got True"),
        ("dive", {"updates": "all"}, "updates of dive must be int or None, got 'all'"),
        ("dive", {"feedback": 2}, "feedback of dive must be a word, got 2"),
    ],
)
def test_a_setting_of_the_wrong_kind_is_refused_in_one_line(name, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        method_of(name, 4, options)


@pytest.mark.parametrize("name", list(METHODS))
def test_defaults_are_of_the_right_kind(name):
    kind = METHODS.get(name)
    given = {
        field.name: getattr(kind(keep=4), field.name) for field in fields(kind) if field.init and field.name != "keep"
    }
    assert method_of(name, 4, given) == kind(keep=4)


def test_settings_may_stand_behind_the_name():
    assert method_of("dive:eta=0.5:layer=3", 4, {"top_h": 2}) == DIVE(keep=4, eta=0.5, layer=3, top_h=2)
    for text, options, message in [
        ("dive:eta", {}, "method must be NAME or NAME:option=value:..., got 'dive:eta'"),
        ("dive:eta=0.5", {"eta": 0.5}, "options must be given once, got eta beside 'dive:eta=0.5'"),
        ("dive:beta=1", {}, "options of dive must be among .*, got beta"),
    ]:
        with pytest.raises(ValueError, match=f"^{message}$"):
            method_of(text, 4, options)


def test_groups_of_several_lengths_are_padded_for_an_accelerator():
    groups, keeps = [plain(seed=1), plain(4, 5, m=3, seed=2), plain(2, 3, m=0, seed=3)], [9, 4, 5]
    x, valid_x = padded([group.visual for group in groups])
    q, valid_q = padded([group.text for group in groups])
    assert (valid_x.sum(1).tolist(), valid_q.sum(1).tolist()) == ([36, 20, 6], [7, 3, 0])
    together = core_select(x, q, keeps, valid_x=valid_x, valid_q=valid_q)
    apart = DIVE(keep=9).select(groups, keeps)
    assert [selection.order.tolist() for selection in together] == [selection.order.tolist() for selection in apart]
