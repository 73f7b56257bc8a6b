"""Files and tables that commands write."""

import os
import sys
from pathlib import Path

import pytest

from divevlm.files import check_target, write
from divevlm.terminal import progress, table


def test_what_is_no_file_is_never_replaced(tmp_path):
    for path in (Path("/dev/null"), tmp_path):
        with pytest.raises(ValueError, match="--out must be a file in a folder that is there, got"):
            check_target("--out", path)
    with pytest.raises(ValueError, match="--out must be a file in a folder that can be written to, got"):
        check_target("--out", Path("/proc/page.html"))


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link.html").symlink_to(tmp_path / "there" / "page.html")
    write(tmp_path / "link.html", "after")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "there" / "page.html").read_text() == "after"


def test_a_name_may_be_as_long_as_the_system_allows(tmp_path):
    file = tmp_path / ("a" * (os.pathconf(tmp_path, "PC_NAME_MAX") - 5) + ".html")
    write(file, "after")
    assert file.read_text() == "after"


def test_a_write_that_is_interrupted_leaves_what_was_there(tmp_path, monkeypatch):
    file = tmp_path / "page.html"
    file.write_text("before")

    def interrupted(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(file, "after")
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


class Terminal:
    def isatty(self):
        return True


def test_tables_are_rich_on_a_terminal_only(monkeypatch):
    plain = table(["a", "b"], [["one", "2"]])
    assert plain == "a    b\n---  -\none  2"
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("divevlm.terminal.find_spec", lambda name: None)  # no rich
    assert table(["a", "b"], [["one", "2"]]) == plain
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress("work") as tick:
        tick("more")


def test_a_rich_table_shows_brackets_as_they_are(monkeypatch):
    import io

    class Screen(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdout", Screen())
    monkeypatch.setenv("TERM", "xterm")
    drawn = table(["method", "answer"], [["dive", "[bold]no[/bold]"]])
    assert "[bold]no[/bold]" in drawn
    assert drawn != "method           answer\n------  ---------------\ndive    [bold]no[/bold]"


def test_a_bar_shows_how_much_is_done(monkeypatch):
    import io

    class Screen(io.StringIO):
        def isatty(self):
            return True

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with progress("work") as tick:
        tick("[first] part")
        tick("second part", 0.5)
    assert "work: second part" in screen.getvalue()
    assert "━" in screen.getvalue()
