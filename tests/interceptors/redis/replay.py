"""Plays a recorded append-only file through a server beside a connector, and rebuilds from the topics what it has.

    python -m tests.interceptors.redis.replay FILE [--server redis] [--pieces 5] [--seed 1]

Each database of the recording is a cache. After each piece a second server is filled with what the topics hold, and
must have the same DEBUG DIGEST. Expiry is no part of a value: a key has one there if it has one here.
"""

from __future__ import annotations

import asyncio
import base64
import lzma
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import orjson
import redis
import zstandard

from deelog_connector.devkafka.ports import HOST
from deelog_interceptors.redis.databases import Databases
from deelog_interceptors.redis.values import UNAVAILABLE
from deelog_schemas.config import parse
from deelog_schemas.envelope import JsonCodec
from tests.interceptors.redis.servers import NAMES, Server
from tests.support.memory import LiveMemory
from tests.support.topics import derived
from tests.support.waiting import awaiting

_SECONDS: Final = 180.0
Command = tuple[int, bytes]
"""The database, and the bytes."""


def read(path: Path) -> bytes:
    """A file, plain or compressed."""
    data = path.read_bytes()
    if path.suffix == ".zst":
        with zstandard.ZstdDecompressor().stream_reader(data) as stream:
            return stream.read()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def commands(data: bytes) -> Iterator[Command]:
    """Those of an append-only file, without its annotations."""
    at, database = 0, 0
    while at < len(data):
        begin, line = at, data.index(b"\r\n", at)
        if data[at : at + 1] == b"#":
            at = line + 2
            continue
        count, at = int(data[at + 1 : line]), line + 2
        words = []
        for _ in range(count):
            line = data.index(b"\r\n", at)
            size, at = int(data[at + 1 : line]), line + 2
            words.append(data[at : at + size])
            at += size + 2
        if words[0].lower() == b"select":
            database = int(words[1])
        yield database, data[begin:at]


def pieces(recorded: list[Command], number: int, seed: int) -> list[list[Command]]:
    """The recording in so many parts, cut at random places."""
    cuts = sorted(random.Random(seed).sample(range(1, len(recorded)), number - 1))
    return [recorded[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(recorded)], strict=True)]


class Replay:
    """A server with a connector for each of these databases, on a Kafka in memory, and a server to rebuild in."""

    def __init__(self, live: LiveMemory, name: str, folder: Path, databases: list[int]) -> None:
        self._live = live
        self.server = Server(name, folder / "played", "--repl-backlog-size", "64mb")
        self.rebuilt = Server(name, folder / "rebuilt")
        self._caches = {number: f"db{number}" for number in databases}
        self._connectors: Databases

    async def start(self) -> None:
        """The connectors serve."""
        given = {
            "connector.class": "deelog.RedisConnector",
            "topic.prefix": "r",
            "bootstrap.servers": "memory:9092",
            "node.id": "redis-1",
            "redis.url": f"redis://{HOST}:{self.server.port}",
            "redis.databases": ",".join(f"{number}:{name}" for number, name in self._caches.items()),
            "cache.key.format": "bytes",
            "cache.value.format": "json",
            "segment.count": "8",
            "topic.creation.default.partitions": "2",
            "topic.creation.default.replication.factor": "1",
        }
        self._connectors = Databases(parse(given), self._live.port)
        await self._connectors.start()
        self._reader, self._writer = await asyncio.open_connection(HOST, self.server.port, limit=1 << 26)

    async def stop(self) -> None:
        """What was read is in Kafka."""
        self._writer.close()
        await self._connectors.stop()

    def close(self) -> None:
        """Ends the servers."""
        self.server.stop()
        self.rebuilt.stop()

    async def play(self, piece: list[Command]) -> None:
        """Returns once Kafka has all of it."""
        end = b"the end"
        answered = asyncio.ensure_future(self._answered(end))
        data = b"".join(words for _, words in piece) + b"*2\r\n$4\r\nECHO\r\n$%d\r\n%b\r\n" % (len(end), end)
        for at in range(0, len(data), 1 << 16):
            self._writer.write(data[at : at + (1 << 16)])
            await self._writer.drain()
        await answered
        offset = self.server.client.info("replication")["master_repl_offset"]
        for node in self._connectors.nodes:
            capture, core = node.capture, node.connector.core

            def is_written(capture: Any = capture, core: Any = core) -> bool:
                return capture.tape.offset >= offset and not capture.tape.length() and not core.unwritten()

            await awaiting(is_written, _SECONDS, f"all of database {node.address.database} in Kafka")

    async def _answered(self, end: bytes) -> None:
        tail = b""
        while not tail.endswith(end + b"\r\n"):
            read = await self._reader.read(1 << 20)
            assert read, "the server closed the connection"
            tail = (tail + read)[-64:]

    def differences(self) -> list[tuple[int, bytes]]:
        """The keys of which the rebuilt server has something else, by database."""
        self.rebuilt.client.flushall()
        differing = []
        for number, name in self._caches.items():
            codec = JsonCodec(f"r.{name}", "redis", "", "", key_format="bytes", value_format="json")
            entries, readers = derived(self._live.records(f"r.{name}"), codec)
            assert not any(reader.open for reader in readers.values())
            with self._client(self.server, number) as played, self._client(self.rebuilt, number) as rebuilt:
                fill(rebuilt, entries)
                keys: Any = played.keys()
                for key in keys:
                    if played.pttl(key) > 0:
                        rebuilt.expire(key, 10_000)
                names: Any = rebuilt.keys()
                for key in {*keys, *names}:
                    digests = [each.execute_command("DEBUG", "DIGEST-VALUE", key) for each in (played, rebuilt)]
                    if digests[0] != digests[1]:
                        differing.append((number, key))
        return sorted(differing)

    def digests(self) -> list[bytes]:
        """Of all databases of both servers."""
        return [server.ask("DEBUG", "DIGEST") for server in (self.server, self.rebuilt)]

    def _client(self, server: Server, database: int) -> redis.Redis:
        return redis.Redis(HOST, server.port, db=database)


def fill(client: redis.Redis, entries: dict[bytes, bytes]) -> None:
    """Writes what the values of a topic say."""
    pipeline: Any = client.pipeline(transaction=False)
    for key, written in entries.items():
        value = orjson.loads(written)
        kind, content = value["type"], value["value"]
        assert content != UNAVAILABLE, key
        part = base64.b64decode if kind.endswith(".base64") else str.encode
        match kind.removesuffix(".base64"):
            case "string":
                pipeline.set(key, part(content))
            case "hash":
                pipeline.hset(key, mapping={part(name): part(each) for name, each in content.items()})
            case "list":
                pipeline.rpush(key, *map(part, content))
            case "set":
                pipeline.sadd(key, *map(part, content))
            case "zset":
                for member, score in content:
                    pipeline.execute_command("ZADD", key, score, part(member))
            case "stream":
                pipeline.execute_command("XGROUP", "CREATE", key, "g", "$", "MKSTREAM")
                for number, fields in content:
                    pipeline.execute_command("XADD", key, number, *map(part, fields))
    pipeline.execute()


async def replayed(name: str, folder: Path, path: Path, number: int, seed: int) -> bytes:
    """Plays a file in pieces. Returns the digest of the server, once the rebuilt one has the same after each piece."""
    recorded = list(commands(read(path)))
    replay = Replay(LiveMemory(), name, folder, sorted({database for database, _ in recorded}))
    try:
        await replay.start()
        for at, piece in enumerate(pieces(recorded, number, seed)):
            await replay.play(piece)
            assert await asyncio.to_thread(replay.differences) == [], f"behind piece {at}"
        played, rebuilt = replay.digests()
        assert played == rebuilt
        await replay.stop()
        return bytes(played)
    finally:
        replay.close()


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True))
@click.option("--server", type=click.Choice(NAMES), default="valkey", show_default=True)
@click.option("--pieces", "number", default=5, show_default=True, help="After each, all is compared.")
@click.option("--seed", default=1, show_default=True, help="Where it is cut.")
def main(file: Path, server: str, number: int, seed: int) -> None:
    """Play an append-only file through a server beside a connector, and compare what the topics say."""
    with tempfile.TemporaryDirectory() as folder:
        click.echo(asyncio.run(replayed(server, Path(folder), file, number, seed)).decode())


if __name__ == "__main__":
    main()
