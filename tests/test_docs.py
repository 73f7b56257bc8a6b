"""What the documents say is so."""

import json
import re
from pathlib import Path

import divevlm_tiny.shipped
import pytest

import divevlm

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "tiny/README.md", "training/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "tiny/src/divevlm_tiny/models").glob("*/README.md")),
]
ROOTS = (ROOT, ROOT / "src/divevlm", ROOT / "tiny/src/divevlm_tiny")  # where the paths in a text begin


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_sources_that_are_named_exist(page):
    named = re.findall(r"`((?:[\w-]+/)+[\w-]+\.py|(?:src|tests|tiny|training|docs)/[\w/-]*)`", page.read_text())
    missing = [
        path for path in named if "NAME" not in path and not any((top / path).exists() for top in (*ROOTS, page.parent))
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_modules_that_are_run_exist(page):
    modules = re.findall(r"python -m ((?:divevlm|training)[\w.]*)", page.read_text())
    places = {module: module.replace(".", "/") for module in modules}
    missing = [
        module
        for module, path in places.items()
        if not any(
            (top / end).exists() for top in (ROOT, ROOT / "src") for end in (f"{path}.py", f"{path}/__main__.py")
        )
    ]
    assert missing == []


def test_budgets_print_what_the_page_says():
    shown = re.findall(r"print\((divevlm\.Budget\(.*?\))\)\s+# (.*)", (ROOT / "docs/budgets.md").read_text())
    assert len(shown) == 3
    for code, text in shown:
        assert str(eval(code, {"divevlm": divevlm})) == text


def test_the_method_that_is_explained_is_the_one_that_runs():
    explained = (ROOT / "docs/add-a-method.md").read_text().split("```python\n")[1].split("```")[0]
    assert explained.strip() in (ROOT / "examples/own_method.py").read_text()


def test_commands_that_the_readme_names_exist():
    from divevlm.cli import COMMANDS

    named = set(re.findall(r"`?divevlm ([a-z]+)\b", (ROOT / "README.md").read_text())) - {"is"}
    assert named <= set(COMMANDS)


def test_the_first_snippet_of_the_readme_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    """On the embedded model instead of one from the hub; then with the two lines that differ for Qwen2-VL."""
    llava, qwen = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[:2]
    divevlm_tiny.questions("validation", 1)[0].image.save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    where = {name: str(divevlm_tiny.shipped.MODELS / name) for name in ("llava", "qwen2vl")}
    exec(llava.replace("llava-hf/llava-1.5-7b-hf", where["llava"]), {})
    assert "kept 64 of 576 visual tokens" in capsys.readouterr().out
    name, prune = qwen.strip().splitlines()
    code = re.sub(r"^name = .*$", name.replace("Qwen/Qwen2-VL-7B-Instruct", where["qwen2vl"]), llava, flags=re.M)
    code = re.sub(r"^with .*$", prune, code, flags=re.M)
    monkeypatch.setattr("transformers.AutoProcessor.from_pretrained", lambda _: divevlm_tiny.load("qwen2vl")[1])
    exec(code, {})  # its stock processor of clips needs torchvision
    assert re.search(r"kept 32 of 144 visual tokens", capsys.readouterr().out)


def test_start_has_the_snippets_of_the_readme():
    first, start = (
        re.findall(r"```python\n.*?```", (ROOT / name).read_text(), re.DOTALL)
        for name in ("README.md", "docs/start.md")
    )
    assert start == first[:2]


def test_conversations_run_as_they_stand(capsys):
    """On the embedded model: a further turn, and copies of one prefill."""
    model, processor = divevlm_tiny.load("llava")
    sample = divevlm_tiny.questions("validation", 1)[0]
    turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": sample.text}]}]
    text = processor.apply_chat_template(turn, add_generation_prompt=True)
    world = {"divevlm": divevlm, "model": model, "processor": processor}
    world["inputs"] = processor(text=text, images=sample.image, return_tensors="pt")
    further, copies = re.findall(r"```python\n(.*?)```", (ROOT / "docs/conversations.md").read_text(), re.DOTALL)
    exec(further, world)
    assert capsys.readouterr().out.strip() in ("yes", "no")
    assert world["session"].report.samples[0].visual == 576
    exec(copies, world)
    assert {cache.get_seq_length() for cache in world["copies"]} == {world["inputs"]["input_ids"].shape[1]}


def test_messages_that_are_explained_are_given():
    page = (ROOT / "docs/questions.md").read_text()
    said = [message for message in re.findall(r"^\| `(.*?)` \|", page, re.M) if "::" not in message]  # others' own
    source = "\n".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    source = source.replace("{package}", "pillow").replace("{extra}", "cli")
    assert len(said) > 10
    assert [part for message in said for part in message.split(" must be ") if part not in source] == []


def test_the_reference_tells_all_names():
    told = set(re.findall(r"divevlm\.(\w+)$|`divevlm\.(\w+)`", (ROOT / "docs/reference.md").read_text(), re.M))
    assert {name for pair in told for name in pair} >= set(divevlm.__all__) - {"__version__"}


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_a_page_begins_with_what_it_gives(page):
    title, first = page.read_text().split("\n\n")[:2]
    assert title.startswith("# ")
    assert first[0].isalpha() or first[0] in '"`*'
    assert not first.startswith("```")


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_no_place_for_a_table_is_empty(page):
    assert re.findall(r"<!-- (.*?) -->\s*<!-- /", page.read_text()) == []


def test_pictures_are_small():
    assert [file.name for file in (ROOT / "docs/pictures").iterdir() if file.stat().st_size > 300_000] == []


def test_the_notebook_runs_offline(tmp_path, monkeypatch, capsys):
    cells = json.loads((ROOT / "examples/first-steps.ipynb").read_text())["cells"]
    monkeypatch.chdir(tmp_path)
    world = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), world)
    out = capsys.readouterr().out
    assert "kept 64 of 576 visual tokens" in out
    assert "dive-no-update" in out
    assert (tmp_path / "explorer.html").stat().st_size > 10_000
