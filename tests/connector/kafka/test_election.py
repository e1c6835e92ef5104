"""A commit of views, and what happens at the worst moment of it. The producer is a double, to have that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from deelog_connector.kafka.election import Election
from deelog_connector.kafka_port import NotController
from tests.connector.cache import config_of


class Producer:
    """Its transaction has to be aborted; `meanwhile` happens before that."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self.aborted, self._meanwhile = 0, meanwhile

    def begin_transaction(self) -> None:
        self._meanwhile()
        raise KafkaException(KafkaError(KafkaError.ILLEGAL_GENERATION, txn_requires_abort=True))

    def abort_transaction(self, _seconds: float) -> None:
        self.aborted += 1


def test_a_node_that_rejoins_while_it_commits_is_no_longer_controller() -> None:
    async def run(call: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.to_thread(call, *args)

    async def work() -> None:
        config = config_of("127.0.0.1:1", "p")
        election = Election(run, config, "n1", lambda _: None, lambda _: None, 10.0)
        election._producer, election._metadata = (producer := Producer(election.rejoin)), object()
        with pytest.raises(NotController, match="not elected"):
            await election.commit([("k", b"v")])
        assert producer.aborted == 1

    asyncio.run(work())
