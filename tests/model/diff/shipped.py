"""The product's decisions on the model's log: the walk, the folds of starts and resets, the writer's look.

`PartitionWalk`, `by_records.start`, `by_records.resets` and `Writer._look` are called unchanged. Instead of Kafka they
read a test double with the model's log and diff topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

from deelog_schemas import canonical
from deelog_schemas.digest import digest_of
from deelog_schemas.fold import Change
from deelog_schemas.header import Kind, pack
from deelog_schemas.operation import Entry
from deelog_schemas.positions import ResetState
from deelog_schemas.records import Record, decode
from deelog_spark.folding import by_records
from deelog_spark.folding.walk import Ended, Open, PartitionWalk, Segment
from deelog_spark.sinks.kafka import BatchMarker, Writer
from tests.model.diff.state import Rec, World

_KINDS: Final = {
    "C": Kind.CHANGE, "T": Kind.TOMBSTONE, "R": Kind.READ, "B": Kind.RESET_BEGIN, "E": Kind.RESET_END, "X": Kind.CLAIM,
}  # fmt: skip
Row = tuple[int, int, int]
"""`(offset of the cause, key, value)`."""
_STUB: Final = SimpleNamespace(_topics=SimpleNamespace(changes="c", diff="d", diff_group="g"))


def key_of(number: int) -> bytes:
    """A key's bytes."""
    return b"k%d" % number


def number_of(key: bytes) -> int:
    """A key's number."""
    return int(key[1:])


@lru_cache(1 << 14)
def raw_of(rec: Rec) -> tuple[bytes, bytes | None]:
    """Header and control header of a record."""
    header = pack(_KINDS[rec.kind], rec.seg, *rec.pos, 0)
    if rec.kind not in "BEX":
        return header, None
    told: dict[str, Any] = {"epoch": rec.pos[0], "member": "n1@1", "segments": 1, "partitions": 1}
    if rec.kind == "B":
        told |= {"id": f"r{rec.val}", "reason": "model"}
    elif rec.kind == "E":
        live = [(key_of(k), b"%d" % v) for k, v in rec.val[1]]
        told |= {"id": f"r{rec.val[0]}", "count": len(live), "digest": digest_of(live)}
    return header, canonical.dumps(told)


@lru_cache(1 << 15)
def record_of(offset: int, rec: Rec) -> Record:
    """The decoded record."""
    header, control = raw_of(rec)
    headers = [("deelog", header)] + ([] if control is None else [("deelog.control", control)])
    # A delete is a change whose envelope has no `after`.
    value = None if rec.kind in "TBEX" else b"%d" % rec.val
    return decode("c", 0, offset, key_of(rec.key), value, headers)


class Tables:
    """The folds' input: the model's change topic and diff topic."""

    def __init__(self, world: World, keys: int) -> None:
        self.world, self.keys = world, keys

    def records(self, partition: int, begin: int, end: int) -> Iterator[Record]:
        """The records that compaction has left."""
        for offset in range(max(begin, self.world.head), end):
            rec = self.world.log[offset]
            if rec is not None:
                yield record_of(offset, rec)

    def entries(self, partition: int, only: frozenset[int] | None = None) -> dict[int, dict[bytes, Entry]]:
        """The diff topic's content by segment."""
        found: dict[int, dict[bytes, Entry]] = {}
        for number, value in enumerate(self.world.told):
            segment = number // self.keys
            if value and (only is None or segment in only):
                found.setdefault(segment, {})[key_of(number)] = Entry(key_of(number), b"%d" % value, None)
        return found

    def entry(self, record: Record) -> tuple[bytes, Entry | None]:
        """Key and entry of a change, row or tombstone."""
        value = record.value if record.value != b"0" else None
        return record.key, None if value is None else Entry(record.key, value, None)


class Renderer:
    """A difference as the model's row."""

    def difference(self, change: Change, partition: int, offset: int, *rest: Any) -> Row:
        """`(offset, key, value)`."""
        return offset, number_of(change.key), int(change.after.value) if change.after else 0


class Planned(NamedTuple):
    """The plan of a start or a batch: its rows, the segments' state after it, the segments to request a reset for."""

    rows: tuple[Row, ...]
    segments: tuple[Any, ...]
    asked: tuple[int, ...]


def plan_start(world: World, keys: int, based: bool = True, named: bool = True) -> Planned:
    """The plan of a start without state."""
    owners = list(enumerate(world.owners))
    bases = {g: o.base if based else max(world.head, 0) for g, o in owners if o.base >= 0 or not based}
    opened = {
        g: ResetState(f"r{o.opened}", o.named[0], o.named[1], "model", o.named[2], "") for g, o in owners if o.named
    }
    tables, renderer = cast(Any, Tables(world, keys)), cast(Any, Renderer())
    known = by_records.PositionsView(bases, opened if named else {})
    found = by_records.start(tables, renderer, 0, known, range(len(owners)), world.head, len(world.log))
    return Planned(tuple(cast(list[Row], found.rows)), frozen(found.segments), tuple(found.lost))


def plan_batch(world: World, keys: int, begin: int, end: int, segments: tuple[Any, ...], fenced: Any = None) -> Planned:
    """The plan of a batch `[begin, end)`. It is walked by marks; resets that end in it are read and checked."""
    before, void, asked = thawed(segments), set[tuple[int, int]](), set[int]()
    tables, renderer = cast(Any, Tables(world, keys)), cast(Any, Renderer())
    while True:
        marks = PartitionWalk(before, frozenset(void))
        rows: list[Row] = []
        for offset in range(begin, end):
            rec = world.log[offset]
            if rec is not None and offset >= world.head and marks.step(0, offset, *raw_of(rec)):
                rows.append((offset, rec.key, rec.val if rec.kind == "C" else 0))
        lost = next((e for e in marks.ended if e.begin < world.head), None)
        try:
            if lost is None and marks.ended:
                rows += cast(
                    list[Row], by_records.resets(tables, renderer, 0, before, marks.ended, frozenset(void), begin)
                )
        except by_records.ResetMismatch as problem:
            lost = problem.ended
        if lost is None:
            now = {**before, **marks.now}
            return Planned(tuple(sorted(rows, key=lambda r: r[0])), frozen(now), tuple(sorted(asked)))
        _void(void, asked, lost)


def _void(void: set[tuple[int, int]], asked: set[int], ended: Ended) -> None:
    void.add((ended.segment, ended.end))
    asked.add(ended.segment)


def look(mark: tuple[int, ...], run: int, number: int, end: int, first: bool) -> tuple[bool, int]:
    """Whether a batch is written already, and the input offset up to which its rows are written."""
    stored = BatchMarker(f"run{mark[0]}", 0, mark[1]) if mark else None
    return Writer._look(cast(Writer, _STUB), 0, stored, BatchMarker(f"run{run}", number, end), first)


def frozen(segments: dict[int, Segment]) -> tuple[Any, ...]:
    """The segments' states as a tuple."""
    return tuple(
        (n, s.mark, None if s.open is None else (s.open.reset_id, s.open.begin, s.open.position, s.open.mark))
        for n, s in sorted(segments.items())
    )


def thawed(segments: tuple[Any, ...]) -> dict[int, Segment]:
    """The segments' states from `frozen`."""
    return {n: Segment(mark, None if o is None else Open(o[0], "model", o[1], o[2], o[3])) for n, mark, o in segments}
