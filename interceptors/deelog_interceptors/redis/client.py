"""A connection to a server for questions, many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import hiredis

from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.link import LinkLost, broken, packed, refusal

Reply: TypeAlias = Any
"""Bytes, an integer, None, a list of replies, or a `hiredis.ReplyError`."""

ANSWER_SECONDS: Final = 10.0
MOST_PUSHED: Final = 1 << 20
_OVERHEAD: Final = 100
_PIECE: Final = 1 << 18


class Client:
    """`connect` first, `close` last. One caller at a time."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._parser = hiredis.Reader()
        self._pushed: list[tuple[bytes, bytes]] = []
        self._pushed_bytes = 0

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._writer is not None

    async def connect(self) -> None:
        """Raises `LinkError` where the server refuses, `LinkLost` where there is none."""
        address = self._address
        await self.close()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                self._reader, self._writer = await address.connect()
        except (OSError, TimeoutError) as error:
            raise broken(f"{address} does not answer", error) from error
        self._parser = hiredis.Reader()
        self.take_pushed()
        greetings: list[Sequence[bytes]] = []
        if address.password is not None:
            user = [address.username.encode()] if address.username else []
            greetings.append([b"AUTH", *user, address.password.encode()])
        if address.database:
            greetings.append([b"SELECT", b"%d" % address.database])
        for greeting, reply in zip(greetings, await self.ask(greetings), strict=True):
            if isinstance(reply, hiredis.ReplyError):
                raise refusal(f"{address}: {greeting[0].decode()} was refused", reply)

    async def ask(self, commands: Sequence[Sequence[bytes]]) -> list[Reply]:
        """The replies, errors among them. Raises `LinkError` where TLS does not come about, and `LinkLost`."""
        if not commands:
            return []
        if self._writer is None or self._reader is None:
            raise LinkLost(f"there is no connection to {self._address}")
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                self._writer.write(b"".join(map(packed, commands)))
                await self._writer.drain()
                replies: list[Reply] = []
                while len(replies) < len(commands):
                    reply = self._parser.gets()
                    if isinstance(reply, hiredis.PushNotification) and reply[0] == b"message":
                        self._push(*reply[1:])
                    elif reply is not False:
                        replies.append(reply)
                    elif data := await self._reader.read(_PIECE):
                        self._parser.feed(data)
                    else:
                        raise LinkLost(f"{self._address} closed the connection")
                return replies
        except (OSError, TimeoutError, hiredis.ProtocolError) as error:
            raise broken(f"the connection to {self._address} broke", error) from error

    def _push(self, channel: bytes, message: bytes) -> None:
        if self._pushed_bytes < MOST_PUSHED:
            self._pushed.append((channel, message))
            self._pushed_bytes += len(message) + _OVERHEAD

    def take_pushed(self) -> list[tuple[bytes, bytes]]:
        """What came of the channels that it has subscribed to before the last reply, since the last call.

        Channel and message; some `MOST_PUSHED` bytes of them, and what is more is dropped.
        """
        pushed, self._pushed, self._pushed_bytes = self._pushed, [], 0
        return pushed

    async def ask_one(self, *command: bytes) -> Reply:
        """The reply to one command. Raises `LinkError` where it is refused, and `LinkLost`."""
        (reply,) = await self.ask([command])
        if isinstance(reply, hiredis.ReplyError):
            raise refusal(f"{self._address}: {command[0].decode()} was refused", reply)
        return reply

    async def close(self) -> None:
        """Ends the connection, if there is one."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None
