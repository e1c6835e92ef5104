"""What a session says of a transaction that was not committed. Its producer is a double."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from deelog_connector.core.effects import Cause
from deelog_connector.kafka import session as module
from deelog_connector.kafka.session import Session
from deelog_connector.kafka_port import OutRecord, WriteFailed
from deelog_schemas.kafka.connections import Connections
from tests.connector.cache import config_of, run

SUMMARY = "2 message(s) failed delivery (see individual delivery reports)"


class Producer:
    """Reports an error for each record, and commits nothing."""

    def __init__(self, settings: dict[str, Any], code: int) -> None:
        self._report, self._code, self._purged = settings["on_delivery"], code, False

    def list_topics(self, *_: object) -> SimpleNamespace:
        return SimpleNamespace(orig_broker_id=1)

    def init_transactions(self, seconds: float) -> None: ...

    def begin_transaction(self) -> None: ...

    def produce(self, topic: str, *_: object, **__: object) -> None:
        self._report(KafkaError(self._code, f"{topic}: the broker's words"), None)

    def commit_transaction(self, seconds: float) -> None:
        raise KafkaException(KafkaError(KafkaError._INCONSISTENT, SUMMARY))

    def purge(self) -> None:
        self._report(KafkaError(KafkaError._PURGE_QUEUE, "purged"), None)

    def poll(self, seconds: float) -> None: ...


async def at_once(call: Callable[..., Any], *args: Any) -> Any:
    return call(*args)


@pytest.mark.parametrize(
    ("code", "cause"),
    [(KafkaError.NOT_ENOUGH_REPLICAS, Cause.LOST), (KafkaError.MSG_SIZE_TOO_LARGE, Cause.REFUSED)],
)
def test_the_reports_of_the_records_are_in_the_reason(monkeypatch: pytest.MonkeyPatch, code: int, cause: Cause) -> None:
    def opened(_: object, client: str, settings: dict[str, Any]) -> tuple[Producer, Connections]:
        return Producer(settings, code), Connections(client, {})

    monkeypatch.setattr(module, "opened", opened)

    async def work() -> None:
        session = Session(at_once, config_of("h:1", "p"), "t", 1_000_000, 1.0)
        await session.open()
        with pytest.raises(WriteFailed) as failed:
            await session.commit([OutRecord(topic, 0, b"k", b"v", []) for topic in ("a", "b", "a")])
        assert failed.value.cause is cause
        assert failed.value.reason == f"{SUMMARY}; a: the broker's words; b: the broker's words"

    run(work())
