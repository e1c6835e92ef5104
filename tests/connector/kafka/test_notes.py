"""What becomes of notes: sent, or dropped and counted. A fatal error of the client is made by librdkafka on request."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from deelog_connector.kafka import notes as module
from deelog_connector.kafka.notes import Notes
from deelog_schemas.errors import ConfigError, FieldError
from tests.connector.cache import config_of


def fail(producer: Producer) -> None:
    (path,) = Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka-*.so*")
    call = ctypes.CDLL(str(path)).rd_kafka_test_fatal_error
    call.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    handle = ctypes.c_void_p.from_address(id(producer) + 16)  # behind the object's head
    assert call(handle, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, b"a test") == 0


@pytest.mark.parametrize("looked", [False, True])
def test_after_a_fatal_error_there_is_a_new_producer(looked: bool) -> None:
    async def run(call: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.to_thread(call, *args)

    async def work() -> None:
        notes = Notes(run, config_of("127.0.0.1:1", "p"))
        notes.send("n", b"k", b"v")
        first = notes._producer
        assert first is not None
        fail(first)
        if looked:
            assert notes.dropped == 0  # serves the client's events, with the error
        for _ in range(2):
            notes.send("n", b"k", b"v")
        assert notes._producer is not None
        assert notes._producer is not first
        assert notes.dropped == 1
        await notes.close()

    asyncio.run(work())


class Client:
    """A producer that fails as it is told, and keeps what is queued until it is flushed."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.queued: list[tuple[Any, ...]] = []
        self.calls: list[str] = []
        self.errors: dict[str, Exception] = {}

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.errors:
            raise self.errors[name]

    def __len__(self) -> int:
        return len(self.queued)

    def poll(self, seconds: float) -> None:
        self._call(f"poll {seconds:g}")

    def produce(self, *given: Any) -> None:
        self._call("produce")
        self.queued.append(given)

    def flush(self, seconds: float) -> None:
        self._call(f"flush {seconds:g}")

    def purge(self) -> None:
        self._call("purge")

    def report(self, code: int | None, topic: str | None = "n") -> None:
        """A record was delivered, or failed."""
        error = None if code is None else KafkaError(code, "the broker's words")
        self.settings["on_delivery"](error, SimpleNamespace(topic=lambda: topic))


class Desk:
    """Notes, and the clients that they made. `problem` is raised instead of making the next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
        self.made: list[Client] = []
        self.problem: Exception | None = None
        monkeypatch.setattr(module, "Producer", self._client)
        self.of = Notes(self._run, config_of("h:1", "p", **fields))

    def _client(self, settings: dict[str, Any]) -> Client:
        if self.problem is not None:
            raise self.problem
        self.made.append(Client(settings))
        return self.made[-1]

    @staticmethod
    async def _run(call: Callable[..., Any], *args: Any) -> Any:
        return call(*args)

    def send(self) -> Client:
        """Sends a record; the client that there is then."""
        self.of.send("n", b"k", b"v")
        return self.made[-1]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch)


def test_a_record_is_queued_and_its_key_chooses_the_partition_unless_one_is_named(desk: Desk) -> None:
    assert (desk.of.dropped, desk.made) == (0, [])
    desk.of.send("n", b"k", b"v")
    desk.of.send("n", b"k", b"v", 3)
    (client,) = desk.made
    assert client.queued == [("n", b"v", b"k", -1), ("n", b"v", b"k", 3)]
    assert client.calls == ["produce", "poll 0", "produce"]
    assert (desk.of.dropped, client.calls[-1]) == (0, "poll 0")


def test_the_queue_is_short_and_a_record_patient_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Desk(monkeypatch, producer_override_linger_ms=7).send()
    settings = client.settings
    assert (settings["queue.buffering.max.messages"], settings["message.timeout.ms"]) == (1000, 60_000)
    assert (settings["linger.ms"], settings["acks"], settings["enable.idempotence"]) == ("7", "all", True)
    assert settings["partitioner"] == "murmur2_random"


def test_what_finds_no_room_is_dropped_and_counted(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    client = desk.send()
    client.errors["produce"] = BufferError()
    for _ in range(3):
        desk.send()
    assert (desk.of.dropped, len(client.queued), caplog.messages) == (3, 1, [])


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("code", "words"),
    [
        (KafkaError._MSG_TIMED_OUT, "the broker's words"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "Kafka refuses Write on topic n"),
    ],
)
def test_what_is_not_delivered_is_counted_and_logged(
    desk: Desk, caplog: pytest.LogCaptureFixture, code: int, words: str, at_once: bool
) -> None:
    client = desk.send()
    if at_once:
        client.errors["produce"] = KafkaException(KafkaError(code, "the broker's words"))
        desk.send()
    else:
        client.report(None)
        client.report(KafkaError._PURGE_QUEUE)
        client.report(code)
    assert desk.of.dropped == 1
    (line,) = caplog.messages
    assert line.startswith(f"a record for n is dropped: {words}")
    assert (desk.send() is client) is (code != KafkaError._MSG_TIMED_OUT)


def test_a_record_without_a_topic_is_dropped_all_the_same(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.send().report(KafkaError._MSG_TIMED_OUT, None)
    assert caplog.messages == ["a record for  is dropped: the broker's words"]


def test_a_secret_that_cannot_be_read_drops_the_record(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.problem = ConfigError([FieldError("producer.override.sasl.password", "cannot be read")])
    desk.of.send("n", b"k", b"v")
    assert (desk.of.dropped, len(caplog.messages)) == (1, 1)
    assert caplog.messages[0].endswith("producer.override.sasl.password: cannot be read")
    desk.problem = None
    assert len(desk.send()) == 1


def test_an_error_in_serving_reports_is_left_to_the_next_record(desk: Desk) -> None:
    client = desk.send()
    client.errors["poll 0"] = KafkaException(KafkaError(KafkaError._FATAL))
    assert desk.of.dropped == 0
    desk.send()
    assert desk.send() is not client
    assert desk.of.dropped == 1


@pytest.mark.parametrize("error", [None, KafkaException(KafkaError(KafkaError._FATAL)), SystemError()])
def test_at_the_end_what_is_queued_is_sent_or_counted(desk: Desk, error: Exception | None) -> None:
    asyncio.run(desk.of.close())
    assert desk.made == []
    client = desk.send()
    desk.send()
    if error is not None:
        client.errors["flush 2"] = error
    asyncio.run(desk.of.close())
    assert client.calls[-2:] == ["flush 2", "purge"]
    assert desk.of.dropped == 2
    asyncio.run(desk.of.close())
    assert desk.of.dropped == 2


def test_after_a_minute_without_an_answer_there_is_a_new_producer_and_what_waits_is_counted(desk: Desk) -> None:
    desk.send()
    client = desk.send()
    client.report(KafkaError._MSG_TIMED_OUT)
    client.queued.pop()
    assert len(desk.send().queued) == 1
    assert (desk.of.dropped, client.calls[-1], len(desk.made)) == (2, "purge", 2)
    desk.send()
    assert (desk.of.dropped, len(desk.made)) == (2, 2)
