"""What the benchmarks share: a Kafka to measure against, and one way to print figures."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from deelog_connector.devkafka.broker import EmbeddedKafka

Figure = tuple[str, float, str]
"""Name, value, unit."""


@contextmanager
def kafka() -> Iterator[str]:
    """`bootstrap.servers`: of DEELOG_TEST_BOOTSTRAP, or of an embedded broker that ends with the benchmark."""
    given = os.environ.get("DEELOG_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder) / "kafka") as broker:
        yield broker.bootstrap


def quiet(bootstrap: str) -> dict[str, Any]:
    """Settings of a client that prints nothing between the figures; its requests raise what is wrong."""
    return {"bootstrap.servers": bootstrap, "log_level": 0}


class Watcher(threading.Thread):
    """Notes in `seen` when each change first stands in a topic, for who reads what is committed.

    `name_of` names a change by its record's value; None: it is not one that is waited for. Set `ending`, and join.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, name_of: Callable[[bytes], bytes | None]) -> None:
        super().__init__(daemon=True)
        own = {"group.id": uuid.uuid4().hex, "isolation.level": "read_committed", "fetch.wait.max.ms": 10}
        self._client = Consumer({**quiet(bootstrap), **own})
        self._client.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        self._name_of = name_of
        self.seen: dict[bytes, float] = {}
        self.ending = False

    def run(self) -> None:
        while not self.ending:
            for message in self._client.consume(2000, 0.01):
                value = message.value()
                name = self._name_of(value) if message.error() is None and value else None
                if name is not None:
                    self.seen.setdefault(name, time.perf_counter())
        self._client.close()


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with `--json`, its description the module's docstring."""
    found = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    return found


def show(figures: list[Figure], as_json: bool) -> None:
    """`name value unit` lines, or one JSON object of name to value and unit."""
    if as_json:
        print(json.dumps({name: {"value": round(value, 4), "unit": unit} for name, value, unit in figures}))
        return
    for name, value, unit in figures:
        print(f"{name} {value:.4g} {unit}")
