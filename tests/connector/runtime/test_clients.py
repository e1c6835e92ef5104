"""The clients of one configuration: few scans at a time, each with a reader of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, cast

import pytest

from deelog_connector.core.effects import Producer
from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable
from deelog_connector.kafka.librdkafka import SystemClock
from deelog_connector.kafka_port import KafkaPort, PartitionEnd, Reader
from deelog_connector.runtime import clients as module
from deelog_connector.runtime.clients import SCANS, Clients
from deelog_connector.runtime.producers import Places
from deelog_schemas.config import Config, ConfigError
from deelog_schemas.errors import FieldError
from tests.connector.cache import config_of, run

CONFIG = config_of("h:1", "p")
TOPIC = CONFIG.topics.changes


class Double:
    """A client that does nothing but remember."""

    def __init__(self, kind: str, config: Config, *args: Any) -> None:
        self.kind, self.config, self.args = kind, config, args
        self.closed, self.hurries, self.dropped = 0, False, 0
        self.sought: list[Mapping[int, int]] = []
        self.topics: list[str] = []
        self.number = "1234567"
        self.fenced: list[tuple[str, Places]] = []
        self.aborted: list[Places] = []
        self.hides: dict[tuple[str, int], int] = {}
        """How often readers do not reach the end of a place."""
        self.error: Exception | None = None

    async def ends(self, topic: str, partitions: Iterable[int], committed: bool) -> list[PartitionEnd]:
        if self.error is not None:
            raise self.error
        found = []
        for partition in partitions:
            left = self.hides.get((topic, partition), 0)
            self.hides[topic, partition] = left - committed
            found.append(PartitionEnd(partition, 10 * partition + 5 - (committed and left > 0), 0))
        return found

    async def fence(self, transactional_id: str, left_open: Places) -> None:
        self.fenced.append((transactional_id, left_open))

    async def abort(self, left_open: Places) -> None:
        self.aborted.append(left_open)

    async def close(self) -> None:
        self.closed += 1

    discard = close

    def give_up(self) -> None:
        self.hurries = True

    def send(self, topic: str, *args: object) -> None:
        self.dropped += 1

    async def seek(self, offsets: Mapping[int, int]) -> None:
        self.sought.append(offsets)
        if offsets == {9: 9}:
            raise KafkaUnusable("there is no such partition")

    async def ensure(self, topic: str, *args: object) -> None:
        self.topics.append(topic)

    async def settings(self, topic: str) -> Mapping[str, str]:
        policy = "compact" if topic == CONFIG.topics.positions else "delete"
        numbers = "min.insync.replicas", "max.message.bytes", "segment.bytes", "segment.ms"
        numbered = dict.fromkeys(numbers, self.number)
        return {**numbered, "cleanup.policy": policy, "unclean.leader.election.enable": "false"}


class Port:
    """Makes doubles; of a broken configuration it makes no producer."""

    clock = SystemClock()

    def __init__(self) -> None:
        self.made: list[Double] = []

    def _double(self, kind: str, config: Config, *args: object) -> Double:
        self.made.append(Double(kind, config, *args))
        return self.made[-1]

    async def session(self, config: Config, *args: object) -> Double:
        return self._double("session", config, *args)

    async def reader(self, config: Config, topic: str) -> Double:
        return self._double("reader", config, topic)

    def brokers(self, config: Config) -> Double:
        return self._double("brokers", config)

    def notes(self, config: Config) -> Double:
        return self._double("notes", config)

    def of_kind(self, kind: str) -> list[Double]:
        return [one for one in self.made if one.kind == kind]


def with_clients(test: Callable[[Clients, Port], Awaitable[None]], opened: bool = True) -> None:
    async def work() -> None:
        port = Port()
        clients = Clients(CONFIG, "n1", cast("KafkaPort", port))
        if opened:
            await clients.open()
        await test(clients, port)

    run(work(), 20)


def test_batches_are_too_large_once_the_topic_takes_less_than_its_session_was_opened_for() -> None:
    async def test(clients: Clients, port: Port) -> None:
        (brokers,) = port.of_kind("brokers")
        largest = port.of_kind("session")[0].args[1]
        for number, opened, found in (
            ("1234567", True, False),
            ("2000000", False, False),
            ("1000", False, True),
            ("1000", True, False),
        ):
            brokers.number = number
            if opened:
                assert largest() == clients.max_message_bytes
            assert await clients.batches_are_too_large() is found
        brokers.number = "1"
        brokers.settings = unanswered  # type: ignore[method-assign]
        assert not await clients.batches_are_too_large(), "that is unknown"

    with_clients(test)


async def unanswered(topic: str) -> Mapping[str, str]:
    """What brokers do that are away."""
    raise KafkaUnusable("the brokers do not answer")


async def scanned(clients: Clients) -> Double:
    async def scan(reader: Reader) -> Double:
        return cast("Double", reader)

    return await clients.scanning(scan)


def test_they_are_made_by_the_configuration() -> None:
    async def test(clients: Clients, port: Port) -> None:
        sessions, (brokers,) = port.of_kind("session"), port.of_kind("brokers")
        names = CONFIG.topics.transactional_id_node("n1"), CONFIG.topics.transactional_id_spare("n1")
        assert [(one.config, *one.args[:1]) for one in sessions] == [(CONFIG, name) for name in names]
        sizes: list[Any] = [one.args[1] for one in sessions]
        assert [size() for size in sizes] == [1234567, 1234567]
        brokers.number = "99"
        await clients.audit._look()
        assert [size() for size in sizes] == [99, 99]
        assert brokers.topics[:2] == [TOPIC, CONFIG.topics.positions]
        reader = await scanned(clients)
        assert (reader.config, reader.args) == (CONFIG, (TOPIC,))

    with_clients(test)


def test_what_a_producer_has_left_open_is_aborted_by_itself_or_by_a_fence() -> None:
    topics = CONFIG.topics
    both = [(TOPIC, 3), (topics.positions, 3)]

    async def test(clients: Clients, port: Port) -> None:
        (brokers,), (first, _) = port.of_kind("brokers"), port.of_kind("session")
        await clients.fence(Producer("n2"))
        assert await clients.end_hanging(Producer("n2", spare=True), 3)
        assert await clients.end_hanging(Producer("n1", spare=True), 3)
        assert brokers.fenced == [
            (topics.transactional_id_node("n2"), ()),
            (topics.transactional_id_spare("n2"), both),
            (topics.transactional_id_spare("n1"), both),
        ]
        assert await clients.end_hanging(Producer("n1"), 3)
        assert (first.aborted, len(brokers.fenced)) == ([both], 3)

    with_clients(test)


def test_what_was_aborted_has_ended_once_readers_pass_it_on_both_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENDING_POLL_SECONDS", 0.0)
    positions = CONFIG.topics.positions

    async def test(clients: Clients, port: Port) -> None:
        (brokers,) = port.of_kind("brokers")
        session = clients.session
        session.begin(range(4))
        brokers.hides = {(TOPIC, 1): 3, (positions, 1): 1, (positions, 2): 2}
        assert await session.abort(clients.places, {0, 1, 2})
        assert session.left_open_on(range(4)) == {3}
        assert len(brokers.hides) == 6
        assert set(brokers.hides.values()) == {-1}  # each is asked until it is passed, and no longer

    with_clients(test)


def test_what_does_not_end_in_time_or_cannot_be_asked_stays_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "ENDING_SECONDS", 0.0)
    problems = [
        KafkaUnavailable("no end of p.c[1]"),
        ConfigError([FieldError("producer.override.x", "cannot be read")]),
    ]

    async def test(clients: Clients, port: Port) -> None:
        (brokers,) = port.of_kind("brokers")
        session = clients.session
        session.begin(range(3))
        for brokers.error in problems:
            assert await session.abort(clients.places, {0, 1, 2})
            assert session.left_open_on(range(3)) == {0, 1, 2}
        brokers.error, brokers.hides = None, {(CONFIG.topics.positions, 1): 9}
        assert await session.abort(clients.places, {0, 1, 2})
        assert session.left_open_on(range(3)) == {1}

    with_clients(test)
    assert [message for message in caplog.messages if message in map(str, problems)] == [*map(str, problems)]
    assert "partitions [1] wait: what was left open there does not end" in caplog.messages


def test_few_scans_run_at_the_same_time_each_with_a_reader_at_rest() -> None:
    async def test(clients: Clients, port: Port) -> None:
        go, used = asyncio.Event(), []

        async def scan(reader: Reader) -> None:
            used.append(cast("Double", reader))
            await go.wait()

        scans = [asyncio.ensure_future(clients.scanning(scan)) for _ in range(SCANS + 1)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(used) == len(set(map(id, used))) == SCANS
        go.set()
        await asyncio.gather(*scans)
        assert len(used) == SCANS + 1
        assert used[-1] in used[:-1]
        assert all(reader.sought[-1] == {} for reader in used)
        await clients.close_idle()
        assert len(clients._idle) == 1
        assert sum(reader.closed for reader in set(used)) == SCANS - 1

    with_clients(test)


def test_the_reader_of_a_scan_that_failed_is_closed_and_another_one_made() -> None:
    async def test(clients: Clients, port: Port) -> None:
        async def scan(reader: Reader) -> None:
            raise ValueError("scan")

        for _ in range(SCANS + 1):
            with pytest.raises(ValueError, match="scan"):
                await clients.scanning(scan)
        assert [one.closed for one in port.of_kind("reader")] == [1] * (SCANS + 1)
        assert (await scanned(clients)).closed == 0

    with_clients(test)


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (KafkaUnusable("cannot read on"), KafkaUnavailable),
        (KafkaUnauthorized("no right"), KafkaUnauthorized),
        (OSError("something else"), OSError),
    ],
)
def test_a_log_that_moved_under_a_scan_is_unavailable_and_no_error_of_the_topic(
    error: Exception, becomes: type[Exception]
) -> None:
    async def test(clients: Clients, port: Port) -> None:
        async def scan(reader: Reader) -> None:
            raise error

        with pytest.raises(type(error)) as failed:
            await clients.scanning(scan)
        assert (type(failed.value), str(failed.value)) == (becomes, str(error))

    with_clients(test)


def test_a_reader_that_cannot_seek_is_closed() -> None:
    async def test(clients: Clients, port: Port) -> None:
        assert cast("Double", await clients.following("t", {0: 5})).sought == [{0: 5}]
        with pytest.raises(KafkaUnusable, match="no such partition"):
            await clients.following("t", {9: 9})
        assert [(one.args, one.closed) for one in port.of_kind("reader")[1:]] == [(("t",), 0), (("t",), 1)]

    with_clients(test)


def test_what_could_not_be_sent_is_counted() -> None:
    async def test(clients: Clients, port: Port) -> None:
        assert clients.dropped == 0
        clients.send("t", b"k", b"v")
        assert clients.dropped == 1

    with_clients(test)


def test_the_end_closes_every_client() -> None:
    async def test(clients: Clients, port: Port) -> None:
        await scanned(clients)
        clients.give_up()
        first, spare = port.of_kind("session")
        assert (first.hurries, spare.hurries) == (True, False)
        await clients.close()
        assert spare.closed == 0  # it is not in use
        assert all(one.closed == 1 for one in port.made if one is not spare)

    with_clients(test)


def test_clients_that_were_never_opened_can_be_closed() -> None:
    async def test(clients: Clients, port: Port) -> None:
        clients.give_up()
        await clients.close()
        with pytest.raises(AssertionError, match="open"):
            _ = clients.session

    with_clients(test, opened=False)
