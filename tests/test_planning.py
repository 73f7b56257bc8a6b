"""Matched budgets: the numbers of the spec through `divevlm.plan`."""

import pytest
from transformers import LlavaConfig, LlavaNextConfig, Qwen2VLConfig

import divevlm
from divevlm.methods import METHODS
from divevlm.methods.dart import DART
from divevlm.planning import ModelShape


def plans(method, keeps=(192, 128, 64), **settings):
    return [divevlm.plan(method, keep=keep, **settings) for keep in keeps]


@pytest.mark.parametrize("method", ["fastv", "dive", "dart"])
def test_a_cut_at_block_2(method):
    final = plans(method)
    assert [plan.final for plan in final] == [192, 128, 64]
    assert [plan.mean for plan in final] == [216, 156, 96]
    mean = plans(method, match="layer-mean")
    assert [plan.final for plan in mean] == [166, 98, 30]
    assert [plan.method.keep for plan in mean] == [166, 98, 30]
    assert mean[2].tokens_per_layer == [576] * 2 + [30] * 30
    assert mean[2].keep == 64


def test_fastv_elsewhere():
    assert [plan.final for plan in plans("fastv", match="layer-mean", layer=3)] == [152, 82, 11]
    assert [plan.final for plan in plans("fastv", match="layer-mean", layers=40)] == [172, 104, 37]
    shares = plans("fastv", (1 / 3, 0.25, 0.2222, 0.15), match="layer-mean", layers=28, tokens=10**6)
    assert [plan.final / 10**6 for plan in shares] == pytest.approx([0.2821, 0.1923, 0.1624, 0.0846], abs=6e-5)


def test_sparsevlm_lists():
    found = plans("sparsevlm", (192, 128, 96, 64), match="layer-mean")
    assert [plan.details["kept"] for plan in found] == [[300, 200, 110], [303, 110, 36], [238, 48, 26], [66, 30, 17]]
    assert [plan.details["stages"] for plan in found] == [[309, 204, 113], [312, 117, 39], [249, 55, 27], [82, 32, 18]]
    assert [plan.mean for plan in found] == pytest.approx([206.5, 145.4, 114.1, 82.3], abs=0.06)
    assert [plan.leaving_mean for plan in found] == pytest.approx([192.0, 128.6, 96.9, 64.8], abs=0.06)
    plus = plans("sparsevlm", (192, 128, 96, 64), match="layer-mean", version="plus")
    assert [plan.mean for plan in plus] == pytest.approx([206.8, 144.1, 113.9, 81.8], abs=0.06)
    assert found[0].details["after"] == [2, 6, 15]
    assert divevlm.plan("sparsevlm", keep=64, layers=40).details["after"] == [3, 8, 19]
    assert divevlm.plan("sparsevlm", keep=64, layers=28).details["after"] == [2, 5, 13]
    assert divevlm.plan("sparsevlm", keep=64).final == 64


def test_pdrop_ladders():
    found = plans("pdrop", match="layer-mean")
    assert [plan.details["ratio"] for plan in found] == [0.5596, 0.4197, 0.1916]
    assert [plan.details["stages"] for plan in found] == [[322, 180, 100], [241, 101, 42], [110, 21, 4]]
    assert [plan.mean for plan in found] == pytest.approx([191.4, 127.4, 63.9], abs=0.06)
    deep = plans("pdrop", match="layer-mean", layers=40)
    assert [plan.details["ratio"] for plan in deep] == pytest.approx([0.5920, 0.4634, 0.2547], abs=1.1e-4)
    shares = plans("pdrop", (1 / 3, 0.25, 0.2222, 0.15), match="layer-mean", layers=28, tokens=10**6)
    assert [plan.details["ratio"] for plan in shares] == pytest.approx([0.5348, 0.4293, 0.3873, 0.2510], abs=1e-4)
    authors = divevlm.plan("pdrop", keep=72, cuts=(8, 16, 24))
    assert authors.details == {"cuts": [8, 16, 24], "stages": [288, 144, 72], "ratio": 0.5}
    assert authors.mean == 270
    assert divevlm.plan("pdrop", keep=72, cuts=(8, 16, 24), layers=40).mean == pytest.approx(230.4)
    listed = divevlm.plan("pdrop", keep=1, cuts=(8, 16, 24), ratios=(0.5, 0.25, 0.125))
    assert listed.tokens_per_layer == authors.tokens_per_layer


def test_dart_counts():
    assert [plan.details for plan in plans("dart")] == [
        {"pivots": 4, "each": 23, "one more for": 4},
        {"pivots": 4, "each": 15, "one more for": 4},
        {"pivots": 4, "each": 7, "one more for": 4},
    ]
    assert [divevlm.plan(DART(keep=keep, faithful=True)).final for keep in (192, 128, 64)] == [196, 132, 68]


def test_visionzip_splits():
    splits = [(plan.details["dominant"], plan.details["contextual"]) for plan in plans("visionzip")]
    assert splits == [(162, 30), (108, 20), (54, 10)]
    views = plans("visionzip", (640, 320, 160), model=LlavaNextConfig())
    assert [(p.details["dominant"], p.details["contextual"], p.details["views"]) for p in views] == [
        (108, 20, 5),
        (54, 10, 5),
        (27, 5, 5),
    ]


def test_smaller_images_have_whole_rows_and_columns():
    assert [plan.final for plan in plans("downsample")] == [182, 121, 64]
    assert [plan.details["grid"] for plan in plans("downsample")] == [[13, 14], [11, 11], [8, 8]]


def test_methods_that_work_in_the_tower_are_refused_where_they_cannot():
    assert divevlm.plan("tome", LlavaNextConfig(), keep=64).final == 64  # merges at the entry
    for method in ("downsample", "tome:where=tower"):
        with pytest.raises(
            ValueError, match=f"^method must be one that works outside .*, got '{method.split(':')[0]}'"
        ):
            divevlm.plan(method, LlavaNextConfig(), keep=64)


def test_methods_before_the_language_model_have_one_count_everywhere():
    for match in ("final", "layer-mean"):
        plan = divevlm.plan("scope", keep=64, match=match)
        assert plan.tokens_per_layer == [64] * 32
        assert plan.final == plan.mean == plan.leaving_mean == 64


def test_costs():
    vanilla = divevlm.plan("vanilla", keep=64)
    assert vanilla.flops_share == vanilla.kv_share == 1
    n, d, m = 640, 4096, 11008
    assert vanilla.flops == 2 * 32 * (4 * n * d**2 + 2 * n**2 * d + 3 * n * d * m)
    pruned = divevlm.plan("cdpruner", keep=64)
    assert pruned.kv_share == 128 / 640
    n = 128
    assert pruned.flops == 2 * 32 * (4 * n * d**2 + 2 * n**2 * d + 3 * n * d * m)
    assert divevlm.plan("fastv", keep=64).kv_share == (2 * 640 + 30 * 128) / (32 * 640)


def test_shapes_of_models():
    llava = LlavaConfig()
    assert ModelShape.of(llava) == ModelShape()
    assert ModelShape.of(LlavaNextConfig()).tokens == 2880
    assert ModelShape.of(llava, tokens=100, text=3) == ModelShape(tokens=100, text=3)
    with pytest.raises(ValueError, match="tokens must be given for qwen2_vl"):
        ModelShape.of(Qwen2VLConfig())
    assert ModelShape.of(Qwen2VLConfig(), tokens=50).tokens == 50
    with pytest.raises(ValueError, match="model must be of the families"):
        ModelShape.of(object())
    with pytest.raises(ValueError, match="got './nowhere': no such folder"):
        ModelShape.of("./nowhere")


@pytest.mark.parametrize("match", ["final", "layer-mean"])
@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_has_a_plan(name, match):
    for keep in (64, 0.25, 576):
        plan = divevlm.plan(name, keep=keep, match=match)
        assert len(plan.tokens_per_layer) == 32
        assert plan.tokens_per_layer[-1] == plan.final
        assert plan.method.name == plan.name == name
        assert str(plan.final) in str(plan)
        assert plan.to_dict()["setting"]["keep"] == plan.method.keep
        if match == "layer-mean" and name not in ("sparsevlm", "downsample"):
            assert plan.mean == pytest.approx(plan.keep, abs=0.8)
        again = divevlm.plan(plan.method, match=match) if hasattr(plan.method, "match") else divevlm.plan(plan.method)
        assert again.tokens_per_layer == plan.tokens_per_layer


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep": 20, "match": "layer-mean"}, "keep must be between 36.94 and 576 as a mean with a cut at block 2"),
        ({"keep": 64, "match": "mean"}, "match must be 'final' or 'layer-mean'"),
        ({"keep": 64, "layer": 32}, "layer must be below the 32 blocks"),
        ({"keep": 64, "layers": 0}, "layers must be a whole number of at least 1"),
        ({}, "keep must be a count of at least 1"),
    ],
)
def test_plans_that_cannot_be(settings, message):
    with pytest.raises(ValueError, match=message):
        divevlm.plan("fastv", **settings)
