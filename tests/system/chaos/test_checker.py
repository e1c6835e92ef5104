"""The checker and the reader find what is seeded: each test takes a run in which all is well and spoils one thing."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.system.chaos.checker import (
    Row,
    Trouble,
    Verdict,
    View,
    check_history,
    check_resets,
    check_states,
    segment_of,
)
from tests.system.chaos.history import FAILED, OK, UNKNOWN, Write
from tests.system.chaos.reader import (
    CHANGE,
    READ,
    RESET_BEGIN,
    RESET_END,
    TOMBSTONE,
    ChangeFold,
    Record,
    State,
    Topic,
    fold_diff,
    parse,
)

SEGMENTS = 4
KEY = b"key:1"
SEGMENT = segment_of(KEY, SEGMENTS)
CENTURY = 4_102_444_800_000


class Message:
    """A record as the client hands it out."""

    def __init__(self, offset: int, kind: int, position: tuple[int, int], key: bytes, **more: Any) -> None:
        self._offset = offset
        header = struct.pack(">BBHIIQI", 1, kind, 0, more.get("segment", SEGMENT), *position, 0)
        control = json.dumps(more["control"]).encode() if "control" in more else b"{}"
        self._headers = [("deelog", header), ("deelog.control", control)]
        self._key = json.dumps({"key": key.decode()}).encode()
        self._at_us = more.get("at_us", offset * 1_000_000)
        self._value = None
        if kind in (CHANGE, READ):
            value, reason = more.get("value"), more.get("reason")
            after = {"key": key.decode(), "value": value, "expires_at": more.get("expires_at")} if value else None
            op = "r" if kind == READ else "u" if after else "d"
            source = {"segment": SEGMENT, "epoch": position[0], "seq": position[1], "reason": reason}
            source["ts_us"] = self._at_us
            if "cause" in more:
                source["cause"] = more["cause"]
            self._value = json.dumps({"op": op, "after": after, "source": source}).encode()

    def headers(self) -> list[tuple[str, bytes]]:
        return self._headers

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._at_us // 1000 + 1


def change(offset: int, position: tuple[int, int], value: str | None, **more: Any) -> Message:
    return Message(offset, CHANGE, position, more.pop("key", KEY), value=value, **more)


def begin(offset: int, position: tuple[int, int], reason: str = "owners_lost") -> Message:
    told = {"epoch": position[0], "id": f"r{offset}", "reason": reason}
    return Message(offset, RESET_BEGIN, position, b"\0deelog/begin", control=told)


def end(offset: int, position: tuple[int, int], of: int, count: int) -> Message:
    return Message(offset, RESET_END, position, b"\0deelog/end", control={"id": f"r{of}", "count": count})


def folded(messages: Iterable[Any]) -> Topic:
    fold = ChangeFold()
    for message in messages:
        fold.take(parse(message))
    return fold.finish()


def write(second: float, value: str | None, **more: Any) -> Write:
    """Sent shortly before `second` and acknowledged shortly after it."""
    at = round(second * 1_000_000)
    told = Write(more.pop("client", "c"), KEY, value.encode() if value else None, more.pop("expires_at", None), at)
    told.sent_us, told.ended_us, told.outcome = at - 400_000, at + 400_000, OK
    for name, found in more.items():
        setattr(told, name, found)
    return told


# Offsets are seconds. v1 and v2 are written, deleted, v3 is written with an expiry that is changed.
MESSAGES = [
    change(1, (1, 1), "v1"),
    change(2, (1, 2), "v2"),
    change(3, (1, 3), None, reason="remove"),
    Message(4, TOMBSTONE, (1, 3), KEY),
    change(5, (1, 4), "v3"),
    change(6, (2, 5), "v3", expires_at=CENTURY),
]
WRITES = [
    write(1, "v1"),
    write(2, "v2"),
    write(3, None),
    write(5, "v3"),
    write(6, None, expires_at=CENTURY),
    write(7, "refused", outcome=FAILED),
    write(8, None, effect=False),
    write(9, "lost on the way", outcome=UNKNOWN, doubtful=True),
]


def verdict(messages: Iterable[Any] = MESSAGES, writes: Iterable[Write] = WRITES, covered: bool = False) -> Verdict:
    found, topic = Verdict(), folded(messages)
    check_history(found, writes, topic, topic.resets if covered else [], SEGMENTS)
    state = (b"v3", CENTURY)
    diff = fold_diff(map(parse, [change(1, (2, 5), "v3", expires_at=CENTURY, cause="change")]))
    check_states(found, {KEY: state}, topic, diff, [])
    return found


def test_a_good_run_has_no_violation() -> None:
    found = verdict()
    assert found.violations() == {}
    assert (found.operations, found.outcomes, found.in_topic) == (8, {OK: 6, FAILED: 1, UNKNOWN: 1}, 5)


def test_an_unknown_write_may_be_there_or_not() -> None:
    late = change(10, (2, 6), "lost on the way")
    again = [change(11, (2, 7), "v3", expires_at=CENTURY, reason="correct")]  # and may be taken back
    assert verdict([*MESSAGES, late, *again]).violations() == {}
    assert verdict([*MESSAGES, late, *again]).unknown_in_topic == 1


@pytest.mark.parametrize("left_out", [0, 1, 2, 5])
def test_a_dropped_record_is_a_lost_write_and_a_hole(left_out: int) -> None:
    messages = [message for place, message in enumerate(MESSAGES) if place != left_out]
    found = verdict(messages)
    assert len(found.lost) == 1
    assert (left_out == 5) or "operations are missing" in found.problems[0]
    assert (left_out != 5) or found.differing


def test_a_later_write_does_not_cover_a_lost_one() -> None:
    renumbered = [change(1, (1, 1), "v1"), change(3, (1, 2), None), *MESSAGES[3:4], change(5, (1, 3), "v3")]
    found = verdict([*renumbered, change(6, (1, 4), "v3", expires_at=CENTURY)])
    assert found.problems == []
    assert len(found.lost) == 1
    assert "v2" in found.lost[0]


def test_a_record_that_is_there_twice_is_found() -> None:
    found = verdict([*MESSAGES, change(7, (2, 5), "v3", expires_at=CENTURY)])
    assert len(found.duplicates) == 1
    # Under a new position as well: then as a value that comes back.
    again = verdict([*MESSAGES[:3], change(4, (1, 4), "v1"), change(5, (1, 5), "v3"), change(6, (2, 6), "v3")])
    assert "stands behind" in again.disorder[0]


@pytest.mark.parametrize(
    ("value", "reason", "problem"),
    [
        ("nobody's", None, "no client wrote"),
        ("refused", None, "failed for certain"),
        ("nobody's", "correct", "no client wrote"),
        (None, "remove", "no client asked for"),
    ],
)
def test_a_phantom_is_found(value: str | None, reason: str | None, problem: str) -> None:
    found = verdict([*MESSAGES, change(20, (2, 6), value, reason=reason)], WRITES[:-1])
    assert len(found.phantoms) == 1
    assert problem in found.phantoms[0]


@pytest.mark.parametrize("reason", ["expire", "evict"])
def test_what_the_cache_does_itself_is_no_phantom(reason: str) -> None:
    assert verdict([*MESSAGES, change(20, (2, 6), None, reason=reason)]).phantoms == []


def test_a_write_that_is_not_sent_yet_is_a_phantom() -> None:
    assert "sent later" in verdict([change(0, (1, 1), "v1"), *MESSAGES[1:]]).phantoms[0]


def test_an_acknowledged_write_that_is_rolled_back_is_found() -> None:
    found = verdict([*MESSAGES[:2], change(3, (1, 3), "v1", reason="correct")], WRITES[:2])
    assert "stands behind" in found.disorder[0]
    # Unless nobody was told that it holds.
    doubtful = [WRITES[0], replace(WRITES[1], outcome=UNKNOWN, doubtful=True)]
    assert verdict([*MESSAGES[:2], change(3, (1, 3), "v1", reason="correct")], doubtful).disorder == []


@pytest.mark.parametrize("count", [0, 1])
def test_a_reset_covers_what_it_took_only_if_it_was_called_for(count: int) -> None:
    rows = [Message(9, READ, (2, 5), KEY, value="v3", expires_at=CENTURY)][:count]
    messages = [*MESSAGES[:3], begin(8, (2, 3)), *rows, end(10, (2, 5), 8, count)]
    late = [*WRITES[:3], write(5, "v3"), write(5.5, "v4")]
    assert len(verdict(messages, late).lost) == 2 - count
    found = verdict(messages, late, covered=True)
    assert (found.lost, found.covered_by_reset) == ([], 2 - count)


def test_a_reset_that_is_not_whole_is_found() -> None:
    row = Message(9, READ, (2, 5), KEY, value="v3", expires_at=CENTURY)
    assert "a reset of 1 entries, not 2" in folded([begin(8, (2, 3)), row, end(10, (2, 5), 8, 2)]).problems[0]
    assert "never ended" in folded([begin(8, (2, 3)), row]).problems[0]
    assert "not open" in folded([end(10, (2, 5), 8, 2)]).problems[0]
    assert "outside of a reset" in folded([row]).problems[0]


def test_an_unequal_key_in_the_diff_is_found() -> None:
    topic = folded(MESSAGES)
    wrong: list[dict[bytes, State]] = [{}, {KEY: (b"v3", None)}, {KEY: (b"other", CENTURY)}]
    for states in (*wrong, {KEY: (b"v3", CENTURY), b"more": (b"", None)}):
        found = Verdict()
        check_states(found, {KEY: (b"v3", CENTURY)}, topic, Topic(states=states), ["segment 1 has {'primary': 2}"])
        assert len(found.differing) == 1
        assert found.copies == ["segment 1 has {'primary': 2}"]


def test_diffs_that_come_again_or_delete_nothing_are_found() -> None:
    created = change(1, (1, 1), "v", cause="change")
    assert fold_diff(map(parse, [created, change(2, (1, 1), "v", cause="reset")])).duplicates == []
    assert len(fold_diff(map(parse, [created, change(2, (1, 1), "w", cause="change")])).duplicates) == 1
    assert len(fold_diff(map(parse, [change(1, (1, 1), None, cause="change")])).problems) == 1


VIEWS = [
    View(0, (Row(1, "n1@1", ("n1@1", "n2@1"), None),) * SEGMENTS),
    View(7000, (Row(2, "n3@1", ("n3@1",), None),) * SEGMENTS),
]


@pytest.mark.parametrize(
    ("nodes", "reason", "kinds"),
    [
        (["n1", "n2"], "owners_lost", {"owners_lost: kill + kill": 1}),
        (["n1"], "owners_lost", {}),
        (["n2", "n3"], "hole", {}),
        ([""], "overflow", {}),
        ([], "unknown_history", {}),
    ],
)
def test_a_reset_is_called_for_only_if_every_in_sync_member_was_in_trouble(
    nodes: list[str], reason: str, kinds: dict[str, int]
) -> None:
    found, topic = Verdict(), folded([begin(8, (2, 3), reason), end(10, (2, 3), 8, 0)])
    troubles = [Trouble("kill", node, 6000, 9000) for node in nodes]
    called = check_resets(found, topic.resets, VIEWS, troubles, 0)
    # Equal kinds are named once.
    assert found.called_for == {name.replace("kill + kill", "kill"): number for name, number in kinds.items()}
    assert len(called) == len(kinds)
    assert len(found.needless) == 1 - len(kinds)
    assert found.resets == {reason: 1}
    # The same faults, but over before the reset began.
    over = [replace(trouble, until_ms=7999) for trouble in troubles]
    assert check_resets(Verdict(), topic.resets, VIEWS, over, 0) == []


@pytest.mark.parametrize(
    ("reason", "kind", "is_called_for"),
    [
        ("overflow", "kafka-pause", True),
        ("overflow", "kill", False),
        ("truncated", "kafka-second-kill", True),
        ("truncated", "kafka-kill", False),
    ],
)
def test_some_resets_are_called_for_by_kafka_alone(reason: str, kind: str, is_called_for: bool) -> None:
    topic = folded([begin(8, (2, 3), reason), end(10, (2, 3), 8, 0)])
    called = check_resets(Verdict(), topic.resets, VIEWS, [Trouble(kind, "", 6000, 9000)], 0)
    assert called == (topic.resets if is_called_for else [])


def test_the_first_state_of_a_segment_is_written_before_the_load_only() -> None:
    topic = folded([begin(8, (2, 3), "initial"), end(10, (2, 3), 8, 0)])
    assert check_resets(Verdict(), topic.resets, VIEWS, [], 20_000) == topic.resets
    assert check_resets(Verdict(), topic.resets, VIEWS, [], 5000) == []


@pytest.mark.parametrize(
    "spoilt",
    [{"kind": 9}, {"segment": SEGMENT + 1}],
)
def test_a_record_of_another_format_is_refused(spoilt: dict[str, Any]) -> None:
    told: dict[str, Any] = {"offset": 1, "kind": CHANGE, "position": (1, 1), "key": KEY, "value": "v"} | spoilt
    with pytest.raises(AssertionError):
        parse(Message(**told))


def test_a_record_is_what_it_says() -> None:
    found = parse(change(7, (3, 9), "v", expires_at=5))
    assert found == Record(0, 7, 7001, CHANGE, SEGMENT, (3, 9), KEY, (b"v", 5), None, 7_000_000, {})
