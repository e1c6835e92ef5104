"""The signal file with several listeners.

Bad input: a line that is half written when one or all of them look, links, a listener that does not ask, a file that is
too large, a folder, no file.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from deelog_connector.signals.file_channel import MAX_BYTES, SignalFile


def test_every_listener_hears_every_line_once(tmp_path: Path) -> None:
    path = tmp_path / "signals"
    link = tmp_path / "link"
    link.symlink_to(path)
    one, other = SignalFile.of(path), SignalFile.of(link)
    with one.listening("a"), other.listening("b"):
        path.write_text("1\n\n2\n")
        assert one.lines("a") == [b"1", b"2"]
        assert path.read_text() == ""
        with one.listening("late"):
            path.write_text("3\n")
            assert one.lines("a") == []  # the file waits for "b"
            assert one.lines("late") == []
            assert path.read_text() == "3\n"
            assert other.lines("b") == [b"1", b"2"]
            assert other.lines("b") == [b"3"]
            assert (one.lines("a"), one.lines("late")) == ([b"3"], [b"3"])
            path.write_text("4\n")
            assert one.lines("a") == [b"4"]
        assert other.lines("b") == [b"4"]  # and what "late" had not asked for holds nobody up
        path.write_text("5\n")
        assert (one.lines("a"), other.lines("b")) == ([b"5"], [b"5"])
    path.write_text("nobody's\n")
    assert one.lines("a") == []  # asked in a thread while its listener was cancelled
    with one.listening("a"):
        assert one.lines("a") == [b"nobody's"]


def test_a_line_without_an_end_is_taken_by_who_saw_it_before(tmp_path: Path) -> None:
    """Two listeners may look shortly after each other: that both see the line does not mean that it is still there."""
    path = tmp_path / "signals"
    file = SignalFile.of(path)
    with ExitStack() as listening:
        listening.enter_context(file.listening("b"))
        with file.listening("a"):
            path.write_text("1\nhal")
            assert (file.lines("a"), file.lines("b")) == ([], [])
            path.write_text("1\nhalf")
            assert (file.lines("b"), file.lines("a")) == ([], [])
            assert file.lines("b") == [b"1", b"half"]
            assert file.lines("a") == [b"1", b"half"]
            path.write_text("2")
            assert file.lines("a") == []
        assert file.lines("b") == []  # "a" does not come again: "b" begins to count
        assert file.lines("b") == [b"2"]
        path.write_text("3")
        assert file.lines("b") == []
        path.write_text("34\n")
        assert file.lines("b") == [b"34"]
        path.write_text("3")
        assert file.lines("b") == []  # what was seen of the line before says nothing of this one


def test_what_cannot_be_read_is_an_error_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "signals"
    file = SignalFile.of(path)
    with file.listening("a"):
        assert file.lines("a") == []
        path.write_bytes(b"x" * MAX_BYTES + b"\n")
        with pytest.raises(OSError, match=f"{MAX_BYTES} are allowed"):
            file.lines("a")
        assert path.stat().st_size == MAX_BYTES + 1
        path.unlink()
        path.mkdir()
        with pytest.raises(IsADirectoryError):
            file.lines("a")
        path.rmdir()
        path.symlink_to(path)
        with pytest.raises(OSError, match="symbolic links"):
            file.lines("a")


def test_it_is_one_per_path_and_gone_with_its_last_holder(tmp_path: Path) -> None:
    held = SignalFile.of(tmp_path / "a")
    assert SignalFile.of(tmp_path / "x" / ".." / "a") is held
    assert SignalFile.of(tmp_path / "b") is not held
    before = len(SignalFile._open)
    del held
    assert len(SignalFile._open) < before
