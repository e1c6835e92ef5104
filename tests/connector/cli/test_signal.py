"""`deelog signal` refuses signals that no connector would accept, before it sends anything. Others: the grid's tests.

Bad input: unknown types, options of another type, segments that are malformed, too large or an empty range, invalid or
slow expressions, a reset without segments, a log without a message, a very long id.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from deelog_connector.cli.signal import signal
from deelog_schemas.signals import KINDS

WRONG: dict[str, tuple[list[str], str]] = {
    "no kind of ours": (["pause-snapshot"], "'pause-snapshot' is not one of"),
    "a reset of nothing": (["reset-segment"], "Missing option '--segments'"),
    "no numbers": (["reset-segment", "--segments", "1,x"], "'1,x' is not a list of numbers"),
    "a negative number": (["reset-segment", "--segments", "-1"], "'-1' is not a list of numbers"),
    "beyond the last": (["execute-snapshot", "--segments", "250-259"], "[256, 257, 258, 259] are not segments of 256"),
    "an empty range": (["execute-snapshot", "--segments", "9-3"], "'9-3' names no segment"),
    "segments to stop": (["stop-snapshot", "--segments", "1"], "--segments says nothing to stop-snapshot"),
    "a message to pause": (["pause-writing", "--message", "m"], "--message says nothing to pause-writing"),
    "caches to reset": (["reset-segment", "--segments", "1", "--collections", "c"], "--collections says nothing to"),
    "a log of nothing": (["log"], "`message` is missing"),
    "no expression": (["pause-writing", "--collections", "["], "is no regular expression"),
    "an expression without end": (["resume-writing", "--collections", "(a+)+"], "may take long"),
    "an id without end": (["log", "--message", "m", "--id", "i" * 300], "255 are allowed"),
    "no id": (["execute-snapshot", "--id", ""], "`id` is missing"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_and_nothing_is_sent(name: str, tmp_path: Path) -> None:
    arguments, words = WRONG[name]
    file = tmp_path / "n.properties"
    file.write_text("topic.prefix=p\ncache.name=c\nnode.id=n\nbootstrap.servers=127.0.0.1:1\n")
    result = CliRunner().invoke(signal, [*arguments, "--config", str(file)])
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.output.split())


def test_without_a_signal_topic_nothing_is_sent(tmp_path: Path) -> None:
    file = tmp_path / "n.properties"
    file.write_text("topic.prefix=p\ncache.name=c\nnode.id=n\nbootstrap.servers=127.0.0.1:1\nsignal.kafka.topic=\n")
    result = CliRunner().invoke(signal, ["pause-writing", "--config", str(file)])
    assert "signal.kafka.topic: is empty: nobody would read" in str(result.exception)


def test_help_shows_an_example_of_each_kind() -> None:
    text = CliRunner().invoke(signal, ["--help"]).output
    assert all(f"deelog signal {kind} --config" in text for kind in KINDS)
