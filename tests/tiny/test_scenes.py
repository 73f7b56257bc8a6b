"""Scenes and questions: the same on every machine, true, balanced, and apart from split to split."""

import hashlib
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from divevlm_tiny.ask import MIDDLE
from divevlm_tiny.scene import GAP, GRID, PATCH, SIDE, scene
from divevlm_tiny.splits import PER_SCENE, SPAN, SPLITS, first_seed, questions
from divevlm_tiny.words import COLORS, SHAPES, SIGN, TASKS, UNSEEN, vocabulary


def digest(samples) -> str:
    """Of what is asked, answered and shown."""
    found = hashlib.sha256()
    for sample in samples:
        found.update(f"{sample.text}|{sample.answer}|{sample.patches}".encode())
        found.update(sample.scene.pixels.tobytes())
    return found.hexdigest()[:16]


@pytest.fixture(scope="module")
def asked():
    return questions("validation", 800)


@pytest.mark.parametrize(
    ("split", "expected"),
    [("validation", "940c1577a81f0f8d"), ("test", "6c1542044577c86d"), ("shift", "40bddc46779639af")],
)
def test_the_questions_of_a_split_never_change(split, expected):
    assert digest(questions(split, 24)) == expected


def test_fewer_questions_are_the_first_of_more():
    assert [s.text for s in questions("train", 10)] == [s.text for s in questions("train", 30)][:10]


def test_splits_draw_from_ranges_that_never_meet():
    assert sorted(first_seed(split) for split in SPLITS) == [SPAN * number for number in range(4)]
    for split in SPLITS:
        assert all(first_seed(split) <= s.scene.seed < first_seed(split) + SPAN for s in questions(split, 20))


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="split must be one of train, validation, test, shift, got 'exam'"):
        questions("exam", 1)


def test_objects_lie_inside_the_picture_and_apart():
    for seed in range(60):
        items = scene(seed).items
        for item in items:
            left, top, right, bottom = item.box
            assert 0 <= left < right <= SIDE
            assert 0 <= top < bottom <= SIDE
        for one, two in combinations(items, 2):
            a, b = one.box, two.box
            apart = max(b[0] - a[2], a[0] - b[2], b[1] - a[3], a[1] - b[3])
            assert apart >= GAP


def test_there_are_4_to_16_objects_of_very_different_sizes_and_more_in_the_shift_split():
    counts = [len(scene(seed).items) for seed in range(300)]
    assert 3 <= min(counts) <= 4  # one that finds no room is left out
    assert 14 <= max(counts) <= 16
    sizes = [item.size for seed in range(100) for item in scene(seed).items if item.shape != SIGN]
    assert min(sizes) <= PATCH
    assert max(sizes) >= 6 * PATCH
    assert np.mean([len(scene(seed, many=True).items) for seed in range(40)]) > 14


def test_training_never_shows_the_unseen_pairs_and_the_shift_split_does():
    seen = {(item.color, item.shape) for seed in range(400) for item in scene(seed).items}
    assert not seen & UNSEEN
    assert {(color, shape) for color in COLORS for shape in SHAPES} - UNSEEN <= seen
    assert {(i.color, i.shape) for seed in range(40) for i in scene(seed, unseen=True).items} >= UNSEEN


def test_the_patches_of_an_object_are_those_where_it_changes_the_picture(asked):
    for sample in asked[:40]:
        for index, item in enumerate(sample.scene.items):
            left, top, right, bottom = item.box
            rows, columns = (
                range(top // PATCH, (bottom - 1) // PATCH + 1),
                range(left // PATCH, (right - 1) // PATCH + 1),
            )
            box = {row * GRID + column for row in rows for column in columns}
            patches = sample.scene.patches(index)
            assert patches
            assert set(patches) <= box
            assert 6 * item.w * item.h < 14 * 14 * 3 or len(patches) >= len(box) / 5


def test_answers_hold_when_read_off_the_scene(asked):
    for sample in asked:
        words = sample.text.lower().replace("?", "").replace(",", "").split()
        assert sample.answer == TRUTH[sample.task](words, sample.scene.items), sample.text


def named(words, items, last=None):
    """The objects that the last words of a phrase name: colour, shape and "small" must hold."""
    colors, shapes = [w for w in words if w in COLORS], [w for w in words if w in (*SHAPES, SIGN)]
    return [
        i
        for i in items
        if (not colors or i.color == colors[-1])
        and (not shapes or i.shape == shapes[-1])
        and ("small" not in words or (i.size <= 20 and i.shape != SIGN))
    ]


def one(words, items):
    (found,) = named(words, items)
    return found


def halves(words, items, between):
    at = words.index(between)
    return one(words[:at], items), one(words[at:], items)


def relation_truth(words, items):
    if words[0] == "on":
        second, first = one(words[: words.index("is")], items), one(words[words.index("is") :], items)
        dx, dy = first.x - second.x, first.y - second.y
        return ("left" if dx < 0 else "right") if abs(dx) > abs(dy) else ("above" if dy < 0 else "below")
    side = next(w for w in words if w in ("left", "right", "above", "below"))
    first, second = halves(words, items, side)
    dx, dy = first.x - second.x, first.y - second.y
    return "yes" if {"left": dx < 0, "right": dx > 0, "above": dy < 0, "below": dy > 0}[side] else "no"


def comparison_truth(words, items):
    word = next(w for w in words if w in ("larger", "smaller"))
    if words[0] == "which":
        pair = halves(words, items, "or")
        best = (max if word == "larger" else min)(pair, key=lambda item: item.size)
        return f"{best.color} {best.shape}"
    first, second = halves(words, items, word)
    return "yes" if (first.size > second.size) == (word == "larger") else "no"


def counting_truth(words, items):
    what = words[2]
    if what in COLORS:
        return str(sum(item.color == what for item in items))
    singular = {"crosses": "cross"}.get(what, what[:-1])
    return str(sum(item.shape == singular for item in items))


def position_truth(words, items):
    item = one(words, items)
    assert min(abs(item.x - SIDE // 2), abs(item.y - SIDE // 2)) >= MIDDLE
    return f"{'top' if item.y < SIDE / 2 else 'bottom'} {'left' if item.x < SIDE / 2 else 'right'}"


def attribute_truth(words, items):
    return getattr(one(words, items), words[1])


TRUTH = {
    "existence": lambda words, items: "yes" if named(words, items) else "no",
    "attribute": attribute_truth,
    "relation": relation_truth,
    "counting": counting_truth,
    "reading": lambda words, items: one(words, items).text,
    "position": position_truth,
    "comparison": comparison_truth,
    "detail": attribute_truth,
}


def test_answers_are_balanced_within_each_task(asked):
    kinds = {task: Counter(s.question.balance for s in asked if s.task == task) for task in TASKS}
    for task, counts in kinds.items():
        assert counts.total() >= 60
        fair = counts.total() / len(counts)
        if task != "reading":
            assert max(counts.values()) <= 1.3 * fair + 2, task
    assert set(kinds["existence"]) == {"yes", "no"}
    assert set(kinds["counting"]) == set("1234")


def test_the_share_of_object_patches_does_not_tell_the_count(asked):
    shares, counts = [], []
    for sample in asked:
        if sample.task == "counting":
            shares.append(len({p for i in range(len(sample.scene.items)) for p in sample.scene.patches(i)}))
            counts.append(int(sample.answer))
    assert abs(np.corrcoef(shares, counts)[0, 1]) < 0.35


def test_every_word_has_a_token_and_a_scene_has_at_most_four_questions(asked):
    known = set(vocabulary())
    for sample in asked:
        assert set(sample.text.lower().replace("?", " ?").replace(",", " ,").split()) <= known
        assert set(sample.answer.split()) <= known
    assert max(Counter(sample.scene.seed for sample in asked).values()) <= PER_SCENE
