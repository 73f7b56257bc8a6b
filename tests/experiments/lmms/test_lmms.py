"""lmms-eval drives our models; runs in an environment of its own (`make test-eval`)."""

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

pytest.importorskip("lmms_eval")

import numpy as np
from lmms_eval.models import get_model, list_available_models

from divevlm.experiments.analysis.analyses import analyze
from divevlm.experiments.answering import Answerer
from divevlm.experiments.journal import Journal
from divevlm.experiments.limits import Limits
from divevlm.experiments.lmms.model import Chat, Simple
from divevlm.experiments.lmms.requests import clip as read_clip
from divevlm.experiments.lmms.requests import gold
from divevlm.experiments.lmms.tasks import write
from divevlm.experiments.paper.recipe import recipe
from divevlm.experiments.paper.reproduce import Order, reproduce
from divevlm.experiments.runner import Run, evaluate
from divevlm.experiments.settings import Setting

from ...zoo import FAMILIES, VIDEO_FAMILIES, build, clip, picture
from .conftest import TASKS, evaluated, predictions


def test_the_entry_point_registers_both_kinds():
    assert "divevlm" in list_available_models()
    assert get_model("divevlm") is Chat
    assert get_model("divevlm", force_simple=True) is Simple


def test_divevlm_eval_sweeps_lmms_tasks_and_goes_on_after_a_kill(micro, suite, whole, tmp_path):
    folder, result = whole
    assert set(result["benchmarks"]) == {"vanilla", "dive 24"}
    scores = result["benchmarks"]["dive 24"]["tasks"]
    assert set(scores) == set(TASKS.split(","))
    assert 0 <= scores["divevlm_reading"]["exact_match"] <= 1
    assert len(predictions(folder)) == len(predictions(folder, "vanilla")) == 6
    text = (folder / "samples.jsonl").read_text()
    cut = text.index("\n", len(text) // 2) - 5  # in the middle of a line, half-way
    (tmp_path / "samples.jsonl").write_text(text[:cut])
    (tmp_path / "run.json").write_text((folder / "run.json").read_text())
    again = evaluated(micro, suite, tmp_path)
    assert again["benchmarks"] == result["benchmarks"]
    assert predictions(tmp_path) == predictions(folder)
    assert (tmp_path / "samples.jsonl").read_text().startswith(text[: cut - 200].rsplit("\n", 1)[0])


def test_every_sample_has_the_score_that_lmms_eval_gave_it(whole):
    folder, result = whole
    found = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    assert {(one["method"], one["task"], one["sample"]) for one in found} == {
        (method, *of) for method in ("vanilla", "dive") for of in predictions(folder, method)
    }
    for name, entry in result["benchmarks"].items():
        for task, metrics in entry["tasks"].items():
            scores = [r["scores"]["exact_match"] for r in found if (r["method"], r["task"]) == (name.split()[0], task)]
            assert sum(scores) / len(scores) == pytest.approx(metrics["exact_match"])


def test_plain_prompts_of_one_turn_say_the_same(micro, suite, whole, tmp_path):
    evaluated(micro, suite, tmp_path, inputs="template")
    assert predictions(tmp_path) == predictions(whole[0])  # the embedded questions are one turn anyway


def test_wrong_tasks_are_told_before_a_model_is_loaded(suite, tmp_path):
    with pytest.raises(ValueError, match="tasks must be embedded ones or names .*, got 'divevlm_tasting'"):
        evaluate(Run("./nowhere", ("dive",), (24,), tmp_path, ("divevlm_tasting",), include=suite))


def test_teacher_forcing_takes_groups(micro, suite, tmp_path):
    folder = tmp_path / "tasks"
    write(folder, limit=2)
    (folder / "two.yaml").write_text("group: divevlm_two\ntask:\n  - divevlm_existence\n  - divevlm_reading\n")
    run = Run(micro, ("dive",), (24,), tmp_path / "out", ("divevlm_two",), batch=4, include=folder)
    (_, dive) = analyze("ablation", run)["rows"]
    assert dive["n"] == {"divevlm_two": 4}
    assert sorted(sample for _, sample in predictions(tmp_path / "out")) == [
        "divevlm_existence/0", "divevlm_existence/1", "divevlm_reading/0", "divevlm_reading/1"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("column", "document", "answer"),
    [
        ("answer", {"answer": "red"}, "red"),
        ("answer", {"answer": ["red", "blue", "blue"]}, "blue"),
        ("answer", {"answers": ["red", "blue"]}, "red"),
        ("answer", {"answers": [{"answer": "two"}, {"answer": "2"}, {"answer": "2"}]}, "2"),
        ("{{answer}}s", {"answer": "red"}, "reds"),
        ("answer", {"answer": 3}, None),
        ("answer", {"answer": []}, None),
        ("answer", {"label": "red"}, None),
    ],
)
def test_the_gold_answer_is_one_text(column, document, answer):
    """lmms-eval itself gives the word "answer" where there is no such column."""
    config = SimpleNamespace(doc_to_target=column)
    task = SimpleNamespace(config=config, doc_to_target=lambda of: of.get(column, column.replace("{{answer}}", "red")))
    if answer is not None:
        assert gold(task, "see", document) == answer
        return
    with pytest.raises(ValueError, match="tasks must be tasks whose answers are texts, for teacher forcing, got 'see'"):
        gold(task, "see", document)


def test_analyses_take_lmms_tasks(micro, suite, tmp_path):
    result = analyze(
        "ablation", Run(micro, ("dive",), (24,), tmp_path, tuple(TASKS.split(",")), batch=2, include=suite)
    )
    (vanilla, dive) = result["rows"]
    assert vanilla["n"] == dive["n"] == {"divevlm_existence": 3, "divevlm_reading": 3}
    assert dive["likelihood"] < 0
    assert 0 < dive["redundancy"] <= 1


def test_efficiency_and_tables_at_full_scale(micro, suite, tmp_path, monkeypatch):
    """The paper's columns, with local tasks in place of the benchmarks."""
    stand_in = {"task": "divevlm_existence", "metrics": ["exact_match"], "factor": 100}
    for module in ("recipe", "comparison", "reproduce", "efficiency"):
        monkeypatch.setattr(
            f"divevlm.experiments.paper.{module}.benchmarks", lambda: dict.fromkeys(recipe("table1").columns, stand_in)
        )
    monkeypatch.setattr("divevlm.experiments.paper.reproduce.Run", partial(Run, include=suite))
    order = Order("full", tmp_path / "five", micro, Limits(2))
    result, (head, lines) = reproduce("table5", order)
    assert [row["printed_as"] for row in result["rows"]] == ["Vanilla", "VisionZip", "PruneSID", "SparseVLM", "DIVE"]
    assert all(row["total"] >= row["prefill_total"] > 0 for row in result["rows"])
    result, (head, lines) = reproduce("table6", replace(order, out=tmp_path / "six"))
    assert head[6:8] == ["GQA printed", "GQA"]
    assert [line[0] for line in lines] == ["Vanilla", "w/o L-G", "w/o V-C", "No update", "DIVE"]
    assert lines[0][6] == "61.9"


def requests(kind, media, text="what is this ?"):
    """As lmms-eval hands them over."""
    options = {"max_new_tokens": 3, "temperature": 0}
    for number in range(len(media)):
        content = [{"type": "video" if isinstance(one, str) else "image", "url": one} for one in media[number]]
        turn = [{"role": "user", "content": [*content, {"type": "text", "text": text}]}]
        if kind is Simple:
            arguments = (text, dict(options), lambda shown: shown, number, "see", "test")
        else:
            arguments = (text, lambda shown, turn=turn: turn, dict(options), number, "see", "test")
        yield SimpleNamespace(args=arguments)


@pytest.mark.parametrize("kind", [Simple, Chat])
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "llava_576"])
def test_every_family_answers_batches(name, kind):
    entry = build(name)
    media = [[picture(0, 112, 84)], [picture(1, 84, 140)], [picture(2, 112, 112)]]
    answers = []
    for batch in (2, 1):
        lm = kind.around(Answerer(entry.model, entry.processor, shared=False), Setting("dive", 6), batch)
        lm.task_dict = {"see": {"test": media}}
        answers.append(lm.generate_until(list(requests(kind, media))))
    assert answers[0] == answers[1]
    assert all(answers[0])


def test_messages_are_made_batch_by_batch_and_only_of_what_is_not_done(micro, tmp_path):
    """Pictures in them would fill the memory."""
    journal = Journal(tmp_path, {})
    journal.add([{"method": "dive", "keep": 6, "task": "see", "sample": "0", "prediction": "known"}])
    answerer = SimpleNamespace(model=SimpleNamespace(device="cpu"), processor=None, family="llava")
    lm = Chat.around(answerer, Setting("dive", 6), 2, journal)
    lm.task_dict = {"see": {"test": range(6)}}
    made, before = [], []
    asked = list(requests(Chat, [[] for _ in range(6)]))
    for one in asked:
        text, messages_of, *others = one.args
        one.args = text, lambda number, of=messages_of: made.append(number) or of(number), *others

    def generate(items, *_, **__):
        before.append(len(made))
        costs = dict.fromkeys(("kept", "kv", "kv_full", "prefill"))
        return [SimpleNamespace(prediction=item.sample, **costs) for item in items]

    answerer.generate = generate
    assert lm.generate_until(asked) == ["known", "1", "2", "3", "4", "5"]
    assert made == [1, 2, 3, 4, 5]
    assert before == [2, 4, 5]


def test_answers_that_other_processes_have_not_given_yet_are_missed(tmp_path):
    """Plain RANK and WORLD_SIZE: nobody waits for the others."""
    lm = Chat.around(None, Setting("dive", 6), 2, Journal(tmp_path, {}))
    with pytest.raises(
        ValueError, match="answers must be all there: run once more when every process is done; missing, got 3"
    ):
        lm.generate_until(list(requests(Chat, [[] for _ in range(3)])))


@pytest.fixture(scope="module", params=["mp4", "mkv"])
def video(request, tmp_path_factory):
    import av

    file = tmp_path_factory.mktemp("video") / f"moving.{request.param}"
    with av.open(str(file), "w") as container:
        stream = container.add_stream("mpeg4", rate=4)
        stream.width, stream.height, stream.pix_fmt = 112, 112, "yuv420p"
        for pixels in clip(0, 8, 112, 112):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")))
        container.mux(stream.encode())
    return str(file)


def test_frames_have_the_numbers_and_the_rate_of_the_file(video):
    found, whole = read_clip(video, 4), read_clip(video, 32)
    assert (found.numbers, found.total, found.fps) == ([0, 2, 4, 7], 8, 4)
    assert (found.frames == whole.frames[found.numbers]).all()
    assert whole.numbers == list(range(8))


@pytest.mark.parametrize("kind", [Simple, Chat])
@pytest.mark.parametrize("name", VIDEO_FAMILIES)
def test_videos(name, kind, video):
    entry = build(name)
    lm = kind.around(Answerer(entry.model, entry.processor, shared=False), Setting("dive", 0.25), 2)
    lm.max_frames = 4
    lm.task_dict = {"see": {"test": [[video], [video]]}}
    one, two = lm.generate_until(list(requests(kind, [[video], [video]])))
    assert one == two != ""
