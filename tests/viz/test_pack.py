"""What goes on an explorer page, and how small it is kept."""

import base64
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from divevlm.core.select import select
from divevlm.core.selection import Trace
from divevlm.viz.asking import ask
from divevlm.viz.explorer import page_of, settings
from divevlm.viz.pack import LIMIT, _bytes, _maps, _ranges, kept_steps, longest, pack
from tests.zoo import build, picture


def test_maps_are_rounded_to_a_byte_of_the_largest_value_of_their_step():
    values = torch.rand(5, 40, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [[1.0], [0.01], [0.0], [7.0], [1e-4]]
    )
    packed = _bytes(values)
    small = np.frombuffer(base64.b64decode(packed["bytes"]), np.uint8).reshape(5, 40)
    back = small * np.array(packed["scales"])[:, None] / 255
    largest = values.amax(dim=1, keepdim=True).numpy()
    assert (np.abs(back - values.numpy()) <= largest / 500 + 1e-12).all()


def test_runs_of_tokens():
    assert _ranges([3, 4, 5, 9, 11, 12]) == [[3, 3], [9, 1], [11, 2]]
    assert _ranges([]) == []


def drawn_trace(n, k, m=8):
    gen = torch.Generator().manual_seed(0)
    picks = select(torch.randn(n, 16, generator=gen), torch.randn(m, 16, generator=gen), k, trace=True)
    return picks.trace, picks.order.tolist()


def test_all_steps_are_kept_where_they_fit_and_spread_where_not():
    trace, _ = drawn_trace(60, 20)
    assert kept_steps(trace, LIMIT) == list(range(20))
    few = kept_steps(trace, 60 * 4 * 5 * 4 // 3)
    assert few[0] == 0
    assert few[-1] == 19
    assert len(few) == 5


def test_scores_that_never_change_are_kept_once():
    gen = torch.Generator().manual_seed(0)
    picks = select(torch.randn(60, 16, generator=gen), torch.randn(8, 16, generator=gen), 20, updates=0, trace=True)
    assert kept_steps(picks.trace, LIMIT) == [0]


def test_high_resolution_stays_small():
    ones = torch.rand(320, 2880, generator=torch.Generator().manual_seed(0))
    energy = torch.rand(321, 2880, generator=torch.Generator().manual_seed(1))
    trace = Trace(ones, ones, energy, torch.rand(321, 60))
    text = json.dumps(_maps(trace, list(range(2880)), list(range(320)), LIMIT))
    assert len(text) < 1.05 * LIMIT


def test_budgets_that_are_a_beginning_of_a_larger_one_share_its_maps(asked_image):
    data = pack(asked_image)
    runs = {run["label"]: run for run in data["runs"]}
    assert runs["dive 16"]["trace"] == runs["dive 64"]["trace"]
    assert runs["dive 64, lam 0"]["trace"] != runs["dive 64"]["trace"]
    assert runs["random 64"]["trace"] is None
    assert len(data["traces"]) == 4  # dive, lambda 0, eta 1, frozen


@pytest.mark.parametrize(
    ("keeps", "walked", "stored"),
    [
        ([64, 0.05], {"dive 64": 64, "dive 0.05": 29}, 1),  # a share may be less than a count
        ([0.5, 16], {"dive 0.5": 288, "dive 16": 16}, 1),
        ([576, 16], {"dive 16": 16}, 1),  # where all stay there is nothing to walk, but at 16 there is
        ([1.0, 600], {}, 0),
    ],
)
def test_every_budget_below_all_tokens_can_be_walked(keeps, walked, stored):
    entry = build("llava_576")
    runs = settings(["dive"], keeps)
    data = pack(ask(entry.model, entry.processor, "What?", [picture(3, 300, 200)], runs, max_new_tokens=1))
    found = {run["label"]: run for run in data["runs"] if run["trace"] is not None}
    assert {label: run["keep"] for label, run in found.items()} == walked
    for run in found.values():
        (segment,), (maps,) = run["segments"], data["traces"][run["trace"]]
        assert maps["order"][: len(segment["order"])] == segment["order"]
    assert len(data["traces"]) == stored
    assert {run["label"] for run in data["runs"] if run["all"]} == {run["label"] for run in data["runs"]} - set(walked)
    assert len(page_of(data)) < 3_000_000


def test_maps_are_shared_by_equal_settings_only(asked_image):
    """Two runs with the same picks and another rule: each has its own maps."""
    answer = next(answer for answer in asked_image.answers if answer.label == "dive 64")
    other = replace(answer, method=replace(answer.method, feedback="all"))
    assert longest([answer, other]) == [answer, other]
    assert longest([answer, replace(answer, label="again")]) == [answer]


def test_settings_of_a_page():
    labels = [label for label, _ in settings(["dive", "fastv"], [8, 4], [0.0, 1.5], [0.8])]
    assert labels == ["dive 8", "dive 8, lam 0", "dive 4", "dive 4, lam 0", "fastv 8", "fastv 4"]
    with pytest.raises(ValueError, match="did you mean 'dive'"):
        list(settings(["divee"], [8]))


def test_no_tag_and_no_missing_number_gets_into_the_data():
    html = page_of({"question": "</script><!--<script>&"})
    data = html.split('id="data">')[1].split("</script>")[0]
    assert not set("<>&") & set(data)
    assert json.loads(data)["question"] == "</script><!--<script>&"
    with pytest.raises(ValueError, match="not JSON compliant"):
        page_of({"value": float("nan")})
