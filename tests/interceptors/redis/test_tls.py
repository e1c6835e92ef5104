"""TLS to servers: Redis' own where it is here, and an end of TLS before Valkey.

Bad input: an authority that is unknown, a certificate for another host, none where one is asked for, one of a stranger,
a port without TLS, TLS that breaks off.
"""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from deelog_connector.devkafka.ports import HOST, free_ports
from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.client import Client
from deelog_interceptors.redis.link import LinkError, LinkLost, attach
from deelog_interceptors.redis.node import RedisNode
from tests.interceptors.redis.servers import Server, running
from tests.interceptors.redis.test_address import config
from tests.interceptors.redis.test_node import NODES, caught_up, config_of, run
from tests.support.memory import LiveMemory

Kinds = type[Exception] | tuple[type[Exception], ...]


@dataclass(frozen=True)
class Files:
    """PEM files: of an authority, of a server and a client with its certificates, and of strangers."""

    ca: Path
    server: Path
    elsewhere: Path
    client: Path
    stranger: Path
    strange_ca: Path

    def context(self, name: str = "server", *, asks: bool = True) -> ssl.SSLContext:
        """A server's."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(getattr(self, name))
        context.load_verify_locations(self.ca)
        context.verify_mode = ssl.CERT_REQUIRED if asks else ssl.CERT_NONE
        return context

    def fields(self, **more: str) -> dict[str, str]:
        """Of a connector that is let in."""
        return {"redis_ssl_ca_location": str(self.ca), "redis_ssl_certificate_location": str(self.client), **more}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder, ca, strange = tmp_path_factory.mktemp("tls"), trustme.CA(), trustme.CA()
    made = Files(*(folder / f"{name}.pem" for name in Files.__dataclass_fields__))
    ca.cert_pem.write_to_path(made.ca)
    strange.cert_pem.write_to_path(made.strange_ca)
    for path, authority, name in (
        (made.server, ca, HOST),
        (made.elsewhere, ca, "elsewhere.example"),
        (made.client, ca, "client.example"),
        (made.stranger, strange, "client.example"),
    ):
        authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(path)
    return made


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running("valkey", tmp_path_factory.mktemp("valkey")) as found:
        yield found


@asynccontextmanager
async def before(server: Server, context: ssl.SSLContext) -> AsyncIterator[int]:
    """The port of an end of TLS before that server."""

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(HOST, server.port)
        ways = {asyncio.ensure_future(passed(reader, back)), asyncio.ensure_future(passed(there, writer))}
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (writer, back):
                each.transport.abort()
            await asyncio.gather(*ways, return_exceptions=True)

    async with await asyncio.start_server(serve, HOST, 0, ssl=context) as listening:
        yield listening.sockets[0].getsockname()[1]


async def tried(address: Address) -> bytes:
    """What a server answers by either kind of connection."""
    link = await attach(address.connect, None, 1 << 20)
    await link.close()
    return await asked(address)


async def asked(address: Address) -> bytes:
    """What a server answers to a question."""
    client = Client(address)
    try:
        await client.connect()
        return bytes(await client.ask_one(b"ECHO", b"here"))
    finally:
        await client.close()


def refused(server: Server, context: ssl.SSLContext, kind: Kinds, words: str, **fields: str) -> None:
    """Both kinds of connection end with that error."""

    async def work() -> None:
        async with before(server, context) as port:
            address = Address.of(config(redis_url=f"rediss://{HOST}:{port}", **fields))
            with pytest.raises(kind, match=words):
                await attach(address.connect, None, 1 << 20)
            with pytest.raises(kind, match=words):
                await asked(address)

    asyncio.run(work())


def test_a_server_that_asks_for_a_certificate(plain: Server, files: Files) -> None:
    async def work() -> None:
        async with before(plain, files.context()) as port:
            address = Address.of(config(redis_url=f"rediss://{HOST}:{port}", **files.fields()))
            assert await tried(address) == b"here"

    asyncio.run(work())


def test_a_server_that_asks_for_none(plain: Server, files: Files) -> None:
    async def work() -> None:
        async with before(plain, files.context(asks=False)) as port:
            url = f"rediss://{HOST}:{port}"
            assert await tried(Address.of(config(redis_url=url, redis_ssl_ca_location=str(files.ca)))) == b"here"

    asyncio.run(work())


def test_redis_own_tls(files: Files, tmp_path: Path) -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server on this machine, and Valkey's wheel has no TLS")
    (port,) = free_ports(1)
    options = ("--tls-port", str(port), "--tls-cert-file", str(files.server), "--tls-key-file", str(files.server))
    with running("redis", tmp_path / "server", *options, "--tls-ca-cert-file", str(files.ca)):
        url = f"rediss://{HOST}:{port}"
        assert asyncio.run(tried(Address.of(config(redis_url=url, **files.fields())))) == b"here"
        with pytest.raises((LinkError, LinkLost), match=r"refuses TLS with this one|closed the link|reset"):
            asyncio.run(tried(Address.of(config(redis_url=url, redis_ssl_ca_location=str(files.ca)))))


def test_an_authority_that_is_unknown(plain: Server, files: Files) -> None:
    words = r"certificate does not count \(.*\): name its authority in redis\.ssl\.ca\.location"
    refused(plain, files.context(), LinkError, words, **files.fields(redis_ssl_ca_location=str(files.strange_ca)))
    # Those of the system do not know it either.
    refused(plain, files.context(asks=False), LinkError, words)


def test_a_certificate_for_another_host(plain: Server, files: Files) -> None:
    words = "certificate does not count .*the host in redis.url as its certificate does"
    refused(plain, files.context("elsewhere"), LinkError, words, **files.fields())


@pytest.mark.parametrize("own", ["", "stranger"])
def test_a_certificate_that_the_server_does_not_take(plain: Server, files: Files, own: str) -> None:
    fields = files.fields()
    if own:
        fields["redis_ssl_certificate_location"] = str(files.stranger)
    else:
        del fields["redis_ssl_certificate_location"]
    words = r"refuses TLS with this one|or a certificate \(redis\.ssl\.certificate\.location\)\?|broke|closed|reset"
    refused(plain, files.context(), (LinkError, LinkLost), words, **fields)


def test_a_port_without_tls(plain: Server, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the end of a line."""
    monkeypatch.setattr("deelog_interceptors.redis.client.ANSWER_SECONDS", 0.5)
    monkeypatch.setattr("deelog_interceptors.redis.link.ANSWER_SECONDS", 0.5)
    address = Address.of(config(redis_url=f"rediss://{HOST}:{plain.port}", **files.fields()))
    for work in (tried, asked):
        with pytest.raises(LinkLost, match="answer"):
            asyncio.run(work(address))


def test_a_port_with_tls_alone(plain: Server, files: Files) -> None:
    async def work() -> None:
        async with before(plain, files.context()) as port:
            await tried(Address.of(config(redis_url=f"redis://{HOST}:{port}")))

    with pytest.raises(LinkLost, match="does it want TLS"):
        asyncio.run(work())


def test_an_end_that_breaks_off_may_be_tried_again() -> None:
    async def work() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.close()

        async with await asyncio.start_server(serve, HOST, 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            with pytest.raises(LinkLost, match="does not answer"):
                await Client(Address.of(config(redis_url=f"rediss://{HOST}:{port}"))).connect()

    asyncio.run(work())


def test_a_connector_by_tls(live: LiveMemory, plain: Server, files: Files) -> None:
    async def work() -> None:
        async with before(plain, files.context()) as port:
            plain.ask("SET", "before", "1")
            node = RedisNode(config_of(plain, redis_url=f"rediss://{HOST}:{port}", **files.fields()), live.port)
            NODES.append(node)
            await node.start()
            plain.ask("SET", "behind", "2")
            plain.ask("RPUSH", "list", "a", "b")
            topic = await caught_up(live, plain)
            assert set(topic.entries) == {"before", "behind", "list"}
            await node.stop()

    run(live, work)
