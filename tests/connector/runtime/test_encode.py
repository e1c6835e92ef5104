"""The core's items as records: headers, tombstones, snapshot markers, counters; and the records of a scan."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from deelog_connector.core.effects import ControlItem, Hanging, OperationsItem, RowsItem, StateItem, TakenBackItem
from deelog_connector.kafka_port import InRecord, OutRecord
from deelog_connector.runtime.encode import Decoder, Encoder, Tally
from deelog_connector.transforms.dead_letters import DeadLetterEncoder
from deelog_connector.transforms.pipeline import (
    DeadLetter,
    PipedItem,
    PipedOperations,
    PipedRows,
    Skipped,
    TransformedOperation,
)
from deelog_schemas import canonical
from deelog_schemas.config import parse
from deelog_schemas.envelope import Envelope, JsonCodec
from deelog_schemas.errors import RecordError
from deelog_schemas.header import CONTROL_HEADER_NAME, HEADER_NAME, Header, Kind, node_number, unpack
from deelog_schemas.keys import claim_key, control_key
from deelog_schemas.operation import Entry, Operation, TracedOperation
from deelog_schemas.positions import ClaimState, decode_state

CHANGES, POSITIONS, LETTERS = "p.c", "p.c.positions", "p.letters"
MEMBER, SEGMENT, PARTITION, NODE = "n1@7", 3, 1, node_number("n1@7")
CODEC = JsonCodec(CHANGES, "test", "p", "c")
TRACE = (("traceparent", b"00-1-2-01"),)
MORE = (("x", "user"),)


def encoder(tombstones: bool = True, **more: Any) -> Encoder:
    return Encoder(CODEC, CHANGES, POSITIONS, MEMBER, tombstones, clock=time, **more)


def encoded(*items: PipedItem, by: Encoder | None = None) -> list[OutRecord]:
    return list((by or encoder()).records(items))


def put(sequence: int, key: bytes = b"k", value: bytes | None = b"v", existed: bool = False, **more: Any) -> Operation:
    reason = "remove" if value is None else "put"
    return Operation(2, sequence, reason, key, value, None, 1000 + sequence, existed)._replace(**more)


def gone(sequence: int, key: bytes = b"k", **more: Any) -> Operation:
    return put(sequence, key, None, True, **more)


def plain(*operations: Operation) -> OperationsItem:
    return OperationsItem(SEGMENT, PARTITION, operations)


def piped(*parts: TransformedOperation | Skipped | DeadLetter) -> PipedOperations:
    return PipedOperations(SEGMENT, PARTITION, parts)


def rows(*keys: bytes, first: bool = False, last: bool = False, incremental: bool = False) -> RowsItem:
    entries = [Entry(key, b"v", None) for key in keys]
    return RowsItem(SEGMENT, PARTITION, (2, 9), "start", entries, first, last, incremental)


def header(record: OutRecord) -> Header:
    assert record.headers[0][0] == HEADER_NAME
    raw = record.headers[0][1]
    assert isinstance(raw, bytes)
    return unpack(raw)


def kinds(records: Sequence[OutRecord]) -> list[Kind]:
    return [header(record).kind for record in records]


def value(record: OutRecord) -> Envelope:
    assert record.value is not None
    return CODEC.decode_value(record.value)


# -- operations, as captured and through a pipeline ------------------------------------------------------------------


def ways(*operations: Operation) -> list[PipedItem]:
    return [plain(*operations), piped(*map(TransformedOperation, operations))]


def test_both_ways_write_the_same_records_and_count_the_same() -> None:
    """A run with operations of every kind."""
    run = (put(1), put(2, existed=True), gone(3), put(4, b"b", before=b"old", existed=True), gone(5, b"b", before=b"v"))
    results = []
    for item in ways(*run):
        by = encoder()
        records = encoded(item, by=by)
        summary = [(r[:3], header(r), r.value and value(r)) for r in records]
        results.append((summary, by.tally.creates, by.tally.updates, by.tally.deletes, by.tally.captured_us))
    assert results[0] == results[1]
    assert results[0][1:] == (1, 2, 2, 1005)


@pytest.mark.parametrize("way", [0, 1])
def test_a_tombstone_follows_each_delete_unless_it_is_switched_off(way: int) -> None:
    run = ways(put(1), gone(2), put(3), gone(4))[way]
    assert kinds(encoded(run)) == [Kind.CHANGE, Kind.CHANGE, Kind.TOMBSTONE, Kind.CHANGE, Kind.CHANGE, Kind.TOMBSTONE]
    records = encoded(run, by=encoder(tombstones=False))
    assert kinds(records) == [Kind.CHANGE] * 4
    assert [value(record).op for record in records] == ["c", "d", "c", "d"]


@pytest.mark.parametrize("way", [0, 1])
def test_a_known_image_of_before_is_in_the_value(way: int) -> None:
    (record,) = encoded(ways(put(1, existed=True, before=b"old"))[way])
    assert value(record).before == Entry(b"k", b"old", None)


@pytest.mark.parametrize("way", [0, 1])
def test_a_change_says_where_it_stands_and_who_wrote_it(way: int) -> None:
    change, tombstone = encoded(ways(gone(5, b"key"))[way])
    for record, kind in ((change, Kind.CHANGE), (tombstone, Kind.TOMBSTONE)):
        assert record[:3] == (CHANGES, PARTITION, CODEC.key(b"key"))
        assert header(record) == (kind, SEGMENT, 2, 5, NODE)
        assert len(record.headers) == 1
    found = value(change)
    assert (found.op, found.before, found.after) == ("d", Entry(b"key", b"", None), None)
    assert found.source["node"] == "n1"
    assert found.source["segment"] == SEGMENT
    assert tombstone.value is None


def test_the_trace_goes_with_the_change_and_its_tombstone_if_asked_for() -> None:
    operation = TracedOperation.of(gone(1), TRACE)
    for record in encoded(plain(operation), by=encoder(traced=True)):
        assert record.headers[1:] == list(TRACE)
    for record in encoded(plain(operation)):
        assert record.headers[1:] == []


def test_what_went_through_a_pipeline_has_the_users_headers() -> None:
    records = encoded(piped(TransformedOperation(gone(1), MORE)), by=encoder())
    assert [record.headers[1:] for record in records] == [[*MORE]] * 2


# -- dropped operations ---------------------------------------------------------------------------------------------


def test_skipped_operations_are_one_record_that_names_them() -> None:
    by = encoder()
    first, change, last = encoded(piped(Skipped(2, 4, 6), TransformedOperation(put(7)), Skipped(2, 8, 8)), by=by)
    assert kinds([first, change, last]) == [Kind.SKIPPED, Kind.CHANGE, Kind.SKIPPED]
    assert header(first) == (Kind.SKIPPED, SEGMENT, 2, 6, NODE)
    assert first[:4] == (CHANGES, PARTITION, CODEC.key(control_key("skipped", SEGMENT, MEMBER, 1)), None)
    name, control = first.headers[1]
    assert name == CONTROL_HEADER_NAME
    assert isinstance(control, bytes)
    assert canonical.loads(control, "") == {"epoch": 2, "member": MEMBER, "first": 4}
    # Compaction must keep each of them: no two records of a member have the same key.
    assert last.key == CODEC.key(control_key("skipped", SEGMENT, MEMBER, 2))
    (again,) = encoded(piped(Skipped(2, 9, 9)), by=by)
    assert again.key == CODEC.key(control_key("skipped", SEGMENT, MEMBER, 3))
    assert by.tally == Tally(encoded_us=by.tally.encoded_us)


def letters() -> DeadLetterEncoder:
    required = {"topic.prefix": "p", "cache.name": "c", "node.id": "n1", "bootstrap.servers": "h:1"}
    mode = {"event.processing.failure.handling.mode": "dead-letter", "errors.deadletterqueue.topic.name": LETTERS}
    return DeadLetterEncoder(parse(required | mode))


def test_a_dead_letter_has_a_topic_of_its_own_and_is_not_counted() -> None:
    by = encoder(letters=letters())
    letter = DeadLetter(put(1), (2, 1), "", "a.Step", "boom", "ValueError")
    first, change = encoded(piped(letter, TransformedOperation(put(2))), by=by)
    assert (first.topic, first.partition, first.key) == (LETTERS, 0, CODEC.key(b"k"))
    assert header(first) == (Kind.CHANGE, SEGMENT, 2, 1, NODE)
    assert header(change) == (Kind.CHANGE, SEGMENT, 2, 2, NODE)
    assert (by.tally.creates, by.tally.captured_us) == (1, 1002)


def test_rows_of_a_pipeline_have_headers_each_and_are_followed_by_the_letters() -> None:
    by = encoder(letters=letters())
    letter = DeadLetter(Entry(b"c", b"v", None), (2, 9), "start", "a.Step", "boom", "ValueError")
    one, two, three = encoded(PipedRows(rows(b"a", b"b"), [MORE, ()], [letter]), by=by)
    assert (one.headers[1:], two.headers[1:]) == ([*MORE], [])
    assert kinds([one, two]) == [Kind.READ, Kind.READ]
    assert (three.topic, three.key) == (LETTERS, CODEC.key(b"c"))
    assert by.tally.rows == 2


# -- rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "last", "incremental", "snapshots"),
    [
        (True, True, False, ["first", "true", "last"]),
        (True, False, False, ["first", "true", "true"]),
        (False, True, False, ["true", "true", "last"]),
        (False, False, False, ["true", "true", "true"]),
        (True, True, True, ["incremental"] * 3),
    ],
)
def test_rows_say_where_in_the_snapshot_they_are(
    first: bool, last: bool, incremental: bool, snapshots: list[str]
) -> None:
    by = encoder()
    records = encoded(rows(b"a", b"b", b"c", first=first, last=last, incremental=incremental), by=by)
    assert [value(record).source["snapshot"] for record in records] == snapshots
    assert {header(record) for record in records} == {(Kind.READ, SEGMENT, 2, 9, NODE)}
    assert [value(record).after for record in records] == [Entry(key, b"v", None) for key in (b"a", b"b", b"c")]
    assert {(record.topic, record.partition, value(record).op) for record in records} == {(CHANGES, PARTITION, "r")}
    assert {value(record).source["reason"] for record in records} == {"start"}
    assert by.tally == Tally(rows=3, encoded_us=by.tally.encoded_us)


def test_the_only_row_of_a_reset_is_its_first() -> None:
    (record,) = encoded(rows(b"a", first=True, last=True))
    assert value(record).source["snapshot"] == "first"


@pytest.mark.parametrize("tombstones", [True, False])
def test_keys_that_a_reset_takes_back_are_deleted_for_consumers_that_know_of_none(tombstones: bool) -> None:
    by = encoder(tombstones)
    records = encoded(TakenBackItem(SEGMENT, PARTITION, (2, 9), "start", [b"a", b"b", b"c"]), by=by)
    deletes, buried = [r for r in records if r.value is not None], [r for r in records if r.value is None]
    assert {header(record) for record in records} == {(Kind.TOMBSTONE, SEGMENT, 2, 9, NODE)}
    assert {(record.topic, record.partition) for record in records} == {(CHANGES, PARTITION)}
    assert len(buried) == (3 if tombstones else 0)
    keys = [CODEC.key(key) for key in (b"a", b"b", b"c")]
    assert [r.key for r in deletes] == keys
    assert [r.key for r in records] == ([key for key in keys for _ in range(2)] if tombstones else keys)
    for record in deletes:
        found = value(record)
        assert (found.op, found.source["reason"], found.source["seq"]) == ("d", "start", 9)
        assert found.before is not None
    assert by.tally == Tally(encoded_us=by.tally.encoded_us)  # it is not a change of the cache, and not counted


# -- control records, states, counters ------------------------------------------------------------------------------


def test_a_control_record_has_a_key_of_its_own() -> None:
    fields = {"epoch": 2, "member": MEMBER, "id": "i", "reason": "start"}
    (record,) = encoded(ControlItem(Kind.RESET_BEGIN, SEGMENT, PARTITION, (2, 9), 5, fields))
    key = CODEC.key(control_key("reset-begin", SEGMENT, MEMBER, 5))
    assert record[:4] == (CHANGES, PARTITION, key, None)
    assert header(record) == (Kind.RESET_BEGIN, SEGMENT, 2, 9, NODE)
    assert record.headers[1:] == [(CONTROL_HEADER_NAME, canonical.dumps(fields))]


def test_a_state_goes_to_the_positions_topic_and_none_removes_it() -> None:
    state, key = ClaimState(2, MEMBER, "p", "c", 8, 2, 1), claim_key(SEGMENT, MEMBER)
    made, removed = encoded(
        StateItem(Kind.CLAIM_STATE, SEGMENT, PARTITION, (2, 0), key, state),
        StateItem(Kind.CLAIM_STATE, SEGMENT, PARTITION, (2, 0), key, None),
    )
    assert made[:3] == removed[:3] == (POSITIONS, PARTITION, key)
    assert header(made) == header(removed) == (Kind.CLAIM_STATE, SEGMENT, 2, 0, NODE)
    assert decode_state(made.key, made.value, Kind.CLAIM_STATE).state == state
    assert removed.value is None


def test_each_transaction_is_counted_by_itself() -> None:
    by, before = encoder(), time.time_ns() // 1000
    assert by.tally == Tally()
    assert len(encoded(plain(put(1), put(2, existed=True)), plain(gone(3)), rows(b"a"), by=by)) == 5
    assert before <= by.tally.encoded_us <= time.time_ns() // 1000
    assert by.tally == Tally(1, 1, 1, 1, 1003, by.tally.encoded_us)
    encoded(plain(put(4, ts_us=5)), plain(put(5, ts_us=3)), by=by)
    assert by.tally == Tally(1 + 1, 0, 0, 0, 5, by.tally.encoded_us)  # the newest capture counts, not the last


# -- the records of a scan ------------------------------------------------------------------------------------------


def read(*records: OutRecord, keys: set[int] | None = None) -> list[tuple[Kind, bytes, bool]]:
    raw = [InRecord(r.topic, r.partition, 10 + n, r.key, r.value, r.headers) for n, r in enumerate(records)]  # type: ignore[arg-type]
    return [(r.kind, r.key, r.gone) for r in Decoder(CODEC).scanned(raw, keys or set())]


WRITTEN = encoded(
    plain(put(1, b"a"), gone(2, b"a")),
    rows(b"b"),
    TakenBackItem(SEGMENT, PARTITION, (2, 9), "start", [b"c"]),
    ControlItem(Kind.ACTIVE, SEGMENT, PARTITION, (2, 9), 1, {"epoch": 2, "member": MEMBER}),
)


def test_a_scan_leaves_out_tombstones_without_a_value() -> None:
    control = control_key("active", SEGMENT, MEMBER, 1)
    assert read(*WRITTEN) == [
        (Kind.CHANGE, b"a", False),
        (Kind.CHANGE, b"a", False),
        (Kind.READ, b"b", False),
        (Kind.TOMBSTONE, b"c", False),
        (Kind.ACTIVE, control, False),
    ]
    assert read(*WRITTEN, keys={SEGMENT + 1}) == read(*WRITTEN)


def test_a_scan_for_keys_says_of_each_whether_it_is_gone() -> None:
    control = control_key("active", SEGMENT, MEMBER, 1)
    assert read(*WRITTEN, keys={SEGMENT}) == [
        (Kind.CHANGE, b"a", False),
        (Kind.CHANGE, b"a", True),
        (Kind.TOMBSTONE, b"a", True),
        (Kind.READ, b"b", False),
        (Kind.TOMBSTONE, b"c", True),
        (Kind.TOMBSTONE, b"c", True),
        (Kind.ACTIVE, control, False),
    ]


def test_a_change_in_another_format_counts_as_there() -> None:
    record = encoded(plain(gone(1)))[0]._replace(value=b"\0avro")
    assert read(record, keys={SEGMENT}) == [(Kind.CHANGE, b"k", False)]


def test_a_scanned_record_has_its_place_and_its_control() -> None:
    (record,) = encoded(ControlItem(Kind.ACTIVE, SEGMENT, PARTITION, (2, 9), 1, {"epoch": 2, "member": MEMBER}))
    raw = InRecord(record.topic, PARTITION, 42, record.key, None, record.headers)  # type: ignore[arg-type]
    (found,) = Decoder(CODEC).scanned([raw])
    assert (found.offset, found.segment, found.epoch, found.sequence) == (42, SEGMENT, 2, 9)
    assert found.control == {"epoch": 2, "member": MEMBER}
    foreign = raw._replace(headers=None)
    with pytest.raises(RecordError, match=r"^p\.c\[1\]@42: the record has no header `deelog`"):
        Decoder(CODEC).scanned([foreign])


# -- open transactions ----------------------------------------------------------------------------------------------


def claim_state(state: ClaimState | None) -> StateItem:
    return StateItem(Kind.CLAIM_STATE, SEGMENT, PARTITION, (2, 9), claim_key(SEGMENT, MEMBER), state)


@pytest.mark.parametrize(
    ("item", "member"),
    [
        (plain(put(9)), ""),
        (ControlItem(Kind.ACTIVE, SEGMENT, PARTITION, (2, 9), 1, {"epoch": 2, "member": MEMBER}), MEMBER),
        (claim_state(ClaimState(2, MEMBER, "p", "c", 8, 2, 1)), MEMBER),
        (claim_state(None), ""),
    ],
)
def test_the_first_record_of_a_transaction_says_what_it_can_of_its_writer(item: PipedItem, member: str) -> None:
    (record,) = encoded(item)
    raw = InRecord(record.topic, PARTITION, 42, record.key, record.value, record.headers)  # type: ignore[arg-type]
    assert Decoder(CODEC).hanging(raw, record.topic == POSITIONS) == Hanging(SEGMENT, 2, NODE, member)
    with pytest.raises(RecordError, match="does not belong on this topic"):
        Decoder(CODEC).hanging(raw, record.topic != POSITIONS)
