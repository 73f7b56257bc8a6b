"""Every recipe at full scale: the user's own commands, on stand-ins for the checkpoints and benchmarks. Ends in a table."""

import json
from functools import partialmethod

import pytest

pytest.importorskip("lmms_eval")

from divevlm.cli import main
from divevlm.experiments.answering import Answerer
from divevlm.experiments.journal import read
from divevlm.experiments.lmms import suite as lmms_suite
from divevlm.experiments.paper.recipe import names, recipe
from divevlm.experiments.runner import Run
from divevlm.methods.readers import CLIP

from . import hub


def briefly(self, generate, items, method, new_tokens=16, **options):
    """Stand-ins never come to an end by themselves."""
    return generate(self, items, method, min(2, new_tokens), **options)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A working folder in which the paper's ids are folders, and data sets that come from nowhere."""
    home = tmp_path_factory.mktemp("full-scale")
    patch = pytest.MonkeyPatch()
    patch.setenv("HF_HOME", str(home / "hf"))
    patch.setattr("datasets.load_dataset", hub.load_dataset)
    for name, stand_in in hub.STAND_INS.items():
        hub.checkpoint(stand_in, home / name)
    hub.text_tower(home / CLIP)
    hub.videos(home / "hf")
    patch.setattr(Answerer, "generate", partialmethod(briefly, Answerer.generate))
    patch.chdir(home)
    yield home
    patch.undo()


def reproduce(capsys, name, out, *more):
    code = main(["reproduce", name, "--scale", "full", "--out", str(out), "--json", *more])
    captured = capsys.readouterr()
    assert code == 0, captured.err[-2000:]
    return json.loads(captured.out[captured.out.index('{"') :])


@pytest.mark.parametrize("name", names())
def test_every_recipe_ends_in_a_table(world, capsys, name):
    """The summary and the tables that it sums up share their folders: what the one has asked, the others find."""
    of = recipe(name)
    out = world / "out" if of.kind == "summary" else world / "out" / name
    result = reproduce(capsys, name, out, "--limit", "3")
    lines = [line for line in (out / f"{name}.md").read_text().splitlines() if line.startswith("|")]
    assert len(lines) > 2
    assert result["scale"] == "full"
    assert result.get("missing", []) == []
    if of.kind == "scores":
        assert result["rows"][0]["printed_as"] == "Vanilla"
        assert all(value is not None for row in result["rows"] for value in row["scores"].values())


def test_a_limit_asks_every_category_and_whole_pairs(world, capsys, tmp_path, monkeypatch):
    """Half of OCRBench's stand-in answers are the empty word, which is in everything that is said: 500, in every setting."""
    lmms_suite.loaded.cache_clear()
    monkeypatch.setattr(hub, "LOADED", [])
    result = reproduce(capsys, "table6", tmp_path, "--limit", "ocr=all,1")
    assert [row["scores"]["OCR"] for row in result["rows"]] == [500.0] * 5
    assert len(hub.LOADED) == len(set(hub.LOADED)) == 7  # each once; GQA has its pictures apart
    asked = {}
    for record in read(tmp_path / "samples.jsonl"):
        asked.setdefault((record["method"], record["task"]), []).append(int(record["sample"]))
    mme = asked["vanilla", "mme"]
    assert len({number // 4 for number in mme}) == len(hub.MME)
    assert len(mme) == 2 * len(hub.MME)
    assert all(number ^ 1 in mme for number in mme)
    assert {number // 4 for number in asked["vanilla", "pope"]} == {0, 1, 2}
    assert len(asked["vanilla", "gqa"]) == 1
    assert {task: found for (method, task), found in asked.items() if method == "dive"} == {
        task: found for (method, task), found in asked.items() if method == "vanilla"
    }


def test_a_task_that_gives_no_number_is_a_hole_with_a_reason(world, capsys, tmp_path, monkeypatch):
    def fails(results):
        raise ZeroDivisionError("nothing to divide by")

    task = lmms_suite.loaded("pope", None, "llava_hf", "simple")["pope"]
    monkeypatch.setitem(task._aggregation_list, "pope_f1_score", fails)
    result = reproduce(capsys, "table6", tmp_path, "--limit", "1")
    assert result["missing"] == ["POPE: pope gave no pope_f1_score (ZeroDivisionError: nothing to divide by)"]
    assert all(row["scores"]["POPE"] is None and row["relative"] is None for row in result["rows"])
    assert all(row["scores"]["GQA"] is not None for row in result["rows"])
    text = (tmp_path / "table6.md").read_text()
    assert "Empty: POPE: pope gave no pope_f1_score" in text
    assert "| 85.9 |  |" in text


def test_the_table_says_which_inputs_ran(world, capsys, tmp_path):
    reproduce(
        capsys, "table7", tmp_path, "--limit", "1", "--inputs", "template", "--no-ocr", "--pad", "--dtype", "float32"
    )
    text = (tmp_path / "table7.md").read_text()
    assert (
        "Inputs: the tasks' plain text through the checkpoint's chat template; batch 1; pictures padded to squares"
        in text
    )
    assert "mme: 1 samples" in text
    assert main(["reproduce", "table7", "--scale", "full", "--out", str(tmp_path), "--limit", "1"]) == 2
    assert "--out must be of a run with" in capsys.readouterr().err


def test_ocr_tokens_and_lengths_reach_the_requests(world):
    def asked(**more):
        run = Run("llava-hf/llava-1.5-7b-hf", (), (), None, ("textvqa_val", "mme"), inputs="stock", **more)
        return lmms_suite.suite(run).requests()

    texts = [one.args[0] for one in asked(ocr=True)]
    assert sum("\nReference OCR token: STOP, " in text for text in texts) == 6
    assert not any("OCR token" in one.args[0] for one in asked())
    assert {one.args[4]: one.args[1]["max_new_tokens"] for one in asked()} == {"textvqa_val": 32, "mme": 16}


def test_figures_are_on_the_papers_scale(world, capsys, tmp_path):
    result = reproduce(capsys, "figure4", tmp_path / "four", "--limit", "3")
    scored = json.loads((tmp_path / "four" / "mme" / "results.json").read_text())["benchmarks"]
    wanted = [sum(entry["tasks"]["mme"].values()) for entry in scored.values() if entry["method"] != "vanilla"]
    assert [row["accuracy"] for row in result["feedback"]] == wanted
    assert recipe("figure3").settings["metrics"] == {"POPE": ["pope_accuracy"]}


def test_a_budget_that_cannot_be_met_is_told_before_anything_runs(world, capsys, tmp_path):
    hub.checkpoint("llava_onevision", world / "shallow", layers=8)
    assert main(["reproduce", "table4", "--scale", "full", "--model", "shallow", "--out", str(tmp_path / "new")]) == 2
    told = capsys.readouterr().err
    assert "fastv:match=layer-mean 0.25 can't be done: keep must be" in told
    assert not (tmp_path / "new").exists() or not list((tmp_path / "new").glob("samples*"))
