"""Recipes run on a model of one's own, and put what they measure beside what the paper prints."""

import json
from importlib.util import find_spec

import pytest

from divevlm.cli import main
from divevlm.experiments import measured, results
from divevlm.experiments.recipe import recipe
from divevlm.experiments.settings import Setting


@pytest.fixture
def command(micro, tmp_path, capsys):
    def run(*arguments, model=micro):
        given = [] if model is None else ["--model", model]
        code = main([*arguments, *given, "--limit", "1", "--out", str(tmp_path), "--json"])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return json.loads(captured.out)

    return run


def test_the_list_names_every_recipe(capsys):
    assert main(["reproduce", "--list"]) == 0
    assert "Main results on LLaVA-1.5-7B" in capsys.readouterr().out
    assert main(["reproduce", "--list", "--json"]) == 0
    rows = {row["recipe"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert len(rows) == 19
    assert rows["table13"]["budgets"] == [640, 320, 160]
    assert len(rows["table14"]["misfits"]) == 7


def test_a_table_is_measured_beside_printed(command, tmp_path):
    result = command("reproduce", "table8")
    rows = {row["printed_as"]: row for row in result["rows"]}
    assert list(rows) == ["Vanilla", "w/o L-G", "w/o V-C", "No update", "DIVE"]
    assert rows["DIVE"]["keep"] == 64  # of 576, as 320 of 2880
    assert rows["DIVE"]["budget"] == 320
    assert rows["DIVE"]["printed"]["average"] == 91.04
    assert rows["DIVE"]["printed"]["Throughput"] == 1.56
    assert len(rows["DIVE"]["scores"]) == 8
    text = (tmp_path / "table8.md").read_text()
    assert "not the paper's models" in text
    assert "| DIVE | 320 | 64 | 91.04 |" in text
    assert (tmp_path / "table8.csv").read_text().count("\n") == 6
    assert json.loads((tmp_path / "table8.json").read_text()) == result


def test_the_summary_puts_averages_of_four_tables_side_by_side(command, tmp_path):
    rows = command("reproduce", "table2")["rows"]
    assert len(rows) == 4 * 12
    assert {row["printed"] for row in rows if row["method"] == "DIVE"} >= {100.3, 87.2}
    assert "LLaVA-NeXT-13B 160" in (tmp_path / "table2.md").read_text()


def test_efficiency_has_times_and_caches(command):
    rows = {row["printed_as"]: row for row in command("reproduce", "table5")["rows"]}
    assert rows["Vanilla"]["speedup"] == 1
    assert rows["VisionZip"]["kv_mb"] < rows["DIVE"]["kv_mb"] < rows["Vanilla"]["kv_mb"]
    assert rows["DIVE"]["printed"]["Speed-up, total"] == 1.68
    assert all(0 < row["prefill_total"] <= row["total"] for row in rows.values())


def test_the_feedback_figure(command, tmp_path):
    result = command("reproduce", "figure4")
    assert [row["updates"] for row in result["runtime"]] == [0, 2, 4, 8, 16, 32, 64]
    assert result["runtime"][0]["overhead_ms"] == 0
    assert result["printed"]["prefill_overhead_ms"] == 13.6
    assert {row["keep"] for row in result["rows"] if row["method"] != "vanilla"} == {64, 128, 192}
    assert len(result["feedback"]) == 7
    for name in result["files"]:
        assert (tmp_path / name).stat().st_size > 1000


@pytest.mark.parametrize(("name", "files"), [("figure5", 2), ("figure6", 2), ("figure7", 6)])
def test_pictures(command, tmp_path, name, files):
    result = command("reproduce", name)
    assert len(result["files"]) == files
    assert all((tmp_path / file).stat().st_size > 1000 for file in result["files"])
    assert all(row["question"] and "DIVE" in row["answers"] for row in result["rows"])


def test_an_embedded_model_that_is_not_shipped_is_told(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("divevlm.tiny.available", lambda: ["llava"], raising=False)
    assert main(["reproduce", "table3", "--out", str(tmp_path)]) == 2
    assert (
        "model must be given with --model where it is not shipped (shipped: llava), got 'qwen2vl'"
        in capsys.readouterr().err
    )
    assert main(["reproduce", "table33", "--out", str(tmp_path)]) == 2
    assert "recipe must be one of table1" in capsys.readouterr().err


def test_full_scale_reads_lmms_evals_metrics():
    of = recipe("table6")
    metrics = {
        "gqa": {"exact_match": 0.597}, "mme": {"mme_perception_score": 1461.0, "mme_cognition_score": 300.0},
        "pope": {"pope_f1_score": 0.857}, "scienceqa_img": {"exact_match": 0.692},
        "textvqa_val": {"exact_match": 0.564}, "ocrbench": {"ocrbench_accuracy": 0.285},
    }  # fmt: skip
    full = {task: {name: 2 * value for name, value in found.items()} for task, found in metrics.items()}
    entries = {
        "vanilla": {"method": "vanilla", "keep": 0, "tasks": full},
        "dive 64": {"method": "dive", "keep": 64, "tasks": metrics},
    }
    _, dive = measured.full_scores({"benchmarks": entries}, of)
    assert dive["relative"] == pytest.approx(50)
    assert dive["scores"] == pytest.approx(of.row("DIVE", 64).scores)
    table = measured.Measured(of, [dive], {"dive": "DIVE"}, {64: 64}, {}, True).table()
    assert table[0][6:8] == ["GQA printed", "GQA"]
    assert table[1][0][6:10] == ["59.7", "59.7", "1761", "1761.0"]


def test_rows_compare_what_all_settings_have_and_average_relatively():
    def record(method, keep, task, sample, score):
        return {"method": method, "keep": keep, "task": task, "sample": sample, "score": score}

    records = [record("vanilla", 0, task, str(i), 1.0) for task in "ab" for i in range(4)]
    records += [record("dive", 8, "a", str(i), float(i > 0)) for i in range(4)]
    records += [record("dive", 8, "b", str(i), 1.0) for i in range(2)]  # not finished
    vanilla, dive = results.rows(records, [Setting("vanilla", 0), Setting("dive", 8)], ["a", "b"])
    assert vanilla["n"] == dive["n"] == {"a": 4, "b": 2}
    assert dive["scores"] == {"a": 75, "b": 100}
    assert dive["relative"] == pytest.approx(87.5)
    assert dive["relative_error"] == pytest.approx(100 * (0.75 * 0.25 / 4) ** 0.5 / 2)
    assert vanilla["relative_error"] == 0


@pytest.mark.parametrize(
    ("what", "rows", "figure"),
    [
        ("feedback", 7, "rgl"),
        ("redundancy", 22, "redundancy"),
        ("runtime", 7, "overhead_ms"),
        ("sensitivity", 16, "likelihood"),
        ("ablation", 15, "likelihood"),
        ("positions", 9, "likelihood"),
        ("placement", 9, "kv"),
        ("energy", 65, "visual"),
    ],
)
def test_analyses(command, tmp_path, what, rows, figure):
    result = command("analyze", what, "--tasks", "existence,reading")
    assert len(result["rows"]) == rows
    assert figure in result["rows"][-1]
    assert (tmp_path / f"{what}.md").exists()
    assert all((tmp_path / name).exists() for name in result.get("files", []))
    if what == "feedback":
        assert sum(row["rgl"] for row in result["rows"]) == pytest.approx(0, abs=1)  # means of ratios to a common mean
    if what == "energy":
        assert result["rows"][0]["visual"] == 1
        assert all(a["visual"] >= b["visual"] for a, b in zip(result["rows"], result["rows"][1:], strict=False))


@pytest.mark.skipif(find_spec("lmms_eval") is not None, reason="lmms-eval is installed")
def test_analyses_on_benchmarks_need_lmms_eval(capsys, tmp_path):
    assert main(["analyze", "ablation", "--tasks", "pope", "--out", str(tmp_path)]) == 2
    assert "tasks pope need lmms-eval: pip install 'divevlm[eval]'" in capsys.readouterr().err
