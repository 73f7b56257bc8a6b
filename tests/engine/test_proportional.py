"""Kept tokens speak for the dropped ones: against a full-length run whose later blocks add alpha log n to the kept columns."""

import copy

import pytest
import torch
from transformers import DynamicCache

import divevlm
from divevlm.methods import METHODS
from tests.engine.oracle import behind, causal, close, decoder_layers, extended, full_length_logits, visual_positions
from tests.engine.samples import batch, picture, sample
from tests.zoo import FAMILIES, VIDEO_FAMILIES, build, inputs

NAMES = [name for name in FAMILIES if name != "llava_576"]
GREEDY = {"max_new_tokens": 4, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}


@torch.no_grad()
def biased(model, given, decisions, cuts, alpha):
    """Logits of a full-length run: blocks behind a cut can't see what was dropped, and see the others with their bias."""
    present = given["attention_mask"].bool()
    visual = visual_positions(model, given["input_ids"])

    def mask_of(decision):
        seen, bias = present.clone(), torch.zeros(present.shape)
        for row, (kept, sizes) in enumerate(zip(decision.kept, decision.sizes, strict=True)):
            places = visual[row].nonzero()[:, 0]
            seen[row, places[~kept]] = False
            bias[row, places[kept]] = alpha * sizes[kept].log()
        allowed = causal(seen)
        return bias[:, None, None].expand(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)

    return full_length_logits(model, given, behind(cuts, [mask_of(decision) for decision in decisions]))


@pytest.mark.parametrize("attn", ["sdpa", "eager"])
@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("name", NAMES)
def test_prefill_and_decoding(name, layer, attn):
    entry = build(name, attn=attn)
    for shape in ("mixed", "several", *(["videos"] if name in VIDEO_FAMILIES else [])):
        given = batch(entry, shape)
        length = given["input_ids"].shape[1]
        with divevlm.prune(entry.model, keep=4, layer=layer, proportional=0.7) as session:
            out = entry.model.generate(**given, **GREEDY)
        decisions = session.report.decisions
        want = biased(entry.model, extended(given, out.sequences), decisions, (layer,), 0.7)
        close(torch.stack(out.logits, dim=1), want[:, length - 1 : -1], 2e-5)
        for row, sizes in enumerate(decisions[0].sizes):
            groups = [choice.group for choice in decisions[0].choices if choice.group.row == row]
            assert all(float(sizes[group.tokens].sum()) == len(group.tokens) for group in groups)


@torch.no_grad()
def naive_sizes(entry, given, decisions, cuts):
    """Of what the last decision keeps: its group's share of the prompt's attention by its own, from eager maps of a full run
    under the decisions before."""
    *earlier, last = decisions
    block, found = decoder_layers(entry.model)[cuts[-1]], {}
    hooks = [
        block.self_attn.register_forward_hook(lambda layer, args, output: found.update(map=output[1])),
        block.register_forward_pre_hook(lambda layer, args: found.update(states=args[0])),
    ]
    biased(entry.model, given, earlier, cuts[:-1], 1.0)
    for hook in hooks:
        hook.remove()
    visual, present = visual_positions(entry.model, given["input_ids"]), given["attention_mask"].bool()
    sizes = [torch.ones(int(row.sum())) for row in visual]
    for choice in last.choices:
        row, tokens, kept = choice.group.row, choice.group.tokens.tolist(), sorted(choice.order.tolist())
        places, text = visual[row].nonzero()[:, 0], (present & ~visual)[row].nonzero()[:, 0]
        shares = found["map"][row][:, text].mean(dim=(0, 1))[places].tolist()
        unit = torch.nn.functional.normalize(found["states"][row][places], dim=-1)
        mass = {token: shares[token] for token in kept}
        for token in set(tokens) - set(kept):
            mass[max(kept, key=lambda one: float(unit[token] @ unit[one]))] += shares[token]
        for token in kept:
            old = [float(earlier[-1].sizes[row][t]) if earlier else 1.0 for t in tokens]
            sizes[row][token] = min(sum(old), old[tokens.index(token)] * mass[token] / shares[token])
    return sizes


def same_sizes(entry, given, decisions, cuts):
    for got, want, kept in zip(
        decisions[-1].sizes, naive_sizes(entry, given, decisions, cuts), decisions[-1].kept, strict=True
    ):
        torch.testing.assert_close(got[kept], want[kept], rtol=1e-4, atol=1e-5)
        assert (got[kept] >= 1).all()
        assert bool((got[kept] > 1).any()) == bool((~kept).any())


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("name", NAMES)
def test_measured_groups_have_the_attention_that_they_had(name, layer):
    entry = build(name, attn="eager")
    given = batch(entry, "mixed")
    with torch.no_grad(), divevlm.prune(entry.model, keep=4, layer=layer, proportional="measured") as session:
        logits = entry.model(**given).logits
    decisions = session.report.decisions
    same_sizes(entry, given, decisions, (layer,))
    stay = decisions[0].stay
    close(logits[stay], biased(entry.model, given, decisions, (layer,), 1.0)[stay], 2e-5)


def test_measured_at_several_cuts():
    entry = build("llava", attn="eager")
    given = batch(entry, "mixed")
    options = {"keep": 3, "cuts": (1, 2, 3), "positions": "keep", "proportional": "measured"}
    with torch.no_grad(), divevlm.prune(entry.model, "pdrop", **options) as session:
        logits = entry.model(**given).logits
    decisions = session.report.decisions
    for cut in range(3):
        same_sizes(entry, given, decisions[: cut + 1], session.cuts[: cut + 1])
    stay = decisions[-1].stay
    close(logits[stay], biased(entry.model, given, decisions, session.cuts, 1.0)[stay], 2e-5)


def test_measured_from_the_entry_reads_the_block_that_the_method_reads():
    entry = build("llava", attn="eager")
    given = batch(entry, "mixed")
    sizes = []
    for placement in ("layer", "entry"):
        with torch.no_grad(), divevlm.prune(entry.model, keep=4, placement=placement, proportional="measured") as s:
            entry.model(**given)
        sizes.append(torch.cat([*s.report.decisions[0].sizes]))
    torch.testing.assert_close(*sizes)


@pytest.mark.parametrize("name", NAMES)
def test_measured_in_decoding_batches_and_clips(name):
    entry = build(name)
    for shape in ("several", "some-text-only", *(["videos"] if name in VIDEO_FAMILIES else [])):
        given = batch(entry, shape)
        length = given["input_ids"].shape[1]
        with divevlm.prune(entry.model, keep=4, proportional="measured") as session:
            out = entry.model.generate(**given, **GREEDY)
        want = biased(entry.model, extended(given, out.sequences), session.report.decisions, session.cuts, 1.0)
        close(torch.stack(out.logits, dim=1), want[:, length - 1 : -1], 2e-5)


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("downsample",)])
@pytest.mark.parametrize("name", ["llava", "llava_next", "qwen2_vl"])
def test_every_method_can_speak_for_what_it_drops(name, method):
    """Sizes of each group add up to its tokens, and one for each row that shows none of them (CLS); positions are kept."""
    entry = build(name)
    given = batch(entry, "mixed")
    with torch.no_grad(), divevlm.prune(entry.model, method, keep=4, positions="keep", proportional=True) as session:
        logits = entry.model(**given).logits
    merges = METHODS.get(method).merges or method == "prunesid"
    last = session.report.decisions[-1]
    for choice in last.choices:
        group, rows = choice.group, None if choice.selection is None else choice.selection.rows
        extra = 0 if rows is None else rows.members.count([])
        assert float(last.sizes[group.row][group.before].sum()) == len(group.before) + extra
    if not merges:
        want = biased(entry.model, given, session.report.decisions, session.cuts, 1.0)
        close(logits[last.stay], want[last.stay], 2e-5)


@pytest.mark.parametrize("proportional", [True, 0.5, "uniform", "measured"])
def test_keeping_all_is_the_identity(proportional):
    entry = build("llava")
    given = batch(entry, "mixed")
    plain = entry.model.generate(**given, **GREEDY)
    with divevlm.prune(entry.model, keep=1.0, proportional=proportional):
        kept = entry.model.generate(**given, **GREEDY)
    assert all(torch.equal(a, b) for a, b in zip(plain.logits, kept.logits, strict=True))


def test_uniform_gives_all_kept_tokens_the_same():
    entry = build("llava")
    given = batch(entry, "mixed")
    with torch.no_grad(), divevlm.prune(entry.model, keep=4, proportional="uniform") as session:
        logits = entry.model(**given).logits
    (decision,) = session.report.decisions
    assert all((sizes[kept] == 4).all() for sizes, kept in zip(decision.sizes, decision.kept, strict=True))  # 16 / 4
    close(logits[decision.stay], biased(entry.model, given, [decision], (2,), 1.0)[decision.stay], 2e-5)


def test_several_cuts_add_up():
    entry = build("llava")
    given = batch(entry, "mixed")
    with (
        torch.no_grad(),
        divevlm.prune(entry.model, "pdrop", keep=3, cuts=(1, 2, 3), positions="keep", proportional=True) as s,
    ):
        logits = entry.model(**given).logits
    assert len(s.report.decisions) == 3
    for decision in s.report.decisions:
        for sizes, kept in zip(decision.sizes, decision.kept, strict=True):
            assert float(sizes[kept].sum()) == 16  # those that are left stand for all that ever were
    last = s.report.decisions[-1].stay
    close(logits[last], biased(entry.model, given, s.report.decisions, s.cuts, 1.0)[last], 2e-5)


@pytest.mark.parametrize("name", ["llava", "qwen2_vl"])
def test_the_bias_goes_where_the_cache_goes(name):
    """Second turns on a copied and reordered cache, beams."""
    entry = build(name)
    given = batch(entry, "mixed")
    cache = DynamicCache(config=entry.model.config.get_text_config())
    turn = torch.randint(20, 60, (3, 5), generator=torch.Generator().manual_seed(1))
    with divevlm.prune(entry.model, keep=4, proportional=True) as session:
        first = entry.model.generate(**given, **GREEDY, past_key_values=cache)
        ids = torch.cat([first.sequences, turn], dim=1)
        longer = extended(given, ids)
        text = {k: v for k, v in longer.items() if k in ("input_ids", "attention_mask", "mm_token_type_ids")}
        second = entry.model.generate(**text, **GREEDY, past_key_values=copy.deepcopy(cache))
        decisions = session.report.decisions
        entry.model.generate(**given, max_new_tokens=3, do_sample=False, num_beams=3)
    want = biased(entry.model, extended(given, second.sequences), decisions, session.cuts, 1.0)
    close(torch.stack(second.logits, dim=1), want[:, ids.shape[1] - 1 : -1], 2e-5)


def test_bad_values_are_refused():
    for wrong in (-1, "sizes", 11, float("nan")):
        with pytest.raises(
            ValueError, match="^proportional must be True, False, a number from 0 to 10, 'uniform' or 'measured', got"
        ):
            divevlm.prune(build("llava").model, keep=4, proportional=wrong)


def test_rows_alone_and_together():
    entry = build("llava_next")
    samples = [sample(0, picture(1, 150, 80)), sample(1, picture(2, 70, 140))]
    with divevlm.prune(entry.model, keep=5, proportional=True):
        together = entry.model.generate(**inputs(entry, samples), **GREEDY)
        for row, one in enumerate(samples):
            alone = entry.model.generate(**inputs(entry, [one]), **GREEDY)
            close(torch.stack(together.logits)[:, row], torch.stack(alone.logits)[:, 0], 1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_dive_plus_in_prefill_decoding_and_clips(name):
    """Two cuts, groups measured at both; lengths of the cache are those of the plan."""
    entry = build(name, layers=6)
    for shape in ("mixed", "several", *(["videos"] if name in VIDEO_FAMILIES else [])):
        given = batch(entry, shape)
        length = given["input_ids"].shape[1]
        with divevlm.prune(entry.model, "dive-plus", keep=3, first=2) as session:
            out = entry.model.generate(**given, **GREEDY)
        first, last = session.report.decisions
        assert session.cuts[0] < session.cuts[1] < 6
        for choice in first.choices:  # twice as many as in the end, at most half
            tokens = len(choice.group.before)
            assert len(choice.order) == min(tokens, max(3, min(6, tokens // 2)))
        assert all(len(choice.order) == min(len(choice.group.before), 3) for choice in last.choices)
        want = biased(entry.model, extended(given, out.sequences), [first, last], session.cuts, 1.0)
        close(torch.stack(out.logits, dim=1), want[:, length - 1 : -1], 2e-5)


@pytest.mark.parametrize("method", ["dive", "dive-plus"])
def test_an_answer_to_learn_has_no_say_in_what_groups_measure(method):
    entry = build("llava", layers=6)
    given = batch(entry, "single")
    sizes = []
    for answer in ([21, 22, 23], [40, 41, 42]):
        ids = torch.cat([given["input_ids"], torch.tensor([answer])], dim=1)
        labels = torch.full_like(ids, -100)
        labels[:, -3:] = ids[:, -3:]
        with torch.no_grad(), divevlm.prune(entry.model, method, keep=3, proportional="measured") as session:
            entry.model(**extended(given, ids), labels=labels)
        sizes.append(torch.cat([*session.report.decisions[-1].sizes]))
    with torch.no_grad(), divevlm.prune(entry.model, method, keep=3, proportional="measured") as session:
        entry.model(**given)
    sizes.append(torch.cat([*session.report.decisions[-1].sizes]))
    torch.testing.assert_close(sizes[0], sizes[1], rtol=0, atol=0)
    torch.testing.assert_close(sizes[0], sizes[2])
