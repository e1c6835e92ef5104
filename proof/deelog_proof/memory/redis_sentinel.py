"""A Sentinel in memory: whom it names as primary, and by which run id, which it asks that server for.

`tests/proof/memory/test_redis_sentinel.py` asks it, and a real one, the same.
"""

from __future__ import annotations

import asyncio
from typing import Final

from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.client import Client
from deelog_interceptors.redis.link import LinkError, LinkLost, fields
from deelog_proof.memory.redis_keyspace import Refused, Reply, Words
from deelog_proof.memory.redis_server import encoded, serve

_LOOK_SECONDS: Final = 0.5


class RedisSentinel:
    """Under that port. `serve()` is a task of its own loop; `name` says whom it names from now on."""

    def __init__(self, port: int, master: str, at: Address) -> None:
        self.port, self.master, self.at = port, master, at
        self.run_id = ""
        """That of the server that it names; empty until it has reached it."""

    def name(self, at: Address) -> None:
        """Another server is primary."""
        if at != self.at:
            self.at, self.run_id = at, ""

    async def serve(self) -> None:
        """Listens, and looks at the primary, for ever."""
        await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        while True:
            await self._look()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _look(self) -> None:
        at, client = self.at, Client(self.at)
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                await client.connect()
                found = fields(await client.ask_one(b"INFO", b"server"))
                if at == self.at:
                    self.run_id = found["run_id"]
        except (LinkError, LinkLost, TimeoutError):
            pass  # it is away, or slow: what is known of it stays
        finally:
            await client.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(reader, writer, lambda words: writer.write(encoded(self._reply(words))))

    def _reply(self, words: Words) -> Reply:
        match [word.upper() for word in words[:2]], words[2:]:
            case [b"SENTINEL", b"MASTER"], [name]:
                if name.decode() != self.master:
                    return Refused("ERR No such master with that name")
                host, port = self.at.host.encode(), b"%d" % self.at.port
                return [b"name", name, b"ip", host, b"port", port, b"runid", self.run_id.encode()]
        return Refused("ERR unknown command")
