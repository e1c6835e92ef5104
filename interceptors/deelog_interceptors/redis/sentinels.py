"""Which server is primary by what the Sentinels say: `redis.sentinels`, `redis.sentinel.*`.

A server that was cut off says that it is primary until somebody tells it otherwise. What more than half of all
Sentinels say counts, be it that the others do not answer. Where no answer has so many, nobody begins to write.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import hiredis

from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.client import Client, Reply
from deelog_interceptors.redis.link import LinkError, LinkLost
from deelog_schemas.config import Config

log = logging.getLogger(__name__)

_ANSWER_SECONDS: Final = 1.0
_PATIENCE: Final = 4
"""Looks in vain until it is said: they are in the midst of each failover."""


class Named(NamedTuple):
    """A primary, as Sentinels name it."""

    run_id: str
    at: str

    def __str__(self) -> str:
        return self.at


NOBODY: Final = Named("", "nobody")


class Sentinels:
    """`look` asks all; `named` is what came of it; `close` last."""

    def __init__(self, master: str, addresses: Iterable[Address]) -> None:
        self.master = master
        self._clients = {str(address): Client(address) for address in addresses}
        self.named = NOBODY
        """What a majority said last."""
        self.agreeing = 0
        """How many say so now: a majority, or 0."""
        self.problem = ""
        """Why no majority says anything now."""
        self._in_vain = 0
        """The looks since one did."""

    @classmethod
    def of(cls, config: Config) -> Sentinels | None:
        """None where the configuration has none. Raises `ConfigError`."""
        addresses = Address.of_sentinels(config)
        return cls(config["redis.sentinel.master"], addresses) if addresses else None

    async def look(self) -> None:
        """Asks them. Takes a second at most, and says in the log where all is not well."""
        answers = dict(zip(self._clients, await asyncio.gather(*map(self._asked, self._clients)), strict=True))
        named = [answer for answer in answers.values() if isinstance(answer, Named)]
        found, agreeing = majority(named, len(self._clients))
        problem = ""
        if found is None:
            said = "; ".join(f"{sentinel}: {answer}" for sentinel, answer in answers.items())
            problem = f"no majority of {len(answers)} Sentinels names a primary of {self.master} ({said})"
        elif found.run_id != self.named.run_id:
            log.info("%d of %d Sentinels name %s as primary of %s", agreeing, len(answers), found, self.master)
        if problem:
            self._in_vain += 1
            if self._in_vain == _PATIENCE:
                log.warning("%s", problem)
        else:
            if self._in_vain >= _PATIENCE:
                log.warning("a majority of Sentinels names %s", found)
            self._in_vain = 0
        self.problem, self.agreeing, self.named = problem, agreeing, found or self.named

    def names(self, run_id: str, writes: bool) -> bool:
        """Whether a majority names that server now; or named it last, where its changes are written already."""
        return self.named.run_id == run_id and (writes or self.agreeing > 0)

    async def _asked(self, sentinel: str) -> Named | str:
        """What it says, or why it says nothing."""
        client = self._clients[sentinel]
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                if not client.is_connected:
                    await client.connect()
                (reply,) = await client.ask([(b"SENTINEL", b"MASTER", self.master.encode())])
                return named_in(reply)
        except (LinkError, LinkLost, TimeoutError) as error:
            await client.close()
            return str(error) or "no answer in time"

    async def close(self) -> None:
        """Ends the connections."""
        for client in self._clients.values():
            await client.close()


def named_in(reply: Reply) -> Named | str:
    """What a Sentinel answers to SENTINEL MASTER, or why that says nothing."""
    if isinstance(reply, hiredis.ReplyError):
        return str(reply)
    try:
        fields = dict(zip(reply[::2], reply[1::2], strict=True))
        run_id, host, port = (fields[name].decode() for name in (b"runid", b"ip", b"port"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return f"this is no Sentinel: {error!r}"
    return Named(run_id, f"{host}:{port}") if run_id else f"it has not reached {host}:{port} yet"


def majority(named: Sequence[Named], count: int) -> tuple[Named | None, int]:
    """Whom more than half of `count` name, and how many do; some may have its name and others its address."""
    by_id = {each.run_id: each for each in named}
    found, most = next(iter(Counter(each.run_id for each in named).most_common(1)), ("", 0))
    return (by_id[found], most) if 2 * most > count else (None, 0)
