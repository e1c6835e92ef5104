"""What Kafka in memory does by itself, and the failures that tests ask of it."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from deelog_connector.core.effects import Cause
from deelog_connector.kafka_port import InRecord, OutRecord
from deelog_proof.memory.broker import (
    OVERHEAD,
    Denied,
    Failed,
    HeldUp,
    InvalidSetting,
    InvalidTimestamp,
    Kafka,
    OldGeneration,
    OutOfRange,
    Unanswered,
    UnknownMember,
    UnknownTopic,
)
from deelog_proof.memory.engine import Engine
from deelog_proof.memory.log import Log

T = "t"


@pytest.fixture
def kafka() -> Kafka:
    kafka = Kafka(Engine(1), 5.0)
    kafka.create(T, 2)
    return kafka


def record(value: bytes | None = b"v", partition: int = 0, key: bytes = b"k") -> OutRecord:
    return OutRecord(T, partition, key, value, [])


def write(kafka: Kafka, *values: bytes, key: bytes = b"k") -> None:
    session = kafka.init("w")
    assert kafka.append("w", session, [record(value, key=key) for value in values]) is None
    assert kafka.commit("w", session) is None


def seen(log: Log) -> list[bytes | None]:
    return [r.value for r in log.read(0, 10_000)[0]]


def test_a_marker_takes_an_offset(kafka: Kafka) -> None:
    write(kafka, b"1", b"2")
    write(kafka, b"3")
    log = kafka.logs[T, 0]
    assert [r.offset for r in log.read(0, 100)[0]] == [0, 1, 3]
    assert (log.end, log.stable) == (5, 5)


def test_what_is_open_hides_what_follows(kafka: Kafka) -> None:
    open_ = kafka.init("open")
    kafka.append("open", open_, [record(b"1")])
    write(kafka, b"2")
    log = kafka.logs[T, 0]
    assert (log.stable, seen(log)) == (0, [])
    kafka.commit("open", open_)
    assert seen(log) == [b"1", b"2"]


def test_what_is_aborted_is_not_read(kafka: Kafka) -> None:
    session = kafka.init("w")
    kafka.append("w", session, [record(b"1")])
    assert kafka.init("w") == session + 1
    log = kafka.logs[T, 0]
    assert (log.stable, seen(log)) == (2, [])


def test_an_older_session_is_fenced(kafka: Kafka) -> None:
    old = kafka.init("w")
    kafka.init("w", "another")
    assert kafka.append("w", old, [record()]) is Cause.FENCED
    assert kafka.commit("w", old) is Cause.FENCED
    assert kafka.counts["fences"] == 2


def test_a_transaction_times_out_by_the_time_of_its_session(kafka: Kafka) -> None:
    session = kafka.init("w", timeout=2.0)
    kafka.append("w", session, [record()])
    kafka.engine.run(seconds=1.9)
    assert kafka.transactions
    kafka.engine.run(seconds=0.2)
    assert not kafka.transactions
    assert kafka.commit("w", session) is Cause.FENCED


def test_a_record_is_refused_for_its_size(kafka: Kafka) -> None:
    kafka.topics[T].settings["max.message.bytes"] = "1000"
    session = kafka.init("w")
    assert kafka.append("w", session, [record(b"." * 1000)]) is Cause.REFUSED
    assert kafka.append("w", session, [record(b"." * 900)]) is None


@pytest.mark.parametrize(("largest", "refused"), [(0, False), (1000, False), (1001, True), (5000, True)])
def test_a_batch_is_refused_for_its_size(kafka: Kafka, largest: int, refused: bool) -> None:
    """Two records of 500 bytes fit into one that the topic takes, three do not."""
    kafka.topics[T].settings["max.message.bytes"] = "1000"
    session = kafka.init("w")
    records = [record(b"." * (500 - OVERHEAD - 1), partition) for partition in (0, 1) for _ in range(3)]
    records[0] = record(b"." * (501 - OVERHEAD - 1))
    with pytest.raises(Failed) if refused else nullcontext():
        kafka.produce("w", session, 1, records, largest=largest)
    assert bool(kafka.transactions) is not refused


@pytest.mark.parametrize(
    ("age", "refused"), [(0.0, False), (2.0, False), (2.1, True), (-3600.0, False), (-3600.1, True)]
)
def test_a_record_is_refused_for_its_time(kafka: Kafka, age: float, refused: bool) -> None:
    kafka.topics[T].settings["message.timestamp.before.max.ms"] = "2000"
    session = kafka.init("w")
    with pytest.raises(InvalidTimestamp) if refused else nullcontext():
        kafka.produce("w", session, 1, [record()], kafka.engine.now - age)
    assert bool(kafka.transactions) is not refused


def test_a_key_is_refused(kafka: Kafka) -> None:
    kafka.refused.add(b"k")
    session = kafka.init("w")
    assert kafka.append("w", session, [record()]) is Cause.REFUSED
    assert kafka.append("w", session, [record(None)]) is None, "a delete is small"


def test_headers_are_read_as_bytes(kafka: Kafka) -> None:
    session = kafka.init("w")
    kafka.append("w", session, [record()._replace(headers=[("a", "x"), ("b", b"y"), ("c", None)])])
    kafka.commit("w", session)
    read = kafka.logs[T, 0].read(0, 1)[0]
    assert read == [InRecord(T, 0, 0, b"k", b"v", [("a", b"x"), ("b", b"y"), ("c", None)])]


def test_deleted_records(kafka: Kafka) -> None:
    write(kafka, b"1", b"2")
    log = kafka.logs[T, 0]
    kafka.delete_records(T, 0, 1)
    assert (log.first, log.end, seen(log)) == (1, 3, [b"2"])
    kafka.delete_records(T, 0, 99)
    assert (log.first, log.end, seen(log)) == (3, 3, [])


def test_deleted_records_of_an_open_transaction(kafka: Kafka) -> None:
    session = kafka.init("w")
    kafka.append("w", session, [record(b"1"), record(b"2")])
    kafka.delete_records(T, 0, 1)
    assert kafka.logs[T, 0].stable == 1
    kafka.commit("w", session)
    assert seen(kafka.logs[T, 0]) == [b"2"]


def test_an_unclean_election_cuts_whole_transactions(kafka: Kafka) -> None:
    write(kafka, b"1")
    write(kafka, b"2", b"3")
    log = kafka.logs[T, 0]
    lost = kafka.truncate(T, 0, 2)
    assert [r.value for r in lost] == [b"2", b"3"]
    assert (log.end, log.epoch) == (2, 1)
    assert log.holds(2, 0)
    assert not log.holds(3, 0)
    write(kafka, b"4")
    assert not log.holds(3, 0), "the log is longer, but another one"
    assert log.holds(4, 1)
    assert [log.epoch_of(offset) for offset in (0, 1, 2, 3)] == [0, 0, 1, 1]


def test_an_unclean_election_while_a_transaction_is_open(kafka: Kafka) -> None:
    losses: list[list[InRecord]] = []
    kafka.on_loss = losses.append
    session = kafka.init("w")
    kafka.append("w", session, [record(b"1")])
    assert kafka.truncate(T, 0, 1) == []
    assert kafka.commit("w", session) is None
    assert [[r.value for r in lost] for lost in losses] == [[b"1"]]


def test_a_clean_election_loses_nothing(kafka: Kafka) -> None:
    write(kafka, b"1")
    assert kafka.truncate(T, 0, 0) == []
    assert kafka.logs[T, 0].epoch == 1
    assert kafka.logs[T, 0].holds(2, 0)


def test_a_topic_made_again_has_another_id(kafka: Kafka) -> None:
    write(kafka, b"1")
    before = kafka.topics[T].id
    kafka.recreate(T)
    assert kafka.topics[T].id != before
    assert kafka.logs[T, 0].end == 0


def test_a_transaction_outlives_its_topic(kafka: Kafka) -> None:
    session = kafka.init("w")
    kafka.append("w", session, [record(b"1")])
    kafka.delete(T)
    assert T not in kafka.topics
    assert not kafka.logs
    assert kafka.commit("w", session) is None


def test_compaction_keeps_the_last_of_each_key(kafka: Kafka) -> None:
    write(kafka, b"1", b"2", key=b"a")
    write(kafka, b"3", key=b"b")
    open_ = kafka.init("open")
    kafka.append("open", open_, [record(b"4", key=b"b")])
    kafka.compact(T)
    log = kafka.logs[T, 0]
    assert (seen(log), log.end) == ([b"2", b"3"], 6)


# -- what clients ask -------------------------------------------------------------------------------------------------


def test_brokers_that_are_away_answer_nothing(kafka: Kafka) -> None:
    kafka.up = False
    with pytest.raises(Unanswered):
        kafka.described(T)
    with pytest.raises(Unanswered):
        kafka.open_session("w", "w", 5.0)


def test_what_is_not_there(kafka: Kafka) -> None:
    with pytest.raises(UnknownTopic):
        kafka.described("another")
    with pytest.raises(UnknownTopic):
        kafka.led(T, 2)


def test_a_partition_without_leader(kafka: Kafka) -> None:
    session = kafka.open_session("w", "w", 5.0)
    kafka.lose(T, 0)
    with pytest.raises(Unanswered):
        kafka.led(T, 0)
    assert kafka.led(T, 1).end == 0
    left = kafka.produce("w", session, 1, [record(b"1"), record(b"2", 1), record(b"3")])
    assert [r.value for r in left] == [b"1", b"3"]
    kafka.recover(T, 0)
    assert kafka.produce("w", session, 2, left) == []
    kafka.end_session("w", session)
    assert (seen(kafka.logs[T, 0]), seen(kafka.logs[T, 1])) == ([b"1", b"3"], [b"2"])


def test_a_coordinator_that_is_away(kafka: Kafka) -> None:
    session = kafka.open_session("w", "w", 5.0)
    kafka.uncoordinated.add("w")
    with pytest.raises(Unanswered):
        kafka.produce("w", session, 1, [record()])
    with pytest.raises(Unanswered):
        kafka.end_session("w", session)
    with pytest.raises(Unanswered):
        kafka.open_session("w", "w", 5.0)
    kafka.open_session("another", "another", 5.0)


def test_records_that_are_sent_twice_are_written_once(kafka: Kafka) -> None:
    session = kafka.open_session("w", "w", 5.0)
    for _ in range(2):
        assert kafka.produce("w", session, 1, [record(b"1")]) == []
    kafka.produce("w", session, 2, [record(b"1")])
    kafka.end_session("w", session)
    assert seen(kafka.logs[T, 0]) == [b"1", b"1"]


def test_a_commit_whose_answer_is_lost_takes_effect_once(kafka: Kafka) -> None:
    session = kafka.open_session("w", "w", 5.0)
    kafka.produce("w", session, 1, [record(b"1")])
    kafka.silent.add("w")
    with pytest.raises(Unanswered):
        kafka.end_session("w", session)
    assert seen(kafka.logs[T, 0]) == [b"1"]
    kafka.end_session("w", session)
    assert (kafka.counts["commits"], kafka.logs[T, 0].end) == (1, 2)


@pytest.mark.parametrize("takes_effect", [True, False])
def test_a_commit_that_is_lost(kafka: Kafka, takes_effect: bool) -> None:
    session = kafka.open_session("w", "w", 5.0)
    kafka.produce("w", session, 1, [record(b"1")])
    kafka.lost["w"] = takes_effect
    with pytest.raises(Failed) as failed:
        kafka.end_session("w", session)
    assert failed.value.cause is Cause.LOST
    kafka.open_session("w", "w", 5.0)
    assert seen(kafka.logs[T, 0]) == ([b"1"] if takes_effect else [])


def test_a_setting_that_no_topic_can_have(kafka: Kafka) -> None:
    with pytest.raises(InvalidSetting, match=r"retention\.ms=soon"):
        kafka.create("another", 1, {"retention.ms": "soon"})
    assert "another" not in kafka.topics


def test_a_fetch_notices_what_is_gone(kafka: Kafka) -> None:
    write(kafka, b"1")
    write(kafka, b"2")
    records, following, epoch, at_end = kafka.fetch(T, 0, 0, -1, 100)
    assert ([r.value for r in records], following, epoch, at_end) == ([b"1", b"2"], 4, 0, True)
    assert not kafka.fetch(T, 0, 0, -1, 3).at_end
    kafka.truncate(T, 0, 1)
    write(kafka, b"3")
    write(kafka, b"4")
    with pytest.raises(OutOfRange):
        kafka.fetch(T, 0, following, epoch, 100)
    records, _, epoch, _ = kafka.fetch(T, 0, 2, 0, 100)
    assert ([r.value for r in records], epoch) == ([b"3", b"4"], 1)
    kafka.delete_records(T, 0, 3)
    with pytest.raises(OutOfRange):
        kafka.fetch(T, 0, 2, 0, 100)


def test_a_fenced_session_fails(kafka: Kafka) -> None:
    session = kafka.open_session("w", "w", 5.0)
    kafka.open_session("w", "w", 5.0)
    with pytest.raises(Failed) as failed:
        kafka.produce("w", session, 1, [record()])
    assert failed.value.cause is Cause.FENCED
    with pytest.raises(Failed):
        kafka.end_session("w", session)


def test_missing_rights(kafka: Kafka) -> None:
    session = kafka.open_session("w", "w", 5.0)
    kafka.denied |= {("Write", T), ("Write", "another")}
    with pytest.raises(Denied, match="Write on topic t"):
        kafka.produce("w", session, 1, [record()])
    with pytest.raises(Denied, match="Write on transactional_id another"):
        kafka.open_session("another", "another", 5.0)
    kafka.described(T)


# -- groups, and records outside of transactions -------------------------------------------------------------------


def test_a_member_hears_whether_it_is_assigned_the_partition(kafka: Kafka) -> None:
    assert kafka.join_group("g", "a", "n-a", 6.0) == (1, True)
    assert kafka.join_group("g", "b", "n-b", 6.0) == (2, False)
    assert (kafka.hear("g", "a"), kafka.hear("g", "b")) == ((2, True), (2, False))
    kafka.group("g").leave("a")
    assert kafka.hear("g", "b") == (3, True)
    with pytest.raises(UnknownMember):
        kafka.hear("g", "a")


def test_a_heartbeat_keeps_a_member(kafka: Kafka) -> None:
    kafka.join_group("g", "a", "n-a", 6.0)
    kafka.engine.after(5.0, kafka.hear, "g", "a")
    kafka.engine.run(seconds=10)
    assert "a" in kafka.group("g")
    kafka.engine.run(seconds=2)
    assert "a" not in kafka.group("g")


def test_an_outage_is_no_silence_of_members(kafka: Kafka) -> None:
    kafka.join_group("g", "a", "n-a", 6.0)
    kafka.up = False
    kafka.engine.run(seconds=5)
    kafka.up = True
    kafka.engine.run(seconds=5)
    kafka.up = True  # it was up already
    kafka.engine.run(seconds=0.5)
    assert "a" in kafka.group("g")
    kafka.engine.run(seconds=1)
    assert "a" not in kafka.group("g")


def test_a_group_is_asked_at_its_coordinator(kafka: Kafka) -> None:
    kafka.uncoordinated.add("g")
    with pytest.raises(Unanswered):
        kafka.join_group("g", "a", "n-a", 6.0)
    assert kafka.join_group("another", "a", "n-a", 6.0) == (1, True)
    kafka.uncoordinated.clear()
    kafka.up = False
    with pytest.raises(Unanswered):
        kafka.group("g")
    kafka.up = True
    kafka.denied.add(("Read", "g"))
    with pytest.raises(Denied, match="Read on group g"):
        kafka.join_group("g", "a", "n-a", 6.0)


def test_a_transaction_belongs_to_a_generation_of_its_group(kafka: Kafka) -> None:
    generation, _ = kafka.join_group("g", "a", "n-a", 6.0)
    session = kafka.open_session("w", "w", 5.0)
    kafka.join_transaction("w", session, "g", "a", generation)
    with pytest.raises(UnknownMember):
        kafka.join_transaction("w", session, "g", "b", generation)
    kafka.join_group("g", "b", "n-b", 6.0)
    with pytest.raises(OldGeneration, match="1 of 2"):
        kafka.join_transaction("w", session, "g", "a", generation)
    with pytest.raises(Failed) as failed:
        kafka.join_transaction("w", session - 1, "g", "a", 2)
    assert failed.value.cause is Cause.FENCED
    kafka.uncoordinated.add("w")
    with pytest.raises(Unanswered):
        kafka.join_transaction("w", session, "g", "a", 2)


def test_a_record_outside_of_a_transaction_is_there_at_once(kafka: Kafka) -> None:
    moved: list[Log] = []
    kafka.on_stable = moved.append
    kafka.write(record(b"1", 1))
    log = kafka.logs[T, 1]
    assert (seen(log), moved) == ([b"1"], [log])
    kafka.refused.add(b"k")
    with pytest.raises(Failed) as failed:
        kafka.write(record(b"2", 1))
    assert failed.value.cause is Cause.REFUSED
    kafka.write(record(None, 1))  # a tombstone is never too large
    kafka.denied.add(("Write", T))
    with pytest.raises(Denied):
        kafka.write(record(None, 1))
    assert seen(log) == [b"1", None]


def test_who_may_not_describe_a_topic_sees_none(kafka: Kafka) -> None:
    kafka.denied.add(("Describe", T))
    with pytest.raises(Denied, match="Describe on topic t"):
        kafka.described(T)
    with pytest.raises(Denied):
        kafka.led(T, 0)


def test_compaction_after_retention(kafka: Kafka) -> None:
    for value in (b"1", b"2", b"3"):
        kafka.write(record(value))
    kafka.delete_records(T, 0, 1)
    open_ = kafka.init("open")
    kafka.append("open", open_, [record(b"4")])
    kafka.compact(T)
    kafka.commit("open", open_)
    assert seen(kafka.logs[T, 0]) == [b"3", b"4"]


def test_an_open_transaction_forgets_a_partition_that_it_lost(kafka: Kafka) -> None:
    """It writes no marker there; where it still has records, it does."""
    session = kafka.init("w")
    kafka.append("w", session, [record(b"1"), record(b"2", 1)])
    lost: list[list[InRecord]] = []
    kafka.on_loss = lost.append
    assert kafka.truncate(T, 0, 1) == []
    kafka.commit("w", session)
    assert [kafka.logs[T, number].end for number in (0, 1)] == [0, 2]
    assert [[r.value for r in records] for records in lost] == [[b"1"]]


def test_only_other_producers_count_as_fences(kafka: Kafka) -> None:
    kafka.init("w", "w")
    assert kafka.counts["fences"] == 0
    kafka.init("w", "n2 fences")
    assert (kafka.counts["fences"], kafka.sessions["w"]) == (1, 2)


# -- partitions that take no records ----------------------------------------------------------------------------------


def both(kafka: Kafka, session: int) -> None:
    """An open transaction with a record on each partition."""
    assert kafka.append("w", session, [record(b"0"), record(b"1", 1)]) is None


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_stays_open_where_there_is_no_leader_and_ends_as_the_next_one(
    kafka: Kafka, commits: bool
) -> None:
    """As a broker does it, see `tests/connector/kafka/test_one_partition.py`."""
    first = kafka.open_session("w", "w", 5.0)
    both(kafka, first)
    kafka.lose(T, 1)
    assert kafka.unwritable(T) == {1}
    session = kafka.open_session("w", "w", 5.0)  # aborts it
    assert session > first
    assert (seen(kafka.logs[T, 0]), kafka.logs[T, 0].stable) == ([], 2)
    kafka.recover(T, 1)
    assert kafka.unwritable(T) == set()
    assert (kafka.logs[T, 1].end, kafka.logs[T, 1].stable) == (1, 0)
    other = kafka.init("other")
    kafka.append("other", other, [record(b"hidden", 1)])
    kafka.commit("other", other)
    assert seen(kafka.logs[T, 1]) == []
    assert kafka.produce("w", session, 1, [record(b"2"), record(b"3", 1)]) == []
    if commits:
        kafka.end_session("w", session)
    else:
        kafka.abort("w", session)
    assert seen(kafka.logs[T, 0]) == ([b"2"] if commits else [])
    assert seen(kafka.logs[T, 1]) == ([b"1", b"hidden", b"3"] if commits else [b"hidden"])
    assert kafka.logs[T, 1].stable == kafka.logs[T, 1].end


def test_a_transaction_with_too_few_replicas_waits_for_them_and_holds_up_its_id(kafka: Kafka) -> None:
    session = kafka.open_session("w", "w", 5.0)
    both(kafka, session)
    kafka.lose(T, 1, leader=False)
    kafka.end_session("w", session)
    assert (seen(kafka.logs[T, 0]), seen(kafka.logs[T, 1])) == ([b"0"], [])
    with pytest.raises(HeldUp):
        kafka.produce("w", session, 1, [record(b"2")])
    with pytest.raises(HeldUp):
        kafka.open_session("w", "w", 5.0)
    with pytest.raises(Unanswered):
        kafka.write(record(b"x", 1))
    assert kafka.led(T, 1).stable == 0  # it can be read
    kafka.recover(T, 0)  # another one
    with pytest.raises(HeldUp):
        kafka.open_session("w", "w", 5.0)
    kafka.recover(T, 1)
    assert seen(kafka.logs[T, 1]) == [b"1"]
    assert kafka.produce("w", session, 1, [record(b"2")]) == []


def test_who_is_held_up_is_fenced_where_it_was_not_committed(kafka: Kafka) -> None:
    first = kafka.open_session("w", "w", 5.0)
    assert kafka.produce("w", first, 1, [record(b"0"), record(b"1", 1)]) == []
    kafka.lose(T, 1, leader=False)
    left = kafka.produce("w", first, 2, [record(b"2", 1)])
    assert [r.value for r in left] == [b"2"]
    for _ in range(2):
        with pytest.raises(HeldUp):
            kafka.open_session("w", "w", 5.0)
        assert kafka.append("w", first, [record(b"3")]) is Cause.FENCED
    assert (seen(kafka.logs[T, 0]), kafka.logs[T, 0].stable) == ([], 2)
    kafka.recover(T, 1)
    assert kafka.open_session("w", "w", 5.0) > first
    assert (seen(kafka.logs[T, 1]), kafka.logs[T, 1].stable) == ([], 2)


def test_a_leader_that_nobody_knows_to_be_away_holds_up_an_id_until_it_is_known(kafka: Kafka) -> None:
    first = kafka.open_session("w", "w", 5.0)
    both(kafka, first)
    kafka.lose(T, 1, told_after=4.0)
    assert kafka.unwritable(T) == set()
    with pytest.raises(Unanswered):
        kafka.led(T, 1)
    with pytest.raises(HeldUp):
        kafka.open_session("w", "w", 5.0)
    kafka.engine.run(lambda: bool(kafka.unwritable(T)), 10.0)
    assert (kafka.engine.now, kafka.unwritable(T)) == (4.0, frozenset({1}))
    kafka.open_session("w", "w", 5.0)
    kafka.recover(T, 1)
    assert (kafka.logs[T, 1].end, kafka.logs[T, 1].stable) == (1, 0)  # left open


def test_who_is_back_before_anybody_knew_takes_its_markers(kafka: Kafka) -> None:
    session = kafka.open_session("w", "w", 5.0)
    both(kafka, session)
    kafka.lose(T, 1, told_after=4.0)
    kafka.end_session("w", session)
    kafka.recover(T, 1)
    assert seen(kafka.logs[T, 1]) == [b"1"]
    kafka.engine.run(None, 10.0)
    assert kafka.unwritable(T) == set()


def test_a_topic_that_is_deleted_holds_up_nobody(kafka: Kafka) -> None:
    kafka.create("u", 1)
    session = kafka.init("w")
    kafka.append("w", session, [record(b"0"), OutRecord("u", 0, b"k", b"v", [])])
    kafka.lose("u", 0, leader=False)
    kafka.commit("w", session)
    with pytest.raises(HeldUp):
        kafka.open_session("w", "w", 5.0)
    kafka.delete("u")
    kafka.open_session("w", "w", 5.0)
    kafka.create("u", 1)
    assert kafka.unwritable("u") == set()
