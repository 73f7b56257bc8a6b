"""The checked-in recipes hold what the paper prints, and its averages are recomputed from its cells."""

import re
from pathlib import Path

import pytest

from divevlm import DIVE
from divevlm.experiments.paper.consistency import misfits
from divevlm.experiments.paper.recipe import benchmarks, names, recipe
from divevlm.methods import method_of, parse

PAPER = Path(__file__).parents[3] / "shared" / "paper.tex"
SCORES = [name for name in names() if recipe(name).kind == "scores"]

# sums of all printed averages and of all cells: a digit that changes by accident shows here, also without the paper at hand
CHECKSUMS = {
    "table1": (19, 1779.65, 44011.8),
    "table2": (4, 0, 4368.2),
    "table3": (9, 860.8, 22233.4),
    "table4": (9, 845.1, 2465.3),
    "table5": (5, 0, 13515.78),
    "table6": (5, 451.06, 10755.99),
    "table7": (16, 1550.98, 37086.1),
    "table8": (5, 438.01, 11411.72),
    "table9": (11, 1049.7, 27165.6),
    "table10": (13, 1275.01, 30412.2),
    "table11": (4, 381.0, 1109.8),
    "table12": (13, 1241.3, 39993.7),
    "table13": (13, 1147.5, 38844.9),
    "table14": (13, 1148.1, 40258.8),
    "figure3": (0, 0, 0),
    "figure4": (0, 0, 0),
    "figure5": (0, 0, 0),
    "figure6": (0, 0, 0),
    "figure7": (0, 0, 0),
}
# averages that the printed cells, taken as exact, do not round to; other than in table 14 rounding of the cells explains them
OFF = {
    ("table1", "DIVE", 64): (98.21, 98.237),
    ("table7", "eta=0.5", 64): (96.65, 96.643),
    ("table7", "h=M", 64): (96.68, 96.670),
    ("table14", "DIVE", 640): (94.4, 94.844),
    ("table14", "DIVE", 320): (91.2, 92.004),
    ("table14", "DIVE", 160): (87.2, 87.985),
}
MISFITS = [
    "table2, DIVE at 0, LLaVA-1.5-7B 192: printed 100.3, the cells give 100.37 (+- 0.06)",
    "table14, DIVE at 640, average: printed 94.4, the cells give 94.84 (+- 0.18)",
    "table14, DIVE at 320, average: printed 91.2, the cells give 92.00 (+- 0.18)",
    "table14, DIVE at 160, average: printed 87.2, the cells give 87.99 (+- 0.18)",
    "table14, DIVE at 640, OCR: printed 82.2, the cells give 84.03 (+- 0.22)",
    "table14, DIVE at 640, VizWiz: printed 94, the cells give 94.99 (+- 0.21)",
    "table14, DIVE at 320, OCR: printed 71.9, the cells give 77.31 (+- 0.21)",
    "table14, DIVE at 160, OCR: printed 59.7, the cells give 65.15 (+- 0.20)",
]


def test_every_table_and_figure_is_there():
    assert names() == [*(f"table{i}" for i in range(1, 15)), *(f"figure{i}" for i in range(3, 8))]
    with pytest.raises(ValueError, match="recipe must be one of table1, .* got 'table15'"):
        recipe("table15")


@pytest.mark.parametrize("name", names())
def test_cells_are_what_was_transcribed(name):
    rows = recipe(name).rows
    found = (
        len(rows),
        round(sum(row.average or 0 for row in rows), 2),
        round(sum(sum(row.scores.values()) + sum(row.extra.values()) + sum(row.relative.values()) for row in rows), 2),
    )
    assert CHECKSUMS[name] == found


@pytest.mark.skipif(not PAPER.exists(), reason="the paper is not beside the checkout")
@pytest.mark.parametrize("name", [name for name in names() if name.startswith("table")])
def test_cells_are_those_of_the_paper(name):
    """All numbers of a table in the order of the source, whatever stands around them."""
    of = recipe(name)
    source = PAPER.read_text()
    end = source.index(rf"\label{{{of.settings['label']}}}")
    table = source[source.rindex(r"\begin{table", 0, end) : end]
    table = table[table.index(r"\midrule") : table.index(r"\bottomrule")]
    printed = []
    for line in re.split(r"\\\\\s*\n", table):
        body = line[line.rindex(r"\midrule") :] if r"\midrule" in line else line
        if "&" not in body or "multicolumn" in body or "cmidrule" in body:
            continue
        _, *cells = re.sub(r"\$\\times\$|\\%|\\(twoLineCell|textbf|textit|underline)|[{}]", " ", body).split("&")
        printed += [
            _seconds(text)
            for cell in cells
            for text in re.findall(r"\d+:\d+|\d+\.?\d*", re.sub(r"[A-Z][A-Za-z]+2\d", "", cell))
        ]
    wanted = []
    for row in of.rows:
        for column, score in row.scores.items():
            wanted += [score, row.relative[column]] if row.relative else [score]
        wanted += [row.average] if row.average is not None else []
        wanted += row.extra.values()
    assert printed == wanted


def _seconds(text):
    minutes, _, seconds = text.rpartition(":")
    return 60 * int(minutes) + int(seconds) if minutes else float(text)


@pytest.mark.parametrize("name", SCORES)
def test_printed_averages_follow_from_printed_cells(name):
    of = recipe(name)
    for row in of.rows:
        computed = of.average(row)
        if (name, row.method, row.budget) in OFF:
            assert OFF[name, row.method, row.budget] == (row.average, round(computed, 3))
        else:
            assert row.average == pytest.approx(computed, abs=of.settings["average_step"] / 2 + 1e-9)


def test_what_does_not_fit_is_known():
    assert [str(one) for name in names() for one in misfits(recipe(name))] == MISFITS


def test_averages_of_table_14_fit_its_percentages_instead():
    of = recipe("table14")
    for row in of.rows:
        assert sum(row.relative.values()) / 7 == pytest.approx(row.average, abs=0.1)


def test_the_same_setting_has_two_results_in_tables_6_and_7():
    without, zero = recipe("table6").row("w/o L-G", 64), recipe("table7").row("lambda=0.0", 64)
    assert (without.average, zero.average) == (96.13, 96.46)


def test_rows_that_two_tables_share_agree():
    for first, second, budgets in (("table3", "table9", (0.333, 0.222)), ("table1", "table10", (192, 128, 64))):
        one, two = recipe(first), recipe(second)
        for budget in budgets:
            shared = set(one.columns) & set(two.columns)
            a, b = one.row("DIVE", budget).scores, two.row("DIVE", budget).scores
            assert {c: a[c] for c in shared} == {c: b[c] for c in shared}
    next7, ablation = recipe("table13").row("DIVE", 320).scores, recipe("table8").row("DIVE", 320).scores
    assert all(next7[column] == score for column, score in ablation.items())


@pytest.mark.parametrize("name", names())
def test_recipes_can_be_run(name):
    of = recipe(name)
    for method in of.methods:
        for full in (True, False):
            assert parse(of.run_as(method, full))[0]
    if of.kind in ("scores", "efficiency"):
        assert {row.method for row in of.rows} == set(of.methods)
        assert set(of.settings["embedded"]["keep"]) == {str(budget) for budget in of.budgets}
    if of.kind == "scores":
        assert set(of.columns) <= set(benchmarks())


def test_the_papers_settings_are_the_defaults():
    for name in names():
        given = recipe(name).settings.get("dive", {"lam": 1.5})
        assert all(getattr(DIVE(keep=1), key) == value for key, value in given.items() if key != "layer")
        assert given.get("layer", 2) == family_layer()


def family_layer():
    from divevlm.models import FAMILIES

    (layer,) = {FAMILIES.get(name).default_layer for name in ("llava", "llava_next", "llava_onevision", "qwen2_vl")}
    return layer


def test_speed_ups_of_table_5_follow_from_its_times():
    of = recipe("table5")
    for row in of.rows:
        for kind, column in (("total", "Total"), ("prefill", "Prefill")):
            ratio = of.vanilla.scores[column] / row.scores[column]
            assert row.scores[f"Speed-up, {kind}"] == pytest.approx(ratio, abs=0.005)


def test_at_the_embedded_scale_no_method_renumbers_positions():
    of = recipe("table1")
    runs = {method: of.run_as(method, full=False) for method in of.methods}
    assert runs["VisionZip"] == "visionzip:positions=keep"
    assert runs["DIVE"] == "dive"
    for name in names():
        for method in recipe(name).methods.values():
            if method != "vanilla":
                chosen, settings = parse(recipe(name).run_as(_printed(name, method), full=False))
                ready = method_of(chosen, 4, settings)
                assert (ready.positions or ready.default_positions) == "keep"
    assert of.run_as("VisionZip", full=True) == "visionzip"


def _printed(name, method):
    return next(label for label, run in recipe(name).methods.items() if run == method)
