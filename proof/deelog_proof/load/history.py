"""What clients wrote, what was acknowledged, and when: the oracle for the content of Kafka.

Per key the writes are in order, each sent until it was acknowledged before the next one is sent. A captured operation
carries the primary's clock, so on one machine a record belongs to the last write of the same content sent before it.

Weighed in docs/decisions.md, "Histories of clients".
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

DELETE = 0
"""Content of a delete; values hash to something else."""


def content_of(value: bytes | None) -> int:
    """A value's identity within this process: 64 bits of its hash, `DELETE` for a delete."""
    return DELETE if value is None else hash(value) or 1


def now_us() -> int:
    """Unix microseconds, the clock that operations are stamped with."""
    return time.time_ns() // 1000


@dataclass(slots=True)
class Sent:
    """One write as its client saw it. `acked_us` is 0 until it was acknowledged.

    `captured` is false where the reply said that nothing changed: the delete of an absent key.
    """

    content: int
    sent_us: int
    acked_us: int = 0
    captured: bool = True


@dataclass(slots=True)
class History:
    """Writes by key, each key's in order. One thread writes to it; read it once that thread has ended."""

    writes: dict[bytes, list[Sent]] = field(default_factory=dict)

    def sent(self, key: bytes, value: bytes | None) -> Sent:
        """To be called before the first attempt of a write; set the result's `acked_us` once it is acknowledged."""
        write = Sent(content_of(value), now_us())
        self.writes.setdefault(key, []).append(write)
        return write


def merged(histories: list[History]) -> History:
    """Histories of disjoint keys as one."""
    whole: dict[bytes, list[Sent]] = {}
    for history in histories:
        if whole.keys() & history.writes.keys():
            raise ValueError("a key was written by two workers")
        whole.update(history.writes)
    return History(whole)


@dataclass(frozen=True, slots=True)
class Captured:
    """A change record of the topic: content, the primary's clock at capture, and reason."""

    content: int
    ts_us: int
    reason: str
    """`put`, `remove`, `expire`, `evict`, `correct`."""


@dataclass(slots=True)
class Audit:
    """The result of comparing a history with the topic. Lists are of keys, with the number of the write."""

    acked: int = 0
    unacked: int = 0
    in_topic: int = 0
    covered_by_reset: int = 0
    covered_by_write: int = 0
    lost: list[tuple[bytes, int]] = field(default_factory=list)
    phantoms: list[tuple[bytes, int]] = field(default_factory=list)
    """Records that no client wrote; the number counts the key's records."""


def audit(
    history: History,
    records: dict[bytes, list[Captured]],
    resets: dict[bytes, list[int]],
    *,
    names_expiry: bool = True,
) -> Audit:
    """Looks for every acknowledged write in the topic.

    `records` are a key's change records in offset order, `resets` the times (Unix microseconds) at which completed
    resets of the key's segment ended. A missing write must be covered by a later write of the key in the topic,
    or by a reset that ended after the write was sent; otherwise it is lost. `names_expiry`: a delete whose reason is
    `remove` was a client's.
    """
    result = Audit()
    for key in history.writes.keys() | records.keys():
        _audit_key(result, key, history.writes.get(key, []), records.get(key, []), resets.get(key, []), names_expiry)
    return result


def _audit_key(
    result: Audit, key: bytes, writes: list[Sent], records: list[Captured], resets: list[int], names_expiry: bool
) -> None:
    matched = set(_matches(result, key, writes, records, names_expiry))
    last_matched = max(matched, default=-1)
    last_reset = max(resets, default=0)
    for number, write in enumerate(writes):
        if not write.acked_us:
            result.unacked += 1
            continue
        result.acked += 1
        if number in matched or not write.captured:
            result.in_topic += 1
        elif last_reset >= write.sent_us:
            result.covered_by_reset += 1
        elif number < last_matched:
            result.covered_by_write += 1
        else:
            result.lost.append((key, number))


def _matches(
    result: Audit, key: bytes, writes: list[Sent], records: list[Captured], names_expiry: bool
) -> Iterator[int]:
    by_content: dict[int, list[int]] = {}
    for n, write in enumerate(writes):
        by_content.setdefault(write.content, []).append(n)
    for place, record in enumerate(records):
        candidates = by_content.get(record.content, [])
        number = next((n for n in reversed(candidates) if writes[n].sent_us <= record.ts_us), None)
        if record.reason in ("expire", "evict") or (record.reason == "correct" and record.content == DELETE):
            continue  # made by the cache itself
        if number is None and record.content == DELETE and not names_expiry:
            continue
        if number is None:
            result.phantoms.append((key, place))
        elif record.reason != "correct":
            yield number
