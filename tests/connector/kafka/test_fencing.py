"""A fence on a broker that allows only short transactions."""

from __future__ import annotations

from pathlib import Path

import pytest

from deelog_connector.devkafka.broker import EmbeddedKafka
from deelog_connector.kafka.fencing import fence
from deelog_schemas.config import parse


@pytest.mark.kafka
def test_a_broker_with_a_low_limit_on_transactions_is_fenced_on(tmp_path: Path) -> None:
    broker = EmbeddedKafka(tmp_path, overrides={"transaction.max.timeout.ms": "10000"})
    try:
        broker.start()
        settings = {"bootstrap.servers": broker.bootstrap, "topic.prefix": "p", "cache.name": "c", "node.id": "n1"}
        config = parse({**settings, "transaction.timeout.ms": "5000"}, "node")
        fence(config, config.topics.transactional_id_node("n2"))
    finally:
        broker.kill()
