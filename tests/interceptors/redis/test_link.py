"""Links to real servers, and to ends that are none.

Bad input: no password, a wrong one, a user without rights, PSYNC that was renamed, nobody there, a server without its
primary, garbage, silence, half an answer, a snapshot with keys."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deelog_connector.devkafka.ports import HOST, free_ports
from deelog_interceptors.redis.lineage import Lineage
from deelog_interceptors.redis.link import Link, LinkError, LinkLost, Place, attach, refusal
from tests.interceptors.redis.servers import NAMES, Server, running
from tests.support.waiting import waiting

MAX = 1 << 20


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(name: str, tmp_path: Path) -> Iterator[Server]:
    with running(name, tmp_path / "server") as found:
        yield found


@asynccontextmanager
async def linked(server: Server, wanted: Place | None = None, **more: str) -> AsyncIterator[Link]:
    link = await attach(lambda: asyncio.open_connection(HOST, server.port), wanted, MAX, **more)
    acknowledging = asyncio.create_task(acknowledge(link))
    try:
        yield link
    finally:
        acknowledging.cancel()
        await link.close()


async def acknowledge(link: Link) -> None:
    while True:
        link.acknowledge(0)
        await asyncio.sleep(0.05)


async def until(link: Link, end: bytes) -> tuple[list[list[Any]], Place]:
    """The commands before the one with the key `end`, and the place behind that one."""
    found: list[list[Any]] = []
    database = link.place.database
    async with asyncio.timeout(20):
        while True:
            for arguments, offset in await link.read():
                if end in arguments:
                    return found, Place(link.place.lineage, offset, database)
                if arguments[0] == b"SELECT":
                    database = int(arguments[1])  # type: ignore[arg-type]
                elif arguments[0] not in (b"PING", b"REPLCONF"):
                    found.append(list(arguments))


def test_it_reads_on_where_it_stopped_and_the_server_makes_no_snapshot_for_it(server: Server) -> None:
    async def main() -> None:
        server.ask("SELECT", "3")
        async with linked(server) as link:
            assert not link.continues
            server.client.set("a", 1)
            _, place = await until(link, b"a")
        for number in range(3):
            server.client.set("b", number)
        before = server.client.info("stats")
        async with linked(server, place) as link:
            assert link.continues
            assert link.place == replace(place, lineage=link.place.lineage)
            server.client.set("c", 1)
            told, behind = await until(link, b"c")
        assert told == [[b"SET", b"b", b"%d" % number] for number in range(3)]
        assert behind.database == 3
        after = server.client.info("stats")
        assert after["sync_full"] == before["sync_full"]
        assert after["sync_partial_ok"] == before["sync_partial_ok"] + 1

    asyncio.run(main())


def test_the_database_of_the_stream_is_known(server: Server) -> None:
    async def main() -> None:
        async with linked(server) as link:
            server.ask("SELECT", "5")
            server.client.set("a", 1)
            await until(link, b"a")
            async with linked(server) as other:
                server.client.set("b", 1)
                assert (await until(other, b"b"))[1].database == 5

    asyncio.run(main())


def test_what_the_server_has_forgotten_is_a_hole(name: str, tmp_path: Path) -> None:
    async def main() -> None:
        with running(name, tmp_path, "--repl-backlog-size", "16kb") as server:
            async with linked(server) as link:
                server.client.set("a", 1)
                _, place = await until(link, b"a")
            for _ in range(100):
                server.client.set("b", "v" * 1000)
            async with linked(server, place) as link:
                assert not link.continues
                assert link.place.offset > place.offset + 100_000
                assert link.place.lineage.shared(place.lineage) > place.offset
                server.client.set("c", 1)
                assert (await until(link, b"c"))[0] == []

    asyncio.run(main())


@pytest.mark.parametrize("far", ["beyond", "another lineage"])
def test_it_never_goes_on_where_that_would_be_another_stream(server: Server, far: str) -> None:
    async def main() -> None:
        async with linked(server) as link:
            server.client.set("a", 1)
            _, place = await until(link, b"a")
        if far == "beyond":
            place = replace(place, offset=place.offset + 100_000)
        else:
            place = replace(place, lineage=Lineage((("f" * 40, 0),)))
        server.client.set("b", "v" * 2000)
        async with linked(server, place) as link:
            assert not link.continues

    asyncio.run(main())


def test_a_promotion_ends_the_link_and_the_next_one_goes_on(name: str, server: Server, tmp_path: Path) -> None:
    async def main() -> None:
        with running(name, tmp_path / "second", "--replicaof", f"{HOST} {server.port}") as second:
            waiting(lambda: second.client.info("replication")["master_link_status"] == "up", 20, "the replica")
            async with linked(second) as link:
                server.client.set("a", 1)
                _, place = await until(link, b"a")
                second.ask("REPLICAOF", "NO", "ONE")
                with pytest.raises(LinkLost):
                    await until(link, b"never")
            second.client.set("b", 1)
            async with linked(second, place) as link:
                assert link.continues
                ids = link.place.lineage.ids
                assert [one for one, _ in ids][-2] == place.lineage.id
                assert ids[-1][1] >= place.offset
                second.client.set("c", 1)
                assert (await until(link, b"c"))[0][-1] == [b"SET", b"b", b"1"]

    asyncio.run(main())


def test_no_wait_counts_it_and_no_failover_chooses_it(server: Server) -> None:
    async def main() -> None:
        async with linked(server) as link:
            server.client.set("a", 1)
            await until(link, b"a")
            reading = asyncio.create_task(until(link, b"never"))
            assert await asyncio.to_thread(server.ask, "WAIT", "1", "300") == 0
            await asyncio.to_thread(server.ask, "FAILOVER", "TIMEOUT", "300")
            await asyncio.sleep(0.6)
            info = server.client.info("replication")
            assert (info["role"], info["master_failover_state"]) == ("master", "no-failover")
            reading.cancel()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "more", "said"),
    [
        (["--requirepass", "secret"], {}, r"asks for a password: set redis\.password"),
        (["--requirepass", "secret"], {"password": "other"}, r"redis\.username or redis\.password is wrong"),
        (
            ["--user", "one", "on", ">pw", "+@all", "-psync"],
            {"user": "one", "password": "pw"},
            "user one may not PSYNC",
        ),
        (["--user", "one", "on", ">pw", "+@all", "-info"], {"user": "one", "password": "pw"}, "user one may not INFO"),
        (["--rename-command", "PSYNC", "XPSYNC"], {}, r"does not give its replication stream, as managed services"),
    ],
)
def test_a_server_that_refuses_is_told_with_the_remedy(
    name: str, tmp_path: Path, options: list[str], more: dict[str, str], said: str
) -> None:
    async def main() -> None:
        password = options[1] if "--requirepass" in options else None
        with running(name, tmp_path, *options, password=password) as server, pytest.raises(LinkError, match=said):
            await attach(lambda: asyncio.open_connection(HOST, server.port), None, MAX, **more)

    asyncio.run(main())


def test_a_replica_without_its_primary_may_be_tried_again(name: str, tmp_path: Path) -> None:
    async def main() -> None:
        (nobody,) = free_ports(1)
        replica = running(name, tmp_path, "--replicaof", f"{HOST} {nobody}")
        with replica as server, pytest.raises(LinkLost, match="NOMASTERLINK"):
            await attach(lambda: asyncio.open_connection(HOST, server.port), None, MAX)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("LOADING Redis is loading the dataset in memory", LinkLost),
        ("BUSY Redis is busy running a script.", LinkLost),
        ("ERR max number of clients reached", LinkLost),
        ("ERR max number of clients + cluster connections reached", LinkLost),
        ("ERR unknown command", LinkError),
        ("BUSYKEY Target key name already exists.", LinkError),
    ],
)
def test_what_a_refusal_means(text: str, kind: type[Exception]) -> None:
    assert type(refusal("it was refused", text)) is kind


def test_a_server_that_takes_no_more_clients_may_be_tried_again(name: str, tmp_path: Path) -> None:
    async def main() -> None:
        with running(name, tmp_path, "--maxclients", "4") as server:
            others = [await asyncio.open_connection(HOST, server.port) for _ in range(5)]
            with pytest.raises(LinkLost, match="max number of clients"):
                await attach(lambda: asyncio.open_connection(HOST, server.port), None, MAX)
            for _, writer in others:
                writer.close()

    asyncio.run(main())


def test_nobody_there() -> None:
    async def main() -> None:
        (nobody,) = free_ports(1)
        with pytest.raises(LinkLost, match="does not answer"):
            await attach(lambda: asyncio.open_connection(HOST, nobody), None, MAX)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", LinkError),
        (b"$5\r\nhe", LinkLost),
        (b"", LinkLost),
        (b"+OK\r\n" * 9, LinkError),
        (b"x" * 200_000, LinkError),
        (b"\0\xff\r\n", LinkError),
        (b"$3\r\nabc\r\n$0\r\n\r\n", LinkError),
    ],
)
def test_an_end_that_is_no_server(answer: bytes, error: type[Exception]) -> None:
    async def main() -> None:
        async with fake(answer) as port:
            with pytest.raises(error):
                await attach(lambda: asyncio.open_connection(HOST, port), None, MAX)

    asyncio.run(main())


@asynccontextmanager
async def fake(answer: bytes | None) -> AsyncIterator[int]:
    """The port of an end that answers the first question with these bytes and hangs up; None: it does neither."""
    done: list[asyncio.Task[None]] = []

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(1)
            if answer is not None:
                writer.write(answer)
            else:
                while await reader.read(1):
                    pass
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def begun(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        done.append(asyncio.create_task(answers(reader, writer)))

    async with await asyncio.start_server(begun, HOST, 0) as server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*done)


def test_an_end_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deelog_interceptors.redis.link.ANSWER_SECONDS", 0.2)

    async def main() -> None:
        async with fake(None) as port:
            with pytest.raises(LinkLost, match="not answered"):
                await attach(lambda: asyncio.open_connection(HOST, port), None, MAX)

    asyncio.run(main())
