"""The clients of one configuration: few scanners, each for one scan, and all replaced at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from deelog_connector.errors import KafkaUnusable
from deelog_connector.runtime import clients as module
from deelog_connector.runtime.clients import SCANNERS, Clients
from deelog_connector.runtime.tasks import Tasks
from deelog_schemas.config import Config
from tests.connector.cache import config_of, run

BEFORE, AFTER = config_of("h:1", "p"), config_of("h:1", "p", **{"commit.interval.ms": "77"})


class Double:
    """A client that does nothing but remember."""

    made: list[Double]

    def __init__(self, config: Config, *args: Any) -> None:
        self.config, self.args, self.closed, self.closing = config, args, 0, False
        self.has_written = False
        Double.made.append(self)

    def close(self) -> None:
        self.closed += 1

    discard = close

    def settings(self) -> None:
        if self.config is BROKEN:
            raise KafkaUnusable("a secret is missing")


BROKEN = config_of("h:1", "p", **{"commit.interval.ms": "99"})


class Admin(Double):
    pass


class Writer(Double):
    pass


class Scanner(Double):
    pass


def of_kind(kind: type[Double]) -> list[Double]:
    return [one for one in Double.made if isinstance(one, kind)]


def with_clients(monkeypatch: pytest.MonkeyPatch, test: Callable[[Clients], Awaitable[None]]) -> None:
    Double.made = []
    monkeypatch.setattr(module, "KafkaAdmin", Admin)
    monkeypatch.setattr(module, "Writer", Writer)
    monkeypatch.setattr(module, "Scanner", Scanner)
    monkeypatch.setattr(module, "ensure_topics", lambda admin, config: None)
    monkeypatch.setattr(module, "audit", lambda admin, config: 1234)
    monkeypatch.setattr(module, "can_read", lambda config: None)

    async def work() -> None:
        tasks = Tasks(2)
        clients = Clients(BEFORE, "n1", tasks)
        try:
            await clients.open()
            await test(clients)
        finally:
            tasks.shutdown()
            tasks.failure.cancel()

    run(work(), 20)


def test_they_are_made_by_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(clients: Clients) -> None:
        (writer,) = of_kind(Writer)
        assert clients.writer is cast("Any", writer)
        assert (writer.config, writer.args) == (BEFORE, (BEFORE.topics.transactional_id_node("n1"), 1234))
        assert [one.args for one in of_kind(Scanner)] == [(BEFORE.topics.changes,)] * SCANNERS

    with_clients(monkeypatch, test)


def test_there_is_a_scanner_for_each_of_a_few_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(clients: Clients) -> None:
        go = asyncio.Event()
        used: list[object] = []

        async def scan() -> None:
            async with clients.scanner() as scanner:
                used.append(scanner)
                await go.wait()

        scans = [asyncio.ensure_future(scan()) for _ in range(SCANNERS + 1)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(used) == len(set(map(id, used))) == SCANNERS
        go.set()
        await asyncio.gather(*scans)
        assert len(used) == SCANNERS + 1
        assert used[-1] in used[:-1]

    with_clients(monkeypatch, test)


def test_a_scan_that_fails_gives_its_scanner_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(clients: Clients) -> None:
        for _ in range(SCANNERS + 1):
            with pytest.raises(ValueError, match="scan"):
                async with clients.scanner():
                    raise ValueError("scan")

    with_clients(monkeypatch, test)


def test_all_are_replaced_once_the_last_scan_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(clients: Clients) -> None:
        clients.writer.has_written = True
        old = Double.made[:]
        go, under_way, later = asyncio.Event(), asyncio.Event(), []

        async def scan() -> None:
            async with clients.scanner():
                under_way.set()
                await go.wait()

        async def another() -> None:
            async with clients.scanner() as scanner:
                later.append(scanner.config)  # type: ignore[attr-defined]

        scanning = asyncio.ensure_future(scan())
        await under_way.wait()
        prepared = await clients.prepared(AFTER)
        replacing = asyncio.ensure_future(clients.replace(AFTER, *prepared))
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(another())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not replacing.done()
        assert clients.config is BEFORE
        go.set()
        await asyncio.gather(scanning, replacing, waiting)
        assert clients.config is AFTER
        assert [one.closed for one in old if not isinstance(one, Writer)] == [1] * (SCANNERS + 1)
        assert all(one.config is AFTER for one in Double.made if one not in old)
        assert later == [AFTER]
        # The new writer knows that a missing right is no reason to end any more.
        assert of_kind(Writer)[-1].args[-1] is True

    with_clients(monkeypatch, test)


def test_what_is_wrong_with_a_configuration_shows_before_anything_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(clients: Clients) -> None:
        with pytest.raises(KafkaUnusable, match="a secret is missing"):
            await clients.prepared(BROKEN)
        assert clients.config is BEFORE
        assert not any(one.closed for one in Double.made)

    with_clients(monkeypatch, test)


def test_the_end_closes_every_client(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(clients: Clients) -> None:
        clients.give_up()
        assert [one.closing for one in of_kind(Writer)] == [True]
        clients.close()
        assert all(one.closed == 1 for one in Double.made)

    with_clients(monkeypatch, test)


def test_clients_that_were_never_opened_can_be_closed() -> None:
    async def work() -> None:
        tasks = Tasks(1)
        clients = Clients(BEFORE, "n1", tasks)
        clients.give_up()
        clients.close()
        with pytest.raises(AssertionError, match="open"):
            _ = clients.writer
        tasks.shutdown()
        tasks.failure.cancel()

    run(work(), 20)
