"""The pages of the metrics server. Bad input: another path, another method, silent clients, a blocked loop."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import ExitStack
from typing import Any

import pytest

from deelog_connector.devkafka.ports import HOST, free_port
from deelog_connector.metrics.families import MetricFamily
from deelog_connector.metrics.http_server import MetricsServer
from deelog_schemas.pages import MAX_REQUESTS
from tests.connector.cache import cache, config_of
from tests.connector.metrics.test_watched import fetched, served
from tests.support.memory import LiveMemory
from tests.support.waiting import waiting


class OnALoop:
    """A source without samples."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def figures(self) -> list[MetricFamily]:
        return []

    def problems(self) -> list[str]:
        return []


def test_a_loop_that_stands_is_not_alive() -> None:
    source, answered = OnALoop(), threading.Event()
    server = MetricsServer(HOST, 0, answer_seconds=0.1)
    server.add({}, [source])
    turning = threading.Thread(target=source.loop.run_forever)
    turning.start()
    source.loop.call_soon_threadsafe(answered.wait)
    try:
        for path in ("/health/live", "/health/ready", "/metrics"):
            status, _, body = fetched(server.port, path)
            assert status == 503
            assert b"the event loop has not answered for 0.1 s" in body
            assert path == "/metrics" or json.loads(body)["alive"] is False
        answered.set()
        waiting(lambda: fetched(server.port, "/health/live")[0] == 200, 60, "the loop to turn again")
    finally:
        answered.set()
        source.loop.call_soon_threadsafe(source.loop.stop)
        turning.join()
        source.loop.close()
        server.close()


def test_pages_and_clients(live: LiveMemory, prefix: str) -> None:
    async def work() -> None:
        config = config_of(live.bootstrap, prefix, metrics_port=free_port())
        port = config["metrics.port"]
        async with cache(config, port=live.port()) as found:
            share = served(found)
            try:
                status, content_type, _ = await asyncio.to_thread(fetched, port, "/metrics")
                assert (status, content_type.partition(";")[0]) == (200, "text/plain")
                assert (await asyncio.to_thread(fetched, port, "/metrics", "HEAD"))[2] == b""
                assert (await asyncio.to_thread(fetched, port, "/metrics", "POST"))[0] == 405
                assert (await asyncio.to_thread(fetched, port, "/"))[0] == 404
                assert (await asyncio.to_thread(fetched, port, "/metrics/../../etc/passwd"))[0] == 404
                with ExitStack() as silent:
                    for _ in range(MAX_REQUESTS):
                        silent.enter_context(socket.create_connection((HOST, port)))
                    with pytest.raises(OSError, match=r"reset|closed|without response"):
                        await asyncio.to_thread(fetched, port, "/metrics")
                await asyncio.to_thread(waiting, lambda: answers(port), 60, "an answer to the next client")
            finally:
                share.close()

    live.run(work())


def answers(port: int) -> bool:
    try:
        return fetched(port, "/metrics")[0] == 200
    except OSError:
        return False


class Source(OnALoop):
    """A source whose loop has ended, so that it is read at once. It has a metric and problems."""

    def __init__(self, *problems: str) -> None:
        super().__init__()
        self.loop.close()
        self._problems = list(problems)

    def figures(self) -> list[MetricFamily]:
        return [MetricFamily("mine", "Mine.", "gauge", ("a",), [(("b",), 7)])]

    def problems(self) -> list[str]:
        return self._problems


def test_what_was_added_is_served_until_it_is_removed() -> None:
    server = MetricsServer(HOST, 0)
    one, other = Source(), Source()
    try:
        server.add({}, [one])
        server.add({}, [other])
        body = fetched(server.port, "/metrics")[2]
        assert body.count(b'mine{a="b"} 7.0') == 2
        assert server.remove({}, [one]) is False
        assert fetched(server.port, "/metrics")[2].count(b'mine{a="b"} 7.0') == 1
        assert server.remove({}, [other]) is True
        assert b"mine" not in fetched(server.port, "/metrics")[2]
    finally:
        server.close()


def test_only_the_connector_that_is_there_is_removed() -> None:
    server = MetricsServer(HOST, 0)
    one: Any = object()
    other: Any = object()
    try:
        server.add({"c": one})
        server.add({"d": other})
        assert server.remove({"c": other, "none": one}) is False
        assert server._connectors == {"c": one, "d": other}
        assert server.remove({"c": one}) is False
        assert server.remove({"d": other}) is True
    finally:
        server.close()


def test_without_anything_it_is_healthy_and_a_problem_makes_it_unready() -> None:
    server = MetricsServer(HOST, 0)
    try:
        for path in ("/health", "/health/ready", "/health/live", "/health/live/"):
            assert fetched(server.port, path)[0] == 200
        assert fetched(server.port, "/health/other")[0] == 404
    finally:
        server.close()


def test_a_loop_that_has_ended_is_no_life() -> None:
    server = MetricsServer(HOST, 0)
    server.add({}, [Source("why")])
    try:
        for path in ("/health", "/health/ready", "/health/live"):
            status, kind, body = fetched(server.port, path)
            assert (status, kind) == (503, "application/json")
            assert json.loads(body)["reasons"] == ["why"]
    finally:
        server.close()
