"""The independent reader: what it counts in a change and a diff topic, and that it reads committed records only."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from deelog_proof.audit.topics import Ownership, Read, ReadError, end_offsets, fold_changes, fold_diff, read_topic
from deelog_proof.load.history import DELETE, content_of
from deelog_schemas.digest import digest_of
from deelog_schemas.envelope import JsonCodec
from deelog_schemas.errors import RecordError
from deelog_schemas.fold import Change
from deelog_schemas.header import HEADER_NAME, Kind, pack
from deelog_schemas.operation import Entry, Operation
from tests.proof.audit.reads import CODEC, STAMP, TOPIC, change, control, record, row, tombstone
from tests.support.kafka import Broker

DIFF = JsonCodec(f"{TOPIC}.diff", "grid", "demo", "sessions", cause=True)


def _diff(op: str, position: tuple[int, int], key: bytes, cause: str, at: int = 0) -> Read:
    before = None if op == "c" else Entry(key, b"old", None)
    after = None if op == "d" else Entry(key, b"new%d" % at, None)
    raw = DIFF.difference(Change(key, before, after, position, cause), 5, None, STAMP)
    return Read(record(Kind.CHANGE, position, DIFF.key(key), raw), 50)


def test_changes_are_folded_and_counted() -> None:
    told = fold_changes(
        TOPIC,
        [
            control(Kind.ACTIVE, (1, 0), 40),
            change((1, 1), b"a", b"1"),
            change((1, 2), b"b", b"2"),
            change((1, 3), b"a", None, "expire"),
            tombstone((1, 3), b"a"),
        ],
    )
    assert told.entries == {b"b": Entry(b"b", b"2", None)}
    assert (told.written, told.duplicates, told.reset_rows) == (3, 0, 0)
    assert told.reasons == {"put": 2, "expire": 1}
    assert [(c.content, c.ts_us, c.reason) for c in told.captured[b"a"]] == [
        (content_of(b"1"), 777, "put"),
        (DELETE, 777, "expire"),
    ]
    assert told.owners == [Ownership(3, 1, "n1@1", 40)]


@pytest.mark.parametrize("position", [(1, 1), (1, 2), (0, 9)])
def test_a_repeated_or_older_position_is_a_duplicate(position: tuple[int, int]) -> None:
    changes = [change((1, 1), b"a", b"1"), change((1, 2), b"a", b"2"), change(position, b"a", b"3")]
    told = fold_changes(TOPIC, changes)
    assert told.duplicates == 1
    assert told.entries[b"a"].value == b"2"


def test_a_reset_replaces_the_segment_and_is_reported() -> None:
    end = {"id": "r1", "count": 1, "digest": digest_of([(b"b", b"2")])}
    told = fold_changes(
        TOPIC,
        [
            change((1, 1), b"a", b"1"),
            control(Kind.RESET_BEGIN, (2, 1), 60, id="r1", reason="overflow"),
            row((1, 1), b"x", b"ignored: below the begin"),
            row((2, 2), b"b", b"2"),
            control(Kind.RESET_END, (2, 2), 70, **end),
            control(Kind.RESET_BEGIN, (2, 2), 80, id="r2", reason="owners_lost"),
        ],
    )
    assert told.entries == {b"b": Entry(b"b", b"2", None)}
    assert (told.resets, told.reset_rows, told.open_resets) == ({"overflow": 1}, 2, 1)
    assert told.reset_ends == {3: [70_999]}


def test_strings_of_redis_are_what_clients_wrote() -> None:
    codec = JsonCodec(TOPIC, "redis", "demo", "sessions", value_format="json")

    def put(key: bytes, value: bytes, sequence: int) -> Read:
        operation = Operation(1, sequence, "put", key, value, None, 777, False)
        return Read(record(Kind.CHANGE, (1, sequence), codec.key(key), codec.change(operation, STAMP)), 50)

    reads = [
        put(b"a", b'{"type":"string","value":"\xc3\xa9"}', 1),
        put(b"b", b'{"type":"string.base64","value":"/w=="}', 2),
    ]
    told = fold_changes(TOPIC, reads, redis=True)
    assert told.entries == {b"a": Entry(b"a", "é".encode(), None), b"b": Entry(b"b", b"\xff", None)}
    assert [made.content for made in told.captured[b"b"]] == [content_of(b"\xff")]
    with pytest.raises(ReadError, match="a string was written, not"):
        fold_changes(TOPIC, [put(b"l", b'{"type":"list","value":["a"]}', 1)], redis=True)


def test_diffs_are_folded_and_counted_by_cause() -> None:
    told = fold_diff(
        TOPIC,
        [
            _diff("c", (1, 1), b"a", "change"),
            _diff("u", (1, 2), b"a", "change", 2),
            _diff("c", (1, 3), b"b", "change"),
            _diff("d", (2, 3), b"b", "reset"),
            tombstone((2, 3), b"b"),
        ],
    )
    assert told.entries == {b"a": Entry(b"a", b"new2", None)}
    assert told.counts == {"changes": {"c": 2, "u": 1, "d": 0}, "resets": {"c": 0, "u": 0, "d": 1}}
    assert told.duplicates == 0


def test_a_diff_that_is_there_twice_is_a_duplicate() -> None:
    rows = [_diff("c", (1, 1), b"a", "change"), _diff("c", (1, 1), b"b", "reset"), _diff("u", (1, 1), b"a", "change")]
    assert fold_diff(TOPIC, rows).duplicates == 1


def test_only_committed_records_are_read_to_the_end(kafka: Broker, prefix: str) -> None:
    topic = f"{prefix}.sessions"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, num_partitions=2, replication_factor=1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": prefix})
    producer.init_transactions(30)

    def transaction(values: list[bytes], commit: bool) -> None:
        producer.begin_transaction()
        for number, value in enumerate(values):
            position = (1, int(value))
            operation = Operation(*position, "put", b"k", value, None, 1, False)
            headers = [(HEADER_NAME, pack(Kind.CHANGE, number % 2, *position, 0))]
            raw = CODEC.change(operation, STAMP)
            producer.produce(topic, raw, CODEC.key(b"k"), partition=number % 2, headers=headers)  # type: ignore[arg-type]
        if commit:
            producer.commit_transaction(30)
        else:
            producer.flush(30)
            producer.abort_transaction(30)

    transaction([b"1", b"2", b"3"], commit=True)
    transaction([b"4", b"5"], commit=False)
    transaction([b"6"], commit=True)
    reads = list(read_topic(kafka.bootstrap, topic))
    by_partition = [[r.record.header.sequence for r in reads if r.record.partition == p] for p in (0, 1)]
    assert by_partition == [[1, 3, 6], [2]]
    # Behind the last record stands the marker of its transaction.
    assert end_offsets(kafka.bootstrap, topic)[0] > max(r.record.offset for r in reads if r.record.partition == 0) + 1
    assert fold_changes(topic, reads).written == 4
    with_foreign = Producer({"bootstrap.servers": kafka.bootstrap})
    with_foreign.produce(topic, b"v", b"k", partition=1)
    with_foreign.flush(30)
    with pytest.raises(RecordError, match=rf"{topic}\[1\]@\d+: .*not written by deelog"):
        list(read_topic(kafka.bootstrap, topic))


def test_an_open_transaction_hides_what_stands_behind_it(kafka: Broker, prefix: str) -> None:
    topic = f"{prefix}.sessions"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": prefix})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"v", b"k")
    producer.flush(30)
    assert end_offsets(kafka.bootstrap, topic) == {0: 0}
    assert end_offsets(kafka.bootstrap, topic, committed=False) == {0: 1}
    producer.abort_transaction(30)
