"""What a plain consumer makes of a change topic, and which faults it finds."""

from __future__ import annotations

import pytest

from deelog_proof.audit.topics import Read
from deelog_proof.conformance import observed as module
from deelog_proof.conformance.history import Change, Reset
from deelog_proof.conformance.observed import Observed, observe
from deelog_schemas.digest import digest_of
from deelog_schemas.errors import RecordError
from deelog_schemas.header import Kind
from tests.proof.audit.reads import TOPIC, change, control, row, tombstone

CLAIM = control(Kind.ACTIVE, (1, 0), 40)


def begin(position: tuple[int, int], reset: str = "r", reason: str = "start") -> Read:
    return control(Kind.RESET_BEGIN, position, 50, id=reset, reason=reason)


def end(position: tuple[int, int], *entries: tuple[bytes, bytes], reset: str = "r") -> Read:
    return control(Kind.RESET_END, position, 60, id=reset, count=len(entries), digest=digest_of(entries))


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> list[Read]:
    """The records of the topic."""
    reads: list[Read] = []

    def read_topic(bootstrap: str, topic: str) -> list[Read]:
        assert (bootstrap, topic) == ("h:1", TOPIC)
        return reads

    monkeypatch.setattr(module, "read_topic", read_topic)
    return reads


def seen(topic: list[Read], *reads: Read) -> Observed:
    topic[:] = reads
    return observe("h:1", TOPIC)


def test_a_topic_without_records(topic: list[Read]) -> None:
    assert seen(topic) == Observed()


def test_changes_and_resets_are_steps_in_their_order(topic: list[Read]) -> None:
    found = seen(
        topic,
        CLAIM,
        begin((1, 1)),
        row((1, 1), b"a", b"1"),
        end((1, 1), (b"a", b"1")),
        change((1, 2), b"b", b"2"),
        change((1, 3), b"a", None),
        tombstone((1, 3), b"a"),
        begin((1, 4), "s", "signal"),
        row((1, 4), b"b", b"2"),
        change((1, 5), b"c", b"3"),  # within the reset, and part of it
        end((1, 5), (b"b", b"2"), (b"c", b"3"), reset="s"),
    )
    assert found.steps == {
        3: [
            Reset("start", {"a": "1"}),
            Change("c", "b", "2"),
            Change("d", "a", None),
            Reset("signal", {"b": "2", "c": "3"}),
        ]
    }
    assert (found.content, found.faults) == ({"b": "2", "c": "3"}, [])


def test_the_content_of_a_reset_stays_as_it_was(topic: list[Read]) -> None:
    found = seen(topic, begin((1, 1)), end((1, 1)), change((1, 2), b"a", b"1"))
    assert found.steps == {3: [Reset("start", {}), Change("c", "a", "1")]}


@pytest.mark.parametrize(
    ("after", "fault"),
    [
        ([], "no tombstone comes after the delete of"),
        ([change((1, 3), b"a", b"2")], "no tombstone comes between the delete of"),
    ],
)
def test_a_delete_without_its_tombstone(topic: list[Read], after: list[Read], fault: str) -> None:
    delete = change((1, 2), b"a", None)
    found = seen(topic, delete, *after)
    (told,) = found.faults
    assert told.startswith(f"{fault} {delete.record.key!r}")
    assert seen(topic, delete, tombstone((1, 2), b"a"), *after).faults == []


def test_positions_that_were_written_twice(topic: list[Read]) -> None:
    twice = change((1, 2), b"a", b"1")
    found = seen(topic, twice, twice, twice)
    assert found.faults == ["segment 3: 2 positions were written twice"]
    assert found.content == {"a": "1"}


def test_a_reset_without_an_end(topic: list[Read]) -> None:
    found = seen(topic, change((1, 1), b"a", b"1"), begin((1, 2)), row((1, 2), b"b", b"2"))
    assert found.faults == ["segment 3: a reset has no end"]
    assert (found.content, found.steps) == ({"a": "1"}, {3: [Change("c", "a", "1")]})


def test_a_reset_that_misses_a_row(topic: list[Read]) -> None:
    with pytest.raises(RecordError, match="records are missing"):
        seen(topic, begin((1, 1)), end((1, 1), (b"a", b"1")))
