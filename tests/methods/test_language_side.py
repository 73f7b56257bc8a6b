"""Methods that choose inside the language model, or by its embeddings: the worked numbers of the spec."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from divevlm.core.select import select
from divevlm.methods.cdpruner import CDPruner, relevance
from divevlm.methods.dart import DART
from divevlm.methods.fastv import FastV
from divevlm.methods.mmtok import MMTok
from divevlm.methods.pdrop import PyramidDrop
from divevlm.methods.resprune import ResPrune
from divevlm.methods.sparsevlm import SparseVLM
from tests.methods.signals import choose, plain


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_fastv_by_hand():
    rows = torch.tensor([[0.05, 0.30, 0.10, 0.02, 0.08, 0.05, 0.40], [0.15, 0.10, 0.30, 0.02, 0.03, 0.10, 0.30]])
    assert rows.mean(0).tolist() == pytest.approx([0.10, 0.20, 0.20, 0.02, 0.055, 0.075, 0.35])
    signals = replace(plain(2, 2), attention=rows[:, None, 1:5])
    selection = choose(FastV(keep=2), signals, 2)
    assert selection.indices.tolist() == [0, 1]  # positions 1 and 2 of the sequence
    assert selection.scores.tolist() == pytest.approx([0.20, 0.20])
    heads = replace(signals, attention=signals.attention.flip(0))
    assert choose(FastV(keep=2), heads, 2).indices.tolist() == [0, 1]


def test_fastv_asks_the_last_prompt_token_only():
    signals = plain()
    last = replace(signals, attention=signals.attention[:, -1:])
    assert choose(FastV(keep=5), signals, 5).order.tolist() == choose(FastV(keep=5), last, 5).order.tolist()


def test_pdrop_stages():
    authors = PyramidDrop(keep=72, cuts=(8, 16, 24), ratios=(0.5, 0.25, 0.125))
    assert authors.blocks(32, 2) == (8, 16, 24)
    assert [authors.stay(cut, 72, 576, 32) for cut in range(3)] == [288, 144, 72]
    mean = PyramidDrop(keep=64, match="layer-mean")
    assert [mean.stay(cut, 64, 576, 32) for cut in range(3)] == [110, 21, 4]
    final = PyramidDrop(keep=64)
    assert [final.stay(cut, 64, 576, 32) for cut in range(3)] == [276, 133, 64]
    assert final.blocks(4, 2) == (2,)
    assert final.stay(0, 64, 576, 4) == 64


def test_pdrop_sets_are_nested():
    signals, kept = plain(), torch.arange(36)
    method = PyramidDrop(keep=4)
    for cut in range(3):
        stay = method.stay(cut, 4, 36, 32)
        now = replace(signals, attention=signals.attention[..., kept], visual=signals.visual[kept], cut=cut)
        kept = kept[choose(method, now, stay).indices]
    assert len(kept) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cuts": (8, 2)}, "cuts must be ascending block numbers"),
        ({"layer": 3}, "layer must be None for pdrop"),
        ({"match": "mean"}, "match must be 'final' or 'layer-mean'"),
        ({"ratios": (0.5,)}, "ratios must be one share for each of the 3 cuts"),
    ],
)
def test_pdrop_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        PyramidDrop(keep=4, **options)


def dart_signals():
    keys = torch.tensor([[1, 1], [3, -2], [0.5, 0.5], [1, -1], [0, 1], [2, 2], [0.1, 0.1]])
    states = torch.tensor([[1, 0], [1, 0.2], [0, 1], [-1, 0], [0.6, 0.8], [0, -1], [1, 1]])
    return replace(
        plain(5, 1, m=2),
        visual=states[:5],
        text=states[5:],
        visual_keys=keys[:5],
        text_keys=keys[5:],
        later=torch.tensor([True, True]),
    )


def test_dart_by_hand():
    signals = dart_signals()
    selection = choose(DART(keep=3, visual_pivots=1, text_pivots=1), signals, 3)
    assert selection.order.tolist() == [1, 3, 2]
    assert selection.scores.tolist() == pytest.approx([5, 0.9806, 1], abs=1e-4)


def test_dart_sees_directions_of_states_and_sizes_of_keys():
    signals = dart_signals()
    method = DART(keep=3, visual_pivots=1, text_pivots=1)
    longer = replace(signals, visual=signals.visual * torch.tensor([[3.0], [0.1], [7.0], [2.0], [5.0]]))
    assert choose(method, longer, 3).indices.tolist() == [1, 2, 3]
    louder = replace(signals, visual_keys=signals.visual_keys * torch.tensor([[9.0], [1], [1], [1], [1]]))
    assert 0 in choose(method, louder, 3).order.tolist()


@pytest.mark.parametrize(("keep", "original"), [(192, 196), (128, 132), (64, 68)])
def test_dart_keeps_four_more_if_it_is_to_be_faithful(keep, original):
    assert DART(keep=keep).stay(0, keep, 576, 32) == keep
    assert DART(keep=keep, faithful=True).stay(0, keep, 576, 32) == original


def test_dart_without_text_behind_the_image():
    signals = replace(plain(), later=torch.zeros(7, dtype=torch.bool))
    assert len(choose(DART(keep=9), signals, 9)) == 9


def test_sparsevlm_ranks_by_raters_and_recycles():
    signals = plain(seed=3)
    method = SparseVLM(keep=12)
    scores = method.scores(signals)
    visual, text = signals.visual_embeds, signals.text_embeds[2:]
    share = torch.softmax(visual @ text.T, 1).mean(0)
    rating = 2 + (share > share.mean()).nonzero()[:, 0]
    torch.testing.assert_close(scores, signals.attention[:, rating].mean((0, 1)))
    selection = choose(method, signals, 12)
    order = scores.argsort(descending=True)
    assert selection.rows.slots[:11].tolist() == sorted(order[:11].tolist())  # 25 are pruned: 8 of them make 1 cluster
    torch.testing.assert_close(selection.rows.values[:11], signals.hidden[selection.rows.slots[:11]])
    recycled = sorted(order[11:19].tolist())
    assert selection.rows.members[11] == recycled
    torch.testing.assert_close(selection.rows.values[11], signals.hidden[recycled].mean(0))


def test_sparsevlm_listens_to_the_whole_image_at_later_cuts():
    signals = plain(seed=4)
    survivors = replace(signals, all_embeds=signals.visual_embeds, visual_embeds=random(36, 16, seed=9), cut=1)
    assert torch.equal(SparseVLM(keep=4).scores(signals), SparseVLM(keep=4).scores(survivors))


def test_sparsevlm_stages():
    lists = SparseVLM(keep=64, match="layer-mean")
    assert lists.blocks(32, 2) == (3, 7, 16)
    assert [lists.stay(cut, 64, 576, 32) for cut in range(3)] == [82, 32, 18]
    plus = SparseVLM(keep=64, match="layer-mean", version="plus")
    assert [plus.stay(cut, 64, 576, 32) for cut in range(3)] == [66, 34, 20]
    assert SparseVLM(keep=64).stay(2, 64, 576, 32) == 64
    assert (lists.default_positions, plus.default_positions) == ("compact", "keep")
    assert plus.needs.gravity
    assert not lists.needs.gravity


def test_sparsevlm_plus_takes_gravity_out_and_the_best_heads():
    signals = plain(seed=5)
    method = SparseVLM(keep=6, version="plus")
    selection = choose(method, signals, 6)
    assert selection.rows is None
    assert selection.note == "without the correction for RoPE"
    flat = replace(signals, gravity=torch.ones(7, 36))
    assert choose(method, flat, 6).order.tolist() == selection.order.tolist()
    pull = torch.ones(7, 36)
    pull[:, 0] = 0.1
    corrected = method.scores(replace(signals, gravity=pull))
    assert corrected[0] > method.scores(flat)[0]
    assert choose(method, replace(signals, gravity=pull), 6).note == ""


def test_mmtok_by_hand():
    x = normalize(torch.tensor([[1, 0], [0.9, 0.1], [0, 1], [-1, 0]]), dim=1)
    signals = replace(plain(2, 2), visual=x, text_embeds=torch.tensor([[1.0, 0.0]]), text=torch.ones(1, 2))
    signals.vision.features = x
    selection = choose(MMTok(keep=3, temperature=0.5, text_temperature=0.5), signals, 3)
    assert selection.order.tolist() == [0, 3, 2]
    assert selection.scores.tolist() == pytest.approx([0.5958, 0.1047, 0.0751], abs=6e-5)
    assert float(selection.scores.sum()) == pytest.approx(0.7756, abs=1e-4)


def test_mmtok_covering_one_word_alone_ties_after_the_first_pick():
    signals = replace(plain(), text_embeds=random(1, 16), text=random(1, 16))
    selection = choose(MMTok(keep=4, alpha=0.0), signals, 4)
    first = int((normalize(signals.visual, dim=1) @ normalize(signals.text_embeds[0], dim=0)).argmax())
    rest = [i for i in range(36) if i != first]
    assert selection.order.tolist() == [first, *rest[:3]]
    assert selection.scores[1:].tolist() == [0, 0, 0]


def test_relevance_of_cdpruner_by_hand():
    cosine = torch.tensor([0.10, 0.20, 0.30, 0.15])
    torch.testing.assert_close(relevance(-cosine), torch.tensor([1, 0.5, 0, 0.75]), atol=1e-5, rtol=0)
    assert relevance(torch.full((3,), 0.2)).tolist() == [1, 1, 1]


def test_cdpruner_is_two_sided_dive_with_a_frozen_prompt_weight():
    signals = plain(8, 8, d=80, seed=6)
    selection = choose(CDPruner(keep=20, theta=0.6), signals, 20)
    cosine = (normalize(signals.visual, dim=1) @ normalize(signals.text_embeds, dim=1).T).mean(1)
    weight = torch.exp(1.5 * relevance(cosine))
    frozen = select(signals.visual, signals.text, 20, eta=1.0, two_sided=True, weight=weight)
    assert selection.order.tolist() == frozen.order.tolist()
    assert selection.note == "text: language-model embeddings, positive sign"


def test_cdpruner_without_a_prompt_is_diversity_alone():
    signals = replace(plain(), text_embeds=torch.zeros(0, 16), text=torch.zeros(0, 16))
    selection = choose(CDPruner(keep=5), signals, 5)
    assert selection.note == "text: none: no prompt, diversity alone"
    alone = select(signals.visual, signals.text, 5, lam=0.0, eta=1.0, two_sided=True)
    assert selection.order.tolist() == alone.order.tolist()


class Letters:
    """A tokenizer of single letters (ids are code points) that also reads words."""

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [ord(letter) for letter in text]}

    def decode(self, ids, skip_special_tokens=False):
        return "".join(chr(i) for i in ids)


def test_cdpruner_with_a_clip_text_tower():
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(0)
    small = {"hidden_size": 10, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = CLIPConfig(
        text_config=small | {"vocab_size": 200, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0},
        vision_config=small | {"image_size": 8, "patch_size": 4},
        projection_dim=6,
    )
    clip = CLIPModel(config).eval()
    prompt = "Is the cat on the mat? " * 4
    signals = replace(plain(), ids=torch.tensor([ord(c) for c in prompt]), later=None)
    method = CDPruner(keep=5, text_model=clip, text_tokenizer=Letters(), tokenizer=Letters())
    assert method.needs.vision == ("features",)
    selection = choose(method, signals, 5)
    assert selection.note == "text: CLIP text tower, negative sign"
    assert len(selection) == 5
    assert len(prompt) > 77  # two segments
    with pytest.raises(ValueError, match="text_model must be given with text_tokenizer and tokenizer"):
        CDPruner(keep=5, text_model=clip)


def test_resprune_without_relevance_is_two_sided_dive():
    signals = plain(8, 8, d=80, seed=2)
    selection = choose(ResPrune(keep=15, alpha=0.0), signals, 15)
    plainly = select(signals.visual, signals.text, 15, lam=0.0, eta=1.0, two_sided=True, normalize=False)
    assert selection.order.tolist() == plainly.order.tolist()


def test_resprune_prefers_what_the_words_name():
    signals = plain(seed=7)
    word = signals.visual[11:12]
    selection = choose(ResPrune(keep=5, alpha=40.0), replace(signals, text=word, text_embeds=word), 5)
    assert selection.order[0] == 11
