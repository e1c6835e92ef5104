"""The thread in which connectors run: when it begins and ends, and what its connectors share."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import threading
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deelog_connector.devkafka.ports import free_port
from deelog_connector.runtime import Connector
from deelog_interceptors.hosting import connector_thread
from deelog_interceptors.hosting.connector_thread import ConnectorThread, close_all, forget_all
from deelog_schemas.config import Config, Role, parse
from tests.connector.cache import config_of

SECONDS = 60.0


@pytest.fixture
def host() -> Iterator[ConnectorThread]:
    """The thread of a connector of several caches."""
    given = {"name": "shop", "connector.class": "deelog.CachetoolsConnector", "topic.prefix": "p", "node.id": "n1"}
    made = ConnectorThread(parse(given | {"bootstrap.servers": "h:1"}, Role.CONNECTOR))
    yield made
    made.close()


class One:
    """A connector that only keeps what is asked of it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.state = SimpleNamespace(ending=False, wants_pause=False, stopped=False)
        self.failure: concurrent.futures.Future[None] = concurrent.futures.Future()


def made(config: Config) -> Connector:
    return cast(Connector, One(config))


def test_the_first_work_starts_the_thread_and_close_ends_it(host: ConnectorThread) -> None:
    threads: list[threading.Thread] = []

    async def work() -> None:
        threads.append(threading.current_thread())

    assert host not in connector_thread._running
    for _ in range(2):
        host.spawn(work()).result(SECONDS)
    assert threads[0] is threads[1] is not threading.current_thread()
    assert (threads[0].name, threads[0].daemon) == ("deelog-shop", False)
    assert host in connector_thread._running
    host.close()
    host.close()
    assert not threads[0].is_alive()
    assert host not in connector_thread._running


def test_a_thread_that_never_began_is_closed_at_once() -> None:
    host = ConnectorThread(config_of("h:1", "p"))
    host.close()
    assert host._thread.name == "deelog-c"
    assert not host._thread.is_alive()


def test_an_error_of_the_work_is_that_of_its_future(host: ConnectorThread) -> None:
    async def work() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        host.spawn(work()).result(SECONDS)


def test_a_loop_that_cannot_begin_is_an_error_of_every_work_and_is_closed_at_once(
    host: ConnectorThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        raise AssertionError("there is no loop")

    def no_loop() -> asyncio.AbstractEventLoop:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio, "new_event_loop", no_loop)
    monkeypatch.setattr(asyncio.events, "new_event_loop", no_loop)
    for _ in range(2):
        with pytest.raises(OSError, match="Too many open files"):
            host.spawn(work())
    host.close()
    assert host not in connector_thread._running
    assert not host._thread.is_alive()


def test_connectors_join_with_a_configuration_of_their_own_and_leave(host: ConnectorThread) -> None:
    async def work() -> None:
        one = await host.join("first", made)
        two = await host.join("second", made)
        assert host._connectors == {"first": one, "second": two}
        assert [c.config["cache.name"] for c in (one, two)] == ["first", "second"]
        assert host._rest is None
        for _ in range(2):
            await host.leave("first", one)
        await host.leave("second", one)  # a late end of one that had the name before
        assert host._connectors == {"second": two}

    host.spawn(work()).result(SECONDS)


def test_one_that_ends_is_left_alone_by_later_requests(host: ConnectorThread, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    async def work() -> None:
        one = await host.join("first", made)

        async def end(*connectors: Connector) -> None:
            asked.extend(connectors)

        assert host._lifecycle is not None
        monkeypatch.setattr(host._lifecycle, "end", end)
        await host.end(one)
        assert asked == [one]

    host.spawn(work()).result(SECONDS)


def test_the_api_is_served_once_for_all_of_its_connectors(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    config = config_of("h:1", "p", rest_port=free_port())

    class Rest:
        async def stop(self) -> None:
            calls.append("stop")

    thread = ConnectorThread(config)

    async def served(given: Config, lifecycle: Any, metrics: Any) -> Any:
        assert (given, lifecycle) == (config, thread._lifecycle)
        assert metrics is not None
        calls.append("served")
        await asyncio.sleep(0)
        return Rest()

    monkeypatch.setattr(connector_thread, "served", served)

    async def work() -> None:
        await asyncio.gather(thread.join("first", made), thread.join("second", made))

    with closing(thread):
        thread.spawn(work()).result(SECONDS)
        assert calls == ["served"]
    assert calls == ["served", "stop"]


def test_all_threads_end_at_the_end_of_the_program_and_are_unknown_to_a_child(host: ConnectorThread) -> None:
    async def work() -> None:
        """Nothing: it starts the thread."""

    before = set(connector_thread._running)
    host.spawn(work()).result(SECONDS)
    assert connector_thread._running - before == {host}
    forget_all()
    assert connector_thread._running == set()
    close_all()
    assert host._thread.is_alive()
    connector_thread._running.add(host)
    close_all()
    assert not host._thread.is_alive()
