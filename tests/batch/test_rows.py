"""Lines of the input: what is a row, what is wrong with one, and which go through the model together."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divevlm.batch.rows import Row, batches, read

GOOD = {"image": "a.png", "question": "What?"}


def row(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(line if isinstance(line, bytes) else json.dumps(line).encode())
    return read(path)[0][0]


def test_files_are_relative_to_the_input(tmp_path):
    assert row(tmp_path, GOOD) == Row(1, None, "What?", [str(tmp_path / "a.png")])
    assert row(tmp_path, GOOD | {"image": ["/b.png", "c/d.png"], "id": 7, "mine": [1]}) == Row(
        1, 7, "What?", ["/b.png", str(tmp_path / "c/d.png")]
    )
    found = row(tmp_path, {"video": "v.mp4", "question": "Who?", "keep": 0.5, "max_new_tokens": 3})
    assert found == Row(1, None, "Who?", [], str(tmp_path / "v.mp4"), 0.5, 3)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"image"', "a row must be one JSON object, got b'{\"image\"': Expecting ':' delimiter"),
        (b"\xff\xfe{}", "a row must be one JSON object, got b'\\xff\\xfe{}'"),
        (b"[" * 100_000, "a row must be one JSON object"),
        ([1], "a row must be one JSON object, got [1]"),
        (GOOD | {"id": ["a"]}, "id must be a word or a number, got ['a']"),
        (b'{"id": NaN, "image": "a.png", "question": "What?"}', "id must be a word or a number, got nan"),
        (GOOD | {"image": "http://a/b.png"}, "image must be a file on this machine, got 'http://a/b.png'"),
        (GOOD | {"question": " "}, "question must be a text, got ' '"),
        ({"image": "a.png"}, "question must be a text, got None"),
        ({"question": "What?"}, "a row must be one with either image or video, got ['question']"),
        (GOOD | {"video": "b.mp4"}, "a row must be one with either image or video"),
        (GOOD | {"image": []}, "image must be a path or a list of paths, got []"),
        (GOOD | {"image": ["a.png", 3]}, "image must be a path or a list of paths"),
        (GOOD | {"image": {"a": 1}}, "image must be a path or a list of paths"),
        ({"video": ["a.mp4"], "question": "What?"}, "video must be a path, got ['a.mp4']"),
        (GOOD | {"keep": "all"}, "keep must be a count or a share, got 'all'"),
        (GOOD | {"keep": 0}, "keep must be a count of at least 1 or a share in (0, 1], got 0"),
        (GOOD | {"keep": True}, "keep must be a count or a share, got True"),
        (GOOD | {"max_new_tokens": 0}, "max_new_tokens must be a count of at least 1, got 0"),
        (GOOD | {"max_new_tokens": 1.5}, "max_new_tokens must be a count of at least 1, got 1.5"),
    ],
)
def test_what_is_wrong_with_a_row_is_said_in_one_line(tmp_path, line, reason):
    found = row(tmp_path, line)
    assert found.error.startswith(reason)
    assert "\n" not in found.error
    assert found.line == 1


def test_a_bad_row_keeps_its_id(tmp_path):
    assert row(tmp_path, {"id": "x", "image": "a.png"}).id == "x"


def test_empty_lines_are_no_rows_but_count_as_lines(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(f"\n{json.dumps(GOOD)}\r\n  \n{json.dumps(GOOD)}")
    rows, mark = read(path)
    assert [one.line for one in rows] == [2, 4]
    assert mark.startswith("2 rows, sha256 ")
    path.write_text(path.read_text() + "\n")
    assert read(path)[1] != mark


@pytest.mark.parametrize("content", [b"", b" \n\n"])
def test_an_input_without_rows_is_refused(tmp_path, content):
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=r"INPUT must be a file with at least one row, got '.*rows.jsonl'"):
        read(tmp_path / "rows.jsonl")
    with pytest.raises(ValueError, match="INPUT must be a file with one JSON object a line"):
        read(tmp_path)


@given(
    st.lists(st.tuples(st.sampled_from([None, 1, 1.0, 5]), st.sampled_from([None, 3])), min_size=1, max_size=30),
    st.integers(1, 7),
)
def test_every_row_is_in_one_batch_of_its_kind(kinds, size):
    rows = [Row(line, keep=keep, max_new_tokens=length) for line, (keep, length) in enumerate(kinds, 1)]
    found = batches(rows, size)
    assert sorted(one.line for some in found for one in some) == list(range(1, len(rows) + 1))
    for some in found:
        assert len(some) <= size
        assert len({(repr(one.keep), one.max_new_tokens) for one in some}) == 1  # 1 is one token, 1.0 all
        assert [one.line for one in some] == sorted(one.line for one in some)
    assert [some[0].line for some in found] == sorted(some[0].line for some in found)
