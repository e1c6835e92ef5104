"""`/metrics` and `/health` of a connector, scraped over HTTP and parsed as Prometheus does."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deelog_connector.devkafka.ports import HOST, free_port
from deelog_connector.metrics.shared_server import MetricsShare
from deelog_schemas.config import Config
from tests.connector.cache import Cache, cache, config_of, started
from tests.support.memory import LiveMemory
from tests.support.waiting import waiting


def fetched(port: int, path: str, method: str = "GET") -> tuple[int, str, bytes]:
    """Status, content type and body."""
    request = urllib.request.Request(f"http://{HOST}:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read()


def parsed(body: bytes, cache: str = "c") -> dict[tuple[str, ...], float]:
    """Values by name and by the labels that distinguish samples of one name."""
    found = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("plugin", "name")}
            if labels.pop("cache", cache) == cache:
                found[(sample.name, *(labels[name] for name in sorted(labels)))] = sample.value
    return found


async def scraped(config: Config) -> dict[tuple[str, ...], float]:
    status, _, body = await asyncio.to_thread(fetched, config["metrics.port"], "/metrics")
    assert status == 200
    return parsed(body)


async def scraped_once(
    config: Config, condition: Callable[[dict[tuple[str, ...], float]], bool], what: str
) -> dict[tuple[str, ...], float]:
    """The metrics, once they meet the condition."""

    def figures() -> dict[tuple[str, ...], float]:
        there = parsed(fetched(config["metrics.port"], "/metrics")[2])
        return there if condition(there) else {}

    return await asyncio.to_thread(waiting, figures, 60, what)


async def health(config: Config, path: str = "/health") -> tuple[int, dict[str, Any]]:
    status, content_type, body = await asyncio.to_thread(fetched, config["metrics.port"], path)
    assert content_type == "application/json"
    return status, json.loads(body)


def served(found: Cache) -> MetricsShare:
    return MetricsShare(found.config, {"c": found.connector})


def test_figures_are_what_was_done(live: LiveMemory, prefix: str) -> None:
    async def work() -> None:
        config = config_of(live.bootstrap, prefix, metrics_port=free_port())
        async with cache(config, port=live.port()) as found:
            share = served(found)
            try:
                await figures_of(live, found, config)
            finally:
                share.close()
        with pytest.raises(OSError, match="refused"):
            await scraped(config)

    live.run(work())


async def settled(found: Cache, config: Config) -> dict[tuple[str, ...], float]:
    """The metrics of a moment at which no transaction ended: a position may still follow the last change."""
    while True:
        transactions = found.connector.stats.transactions
        figures = await scraped(config)
        if found.connector.stats.transactions == transactions:
            return figures


async def figures_of(live: LiveMemory, found: Cache, config: Config) -> None:
    before = await scraped(config)
    assert before["debezium_metrics_Connected", "streaming"] == 1
    assert before["debezium_metrics_MilliSecondsSinceLastEvent", "streaming"] == -1
    assert before["debezium_metrics_MilliSecondsBehindSource", "streaming"] == -1
    assert before["deelog_resets_total", "initial"] == before["deelog_commit_seconds_count",] == 0
    found.entries_of = {b"old%d" % i: b"v" for i in range(5)}
    await started(found)
    for i in range(30):
        await found.put(b"k%d" % (i % 20), b"v%d" % i)
    for i in range(7):
        await found.put(b"k%d" % i, None)
    await found.drained()
    first = await settled(found, config)
    for what, number in (("Create", 20), ("Update", 10), ("Delete", 7)):
        assert first[f"debezium_metrics_TotalNumberOf{what}EventsSeen", "streaming"] == number
    assert first["debezium_metrics_TotalNumberOfEventsSeen", "streaming"] == 37
    rows = first["debezium_metrics_TotalNumberOfEventsSeen", "snapshot"]
    assert rows == first["debezium_metrics_RowsScanned", "snapshot", "c"] == first["deelog_reset_rows_total",]
    kinds = [r.header.kind.name for r in live.records(config.topics.changes)]
    assert (kinds.count("CHANGE"), kinds.count("READ")) == (37, rows)
    assert rows >= 5
    assert first["deelog_operations_written_total",] == first["deelog_operations_pruned_total",] == 37
    assert first["deelog_resets_total", "start"] == 8
    assert first["deelog_segments", "writing", "primary"] == 8
    assert first["deelog_takeover_seconds_count",] == 8
    assert 0 < first["deelog_takeover_seconds_sum",] < 8 * 60
    for phase in ("claim", "look", "active", "read", "owed", "begun"):
        assert first["deelog_phase_seconds_count", phase] == 8, phase
    assert first["deelog_phase_seconds_count", "fence"] == 0
    assert (
        first["deelog_commit_seconds_count",]
        == first["deelog_transactions_total",]
        == found.connector.stats.transactions
    )
    assert first["deelog_commit_seconds_bucket", "+Inf"] == first["deelog_commit_seconds_count",]
    assert 0 <= first["debezium_metrics_MilliSecondsBehindSource", "streaming"] < 60_000
    assert 0 <= first["debezium_metrics_MilliSecondsSinceLastEvent", "streaming"] < 60_000
    assert first["debezium_metrics_SnapshotCompleted", "snapshot"] == 1
    assert first["debezium_metrics_SnapshotRunning", "snapshot"] == 0
    assert first["debezium_metrics_SnapshotDurationInSeconds", "snapshot"] > 0
    assert first["debezium_metrics_RemainingTableCount", "snapshot"] == 0
    assert first["deelog_oldest_unverified_change_seconds", "primary"] == 0
    await while_paused(found, config)


async def while_paused(found: Cache, config: Config) -> None:
    """Pending operations show in their number, bytes and age, and these are zero once they are written."""
    found.connector.pause()
    for i in range(10):
        await found.put(b"p%d" % i, b"x" * 100)
    age = "deelog_oldest_unverified_change_seconds", "primary"
    held_back = await scraped_once(config, lambda figures: figures[age] >= 0.3, "a change of some age")
    assert held_back["deelog_paused",] == 1
    assert held_back["deelog_oplog_operations",] == 10
    assert (
        held_back["deelog_oplog_bytes",] == held_back["debezium_metrics_CurrentQueueSizeInBytes", "streaming"] == 3020
    )
    assert held_back["debezium_metrics_QueueTotalCapacity", "streaming"] == config["max.queue.size"]
    assert held_back["debezium_metrics_QueueRemainingCapacity", "streaming"] == config["max.queue.size"] - 10
    assert held_back[age] < 60
    found.core.request_reset(0, "signal")
    owing = await scraped_once(config, lambda figures: figures["deelog_segments", "owed", "primary"] == 1, "the reset")
    for attribute in ("SnapshotRunning", "SnapshotPaused", "RemainingTableCount"):
        assert owing[f"debezium_metrics_{attribute}", "snapshot"] == 1
    assert (await health(config))[0] == 503
    found.connector.resume()
    await found.drained()
    after = await scraped(config)
    assert after["deelog_oplog_operations",] == after[age] == 0
    assert after["deelog_resets_total", "signal"] == 1
    assert after["deelog_paused",] == after["debezium_metrics_SnapshotPaused", "snapshot"] == 0


def test_a_refused_row_is_an_aborted_snapshot_and_no_ready_node(live: LiveMemory, prefix: str) -> None:
    async def work() -> None:
        config = config_of(live.bootstrap, prefix, metrics_port=free_port())
        async with cache(config, port=live.port()) as found:
            share = served(found)
            try:
                await started(found)
                assert await health(config) == (200, {"status": "healthy", "alive": True, "ready": True, "reasons": []})
                found.entries_of[b"big"] = b"x" * 2_000_000
                for segment in range(8):
                    found.core.request_reset(segment, "signal")
                await found.until(
                    lambda: bool(found.connector.stats.stopped) and found.core.counts.resets["signal"] == 7
                )
                told = await scraped(config)
                assert told["debezium_metrics_SnapshotAborted", "snapshot"] == 1
                assert told["debezium_metrics_SnapshotCompleted", "snapshot"] == 0
                assert told["deelog_transactions_failed_total", "refused"] >= 1
                assert told["deelog_segments", "stopped", "primary"] == 1
                status, body = await health(config, "/health/ready")
                (number,) = found.connector.stats.stopped
                assert (status, body["status"], body["alive"]) == (503, "unhealthy", True)
                assert body["reasons"] == [
                    f"cache c: segment {number} is stopped: the broker refused a record of it (too large?)"
                ]
                assert (await health(config, "/health/live"))[0] == 200
            finally:
                share.close()

    live.run(work())


def test_kafka_away_is_not_ready_and_alive(live: LiveMemory, prefix: str) -> None:
    async def work() -> None:
        config = config_of(live.bootstrap, prefix, metrics_port=free_port())
        found = Cache(config, 1, port=live.port(1.0))
        share = served(found)
        try:
            status, body = await health(config)
            assert (status, body["status"], body["alive"]) == (503, "starting", True)
            assert body["reasons"] == [
                "cache c: the positions topic is not read to its end yet",
                "cache c: Kafka has not answered yet",
            ]
            await found.connector.start()
            await started(found)
            assert (await health(config))[0] == 200
            live.kafka.up = False
            await until_health(config, 503)
            status, body = await health(config)
            assert body["reasons"][0].startswith("cache c: Kafka cannot be used: ")
            assert (await health(config, "/health/live"))[0] == 200
            live.kafka.up = True
            await until_health(config, 200)
        finally:
            share.close()
            await found.connector.stop(release=False)

    live.run(work())


async def until_health(config: Config, status: int) -> None:
    await asyncio.to_thread(
        waiting, lambda: fetched(config["metrics.port"], "/health")[0] == status, 60, f"/health with status {status}"
    )
