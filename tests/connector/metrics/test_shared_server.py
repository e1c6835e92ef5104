"""Shares in the server of a port. Bad input: a port in use, a host that is none."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from deelog_connector.devkafka.ports import HOST, free_port
from deelog_connector.metrics import shared_server
from deelog_connector.metrics.shared_server import MetricsShare, page
from deelog_schemas.errors import ConfigError
from tests.connector.cache import Cache, cache, config_of, started
from tests.connector.metrics.test_watched import fetched, parsed, served
from tests.support.memory import LiveMemory


def test_two_caches_of_a_process_share_a_port_and_two_processes_do_not(live: LiveMemory, prefix: str) -> None:
    async def work() -> None:
        port = free_port()
        first = config_of(live.bootstrap, prefix, metrics_port=port)
        second = config_of(live.bootstrap, prefix, metrics_port=port, cache_name="d")
        async with cache(first, port=live.port()) as one, cache(second, 2, port=live.port()) as two:
            shares = [served(one), MetricsShare(second, {"d": two.connector})]
            try:
                await started(one)
                await one.put(b"k", b"v")
                await one.drained()
                _, _, body = await asyncio.to_thread(fetched, port, "/metrics")
                assert parsed(body, "c")["deelog_operations_written_total",] == 1
                assert parsed(body, "d")["deelog_operations_written_total",] == 0
                assert body.count(b"# TYPE deelog_operations_written_total counter") == 1
                shares.pop().close()
                _, _, body = await asyncio.to_thread(fetched, port, "/metrics")
                assert b'cache="d"' not in body
            finally:
                for share in shares:
                    share.close()

    live.run(work())


def test_a_port_in_use_and_a_host_that_is_none(live: LiveMemory, prefix: str) -> None:
    async def work() -> None:
        with socket.create_server((HOST, 0)) as taken:
            port = taken.getsockname()[1]
            found = Cache(config_of(live.bootstrap, prefix, metrics_port=port), 1, port=live.port())
            problem = (
                rf"metrics\.port = {port}: cannot be listened on at metrics\.host={HOST} \(Address already in use\)"
            )
            with pytest.raises(ConfigError, match=problem):
                served(found)
        config = config_of(live.bootstrap, prefix, metrics_port=port, metrics_host="no.such.host.invalid")
        found = Cache(config, 1, port=live.port())
        with pytest.raises(ConfigError, match=r"metrics\.host=no\.such\.host\.invalid \(Name or service not known\)"):
            served(found)

    live.run(work())


class Server:
    """A server that notes what it serves."""

    made: list[Server]

    def __init__(self, host: str, port: int) -> None:
        self.at, self.served, self.calls = (host, port), list[Any](), list[str]()
        self.made.append(self)

    def add(self, connectors: Any, others: Any) -> None:
        self.served += [*connectors, *others]

    def remove(self, connectors: Any, others: Any) -> bool:
        for one in [*connectors, *others]:
            self.served.remove(one)
        return not self.served

    def close(self) -> None:
        self.calls.append("close")

    def forget(self) -> None:
        self.calls.append("forget")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Server]]:
    """The servers that shares made."""
    monkeypatch.setattr(Server, "made", [], raising=False)
    monkeypatch.setattr("deelog_connector.metrics.http_server.MetricsServer", Server)
    before = dict(shared_server._servers)
    shared_server._servers.clear()
    yield Server.made
    shared_server._servers.clear()
    shared_server._servers.update(before)


def share(port: int, *names: str, host: str = "127.0.0.1") -> MetricsShare:
    others: Any = ["source of " + name for name in names]
    connectors: Any = dict.fromkeys(names)
    return MetricsShare(config_of("h:1", "p", metrics_port=port, metrics_host=host), connectors, others)


def test_without_a_port_nothing_is_served(made: list[Server]) -> None:
    share(0, "c").close()
    assert made == []


def test_shares_of_a_port_have_one_server_which_the_last_one_closes(made: list[Server]) -> None:
    first, second, third = share(1, "c"), share(1, "d"), share(2, "e")
    other = share(1, "f", host="::1")
    assert [server.at for server in made] == [("127.0.0.1", 1), ("127.0.0.1", 2), ("::1", 1)]
    assert made[0].served == ["c", "source of c", "d", "source of d"]
    first.close()
    first.close()
    assert (made[0].served, made[0].calls) == (["d", "source of d"], [])
    second.close()
    assert (made[0].calls, made[1].calls) == (["close"], [])
    again: Any = share(1, "g")._server
    assert again is made[3]
    third.close()
    other.close()
    assert [server.calls for server in made] == [["close"], ["close"], ["close"], []]


def test_a_child_forgets_the_servers_of_its_parent(made: list[Server]) -> None:
    lock = shared_server._lock
    inherited = share(1, "c")
    with lock:  # held by a thread that the child does not have
        shared_server._forget()
    assert (made[0].calls, shared_server._servers) == (["forget"], {})
    assert shared_server._lock is not lock
    share(1, "d")
    assert len(made) == 2
    assert inherited._server is not None


def test_the_page_of_the_api_has_what_is_served() -> None:
    body, kind = page({})()
    assert kind.startswith("text/plain")
    assert b"python" not in body
