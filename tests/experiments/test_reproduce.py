"""Recipes run on a model of one's own, and put what they measure beside what the paper prints."""

import csv
import json
import re
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from divevlm.cli import main
from divevlm.experiments import results, tasks
from divevlm.experiments.analysis import figures
from divevlm.experiments.analysis.analyses import ANALYSES
from divevlm.experiments.journal import read
from divevlm.experiments.paper import comparison, efficiency
from divevlm.experiments.paper.recipe import names, recipe
from divevlm.experiments.runner import Run
from divevlm.experiments.settings import Setting

ROOT = Path(__file__).parents[2]
RECIPE_FILES = [path for path in sorted((ROOT / "results").rglob("*.json")) if path.stem in names()]


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    """Answers of random weights have no end: two words of them are enough."""

    def read(name):
        of = recipe(name)
        of.settings.update({"new_tokens": 2} if "new_tokens" in of.settings else {})
        return of

    monkeypatch.setattr("divevlm.experiments.paper.reproduce.Run", partial(Run, new_tokens=2))
    monkeypatch.setattr("divevlm.experiments.paper.reproduce.recipe", read)


def table(path):
    """Lines of a result file, by their first cell; heads appear once."""
    head, *lines = csv.reader(path.read_text().splitlines())
    assert len(set(head)) == len(head)
    return {line[0]: dict(zip(head, line, strict=True)) for line in lines}


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
    assert rows["Vanilla"]["throughput"] == 1
    assert all(row["samples_per_second"] > 0 for row in rows.values())
    shown = table(tmp_path / "table8.csv")["DIVE"]
    assert shown["throughput printed, x vanilla"] == "1.56"
    assert shown["measured (first 8 questions, nothing shared)"] == f"{rows['DIVE']['throughput']:.2f}"
    alone = tmp_path / "table8-unshared"
    assert json.loads((alone / "run.json").read_text())["shared"] is False
    assert len(list(read(alone / "samples.jsonl"))) == 5 * 8
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


def test_efficiency_has_times_and_caches(command, tmp_path):
    rows = {row["printed_as"]: row for row in command("reproduce", "table5")["rows"]}
    assert rows["Vanilla"]["speedup"] == 1
    assert rows["VisionZip"]["kv_mb"] < rows["DIVE"]["kv_mb"] < rows["Vanilla"]["kv_mb"]
    assert rows["DIVE"]["printed"]["Speed-up, total"] == 1.68
    assert all(0 < row["prefill_total"] <= row["total"] for row in rows.values())
    shown = table(tmp_path / "table5.csv")["DIVE"]
    printed = ("total, s", "prefill, s", "GPU memory, GB", "KV, MB", "yes F1", "speed-up", "speed-up of prefill")
    values = [shown[f"{name} printed"] for name in printed]
    assert values == ["1147", "615", "13.48", "78.85", "85.7", "1.68", "2.26"]
    assert all(shown[name] for name in printed if name != "GPU memory, GB")
    assert shown["GPU memory, GB"] == ""  # on a CPU nobody knows
    assert rows["DIVE"]["peak_gb"] is None


class Gpu:
    """A stand-in for torch.cuda's counter: what is in use at most since the last reset."""

    def __init__(self, monkeypatch):
        self.peak = 0
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: self.use(-self.peak))
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.peak)

    def use(self, amount):
        self.peak += amount


def test_memory_is_the_peak_of_each_setting_by_itself(monkeypatch, micro, tmp_path):
    gpu = Gpu(monkeypatch)
    device = torch.device("cuda:0")
    assert [efficiency.peak_memory(device, partial(gpu.use, n * 2**30)) for n in (3, 1, 2)] == [3, 1, 2]
    assert efficiency.peak_memory(torch.device("cpu"), partial(gpu.use, 2**30)) is None
    run = Run(micro, ("dive",), (64,), tmp_path, ("existence",), limit=1, new_tokens=1)
    assert efficiency.peaks(run) == {}
    loaded = run.load()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(efficiency, "peak_memory", lambda device, work: work() or 4.0)
    assert efficiency.peaks(run, loaded) == {Setting("vanilla", 0): 4.0, Setting("dive", 64): 4.0}


def test_the_feedback_figure(command, tmp_path):
    result = command("reproduce", "figure4")
    assert [row["updates"] for row in result["runtime"]] == [0, 2, 4, 8, 16, 32, 64]
    assert result["runtime"][0]["overhead_ms"] == 0
    shown = table(tmp_path / "figure4.csv")
    heads = ("over no update, ms", "over no update, %", "end to end, ms", "end to end over no update, %")
    assert [shown["64"][f"{name} printed"] for name in heads] == ["13.6", "30.7", "775.8", "1.8"]
    assert [shown["0"][f"{name} printed"] for name in heads] == ["", "", "762.1", ""]
    assert all(shown["64"][name] for name in heads)
    assert {row["samples"] for row in result["runtime"]} == {1}
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


def a_benchmark(run):
    """In place of lmms-eval: 22 questions that no drawn task asks."""
    some = tasks.items(["existence"], 22)
    return [tasks.Item(run.benchmarks[0], str(i), f"{run.benchmarks[0]} {i} ?", "yes", item.draw)
            for i, item in enumerate(some)][: run.limit]  # fmt: skip


def test_figures_at_full_scale_are_of_the_benchmarks(command, tmp_path, monkeypatch):
    monkeypatch.setattr("divevlm.experiments.lmms.sweep.items", a_benchmark)
    result = command("reproduce", "figure5", "--scale", "full")
    assert [row["question"] for row in result["rows"]] == ["gqa 0 ?"]
    assert "the paper's benchmarks" in (tmp_path / "figure5.md").read_text()


def test_runtime_at_full_scale_is_of_all_samples(micro, tmp_path, monkeypatch):
    def runtime(answerer, items, *rest):
        asked.extend(item.text for item in items)
        raise ValueError("enough")

    asked, few = [], replace(ANALYSES["redundancy"], methods=("dive:updates=0",))
    monkeypatch.setitem(ANALYSES, "redundancy", few)
    monkeypatch.setattr("divevlm.experiments.lmms.sweep.items", a_benchmark)
    monkeypatch.setattr("divevlm.experiments.lmms.sweep.check", lambda run: None)
    monkeypatch.setattr("divevlm.experiments.paper.reproduce.runtime", runtime)
    assert main(["reproduce", "figure4", "--scale", "full", "--model", micro, "--out", str(tmp_path)]) == 2
    assert asked == [f"mme {i} ?" for i in range(22)]


@pytest.mark.skipif(find_spec("lmms_eval") is not None, reason="lmms-eval is installed")
@pytest.mark.parametrize("name", ["figure4", "figure5", "figure6", "figure7"])
def test_figures_at_full_scale_need_lmms_eval(capsys, tmp_path, name):
    assert main(["reproduce", name, "--scale", "full", "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "need lmms-eval: pip install 'divevlm[eval]'" in error
    assert error.count("\n") == 1


def test_an_embedded_model_that_is_not_shipped_is_told(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("divevlm_tiny.available", lambda: ["llava"], raising=False)
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
    _, dive = comparison.full_scores({"benchmarks": entries}, of)
    assert dive["relative"] == pytest.approx(50)
    assert dive["scores"] == pytest.approx(of.row("DIVE", 64).scores)
    table = comparison.Comparison(of, [dive], {"dive": "DIVE"}, {64: 64}, {}, True).table()
    assert table[0][6:8] == ["GQA printed", "GQA"]
    assert table[1][0][6:10] == ["59.7", "59.7", "1761", "1761.0"]


def test_figure_3_has_popes_accuracy_and_a_hole_has_its_reason():
    tasks = {task: {"exact_match": 0.5} for task in ("textvqa_val", "vizwiz_vqa_val")}
    tasks |= {"pope": {"pope_f1_score": 0.1, "pope_accuracy": 0.8}, "gqa": {}}
    entry = {"method": "vanilla", "keep": 0, "tasks": tasks, "missing": {"gqa": "KeyError: 'image'"}}
    (row,) = comparison.full_scores({"benchmarks": {"vanilla": entry}}, recipe("figure3"))
    assert row["scores"] == {"POPE": 80, "TextVQA": 50, "VizWiz": 50, "GQA": None}
    assert row["relative"] is None
    assert comparison.reasons([row, row]) == ["GQA: gqa gave no exact_match (KeyError: 'image')"]


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
    short = [entry for entry in records if entry["sample"] == "0"]
    assert results.rows(short, [Setting("vanilla", 0), Setting("dive", 8)], ["a", "b"])[1]["relative_error"] is None


def test_a_result_file_is_whole_or_the_one_before(tmp_path, monkeypatch):
    def saved(value):
        results.save(tmp_path, "one", {"value": value}, ["a"], [[value]], "title")
        figures.save(None, tmp_path, "one")

    monkeypatch.setattr(figures.viz, "rendered", lambda made, kind: b"picture", raising=False)
    saved("before")
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert {path.suffix for path in files} == {".json", ".md", ".csv", ".png", ".svg"}
    monkeypatch.setattr(Path, "replace", lambda path, target: (_ for _ in ()).throw(OSError("killed")))
    for save in (partial(saved, "after"), partial(figures.save, None, tmp_path, "one")):
        with pytest.raises(OSError, match="killed"):
            save()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files


@pytest.mark.parametrize("name", ["analyze", "reproduce"])
def test_help_has_examples(name, capsys):
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert capsys.readouterr().out.count(f"\n  divevlm {name} ") >= 3


@pytest.mark.skipif(not (ROOT / "results/embedded/table1.md").exists(), reason="not run yet")
def test_the_docs_show_the_main_table():
    lines = (ROOT / "results/embedded/table1.md").read_text().splitlines()
    (shown,) = re.findall(
        r"<!-- results -->\n(.*?)<!-- /results -->", (ROOT / "docs/results.md").read_text(), re.DOTALL
    )
    assert [line for line in shown.splitlines() if line] == [line for line in lines if line.startswith("|")]


@pytest.mark.parametrize("path", RECIPE_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_result_files_are_of_their_recipes(path):
    result, title = json.loads(path.read_text()), recipe(path.stem).title
    assert (result["recipe"], result["title"]) == (path.stem, title)
    assert path.with_suffix(".md").read_text().startswith(f"{path.stem}: {title}\n")
