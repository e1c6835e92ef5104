"""The other servers of a shard: what the connector's own server has forgotten of its stream, one of them may have.

A server that has loaded its primary's snapshot remembers nothing from before, and each forgets what its backlog has no
room for. A stream is the same bytes on all of them up to where their lineages part.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.client import Client
from deelog_interceptors.redis.lineage import Lineage, told
from deelog_interceptors.redis.link import LinkError, LinkLost, fields

log = logging.getLogger(__name__)

_ANSWER_SECONDS: Final = 1.0
"""Nothing is read meanwhile, and a backlog rolls on."""


class Remembered(NamedTuple):
    """A server's stream, as it tells of it."""

    lineage: Lineage
    oldest: int
    """The place from which on it has it: its first byte is the one behind."""
    offset: int
    """Up to where it has it."""

    @classmethod
    def of(cls, info: Mapping[str, str]) -> Remembered:
        """Of what INFO replication answers. A server without a backlog remembers nothing."""
        now, first = int(info["master_repl_offset"]), int(info["repl_backlog_first_byte_offset"])
        return cls(told(info), first - 1 if info.get("repl_backlog_active") == "1" else now, now)


class Other(NamedTuple):
    """Another server that has the stream from `oldest` on, the same up to `upto` as the own server has it."""

    address: Address
    oldest: int
    upto: int


async def others(own: Address, info: Mapping[str, str], remembered: Remembered) -> list[Other]:
    """Those that remember more than the own server, whose INFO replication that is: who remembers most comes first.

    Those that do not answer in time are left out.
    """
    near = _named_in(own, info)
    answers = await asyncio.gather(*map(_info_of, near))
    further = [address for answer in answers for address in _named_in(own, answer) if address not in near]
    answers += await asyncio.gather(*map(_info_of, further))
    found = (_with_more(address, answer, remembered) for address, answer in zip(near + further, answers, strict=True))
    return sorted((other for other in found if other is not None), key=lambda other: other.oldest)


def _with_more(address: Address, info: Mapping[str, str], own: Remembered) -> Other | None:
    if "master_replid" not in info:
        return None
    its = Remembered.of(info)
    upto = min(own.offset, its.offset, own.lineage.shared(its.lineage))
    return Other(address, its.oldest, upto) if its.oldest < own.oldest <= upto else None


def _named_in(own: Address, info: Mapping[str, str]) -> list[Address]:
    """The primary of a server, and its replicas. Connectors are replicas without a port."""
    places = [(info["master_host"], info["master_port"])] if "master_host" in info else []
    for name, value in info.items():
        if name.startswith("slave") and name[5:].isdigit():
            parts = dict(part.partition("=")[::2] for part in value.split(","))
            places.append((parts.get("ip", ""), parts.get("port", "")))
    found = [replace(own, host=host, port=int(port)) for host, port in places if host and port.isdigit()]
    return [address for address in found if address.port and address != own]


async def _info_of(address: Address) -> Mapping[str, str]:
    """What INFO replication answers; nothing where it does not."""
    client = Client(address)
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            await client.connect()
            return fields(await client.ask_one(b"INFO", b"replication"))
    except (LinkError, LinkLost, TimeoutError) as error:
        log.info("%s: %s", address, str(error) or "no answer in time")
        return {}
    finally:
        await client.close()
