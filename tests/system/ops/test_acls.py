"""docs/howto/acls.md, granted as it stands on a real broker, and then each right taken away in turn.

Tried: every row of the node, the operator and the consumer (those of the diff job are in tests/spark/test_secure.py); a
first start without `Create`; a right that is taken from a node while it writes, and given back.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from confluent_kafka import Consumer, KafkaException, Message
from redis.asyncio import Redis

from deelog_connector.kafka.publish import publish
from deelog_interceptors.grid.node import Node
from deelog_schemas import canonical
from deelog_schemas.config import Config, parse
from deelog_schemas.errors import DeelogError
from tests.connector.cache import run
from tests.support.rights import CACHE, PREFIX, creating, rights_of
from tests.support.secure import Right, SecureKafka, overrides
from tests.support.waiting import awaiting, waiting

TOPIC = f"{PREFIX}.{CACHE}"
SECONDS = 30.0


def config_of(secure: SecureKafka, user: str, node_id: str = "n1", **more: str) -> Config:
    """A node's, as this user."""
    return parse(
        {
            "topic.prefix": PREFIX,
            "cache.name": CACHE,
            "bootstrap.servers": secure.bootstrap("sasl"),
            "node.id": node_id,
            "cache.listen": "127.0.0.1:0",
            "segment.count": "8",
            "topic.creation.default.partitions": "2",
            "cache.failure.timeout.ms": "300",
            **overrides(secure.user(user)),
            **more,
        }
    )


@pytest.fixture(scope="module")
def granted(secure: SecureKafka) -> SecureKafka:
    """The page's rights, and the topics, made by a first start."""
    users = ("node", "operator", "consumer")
    for user in users:
        secure.user(user)
        secure.grant(rights_of(user))
    secure.grant(creating("node"))

    async def first() -> None:
        async with serving(config_of(secure, "node")):
            pass

    run(first())
    secure.revoke(creating("node"))
    return secure


@asynccontextmanager
async def serving(config: Config) -> AsyncIterator[Node]:
    """A real node that serves and has written what it holds; raises what kept it from it."""
    node = Node(config)
    try:
        await node.start()
        await written(node)
    except BaseException:
        await node.abort()
        raise
    try:
        yield node
    finally:
        await node.stop()


async def written(node: Node) -> None:
    """Everything is in Kafka; raises the node's failure."""

    def done() -> bool:
        if node.failure.done():
            node.failure.result()
        return bool(node.connector.stats.transactions) and not node.connector.stats.unwritten

    await awaiting(done, SECONDS, "everything in Kafka")


async def put(node: Node, key: str, value: str) -> None:
    """As a client does."""
    async with Redis(port=node.client_port, socket_timeout=10) as client:
        await client.set(key, value)


def sent(config: Config) -> None:
    """A signal that every node understands."""
    data = {"cache": CACHE, "segments": [3], "reason": "test"}
    signal = canonical.dumps({"id": "1", "type": "reset-segment", "data": data})
    publish(config, config.topics.signal, config["topic.prefix"], signal)


def consumed(secure: SecureKafka, topic: str) -> list[Message]:
    """What a plain consumer with the page's group gets first; raises what Kafka refuses."""
    settings = {
        "bootstrap.servers": secure.bootstrap("sasl"),
        **secure.user("consumer"),
        "group.id": "my-group",
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
    consumer = Consumer(settings)
    try:
        consumer.subscribe([topic])

        def first() -> list[Message]:
            found = consumer.consume(1, 0.5)
            if found and (error := found[0].error()):
                raise KafkaException(error)
            return found

        return waiting(first, SECONDS, f"a record of {topic}")
    finally:
        consumer.close()


def test_the_least_set_is_enough(granted: SecureKafka) -> None:
    """A node writes, hears a signal by the operator, and resets a segment; topics are there, nobody may create."""

    async def work() -> None:
        async with serving(config_of(granted, "node")) as node:
            await put(node, "k", "v")
            await written(node)
            # A signal from before the node listens is not for it: sent until it is heard.
            async with asyncio.timeout(SECONDS):
                while not node.connector.stats.resets.get("signal"):
                    await asyncio.to_thread(sent, config_of(granted, "operator"))

    run(work())


OPTIONAL = ("__debezium-heartbeat.shop", "shop-signal")
NODE = [right for right in rights_of("node") if right.name not in OPTIONAL or right.operation == "Read"]


@pytest.mark.slow
@pytest.mark.parametrize("right", NODE, ids=lambda right: f"{right.operation} {right.resource} {right.name}")
def test_a_node_without_a_right_says_which(granted: SecureKafka, right: Right) -> None:
    said = refusal(granted, right)
    kind = {"TransactionalId": "transactional id"}.get(right.resource, right.resource.lower())
    assert re.search(rf"Kafka refuses {right.operation} on {kind} (\S+ or )?{re.escape(right.name)}", said), said
    assert "override.*: grant it" in said


@pytest.mark.parametrize("topic", ["shop-signal", "__debezium-heartbeat.shop"])
def test_a_node_that_may_not_see_a_topic_says_which(granted: SecureKafka, topic: str) -> None:
    rights = [right for right in rights_of("node") if right.name == topic]
    said = refusal(granted, *rights)
    assert f"Kafka refuses Describe on topic {topic} to the user of admin.override.*" in said


def test_without_signals_a_node_needs_no_right_on_their_topic(granted: SecureKafka) -> None:
    rights = [right for right in rights_of("node") if right.name == "shop-signal"]

    async def work() -> None:
        granted.revoke(rights)
        try:
            async with serving(config_of(granted, "node", **{"signal.kafka.topic": ""})) as node:
                before = node.connector.stats.written
                await put(node, "k", "without signals")
                await awaiting(lambda: node.connector.stats.written > before, SECONDS, "the write in Kafka")
        finally:
            granted.grant(rights)

    run(work())


@pytest.mark.slow
def test_without_write_on_signals_a_node_works_and_says_that_a_snapshot_would_begin_anew(
    granted: SecureKafka, caplog: pytest.LogCaptureFixture
) -> None:
    (right,) = (r for r in rights_of("node") if (r.name, r.operation) == ("shop-signal", "Write"))
    text = "Kafka refuses Write on topic shop-signal"

    async def work() -> None:
        granted.revoke([right])
        try:
            with caplog.at_level(logging.WARNING):
                async with serving(config_of(granted, "node")) as node:
                    await put(node, "k", "v")
                    data = {"data-collections": [CACHE], "type": "incremental"}
                    signal = canonical.dumps({"id": "1", "type": "execute-snapshot", "data": data})
                    config = config_of(granted, "operator")
                    operator = config, config.topics.signal, config["topic.prefix"]
                    async with asyncio.timeout(SECONDS):
                        while text not in caplog.text:
                            await asyncio.to_thread(publish, *operator, signal)
                    await written(node)
        finally:
            granted.grant([right])

    run(work())


def refusal(secure: SecureKafka, *rights: Right) -> str:
    """What a node says that starts without these rights, and ends."""
    secure.revoke(rights)
    said = ""

    async def work() -> None:
        nonlocal said
        with pytest.raises(DeelogError) as refused:
            async with serving(config_of(secure, "node")):
                pass
        said = str(refused.value)
        assert refused.value.exit_code in (3, 5)

    try:
        run(work())
    finally:
        secure.grant(rights)
    return said


def test_without_create_a_first_start_says_so(granted: SecureKafka) -> None:
    prefix = {"topic.prefix": "shopping", "signal.kafka.topic": ""}
    heartbeat = "__debezium-heartbeat.shopping"
    granted.grant(Right("node", "Topic", name, name == "shopping", "Write") for name in ("shopping", heartbeat))

    async def work() -> None:
        with pytest.raises(DeelogError, match=r"shopping\.sessions does not exist and .* refuses Create on topic"):
            async with serving(config_of(granted, "node", **prefix)):
                pass

    run(work())


@pytest.mark.parametrize("operation", ["Write", "Read"])
def test_a_node_that_has_written_outlives_a_right(
    granted: SecureKafka, caplog: pytest.LogCaptureFixture, operation: str
) -> None:
    """It keeps what it holds and what it captures, says what is missing, and writes on when the right is back."""
    (right,) = (r for r in rights_of("node") if r.name == f"{TOPIC}.positions" and r.operation == operation)
    text = "Kafka refuses " + ("Read on topic" if operation == "Read" else f"Write on topic {TOPIC} or") + f" {TOPIC}."

    async def work() -> None:
        async with serving(config_of(granted, "node")) as node:
            granted.revoke([right])
            try:
                with caplog.at_level(logging.WARNING):
                    number = 0
                    async with asyncio.timeout(SECONDS):
                        while text not in caplog.text:
                            await put(node, f"k{number % 50}", "v")
                            number += 1
                assert node.connector.stats.unwritten > 0
                assert not node.connector.stats.stopped
            finally:
                granted.grant([right])
            await written(node)
            assert not node.failure.done()

    run(work())


def test_an_operator_without_a_right_hears_which(granted: SecureKafka) -> None:
    (right,) = rights_of("operator")
    granted.revoke([right])
    try:
        with pytest.raises(DeelogError, match="refuses Write on topic shop-signal to the user of producer"):
            sent(config_of(granted, "operator"))
    finally:
        granted.grant([right])


def test_a_consumer_needs_its_rows_and_no_more(granted: SecureKafka) -> None:
    """The diff topic is the diff job's to make; here it only has to have a record."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import NewTopic

    topic = f"{TOPIC}.diff"
    granted.admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS)
    producer = Producer({"bootstrap.servers": granted.bootstrap()})
    producer.produce(topic, b"v")
    assert producer.flush(SECONDS) == 0
    assert [message.value() for message in consumed(granted, topic)] == [b"v"]
    for right in rights_of("consumer"):
        granted.revoke([right])
        try:
            with pytest.raises(KafkaException, match=f"{right.resource.upper()}_AUTHORIZATION_FAILED"):
                consumed(granted, topic)
        finally:
            granted.grant([right])
