"""Entries of a server, each with the offset of the stream at which it is so.

A transaction of plain reads ends with ROLE, which tells the offset of the server's stream at this moment, and INFO,
which tells of which stream: the server may have been started anew.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import hiredis

from deelog_interceptors.redis.client import Client, Reply
from deelog_interceptors.redis.lineage import told
from deelog_interceptors.redis.link import LinkError, fields
from deelog_interceptors.redis.segment_tape import Image
from deelog_interceptors.redis.values import READS, Values
from deelog_schemas.keys import segment_of

SCAN_COUNT: Final = b"1000"
MOST_KEYS: Final = 128
"""Of one transaction: a server answers nobody else meanwhile."""
_PLACE: Final = ((b"ROLE",), (b"INFO", b"replication"))
_OVERHEAD: Final = 32
"""An entry that takes so much more memory than `max.entry.bytes` is not read at all."""


@dataclass(slots=True)
class Read:
    """What came of reading some keys. `changed`: keys whose type has changed meanwhile, to be read again."""

    id: str
    """The replication id of the stream that the images' offsets are of."""
    images: list[Image] = field(default_factory=list)
    changed: list[bytes] = field(default_factory=list)


async def read(client: Client, keys: Sequence[bytes], values: Values) -> Read:
    """At most `MOST_KEYS` entries, all as of one offset. Raises `LinkLost`, `LinkError`."""
    looks = await client.ask([look for key in keys for look in ((b"TYPE", key), (b"MEMORY", b"USAGE", key))])
    kinds, sizes = looks[::2], looks[1::2]
    commands: list[Sequence[bytes]] = [(b"MULTI",)]
    for key, kind, size in zip(keys, kinds, sizes, strict=True):
        for refused in (kind, size):
            if isinstance(refused, hiredis.ReplyError):
                raise LinkError(f"the server does not say of what type and how large an entry is: {refused}")
        reads = None if (size or 0) > _OVERHEAD * values.most else READS.get(kind)
        commands += ((b"EXISTS", key) if reads is None else reads(key), (b"PEXPIRETIME", key))
    answers = await client.ask([*commands, *_PLACE, (b"EXEC",)])
    *replies, role, info = _executed(answers[-1])
    found, offset = Read(id_of(info)), offset_of(role)
    for number, key in enumerate(keys):
        kind, content, expiry = kinds[number], replies[2 * number], replies[2 * number + 1]
        if isinstance(content, hiredis.ReplyError) or (content == 1 and kind == b"none"):
            found.changed.append(key)
            continue
        value = None
        if expiry != -2:  # else there is no such key; a stream without items is an entry
            # What was not read is too large, or of a module's type.
            value = values.too_large(kind) if content == 1 else values.entry(key, kind, content)
        found.images.append(Image(key, value, expiry if expiry >= 0 else None, offset))
    return found


async def place(client: Client) -> tuple[str, int]:
    """The replication id and the offset of the server's stream at this moment. Raises `LinkLost`, `LinkError`."""
    answers = await client.ask([(b"MULTI",), *_PLACE, (b"EXEC",)])
    role, info = _executed(answers[-1])
    return id_of(info), offset_of(role)


def _executed(reply: Reply) -> list[Reply]:
    if not isinstance(reply, list):
        raise LinkError(f"the server does not carry out reads in a transaction: {reply}")
    return reply


async def keys_of(client: Client, segments: frozenset[int], count: int) -> dict[int, list[bytes]]:
    """The keys of these segments, of `count`: by SCAN, in one pass. Each that is there throughout is listed."""
    found: dict[int, dict[bytes, None]] = {segment: {} for segment in segments}
    async for keys in _scanned(client):
        for key in keys:
            segment = segment_of(key, count)
            if segment in segments:
                found[segment][key] = None
    return {segment: list(keys) for segment, keys in found.items()}


async def _scanned(client: Client) -> AsyncIterator[list[bytes]]:
    cursor = b"0"
    while True:
        cursor, keys = await client.ask_one(b"SCAN", cursor, b"COUNT", SCAN_COUNT)
        yield keys
        if cursor == b"0":
            return


def id_of(info: Reply) -> str:
    """The replication id of a server's stream, of what INFO answers."""
    return told(fields(info)).id


def offset_of(role: Reply) -> int:
    """The offset of a server's stream, of what ROLE answers."""
    return int(role[1] if role[0] == b"master" else role[4])


def is_primary(role: Reply) -> bool:
    """Whether it is one, of what ROLE answers."""
    return bool(role[0] == b"master")


def replicas_of(role: Reply) -> list[tuple[str, int, int]]:
    """Host, port and acknowledged offset of a primary's replicas."""
    return [(host.decode(), int(port), int(offset)) for host, port, offset in role[2]]
