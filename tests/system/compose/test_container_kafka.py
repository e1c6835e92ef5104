"""Kafka by testcontainers, in the image that docker-compose.yml names, and a connector that outlives its restart."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.connector.cache import cache, config_of, run, started
from tests.support.kafka import IMAGE, ContainerBroker
from tests.support.paths import ROOT
from tests.support.topics import derived, read_topic

pytestmark = [pytest.mark.compose, pytest.mark.timeout(600)]


@pytest.fixture
def contained() -> Iterator[ContainerBroker]:
    """A broker in a container, which goes afterwards."""
    broker = ContainerBroker()
    try:
        yield broker
    finally:
        broker.remove()


def test_a_connector_outlives_a_restart_of_the_container(contained: ContainerBroker, prefix: str) -> None:
    async def work() -> None:
        config = config_of(contained.bootstrap, prefix)
        async with cache(config, release=True) as found:
            await started(found)
            for number in range(200):
                await found.put(b"k%d" % (number % 50), b"v%d" % number)
            await found.drained()
            await asyncio.to_thread(contained.restart)
            for number in range(200):
                await found.put(b"k%d" % (number % 50), None if number % 3 else b"w%d" % number)
            await found.drained(120)
            entries = dict(found.entries_of)
        content, readers = derived(read_topic(contained.bootstrap, config.topics.changes))
        assert content == entries
        assert sum(reader.repeats for reader in readers.values()) == 0

    run(work(), 300)


def test_the_image_is_that_of_the_compose_file() -> None:
    assert f"image: {IMAGE}\n" in (ROOT / "docker-compose.yml").read_text("utf-8")
