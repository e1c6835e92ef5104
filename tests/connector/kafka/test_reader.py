"""A reader's bookkeeping: where it begins, what is the end, and which errors end it. The consumer is a double."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from itertools import repeat
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition

from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable
from deelog_connector.kafka import reader as module
from deelog_connector.kafka.client import LOOK_SECONDS
from deelog_connector.kafka.reader import Reader, consumer_settings, first_behind, still_holds
from deelog_connector.kafka_port import MAX_READ, InRecord, PartitionEnd
from deelog_schemas.config import ConfigError
from deelog_schemas.errors import FieldError
from deelog_schemas.kafka.connections import Connections
from tests.connector.cache import config_of, run


class Message:
    """A record, or an error of a partition."""

    def __init__(self, partition: int = 0, offset: int = 0, error: KafkaError | None = None) -> None:
        self._partition, self._offset, self._error = partition, offset, error

    def error(self) -> KafkaError | None:
        return self._error

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"%d" % self._offset

    def headers(self) -> list[tuple[str, bytes]]:
        return [("h", b"x")]


def failed(code: int, words: str = "the broker's words", **flags: bool) -> Message:
    return Message(error=KafkaError(code, words, **flags))


class Consumer:
    """Gives what it is told, and notes what it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bounds = [(0, 100)]
        """By partition; those behind the last have the same."""
        self.fails: Iterable[KafkaException | KafkaError] = ()
        """What fails of the next questions for offsets: the call, or its last partition."""
        self.batches: list[list[Message]] = []
        self.polls: list[Message | None] = []
        self.assigned: list[list[Any]] = []
        self.consumed: list[tuple[int, float]] = []
        self.asked = 0
        self.closed = 0
        self.now = 100.0
        self.rests: list[float] = []
        self.refuses: list[Exception] = []
        self.answers = True
        """Whether brokers answer others."""
        self.connections = Connections("consumer", {})
        monkeypatch.setattr(module, "opened", self._opened)
        monkeypatch.setattr(module, "brokers_answer", lambda config: self.answers)
        monkeypatch.setattr(module, "hear", lambda consumer, connections: None)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=self._monotonic, sleep=self.rests.append))

    def _opened(self, make: object, client: str, settings: dict[str, Any]) -> tuple[Consumer, Connections]:
        assert client == "consumer"
        if self.refuses:
            raise self.refuses.pop()
        self.settings = settings
        return self, self.connections

    def _monotonic(self) -> float:
        self.now += 0.5
        return self.now

    def offsets_for_times(self, asked: list[TopicPartition], seconds: float) -> list[Any]:
        assert asked
        assert seconds == LOOK_SECONDS
        self.asked += 1
        found = []
        for where in asked:
            low, high = self.bounds[min(where.partition, len(self.bounds) - 1)]
            offset = {OFFSET_BEGINNING: low, OFFSET_END: high}[where.offset]
            found.append(SimpleNamespace(partition=where.partition, offset=offset, error=None))
        for error in self.fails:
            if isinstance(error, KafkaException):
                raise error
            found[-1].error = error
            break
        return found

    def assign(self, partitions: list[Any]) -> None:
        self.assigned.append(partitions)

    def consume(self, count: int, seconds: float) -> list[Message]:
        self.consumed.append((count, seconds))
        return self.batches.pop(0) if self.batches else []

    def poll(self, seconds: float) -> Message | None:
        return self.polls.pop(0) if self.polls else None

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Consumer:
    return Consumer(monkeypatch)


async def at_once(call: Callable[..., Any], *args: Any) -> Any:
    return call(*args)


def of(work: Coroutine[Any, Any, Any]) -> Any:
    """What a call returns."""
    found: list[Any] = []

    async def keep() -> None:
        found.append(await work)

    run(keep(), 20)
    return found[0]


def sought(**offsets: int) -> Reader:
    """A reader at these offsets, `p0=5`."""
    reader = Reader(at_once, config_of("h:1", "p"), "t", 7.0)
    of(reader.seek({int(name[1:]): offset for name, offset in offsets.items()}))
    return reader


def test_a_consumer_commits_no_offsets_and_fails_instead_of_skipping() -> None:
    config = config_of("h:1", "p", consumer_override_fetch_wait_max_ms=5)
    settings = consumer_settings(config)
    assert (settings["enable.auto.commit"], settings["auto.offset.reset"]) == (False, "error")
    assert (settings["isolation.level"], settings["allow.auto.create.topics"]) == ("read_committed", False)
    assert (settings["enable.partition.eof"], settings["group.id"]) == (True, config.topics.reader_group)
    assert settings["fetch.wait.max.ms"] == 100


@pytest.mark.parametrize(("offset", "begins"), [(10, 10), (20, 20), (15, 15), (9, 10), (21, 10), (-1, 10)])
def test_a_partition_without_the_offset_is_read_from_its_beginning(
    consumer: Consumer, offset: int, begins: int
) -> None:
    consumer.bounds = [(10, 20)]
    reader = sought(p3=offset)
    ((where,),) = consumer.assigned
    assert (where.topic, where.partition, where.offset) == ("t", 3, begins)
    assert reader.next_offset(3) == begins


def test_it_has_caught_up_at_the_end_that_each_partition_had(consumer: Consumer) -> None:
    consumer.bounds = [(0, 2), (0, 5)]
    reader = sought(p0=0, p1=0)
    consumer.batches = [[Message(0, 0)], [Message(0, 1)], [Message(1, 7)], []]
    caught_up = []
    for _ in range(4):
        of(reader.read(0.1))
        caught_up.append(reader.caught_up)
    assert caught_up == [False, False, True, True]  # beyond its end is the end, too
    assert (reader.next_offset(0), reader.next_offset(1)) == (2, 8)
    assert consumer.consumed == [(MAX_READ, 0.1)] * 4


def test_an_end_that_the_client_reports_counts_too(consumer: Consumer) -> None:
    reader = sought(p0=0)
    consumer.batches = [[failed(KafkaError._PARTITION_EOF)], [failed(KafkaError._PARTITION_EOF)]]
    assert (of(reader.read(0.1)), reader.caught_up) == ([], True)
    assert of(reader.read(0.1)) == []


def test_records_come_as_they_are(consumer: Consumer) -> None:
    reader = sought(p0=0)
    consumer.batches = [[Message(0, 4), Message(0, 5)]]
    assert of(reader.read(0.1)) == [InRecord("t", 0, n, b"k", b"%d" % n, [("h", b"x")]) for n in (4, 5)]


@pytest.mark.parametrize(
    ("message", "kind", "words"),
    [
        (failed(KafkaError.TOPIC_AUTHORIZATION_FAILED), KafkaUnauthorized, "Kafka refuses Read on topic t"),
        (failed(KafkaError.GROUP_AUTHORIZATION_FAILED), KafkaUnauthorized, "Kafka refuses Read on group p"),
        (failed(KafkaError.OFFSET_OUT_OF_RANGE), KafkaUnusable, r"cannot read t\[0\] on: the broker's words"),
    ],
)
def test_an_error_comes_after_the_records_before_it_and_once(
    consumer: Consumer, message: Message, kind: type[Exception], words: str
) -> None:
    reader = sought(p0=0)
    other = failed(KafkaError.OFFSET_OUT_OF_RANGE, "a later error")
    consumer.batches = [[Message(0, 4), message, other], [Message(0, 5)], [message]]
    assert [record.offset for record in of(reader.read(0.1))] == [4]
    with pytest.raises(KafkaUnusable, match=words) as raised:
        of(reader.read(0.1))
    assert type(raised.value) is kind
    assert [record.offset for record in of(reader.read(0.1))] == [5]
    with pytest.raises(kind):
        of(reader.read(0.1))  # without records it comes at once
    assert of(reader.read(0.1)) == []


@pytest.mark.parametrize("message", [failed(KafkaError._TRANSPORT), failed(KafkaError._TIMED_OUT, retriable=True)])
def test_an_error_that_passes_is_none(consumer: Consumer, message: Message) -> None:
    reader = sought(p0=0)
    consumer.batches = [[message], [Message(0, 4)]]
    assert of(reader.read(0.1)) == []
    assert len(of(reader.read(0.1))) == 1


def test_a_seek_forgets_the_error_before_it(consumer: Consumer) -> None:
    reader = sought(p0=0)
    consumer.batches = [[Message(0, 4), failed(KafkaError.OFFSET_OUT_OF_RANGE)]]
    of(reader.read(0.1))
    of(reader.seek({1: 7}))
    assert of(reader.read(0.1)) == []
    assert not reader.caught_up
    of(reader.seek({}))
    assert (reader.caught_up, consumer.assigned[-1]) == (True, [])
    of(reader.close())
    assert consumer.closed == 1


AWAY = KafkaException(KafkaError(KafkaError._TIMED_OUT))


def test_bounds_are_asked_for_until_there_is_an_answer_or_none_can_come(consumer: Consumer) -> None:
    consumer.fails = iter([AWAY, AWAY, AWAY.args[0], AWAY])
    sought(p0=0, p1=0)
    assert consumer.asked == 4 + 2
    consumer.fails, begun = repeat(AWAY), consumer.now
    with pytest.raises(KafkaUnavailable, match=r"^cannot read t: no broker answers in time"):
        sought(p0=0)
    assert 7.0 < consumer.now - begun < 9.0
    begun = consumer.now
    consumer.fails = repeat(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(KafkaUnauthorized, match=r"^cannot read t: Kafka refuses Read on topic t"):
        sought(p0=0)
    consumer.fails = repeat(AWAY)
    consumer.connections(KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error: Authentication failed"))
    with pytest.raises(KafkaUnavailable, match=r"correct sasl\.mechanism"):
        sought(p0=0)
    assert consumer.now - begun < 3.0


def test_the_bounds_and_ends_of_all_partitions_are_two_questions_and_one(consumer: Consumer) -> None:
    """Each waits behind the request for records: one for each of 64 partitions held reading up for 6 s."""
    reader = sought(**{f"p{number}": 5 for number in range(64)})
    assert consumer.asked == 2
    looks(consumer, reader, 5)
    assert consumer.asked == 3


@pytest.mark.parametrize(
    ("polls", "holds"),
    [
        ([None, Message(2, 7)], True),
        ([failed(KafkaError._PARTITION_EOF)], True),
        ([failed(KafkaError._TRANSPORT), failed(KafkaError._LOG_TRUNCATION)], False),
        ([failed(KafkaError._AUTO_OFFSET_RESET)], False),
        ([failed(KafkaError.OFFSET_OUT_OF_RANGE)], False),
        ([failed(KafkaError._TRANSPORT)], None),
    ],
)
def test_a_log_holds_an_end_or_was_cut(consumer: Consumer, polls: list[Message | None], holds: bool | None) -> None:
    consumer.polls = polls
    config, end = config_of("h:1", "p"), PartitionEnd(2, 7, 3)
    if holds is None:
        with pytest.raises(KafkaUnavailable, match=r"^no answer about t\[2\]@7$"):
            still_holds(config, "t", end, 5.0)
    else:
        assert still_holds(config, "t", end, 5.0) is holds
    ((where,),) = consumer.assigned
    assert (where.partition, where.offset, where.leader_epoch) == (2, 7, 3)
    assert consumer.closed == 1


@pytest.mark.parametrize(
    ("polls", "found"),
    [
        ([None, Message(2, 7)], InRecord("t", 2, 7, b"k", b"7", [("h", b"x")])),
        ([failed(KafkaError._PARTITION_EOF)], None),
        ([failed(KafkaError._TRANSPORT), failed(KafkaError._LOG_TRUNCATION)], None),
    ],
)
def test_the_first_record_behind_an_end_is_read_whatever_becomes_of_its_transaction(
    consumer: Consumer, polls: list[Message | None], found: InRecord | None
) -> None:
    consumer.polls = polls
    assert first_behind(config_of("h:1", "p"), "t", PartitionEnd(2, 7, 3), 5.0) == found
    assert consumer.settings["isolation.level"] == "read_uncommitted"
    ((where,),) = consumer.assigned
    assert (where.partition, where.offset, where.leader_epoch) == (2, 7, 3)
    assert consumer.closed == 1
    consumer.polls = [failed(KafkaError._TRANSPORT)]
    with pytest.raises(KafkaUnavailable, match=r"^no answer about t\[2\]@7$"):
        first_behind(config_of("h:1", "p"), "t", PartitionEnd(2, 7, 3), 5.0)


def looks(consumer: Consumer, reader: Reader, *ends: int, batch: Callable[[], list[Message]] = list) -> None:
    """Reads once past the next look, for each end of partition 0 that it finds."""
    for end in ends:
        consumer.bounds = [(0, end)]
        consumer.batches = [batch()]
        consumer.now += 2.0
        of(reader.read(0.1))


def end_of(partition: int, offset: int) -> Message:
    return Message(partition, offset, KafkaError(KafkaError._PARTITION_EOF))


def test_a_partition_that_does_not_move_though_there_is_more_gets_a_new_consumer(consumer: Consumer) -> None:
    reader = sought(p0=5)
    looks(consumer, reader, 100)
    assert (consumer.closed, len(consumer.assigned)) == (0, 1)
    looks(consumer, reader, 100)
    assert consumer.closed == 1
    assert [(where.partition, where.offset) for where in consumer.assigned[1]] == [(0, 5)]


def test_a_new_consumer_goes_on_behind_the_last_record_and_gets_twice_the_time(consumer: Consumer) -> None:
    reader = sought(p0=5)
    looks(consumer, reader, 100, batch=lambda: [Message(0, 8)])
    looks(consumer, reader, 100)
    assert consumer.assigned[-1][0].offset == 9
    looks(consumer, reader, 100, 100, 100)
    assert consumer.closed == 1
    looks(consumer, reader, 100)
    assert consumer.closed == 2
    looks(consumer, reader, 9, 9, 9, 9, 9)  # it has caught up: as at first
    looks(consumer, reader, 100, 100)
    assert consumer.closed == 3


@pytest.mark.parametrize(
    "error", [KafkaUnusable("ssl.ca.location is not there"), ConfigError([FieldError("x", "cannot be resolved")])]
)
def test_where_no_new_consumer_can_be_made_the_old_one_stays_until_the_next_look(
    consumer: Consumer, error: Exception
) -> None:
    """A file of certificates or secrets is being written."""
    reader = sought(p0=5)
    consumer.refuses = [error]
    looks(consumer, reader, 100, 100)
    assert consumer.closed == 0
    looks(consumer, reader, 100)
    assert consumer.closed == 1


def test_a_client_that_never_tells_the_ends_is_replaced_where_brokers_answer_others(consumer: Consumer) -> None:
    """After a broker's restart one may ask with a leader's epoch that is over, again and again."""
    reader = sought(p0=5)
    consumer.fails = repeat(KafkaError(KafkaError.UNKNOWN_LEADER_EPOCH))
    looks(consumer, reader, 100)
    assert consumer.closed == 0
    looks(consumer, reader, 100, batch=lambda: [Message(0, 5)])
    assert consumer.closed == 0, "it reads on"
    consumer.answers = False
    looks(consumer, reader, 100, 100)
    assert consumer.closed == 0, "the brokers are away"
    consumer.answers = True
    looks(consumer, reader, 100)
    assert consumer.closed == 1
    assert [(where.partition, where.offset) for where in consumer.assigned[1]] == [(0, 6)]
    looks(consumer, reader, 100, 100, 100)
    assert consumer.closed == 1, "it has twice the time"
    looks(consumer, reader, 100)
    assert consumer.closed == 2


def test_where_the_user_is_refused_the_client_stays(consumer: Consumer) -> None:
    reader = sought(p0=5)
    consumer.fails = repeat(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    looks(consumer, reader, *[100] * 5)
    assert consumer.closed == 0


def test_a_seek_that_failed_leaves_the_reader_where_it_was(consumer: Consumer) -> None:
    """To hear why it failed, records of the client were taken and dropped."""
    reader = sought(p0=5)
    consumer.fails = repeat(KafkaException(KafkaError(KafkaError._TRANSPORT, "away")))
    with pytest.raises(KafkaUnavailable):
        of(reader.seek({0: 7, 1: 7}))
    assert [(where.partition, where.offset) for where in consumer.assigned[-1]] == [(0, 5)]
    assert consumer.rests


def test_a_partition_that_moves_or_that_has_reached_its_end_keeps_its_consumer(consumer: Consumer) -> None:
    offsets = iter(range(5, 100))
    reader = sought(p0=5)
    looks(consumer, reader, *[100] * 5, batch=lambda: [Message(0, next(offsets))])
    looks(consumer, reader, *[12] * 5, batch=lambda: [end_of(0, 12)])  # markers of transactions are behind 10
    looks(consumer, reader, 14, 14, batch=lambda: [end_of(0, 14)])
    assert consumer.closed == 0


def test_what_was_not_there_at_the_last_look_is_waited_for(consumer: Consumer) -> None:
    reader = sought(p0=5)
    looks(consumer, reader, 5, 9)
    assert consumer.closed == 0
    looks(consumer, reader, 9)
    assert consumer.closed == 1


def test_while_there_are_more_records_than_one_read_takes_nobody_is_late(consumer: Consumer) -> None:
    offsets = iter(range(5, 100_000))
    reader = sought(p0=5, p1=5)
    looks(consumer, reader, *[90_000] * 4, batch=lambda: [Message(0, next(offsets)) for _ in range(MAX_READ)])
    assert consumer.closed == 0
    looks(consumer, reader, 90_000, batch=lambda: [Message(0, next(offsets))])
    assert consumer.closed == 1
    assert {where.partition: where.offset for where in consumer.assigned[-1]} == {0: next(offsets), 1: 5}


def test_brokers_that_do_not_answer_make_nobody_late(consumer: Consumer) -> None:
    reader = sought(p0=5)
    looks(consumer, reader, 100)
    consumer.fails = iter([KafkaException(KafkaError(KafkaError._TRANSPORT))])
    looks(consumer, reader, 100, 100)
    assert consumer.closed == 0


def test_a_seek_begins_anew(consumer: Consumer) -> None:
    reader = sought(p0=5)
    looks(consumer, reader, 100)
    of(reader.seek({0: 5}))
    looks(consumer, reader, 100)
    assert consumer.closed == 0


def test_a_header_that_is_not_utf8_ends_no_reader() -> None:
    """The binding raises at the name. Anybody may write to a signal topic, whose records need no headers."""

    class Odd(Message):
        def headers(self) -> list[tuple[str, bytes]]:
            raise SystemError("returned a result with an exception set")

    assert module._record_of(cast("Any", Odd(3, 5))) == InRecord("t", 3, 5, b"k", b"5", None)
