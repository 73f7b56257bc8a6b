import json
import subprocess
import sys

import pytest

from divevlm import __version__
from divevlm.cli import main


def run(capsys, *arguments):
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_bench_selection(capsys, tmp_path):
    file = tmp_path / "bench.json"
    arguments = ["--shape", "64,32,5,8", "--shape", "64,32,5,8,3", "--rounds", "2", "--slow-rounds", "1"]
    code, out, _ = run(capsys, "bench", "selection", *arguments, "--json", "--out", str(file))
    assert code == 0
    result = json.loads(out)
    assert result == json.loads(file.read_text())
    rows = {(row["shape"], row["path"]): row for row in result["rows"]}
    assert rows["(64, 32, 5, 8)", "reference"]["over_reference"] == 1
    assert rows["(64, 32, 5, 8)", "reference"]["runs"] == 1
    assert rows["(64, 32, 5, 8)", "floor"]["of_floor"] == 1
    assert {path for shape, path in rows if shape.startswith("(")} >= {"fast", "gram", "picked", "in place"}
    assert {path for shape, path in rows if shape.startswith("3 x")} == {"one by one", "batch"}
    assert all(row["same_picks"] for row in result["rows"] if "same_picks" in row)
    _, text, _ = run(capsys, "bench", "selection", *arguments)
    assert "over reference" in text
    assert "DIFFER" not in text


def test_bench_engine(capsys):
    code, out, _ = run(capsys, "bench", "engine", "--shape", "3,64,1,8:64,16", "--rounds", "1", "--json")
    assert code == 0
    vanilla, *pruned = json.loads(out)["rows"]
    assert (vanilla["keep"], vanilla["bound"], vanilla["speedup"]) == (576, 1, 1)
    assert [row["keep"] for row in pruned] == [64, 16]
    for row in (vanilla, *pruned):
        assert row["kv_bytes"] == row["kv_bytes_formula"]
    assert pruned[0]["kv_bytes"] == (2 * 584 + 72) * 64 * 2 * 4
    assert 1 < pruned[0]["bound"] < pruned[1]["bound"] < 1.5
    assert "= formula" in run(capsys, "bench", "engine", "--shape", "3,64,1,8:64,16", "--rounds", "1")[1]


def test_models_and_methods(capsys):
    _, out, _ = run(capsys, "models", "--json")
    families = {row["family"]: row for row in json.loads(out)["rows"]}
    assert "llava-hf/llava-1.5-7b-hf" in families["llava"]["checkpoints"]
    assert families["qwen3_vl"]["default_layer"] == 3
    assert "Qwen/Qwen2-VL-7B-Instruct" in run(capsys, "models")[1]
    _, out, _ = run(capsys, "methods", "--json")
    methods = {row["method"]: row for row in json.loads(out)["rows"]}
    assert methods["dive"]["settings"]["lam"] == 1.5
    assert methods["dive-no-update"]["settings"]["updates"] == 0
    assert "dive-no-language" in run(capsys, "methods")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["bench", "selection", "--shape", "12,3"],
            "--shape must be N,d,M,K or N,d,M,K,B with whole numbers of at least 1, got '12,3'",
        ),
        (["bench", "selection", "--shape", "12,3,0,1"], "got '12,3,0,1'"),
        (["bench", "engine", "--shape", "3,60,1,8:64"], "--shape must be L,d,V,M:K,K with at least 3 blocks"),
        (["bench", "engine", "--shape", "24,1024"], "got '24,1024'"),
        (["bench", "engine", "--rounds", "0"], "--rounds must be at least 1, got 0"),
        (["bench", "selection", "--rounds", "0"], "--rounds must be at least 1, got 0"),
        (["bench", "selection", "--slow-rounds", "-1"], "--slow-rounds must be at least 1, got -1"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_the_module_runs_as_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "divevlm.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"divevlm {__version__}"


def test_interruption_leaves_with_130(capsys, monkeypatch):
    def interrupt(options):
        raise KeyboardInterrupt

    monkeypatch.setattr("divevlm.cli.demo.run", interrupt)
    code, _, err = run(capsys, "demo")
    assert (code, err) == (130, "divevlm: interrupted\n")


def test_embedded_models_have_one_name(capsys):
    arguments = ["bench", "accuracy", "--limit", "1", "--keep", "16", "--method", "grid", "--json"]
    named = [json.loads(run(capsys, *arguments, "--model", name)[1])["model"] for name in ("llava", "tiny-llava")]
    assert named[0] == named[1]
