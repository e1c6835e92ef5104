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
from deelog_interceptors.redis.link import LinkLost, fields, refusal
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
    commands: list[Sequence[bytes]] = []
    for key, kind, size in zip(keys, kinds, sizes, strict=True):
        for refused in (kind, size):
            if isinstance(refused, hiredis.ReplyError):
                raise refusal("the server does not say of what type and how large an entry is", refused)
        reads = None if (size or 0) > _OVERHEAD * values.most else READS.get(kind)
        commands += ((b"EXISTS", key) if reads is None else reads(key), (b"PEXPIRETIME", key))
    *replies, role, info = await _together(client, commands)
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
    role, info = await _together(client, [])
    return id_of(info), offset_of(role)


async def _together(client: Client, commands: Sequence[Sequence[bytes]]) -> list[Reply]:
    """The replies to these reads and to `_PLACE`, all at one offset. Raises `LinkLost`, `LinkError`."""
    answers = await client.ask([(b"MULTI",), *commands, *_PLACE, (b"EXEC",)])
    executed = answers[-1]
    if isinstance(executed, list):
        return executed
    errors = [answer for answer in answers if isinstance(answer, hiredis.ReplyError)]
    if not str(errors[0]).startswith("OOM"):
        raise refusal("the server does not carry out reads in a transaction", errors[0])
    # Where its memory is used up a server queues nothing. What it then answers is at one offset if none changes.
    before, *replies = await client.ask([_PLACE[0], *commands, *_PLACE])
    if isinstance(before, hiredis.ReplyError) or before != replies[-2]:
        raise LinkLost("the server has no memory left, and changes between reads")
    return replies


async def keys_of(client: Client, segments: frozenset[int], count: int, values: Values) -> dict[int, list[bytes]]:
    """The keys of these segments, of `count`, that are captured: by SCAN, in one pass. Each that is there throughout
    is listed."""
    found: dict[int, dict[bytes, None]] = {segment: {} for segment in segments}
    async for keys in _scanned(client):
        for key in keys:
            segment = segment_of(key, count)
            if segment in segments and values.accepts(key):
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
