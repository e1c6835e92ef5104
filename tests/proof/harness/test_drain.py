"""The end of a load: what is waited for, in which order, and what is returned."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from deelog_proof.harness import drain as module
from deelog_proof.harness.drain import drain, unwritten
from deelog_schemas.operation import Entry
from tests.proof.harness.doubles import Parts

HOUR_MS = 3_600_000


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parts:
    """All is settled at once."""
    parts = Parts(tmp_path)
    for node in parts.cluster.nodes:
        node.answers = [{"unwritten": 0}]

    def end_offsets(bootstrap: str, topic: str) -> dict[int, int]:
        parts.calls.append(f"ends of {topic} at {bootstrap}")
        return {0: 7}

    monkeypatch.setattr(module, "end_offsets", end_offsets)
    until_times(monkeypatch, 3)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "progress.json").write_text('{"input_offsets": {"0": 7}}')
    return parts


def until_times(monkeypatch: pytest.MonkeyPatch, most: int) -> list[str]:
    """Polls at once and as often as this; returns what was waited for."""
    waited: list[str] = []

    def until(condition: object, seconds: float, what: str, every: float) -> float:
        waited.append(what)
        for _ in range(most):
            if condition():  # type: ignore[operator]
                return 0.0
        raise TimeoutError(what)

    monkeypatch.setattr(module, "until", until)
    return waited


def test_it_returns_the_entries_that_are_held_in_the_end(parts: Parts) -> None:
    last = {b"a": Entry(b"a", b"2", None)}
    parts.cluster.dumps = [{b"a": Entry(b"a", b"1", None)}, last]
    assert drain(parts.environment) == last
    assert parts.calls == [
        "wait until whole",
        *("poll n1", "poll n2", "poll n3"),
        "ends of p.c at 127.0.0.1:9",
    ]
    (said,) = parts.show.said
    assert said.startswith("load over; waiting")


def test_entries_that_expire_soon_are_waited_for(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = until_times(monkeypatch, 3)
    now = int(time.time() * 1000)
    soon, late = Entry(b"a", b"1", now + 1000), Entry(b"b", b"1", now + HOUR_MS)
    parts.cluster.dumps = [{b"a": soon, b"b": late}, {b"b": late}, {b"c": late}]
    assert drain(parts.environment) == {b"c": late}
    assert len(waited) == 3
    parts.cluster.dumps = [{b"a": soon}]
    with pytest.raises(TimeoutError, match="short-lived entries to expire"):
        drain(parts.environment)


def test_what_is_captured_must_be_written(parts: Parts) -> None:
    parts.cluster.nodes[1].answers = [{"unwritten": 3}, None, {"unwritten": 0}]
    assert drain(parts.environment) == {}
    parts.cluster.nodes[1].answers = [{"unwritten": 3}]
    with pytest.raises(TimeoutError, match="the nodes to write all that they captured"):
        drain(parts.environment)


def test_the_spark_job_must_have_read_it_and_is_started_again(parts: Parts) -> None:
    parts.diff.kill()
    drain(parts.environment)
    assert "start Spark job" in parts.calls
    (parts.environment.directory / "checkpoint" / "progress.json").write_text('{"input_offsets": {"0": 6}}')
    told = r"to its end: \{0: 7\}; it is at \{'0': 6\}, and its log ends with: Spark job's last words"
    with pytest.raises(TimeoutError, match=told):
        drain(parts.environment)


@pytest.mark.parametrize(
    ("answers", "count"),
    [([0, 0, 0], 0), ([1, 2, 4], 7), ([1, None, 4], -1), ([None, 0, 0], -1)],
)
def test_what_is_not_written_yet_on_all_nodes(parts: Parts, answers: list[int | None], count: int) -> None:
    for node, answer in zip(parts.cluster.nodes, answers, strict=True):
        node.answers = [None if answer is None else {"unwritten": answer}]
    assert unwritten(parts.environment) == count
