"""The studies of the embedded model: geometry of its states, where counting words look, and for whom kept tokens speak."""

import math

import pytest
import torch
from divevlm_tiny.splits import questions

import divevlm
from divevlm.experiments.answering import Answerer
from divevlm.experiments.tasks import item_of
from divevlm.methods import method_of
from tests.engine.oracle import causal, close, full_length_logits, visual_positions
from tests.engine.samples import batch
from tests.micro import micro_llava
from tests.zoo import build
from training import bias_forms, counting, proportional
from training.geometry import auc, effective_rank, geometry


@pytest.fixture(scope="module")
def micro_model():
    return micro_llava(8)


def test_auc_and_rank_on_cases_with_known_values():
    assert auc(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([False, False, True])) == 1
    assert auc(torch.tensor([1.0, 1.0]), torch.tensor([False, True])) == 0.5
    assert math.isnan(auc(torch.tensor([1.0]), torch.tensor([True])))
    assert effective_rank(torch.eye(7)) == pytest.approx(7)
    assert effective_rank(torch.ones(9, 4)) == pytest.approx(1)


def test_geometry_reports_all_its_figures(micro_model):
    figures = geometry(*micro_model, questions("validation", 4))
    assert set(figures) == {"rank", "background", "objects", "auc"}
    assert 1 <= figures["rank"] <= 32
    assert 0 <= figures["auc"] <= 1


def test_tokens_that_a_counting_word_looks_at_take_the_places_of_the_last_picks(micro_model):
    model, processor = micro_model
    some = [sample for sample in questions("validation", 40) if sample.task == "counting"][:3]
    answerer, items = Answerer(model, processor), [item_of(sample, str(sample.number)) for sample in some]
    looks, counted = counting.gaze(model, some)
    assert counted.any(dim=2).sum(dim=1).tolist() == [int(sample.answer) for sample in some]
    instead = tuple(map(tuple, looks.topk(2, dim=1).indices.tolist()))
    numbers, kept = counting.told(answerer, items, counting.Swapped(keep=8, instead=instead))
    _, plain = counting.told(answerer, items, counting.Swapped(keep=8, instead=((),) * 3))
    assert all(1 <= number <= 4 for number in numbers)
    answerer.forced(items, method_of("dive", 8, {}))
    assert plain == [sample.kept for sample in answerer.report.samples]
    for tokens, these, others in zip(kept, instead, plain, strict=True):
        assert len(tokens) == 8
        assert set(these) <= set(tokens) <= {*these, *others}
    row, more = counting.measure(model, processor, some, 8, [0, 2])
    assert row["right"] + row["too low"] + row["too high"] == pytest.approx(100)
    assert (row["swap"], more["swap"]) == (0, 2)


@torch.no_grad()
@pytest.mark.parametrize("variant", proportional.VARIANTS)
def test_variants_of_proportional_do_what_their_names_say(variant):
    """Against full-length runs whose masks are written out; only sizes that are the engine's own are taken from it."""
    entry = build("llava", layers=7)
    given = batch(entry, "mixed")
    option, change = proportional.VARIANTS[variant]
    options = {} if option is None else {"proportional": option}
    with change(), divevlm.prune(entry.model, keep=4, **options) as session:
        logits = entry.model(**given).logits
    (decision,) = session.report.decisions
    visual = visual_positions(entry.model, given["input_ids"])
    first = int(variant[-1]) if variant.startswith("from block") else 2

    def mask_of(number, hidden):
        seen, bias = given["attention_mask"].bool().clone(), torch.zeros(visual.shape)
        for row, kept in enumerate(decision.kept):
            places = visual[row].nonzero()[:, 0]
            seen[row, places[~kept]] = False
            if decision.sizes and number >= first:
                bias[row, places[kept]] = (0.5 if option == 0.5 else 1) * decision.sizes[row][kept].log()
        bias = bias[:, None, None].expand(-1, -1, visual.shape[1], -1)
        if "words only" in variant:
            bias = bias.masked_fill(visual[:, None, :, None], 0)
        return None if number < 2 else bias.masked_fill(~causal(seen), torch.finfo(torch.float32).min)

    close(logits[decision.stay], full_length_logits(entry.model, given, mask_of)[decision.stay], 2e-5)
    for sizes in decision.sizes:
        assert float(sizes.max()) > 1
        assert not variant.startswith("at most") or float(sizes.max()) <= float(variant.split()[-1])
        assert variant not in ("residual", "same frame", "groups", "shuffled") or float(sizes.sum()) == 16
        assert variant != "entropy" or float(sizes.sum()) == pytest.approx(16)


def test_residual_groups_are_those_who_explained_most():
    entry = build("llava", layers=4)
    given = batch(entry, "single")
    with (
        torch.no_grad(),
        proportional.residual(),
        divevlm.prune(entry.model, keep=4, proportional=True, trace=True) as s,
    ):
        entry.model(**given)
    (choice,) = s.report.decisions[0].choices
    energy = choice.selection.trace.energy  # [5, 16] before each pick and in the end
    taken = (energy[:-1] - energy[1:]).argmax(dim=0)
    owners = choice.selection.order[taken]
    owners[choice.selection.order] = choice.selection.order
    assert s.report.decisions[0].sizes[0].tolist() == torch.bincount(owners, minlength=16).tolist()


@torch.no_grad()
def test_a_turned_prompt_chooses_by_the_opposite_of_what_is_asked():
    entry = build("llava", layers=4)
    given, seen = batch(entry, "single"), []
    text = entry.model.model.language_model
    hook = text.layers[2].register_forward_pre_hook(lambda _, args: seen.append(text.norm(args[0][0])))
    entry.model(**given)
    hook.remove()
    visual = visual_positions(entry.model, given["input_ids"])[0]
    with proportional.turned_prompt(), divevlm.prune(entry.model, keep=4, lam=20) as session:
        entry.model(**given)
    x, q = seen[0][visual], seen[0][~visual]
    assert session.report.samples[0].order == divevlm.select(x, -q, keep=4, lam=20).order.tolist()
    assert session.report.samples[0].order != divevlm.select(x, q, keep=4, lam=20).order.tolist()


def test_certainty_is_what_the_heads_do_not_agree_on():
    """Three heads, a class token and two patches, by plain arithmetic: softmax over heads, 1 - its entropy."""

    class Heads:
        scale = 1.0
        q = torch.zeros(1, 3, 3, 1)
        k = torch.zeros(1, 3, 3, 1)

    Heads.q[:, :, 0] = 1
    assert proportional.certainty(Heads, True, {}).flatten().tolist() == pytest.approx([0, 0], abs=1e-3)
    Heads.k[0, :, 2, 0] = torch.tensor([0.0, -50.0, -50.0])  # to the second patch one head looks
    got = (proportional.certainty(Heads, True, {}) / 1e6).flatten().tolist()
    for value, attention in zip(got, ((1 / 3, 1 / 2, 1 / 2), (1 / 3, 0, 0)), strict=True):
        shares = [math.exp(a) / sum(map(math.exp, attention)) for a in attention]
        assert value == pytest.approx(1 + sum(p * math.log(p) for p in shares) / math.log(3), rel=1e-4)


@pytest.mark.parametrize("rows", [1, 7])
def test_the_forms_of_a_bias_are_one(rows):
    gen = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, 7, 16, generator=gen) for _ in range(3))
    given, bias = (query[:, :, -rows:], key, value), 3 * torch.rand(7, generator=gen)
    close(bias_forms.with_columns(*given, bias), bias_forms.with_mask(*given, bias))
    close(bias_forms.without(*given, bias), bias_forms.with_mask(*given, torch.zeros(7)))
