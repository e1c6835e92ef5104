"""Whether what was promised holds: histories of clients, change topic, diff, caches and copies against each other.

The rules, and what a violation is called in the report:

* `lost`: an acknowledged write that is not in the topic, and no *called-for* reset of its segment ended after it was
  sent. A later write does not cover it: no operation may be left out.
* `disorder`: the topic goes back to a write that ended before another, acknowledged one began.
* `phantoms`: a record of a write that nobody sent, or that failed for certain.
* `duplicates`, `problems`: the reader's own findings: positions twice or left out, resets that are not whole.
* `differing`: a key that is not the same in the caches, the folded change topic and the folded diff; `copies`: a
  backup that does not hold what its primary holds.
* `needless`: a reset that no fault called for.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from redis.crc import key_slot

from tests.system.chaos.history import FAILED, OK, UNKNOWN, Write
from tests.system.chaos.reader import READ, Record, Reset, State, Topic

_SLOTS = 16384
_CLOCK_US = 2000
"""How far two readings of one machine's clock may be apart."""
_CORRECT, _OWN = "correct", ("expire", "evict")


@dataclass(slots=True)
class Verdict:
    """Violations are lists of sentences; the rest are counts."""

    operations: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    in_topic: int = 0
    covered_by_reset: int = 0
    unknown_in_topic: int = 0
    keys: int = 0
    lost: list[str] = field(default_factory=list)
    disorder: list[str] = field(default_factory=list)
    phantoms: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    resets: Counter[str] = field(default_factory=Counter)
    called_for: Counter[str] = field(default_factory=Counter)
    """By `reason: fault`."""
    needless: list[str] = field(default_factory=list)

    def violations(self) -> dict[str, list[str]]:
        """Everything that must be empty."""
        names = ("lost", "disorder", "phantoms", "duplicates", "problems", "differing", "copies", "needless")
        return {name: found for name in names if (found := getattr(self, name))}


def segment_of(key: bytes, segments: int) -> int:
    """Redis' slot of the key, by redis-py."""
    return key_slot(key) * segments // _SLOTS


def check_history(
    verdict: Verdict, writes: Iterable[Write], changes: Topic, resets: Sequence[Reset], segments: int
) -> None:
    """Every client's writes against the change topic; `resets` are those that were called for."""
    ended: dict[int, list[int]] = defaultdict(list)
    for reset in resets:
        if reset.end_ms:
            ended[reset.segment].append(reset.end_ms * 1000 + 999)
    by_key: dict[bytes, list[Write]] = defaultdict(list)
    for write in writes:
        by_key[write.key].append(write)
        verdict.operations += 1
        verdict.outcomes[write.outcome] += 1
    for key in by_key.keys() | changes.records.keys():
        covered = sorted(ended[segment_of(key, segments)])
        _check_key(verdict, key, by_key.get(key, []), changes.records.get(key, []), covered)


def _check_key(verdict: Verdict, key: bytes, writes: list[Write], records: list[Record], covered: list[int]) -> None:
    matched = _matched(verdict, key, writes, records)
    found = {id(write) for write in matched if write is not None}
    for write in writes:
        if id(write) in found:
            verdict.in_topic += write.outcome == OK
            verdict.unknown_in_topic += write.outcome == UNKNOWN
        elif write.outcome == OK and write.effect:
            if covered and covered[-1] >= write.sent_us:
                verdict.covered_by_reset += 1
            else:
                verdict.lost.append(
                    f"{_named(write)}, acknowledged after {write.waited_ms:.0f} ms, is not in the topic"
                )
    _check_order(verdict, records, matched, covered)


def _matched(verdict: Verdict, key: bytes, writes: list[Write], records: list[Record]) -> list[Write | None]:
    """The write behind each record, None for the cache's own doing; phantoms go to the verdict."""
    values = {write.value: write for write in writes if write.value is not None}
    expiries = {write.expires_at: write for write in writes if write.expires_at is not None}
    removes = [r for r in records if r.state is None and r.reason not in (*_OWN, _CORRECT)]
    deletes = _matched_deletes(removes, [write for write in writes if write.is_delete and write.outcome != FAILED])
    matched: list[Write | None] = []
    for record in records:
        write = deletes.get(record.offset)
        if record.state is not None:
            source = values.get(record.state[0])
            write = (expiries.get(record.state[1]) if record.state[1] is not None else None) or source
            for needed in (source, write):
                if needed is None or needed.outcome == FAILED or record.ts_us + _CLOCK_US < needed.sent_us:
                    verdict.phantoms.append(f"{_placed(record)}: {_blamed(needed)}")
                    break
        elif write is None and record.reason not in (*_OWN, _CORRECT):
            verdict.phantoms.append(f"{_placed(record)}: a delete that no client asked for then")
        matched.append(write)
    return matched


def _matched_deletes(removes: list[Record], deletes: list[Write]) -> dict[int, Write]:
    """By offset of a record, the delete that it is of; deletes have no name of their own, so it is by time.

    First each acknowledged one that changed something gets a record of while it was under way, the one that ended
    first choosing first; what is left may be of any attempt whose answer nobody got, or that was sent more than once.
    """
    found: dict[int, Write] = {}
    certain = [write for write in deletes if write.outcome == OK and write.effect]
    for write in sorted(certain, key=lambda w: w.ended_us):
        during = (r for r in removes if r.offset not in found and _within(r, write.sent_us, write.ended_us))
        first = min(during, key=lambda r: r.ts_us, default=None)
        if first is not None:
            found[first.offset] = write
    for record in removes:
        if record.offset not in found:
            doubtful = (w for w in deletes if w.doubtful and _within(record, w.sent_us, w.settled_us))
            last = max(doubtful, key=lambda w: w.sent_us, default=None)
            if last is not None:
                found[record.offset] = last
    return found


def _within(record: Record, begin_us: float, end_us: float) -> bool:
    return begin_us - _CLOCK_US <= record.ts_us <= end_us + _CLOCK_US


def _check_order(verdict: Verdict, records: list[Record], matched: list[Write | None], covered: list[int]) -> None:
    """No record of a write that ended before an acknowledged one began whose record came earlier."""
    latest: Write | None = None
    for record, write in zip(records, matched, strict=True):
        if latest is not None:
            after = bisect.bisect_left(covered, latest.sent_us)
            if after < len(covered) and covered[after] <= record.timestamp_ms * 1000 + 999:
                latest = None  # a reset that was called for took it away
        if write is None:
            continue
        if latest is not None and record.kind != READ and write.settled_us < latest.sent_us:
            verdict.disorder.append(f"{_placed(record)}: {_named(write)} stands behind {_named(latest)}")
        if write.outcome == OK and (latest is None or write.sent_us > latest.sent_us):
            latest = write


def check_states(
    verdict: Verdict, caches: Mapping[bytes, State], changes: Topic, diff: Topic, copies: Iterable[str]
) -> None:
    """Caches, change topic and diff, key by key, expiry included; and what the readers found."""
    verdict.keys = len(caches)
    for key in sorted(caches.keys() | changes.states.keys() | diff.states.keys()):
        held = caches.get(key)
        for name, states in (("change topic", changes.states), ("diff", diff.states)):
            if states.get(key) != held:
                verdict.differing.append(f"{key!r} is {held} in the caches, {states.get(key)} in the {name}")
    verdict.copies.extend(copies)
    verdict.duplicates.extend(changes.duplicates + diff.duplicates)
    verdict.problems.extend(changes.problems + diff.problems)


class Row(NamedTuple):
    """A segment in a view."""

    epoch: int
    primary: str | None
    in_sync: tuple[str, ...]
    target: str | None
    """Whom the primary is asked to give the segment to."""


@dataclass(frozen=True, slots=True)
class View:
    """A cluster view: when it was committed, and its segments."""

    at_ms: int
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that was wrong with a node (or with Kafka, `node` empty): from, and until when it had recovered."""

    kind: str
    node: str
    from_ms: int
    until_ms: int


def check_resets(
    verdict: Verdict, resets: Sequence[Reset], views: Sequence[View], troubles: Sequence[Trouble], start_ms: int
) -> list[Reset]:
    """Which resets faults called for; the others are `needless`. `start_ms` is when the load began.

    `initial` is for a segment that was never written. `overflow` needs a Kafka, or a way to it, that was gone.
    `truncated` needs a partition that was: a transaction whose marker does not get there ends as the next of its id
    does, so that Kafka aborts there what it has committed elsewhere. All others need every member dead or out of reach
    that was in sync in the view before the epoch of the reset.
    """
    called = []
    for reset in resets:
        verdict.resets[reset.reason] += 1
        faults = list(_callers(reset, views, troubles, start_ms))
        if faults:
            called.append(reset)
            verdict.called_for[f"{reset.reason}: {' + '.join(sorted(set(faults)))}"] += 1
        else:
            verdict.needless.append(
                f"segment {reset.segment}, epoch {reset.epoch}: reset for {reset.reason} at {reset.begin_ms}, "
                f"in sync were {', '.join(_in_sync(reset, views)) or 'unknown members'}"
            )
    return called


def _callers(reset: Reset, views: Sequence[View], troubles: Sequence[Trouble], start_ms: int) -> Iterator[str]:
    if reset.begin_ms < start_ms and reset.reason == "initial":
        yield "first start"
        return
    at = [trouble for trouble in troubles if trouble.from_ms <= reset.begin_ms <= trouble.until_ms]
    if reset.reason in ("overflow", "truncated"):
        kind = "kafka" if reset.reason == "overflow" else "kafka-second"
        yield from (trouble.kind for trouble in at if kind in trouble.kind)
        return
    members = _in_sync(reset, views)
    troubled = {trouble.node for trouble in at}
    # A reset found open was called for already; its owner died or was fenced inside it, and a new one begins.
    if (members and all(member.rpartition("@")[0] in troubled for member in members)) or reset.reason == "open_reset":
        # Those who are out of reach and no longer in sync belong to the reason as well.
        yield from (trouble.kind for trouble in at if trouble.node)


def _in_sync(reset: Reset, views: Sequence[View]) -> tuple[str, ...]:
    """Who was in sync before the epoch of the reset."""
    before = [view.rows[reset.segment] for view in views if reset.segment < len(view.rows)]
    return next((row.in_sync for row in reversed(before) if 0 < row.epoch < reset.epoch), ())


def _named(write: Write) -> str:
    what = "delete" if write.is_delete else "expiry" if write.value is None else write.value[:40].decode()
    return f"{write.client}'s {what} of {write.key!r} at {write.sent_us}"


def _placed(record: Record) -> str:
    return f"{record.key!r} at {record.partition}@{record.offset}"


def _blamed(write: Write | None) -> str:
    if write is None:
        return "a value that no client wrote"
    return f"{_named(write)}, which {'failed for certain' if write.outcome == FAILED else 'was sent later'}"
