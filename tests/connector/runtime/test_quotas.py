"""A broker that takes a few megabytes a second, and more rows than it takes within `transaction.timeout.ms`."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from deelog_connector.core.effects import Cause
from deelog_connector.devkafka import jars
from deelog_connector.devkafka.broker import EmbeddedKafka
from deelog_schemas.java import find_java
from tests.connector.cache import cache, config_of, run, started
from tests.support.topics import derived, read_topic

BYTES_PER_SECOND = 2 << 20
ROWS, SIZE = 140, 100_000
TIMEOUT_MS = 2000
SETTINGS = {
    "quota.window.num": "2",  # the default lets eleven seconds' worth of bytes pass at once
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",  # the default is ten seconds
}
"""A broker that looks more often than by default at how much came, and how long it took."""


def throttle(broker: EmbeddedKafka) -> None:
    """Kafka's own quota, for every producer."""
    command = [str(find_java()), "-Xmx128m", "-cp", os.pathsep.join(map(str, jars.fetch("kafka")))]
    quota = f"producer_byte_rate={BYTES_PER_SECOND}"
    asked = ["--bootstrap-server", broker.bootstrap, "--alter", "--add-config", quota]
    whom = ["--entity-type", "clients", "--entity-default"]
    subprocess.run([*command, "kafka.admin.ConfigCommand", *asked, *whom], check=True, capture_output=True, timeout=120)


@pytest.mark.slow
def test_what_is_too_much_for_one_transaction_comes_in_several(tmp_path: Path) -> None:
    text, fenced = random.Random(1), list[int]()

    async def work(bootstrap: str, prefix: str) -> None:
        config = config_of(
            bootstrap,
            prefix,
            **{"transaction.timeout.ms": TIMEOUT_MS, "producer.override.compression.type": "none", "segment.count": 2},
        )
        async with cache(config) as found:
            found.entries_of = {b"k%d" % row: text.randbytes(SIZE // 2).hex().encode() for row in range(ROWS)}
            assert sum(map(len, found.entries_of.values())) > 3 * BYTES_PER_SECOND * TIMEOUT_MS / 1000
            await started(found)
            fenced.append(found.connector.observed.failed[Cause.FENCED])
            content, readers = derived(read_topic(bootstrap, config.topics.changes))
            assert content == found.entries_of
            assert sum(reader.repeats for reader in readers.values()) == 0

    with EmbeddedKafka(tmp_path / "kafka", overrides=SETTINGS) as broker:
        throttle(broker)
        for number in range(4):
            run(work(broker.bootstrap, f"quota{number}"))
            if fenced[-1]:  # it was too much at first: a busy machine's broker may let it pass
                break
    assert fenced[-1] > 0
