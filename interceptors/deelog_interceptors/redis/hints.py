"""Why keys went, as keyspace notifications tell it beside the stream: `redis.reasons=notifications`.

They come without a place in the stream. So the connection that hears them asks for the stream's offset again and again:
what came between two answers happened between their offsets. Weighed in docs/decisions.md, "Redis: why a key went".
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import hiredis

from deelog_interceptors.redis import reading
from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.client import Client, Reply
from deelog_interceptors.redis.link import LinkLost, refusal
from deelog_schemas.operation import Reason

_ANSWER_SECONDS: Final = 1.0
"""Changes wait for an answer."""
_EVENTS: Final[Mapping[str, Reason]] = {"expired": Reason.EXPIRE, "evicted": Reason.EVICT}
_SETTING: Final = "notify-keyspace-events"


class Hints:
    """`open` first, then `look` again and again; `close` last. Both raise `LinkLost`, and `LinkError`."""

    def __init__(self, address: Address) -> None:
        self._address, self._client = address, Client(address)
        self._reasons = {
            f"__keyevent@{address.database}__:{event}".encode(): str(reason) for event, reason in _EVENTS.items()
        }
        self.lacks = ""
        """What keeps the server from telling them; empty where it tells them, or that is not known."""

    async def open(self) -> int:
        """Subscribes. Returns the offset of the stream from which on they are told."""
        # With the third version of the protocol a subscriber may ask other things as well.
        subscriptions = [(b"SUBSCRIBE", channel) for channel in self._reasons]
        await self._client.connect()
        setting, *replies = await self._ask(
            [(b"CONFIG", b"GET", _SETTING.encode()), (b"HELLO", b"3"), *subscriptions, (b"ROLE",)]
        )
        self._client.take_pushed()  # of what went before that offset
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                user = self._address.username or "default"
                channels = " ".join(f"&{channel.decode()}" for channel in self._reasons)
                remedy = f"ACL SETUSER {user} {channels} +hello +subscribe +config|get"
                raise refusal(f"{self._address} does not tell why keys went: {remedy}", reply)
        self.lacks = lack(setting)
        return reading.offset_of(replies[-1])

    async def look(self) -> tuple[int, dict[bytes, list[str]]]:
        """The offset of the stream now; and by key why it went since the last answer, once for each time."""
        (role,) = await self._ask([(b"ROLE",)])
        if isinstance(role, hiredis.ReplyError):
            raise refusal(f"{self._address}: ROLE was refused", role)
        found: dict[bytes, list[str]] = {}
        for channel, key in self._client.take_pushed():
            found.setdefault(key, []).append(self._reasons[channel])
        return reading.offset_of(role), found

    async def _ask(self, commands: Sequence[Sequence[bytes]]) -> list[Reply]:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await self._client.ask(commands)
        except TimeoutError as error:
            raise LinkLost(f"{self._address} has not answered for {_ANSWER_SECONDS:.0f} s") from error

    async def close(self) -> None:
        await self._client.close()


def lack(setting: Reply) -> str:
    """What CONFIG GET says against notifications, and the remedy. Who may not ask it does not know."""
    if isinstance(setting, hiredis.ReplyError) or not setting:
        return ""
    flags = setting[1].decode()
    if "E" in flags and ("A" in flags or {"x", "e"} <= set(flags)):
        return ""
    return f"{_SETTING} is {flags!r}: set it to Exe, or with more, else every key that goes is told as `remove`"
