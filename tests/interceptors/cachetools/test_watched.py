"""`/metrics` and `/health` of a captured cache: from before its connector is ready until it is closed."""

from __future__ import annotations

import json
import os
import socket
import warnings
from typing import Any

import cachetools
import pytest

import deelog_interceptors.cachetools as deelog
from deelog_connector.devkafka.ports import HOST, free_port
from deelog_schemas.config import ConfigError
from tests.connector.metrics.test_watched import fetched, parsed
from tests.interceptors.cachetools.test_capture import BEATING, SECONDS, config, ready
from tests.support.memory import LiveMemory
from tests.support.waiting import waiting


def test_a_captured_cache_tells_until_it_is_closed(live: LiveMemory, prefix: str) -> None:
    port = free_port()
    cache: Any = cachetools.LRUCache(100)
    settings = config(live, prefix, metrics_port=port, **BEATING)
    capture = deelog.capture(cache, settings)
    try:
        ready(capture)
        for i in range(5):
            cache[f"k{i}"] = "v"
        waiting(lambda: capture.stats.written == 5, SECONDS, "five records")
        found = parsed(fetched(port, "/metrics")[2], "sessions")
        assert found["debezium_metrics_TotalNumberOfCreateEventsSeen", "streaming"] == 5
        assert found["debezium_metrics_Connected", "streaming"] == 1
        assert found["deelog_segments", "writing", "primary"] == 16
        assert (found["deelog_capture_entries",], found["deelog_capture_pending",]) == (5, 0)
        cachetools.LRUCache.__setitem__(cache, "k1", "behind its back")
        assert capture.check() == 1
        assert parsed(fetched(port, "/metrics")[2], "sessions")["deelog_capture_divergence_total",] == 1
        assert fetched(port, "/health")[0] == 200
        with deelog.capture(cachetools.LRUCache(5), settings | {"metrics.port": 0}):  # a newer process, same node.id
            waiting(lambda: capture.failure is not None, SECONDS, "the failure")
        waiting(lambda: fetched(port, "/health/live")[0] == 503, SECONDS, "/health/live to say so")
        body = json.loads(fetched(port, "/health")[2])
        assert (body["status"], body["alive"]) == ("unhealthy", False)
        assert body["reasons"][0].startswith("cache sessions: the connector cannot go on: ")
        assert parsed(fetched(port, "/metrics")[2], "sessions")["debezium_metrics_Connected", "streaming"] == 0
    finally:
        capture.close()
    with pytest.raises(OSError, match="refused"):
        fetched(port, "/metrics")


def test_a_forked_child_does_not_keep_the_port(live: LiveMemory, prefix: str) -> None:
    port = free_port()
    reader, writer = os.pipe()
    with deelog.capture(cachetools.LRUCache(5), config(live, prefix, metrics_port=port)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the test forks a process with threads
            child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)  # until the parent has made its checks, or has ended
            os._exit(0)
        os.close(reader)
        assert fetched(port, "/health/live")[0] == 200
    socket.create_server((HOST, port)).close()
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0


def test_a_port_in_use_is_refused_before_anything_is_captured(live: LiveMemory, prefix: str) -> None:
    cache: Any = cachetools.LRUCache(5)
    with socket.create_server((HOST, 0)) as taken:
        settings = config(live, prefix, metrics_port=taken.getsockname()[1])
        with pytest.raises(ConfigError, match=r"metrics\.port = \d+: cannot be listened on"):
            deelog.capture(cache, settings)
    assert type(cache) is cachetools.LRUCache
