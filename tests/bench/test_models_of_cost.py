"""The two small measurements behind docs/selection-on-a-gpu.md."""

from pathlib import Path

import pytest
from divevlm_tiny import available

from divevlm.bench import cost
from divevlm.bench.selection import SelectionShape
from training import precision

DOCS = Path(__file__).parents[2] / "docs" / "selection-on-a-gpu.md"


def test_the_tables_in_the_docs_are_what_the_command_prints():
    assert all(part in DOCS.read_text() for part in cost.table().split("\n\n"))


def test_a_loop_costs_more_for_more_picks_and_fewer_launches_cost_less():
    for card in cost.CARDS:
        for kind in ("eager", "graph", "triton"):
            few, many = (cost.loop(SelectionShape(576, 4096, 40, keep), card, kind) for keep in (64, 192))
            assert many > 2.9 * few
        one = SelectionShape(576, 4096, 40, 64)
        assert cost.loop(one, card, "triton") < cost.loop(one, card, "graph") < cost.loop(one, card, "eager")


@pytest.mark.skipif("llava" not in available(), reason="the embedded model is not in this copy")
def test_picks_of_rounded_states_are_compared_with_those_of_float64():
    rows = {row["states"]: row for row in precision.measure("llava", 8, 16)}
    assert list(rows) == list(precision.DTYPES)
    assert {row["selections"] for row in rows.values()} == {rows["float64"]["selections"]} != {0}
    exact = rows["float64"]
    assert exact["other order"] == exact["other tokens"] == exact["answers that turn"] == 0
    assert exact["tokens differ by rounding the states"] == 0
    assert rows["bfloat16"]["tokens differ by rounding the states"] > 0
