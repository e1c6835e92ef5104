"""What a job's reader takes for silence."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deelog_spark import kafka as reading
from deelog_spark.errors import DiffError
from deelog_spark.kafka import Reader
from tests.spark.test_diff_job import configured
from tests.support.changes import Cache
from tests.support.kafka import Broker

LATER = 2 * reading.SILENCE_SECONDS


def test_time_taken_over_records_is_no_silence(
    kafka: Broker, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever takes the records may be busy for minutes: the next ones need not be there at once when it comes back."""
    config = configured(kafka, prefix, tmp_path)
    cache, reader = Cache(config, partitions=1), Reader(config)
    passed = 0.0
    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed))
    monkeypatch.setattr(reading, "_CHUNK_SECONDS", 0.5)  # the first chunk has the end of the partition, too
    cache.put(b"first", b"1")
    end = cache.ends()[0] + 1
    chunks = reader.chunks(config.topics.changes, 0, 0, end)
    assert next(chunks)
    passed = LATER
    threading.Timer(2.0, cache.put, (b"second", b"2")).start()
    assert [m.offset() for chunk in chunks for m in chunk][-1] == end - 1
    reader.close()


def test_a_partition_that_falls_silent_is_told(
    kafka: Broker, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(kafka, prefix, tmp_path)
    cache, reader = Cache(config, partitions=1), Reader(config)
    monkeypatch.setattr(reading, "SILENCE_SECONDS", 0.5)
    cache.put(b"first", b"1")
    end = cache.ends()[0]
    with pytest.raises(DiffError, match=rf"\[0\] gave nothing for 0 s before offset {end + 9}"):
        for _ in reader.chunks(config.topics.changes, 0, 0, end + 9):
            pass
    reader.close()


def test_a_process_that_stood_still_asks_again(
    kafka: Broker, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was frozen inside a poll, which then gives nothing; and before, a broker's restart looked like no way in."""
    config = configured(kafka, prefix, tmp_path)
    cache, reader = Cache(config, partitions=1), Reader(config)
    cache.put(b"first", b"1")
    end = cache.ends()[0]
    passed = 0.0
    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed))
    real = reader._consumer(config.topics.changes)

    class Frozen:
        assign, unassign = real.assign, real.unassign

        def consume(self, number: int, seconds: float) -> list[Any]:
            nonlocal passed
            if not passed:
                passed = LATER
                return []
            return real.consume(number, seconds)

    monkeypatch.setattr(reader, "_consumer", lambda _: Frozen())
    refused = "ssl://k:9092/0: Disconnected: connecting to a PLAINTEXT broker listener?"
    reader._connections(SimpleNamespace(name=lambda: "_SSL", str=lambda: refused))
    assert reader._connections.hopeless
    assert [m.offset() for chunk in reader.chunks(config.topics.changes, 0, 0, end) for m in chunk]
    assert not reader._connections.hopeless
    reader.close()


def test_who_is_let_in_nowhere_is_told_before_the_silence_is_long(
    kafka: Broker, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(kafka, prefix, tmp_path)
    cache, reader = Cache(config, partitions=1), Reader(config)
    monkeypatch.setattr(reading, "HOPELESS_SECONDS", 0.5)

    class Mute:
        def assign(self, _: object) -> None:
            pass

        def unassign(self) -> None:
            pass

        def consume(self, *_: object) -> list[Any]:
            time.sleep(0.05)
            return []

    monkeypatch.setattr(reader, "_consumer", lambda _: Mute())
    reader._connections(SimpleNamespace(name=lambda: "_AUTHENTICATION", str=lambda: "Authentication failed"))
    with pytest.raises(DiffError, match=r"cannot be read: .*correct sasl\.mechanism"):
        list(reader.chunks(cache.topics.changes, 0, 0, 9))
    reader.close()
