"""What is printed while something runs: with the time, wrapped, and now and then on what is no terminal."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
from rich.console import Console

from deelog_proof.demo import display
from deelog_proof.demo.display import PLAIN_EVERY_SECONDS, Display


class Clock:
    """The time of the display."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=clock.monotonic))
    monkeypatch.setenv("COLUMNS", "50")
    return clock


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """The lines since the last call."""
    return lambda: capsys.readouterr().out.splitlines()


def test_a_text_is_told_with_the_seconds_since_the_beginning(clock: Clock, lines: Callable[[], list[str]]) -> None:
    show = Display()
    clock.now += 1.25
    show.say("it [bold]begins[/bold]")
    clock.now += 100
    show.say("it goes on")
    assert lines() == ["   1.2 s  it [bold]begins[/bold]", " 101.2 s  it goes on"]


def test_a_long_first_line_is_wrapped_and_others_are_not(clock: Clock, lines: Callable[[], list[str]]) -> None:
    Display().say("one two-three " * 5 + "\n" + "x" * 60 + "\nlast")
    assert lines() == [
        "   0.0 s  one two-three one two-three one",
        "          two-three one two-three one two-three",
        "x" * 60,
        "last",
    ]


def test_a_narrow_terminal_has_30_characters_all_the_same(
    clock: Clock, lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    Display().say("a" * 30 + " b")
    assert lines() == ["   0.0 s  " + "a" * 30, "          b"]


def test_progress_is_told_every_few_seconds(clock: Clock, lines: Callable[[], list[str]]) -> None:
    show = Display()
    with show:
        show.advance(1)  # nothing has begun
        clock.now += 1000
        show.begin("writes", 20_000)
        clock.now += PLAIN_EVERY_SECONDS - 0.1
        show.advance(1000)
        assert lines() == []
        clock.now += 0.1
        show.advance(2000, "so far")
        assert lines() == ["1005.0 s  2,000 of 20,000 writes acknowledged, so", "          far"]
        clock.now += PLAIN_EVERY_SECONDS - 0.1
        show.advance(3000)
        assert lines() == []
        clock.now += PLAIN_EVERY_SECONDS
        show.advance(4000)
        assert lines() == ["1014.9 s  4,000 of 20,000 writes acknowledged"]
        show.end()
        clock.now += PLAIN_EVERY_SECONDS
        show.advance(5000)
        show.end()
        show.begin("seeds", None, "seeds")
        clock.now += PLAIN_EVERY_SECONDS
        show.advance(7)
    assert lines() == ["1024.9 s  7 seeds"]


def test_on_a_terminal_there_is_a_bar(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(display, "Console", partial(Console, force_terminal=True))
    monkeypatch.setenv("COLUMNS", "120")
    with Display() as show:
        assert show._bar.live.is_started
        show.begin("writes", 10)
        clock.now += PLAIN_EVERY_SECONDS
        show.advance(4, "a note")
        show._bar.refresh()
        assert "writes acknowledged" not in capsys.readouterr().out
        (task,) = show._bar.tasks
        assert (task.description, task.completed, task.total, task.fields) == ("writes", 4, 10, {"note": "a note"})
        show.end()
        assert show._bar.tasks == []
    assert not show._bar.live.is_started
