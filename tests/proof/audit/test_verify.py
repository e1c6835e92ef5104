"""The comparison, and the takeovers told from the topic."""

from __future__ import annotations

from collections import Counter

import pytest

from deelog_proof.audit.topics import ChangeTopic, DiffTopic, Ownership
from deelog_proof.audit.verify import differences, takeovers, verify
from deelog_proof.demo.faults import Happened
from deelog_proof.load.history import Captured, History, Sent, content_of
from deelog_schemas.keys import segment_of
from deelog_schemas.operation import Entry


def _entries(**values: str) -> dict[bytes, Entry]:
    return {key.encode(): Entry(key.encode(), value.encode(), None) for key, value in values.items()}


@pytest.mark.parametrize(
    ("held", "topic", "diff", "found"),
    [
        ({"a": "1"}, {"a": "1"}, {"a": "1"}, {}),
        ({"a": "1"}, {"a": "2"}, {"a": "1"}, {b"a": "change topic: another value"}),
        ({"a": "1"}, {"a": "1"}, {}, {b"a": "diff: lacks the key"}),
        ({}, {}, {"a": "1"}, {b"a": "diff: has a key that the caches do not hold"}),
    ],
)
def test_differences_by_key(
    held: dict[str, str], topic: dict[str, str], diff: dict[str, str], found: dict[bytes, str]
) -> None:
    assert differences(_entries(**held), _entries(**topic), _entries(**diff)) == found


def test_another_expiry_is_a_difference() -> None:
    held = {b"a": Entry(b"a", b"1", 5)}
    assert differences(held, held, {b"a": Entry(b"a", b"1", 6)}) == {b"a": "diff: expires at 6, not 5"}


def test_resets_count_for_keys_of_their_segment() -> None:
    """A lost write is covered by a reset of its own segment, not by that of another."""
    history = History({b"k": [Sent(content_of(b"1"), 100, 110)]})
    segment = segment_of(b"k", 256)
    for ended, lost in ((segment, 0), (segment + 1, 1)):
        changes = ChangeTopic(reset_ends={ended: [500]})
        verdict = verify(history, {}, changes, DiffTopic(), segments=256, happened=[], final=None)
        assert len(verdict.audit.lost) == lost


def test_the_list_of_a_history_is_compared_with_caches_and_diff() -> None:
    good, bad = _entries(a="x" * 16), _entries(a="y" * 16)
    final = {b"a": b"x" * 16}
    for caches, diff, wrong in ((good, good, []), (bad, good, [b"a"]), (good, bad, [b"a"])):
        changes = ChangeTopic(entries=caches)
        verdict = verify(History(), caches, changes, DiffTopic(entries=diff), segments=256, happened=[], final=final)
        assert verdict.final == wrong


def test_takeovers_are_told_from_active_records() -> None:
    owners = [
        Ownership(1, 1, "n1@1", 100),
        Ownership(2, 1, "n2@1", 100),
        Ownership(1, 1, "n1@1", 150),  # again, after a fence
        Ownership(1, 2, "n2@1", 2500),  # n1 was killed at 1000
        Ownership(2, 3, "n1@2", 4000),  # handed over, nobody died
    ]
    assert takeovers(owners, [Happened("kill", 1000, ["n1"])]) == (2, [1500])
    assert takeovers(owners, []) == (2, [])


def test_captured_records_are_compared_with_the_history() -> None:
    history = History({b"k": [Sent(content_of(b"1"), 100, 110), Sent(content_of(b"2"), 200, 210)]})
    changes = ChangeTopic(captured={b"k": [Captured(content_of(b"1"), 105, "put")]}, resets=Counter())
    verdict = verify(history, {}, changes, DiffTopic(), segments=256, happened=[], final=None)
    assert verdict.audit.lost == [(b"k", 1)]
