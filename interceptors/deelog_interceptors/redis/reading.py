"""Entries of a server, each with the offset of the stream at which it is so.

A transaction of plain reads ends with ROLE, which tells the offset of the server's stream at this moment, and INFO,
which tells of which stream: the server may have been started anew.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

import hiredis

from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.client import Client, Reply
from deelog_interceptors.redis.lineage import told
from deelog_interceptors.redis.link import LinkError, LinkLost, fields, refusal
from deelog_interceptors.redis.segment_tape import Image
from deelog_interceptors.redis.sentinels import Sentinels
from deelog_interceptors.redis.stream import Omitted
from deelog_interceptors.redis.values import READS, Values
from deelog_interceptors.redis.view import View, alone, of_cluster, of_sentinels
from deelog_schemas.keys import SLOTS, segment_of, slot_of

SCAN_COUNT: Final = b"1000"
MOST_KEYS: Final = 128
"""Of one transaction: a server answers nobody else meanwhile."""
_MOST_LISTED: Final = 1 << 18
"""Keys that are listed in one pass, if that takes no more than `_MOST_PASSES` for all segments."""
_MOST_PASSES: Final = 16
_LONG: Final = b"\0longer than max.entry.bytes"
"""In the place of an argument that was too long to be kept; as a key it says nothing."""
_PLACE: Final = ((b"ROLE",), (b"INFO", b"replication"))
_OVERHEAD: Final = 32
"""An entry that takes so much more memory than `max.entry.bytes` is not read at all: small parts take as much."""
_OVERHEAD_OF_STRINGS: Final = 3
"""One that has grown has room for as much again."""
_MOST_BYTES: Final = 32 << 20
"""Memory that entries take which are read at once, where that is more than one."""


@dataclass(slots=True)
class Read:
    """What came of reading some keys. `changed`: keys whose type has changed meanwhile, or that were too much for once.

    They are to be read again.
    """

    id: str
    """The replication id of the stream that the images' offsets are of; empty where there are none."""
    images: list[Image] = field(default_factory=list)
    changed: list[bytes] = field(default_factory=list)


async def read(client: Client, keys: Sequence[bytes], values: Values, cluster: bool = False) -> Read:
    """At most `MOST_KEYS` entries, all as of one offset; in a cluster those of each slot are.

    Raises `LinkLost`, `LinkError`.
    """
    looks = await client.ask([look for key in keys for look in ((b"TYPE", key), (b"MEMORY", b"USAGE", key))])
    groups: dict[int, list[_Look]] = {}
    found, total = Read(""), 0
    for key, kind, size in zip(keys, looks[::2], looks[1::2], strict=True):
        refused = next((each for each in (kind, size) if isinstance(each, hiredis.ReplyError)), None)
        if refused is not None and is_elsewhere(refused):
            found.changed.append(key)
        elif refused is not None:
            raise refusal("the server does not say of what type and how large an entry is", refused)
        else:
            too_large = _is_too_large(kind, size, values)
            total += 0 if too_large else size or 0
            if groups and total > _MOST_BYTES:
                found.changed.append(key)
            else:
                look = _Look(key, kind, _commands(key, kind, too_large))
                groups.setdefault(slot_of(key) if cluster else 0, []).append(look)
    for looked, replies in zip(groups.values(), await _together(client, _reads(groups.values())), strict=True):
        if replies is None:
            found.changed += [look.key for look in looked]
            continue
        *contents, role, info = replies
        if found.id not in ("", id_of(info)):
            raise LinkLost("the server goes on with another stream")
        found.id, offset = id_of(info), offset_of(role)
        left = iter(contents)
        for key, kind, commands in looked:
            content, *size, expiry = islice(left, len(commands) + 1)
            value = None
            if isinstance(content, hiredis.ReplyError) or (content == 1 and kind == b"none"):
                found.changed.append(key)
                continue
            if expiry != -2 and size:
                if content != kind or (kind in READS and not _is_too_large(kind, size[0], values)):
                    found.changed.append(key)
                    continue
                value = values.too_large(kind)
            elif expiry != -2:  # else there is no such key; a stream without items is an entry
                value = values.entry(key, kind, content)
            found.images.append(Image(key, value, expiry if expiry >= 0 else None, offset))
    return found


def _is_too_large(kind: bytes, size: int | None, values: Values) -> bool:
    """Whether an entry that takes so much memory is not read."""
    return (size or 0) > values.most * (_OVERHEAD_OF_STRINGS if kind == b"string" else _OVERHEAD)


def _commands(key: bytes, kind: bytes, too_large: bool) -> Sequence[Sequence[bytes]]:
    """What tells of an entry. Of one that is not read, being too large or of a module's type, that it is so still."""
    if kind == b"none":
        return ((b"EXISTS", key),)
    if too_large or kind not in READS:
        return (b"TYPE", key), (b"MEMORY", b"USAGE", key)
    return (READS[kind](key),)


class _Look(NamedTuple):
    """Of what type an entry is, and the commands that tell of it."""

    key: bytes
    kind: bytes
    commands: Sequence[Sequence[bytes]]


def _reads(groups: Iterable[Sequence[_Look]]) -> list[list[Sequence[bytes]]]:
    """By group the commands that read its entries."""
    return [[each for look in looked for each in (*look.commands, (b"PEXPIRETIME", look.key))] for looked in groups]


async def place(client: Client) -> tuple[str, int]:
    """The replication id and the offset of the server's stream at this moment. Raises `LinkLost`, `LinkError`."""
    (replies,) = await _together(client, [[]])
    assert replies is not None, "no key, no slot"
    role, info = replies
    return id_of(info), offset_of(role)


async def _together(client: Client, groups: Sequence[Sequence[Sequence[bytes]]]) -> list[list[Reply] | None]:
    """By group the replies to its reads and to `_PLACE`, all at one offset; None: its slot is not the server's.

    Raises `LinkLost`, `LinkError`.
    """
    answers = iter(await client.ask([each for group in groups for each in ((b"MULTI",), *group, *_PLACE, (b"EXEC",))]))
    found: list[list[Reply] | None] = []
    for group in groups:
        *queued, executed = islice(answers, len(group) + len(_PLACE) + 2)
        if isinstance(executed, list):
            found.append(executed)
            continue
        error = next(answer for answer in (*queued, executed) if isinstance(answer, hiredis.ReplyError))
        if is_elsewhere(error):
            found.append(None)
        elif str(error).startswith("OOM"):
            found.append(await _at_rest(client, group))
        else:
            raise refusal("the server does not carry out reads in a transaction", error)
    return found


async def _at_rest(client: Client, commands: Sequence[Sequence[bytes]]) -> list[Reply]:
    """Where its memory is used up a server queues nothing. What it then answers is at one offset if none changes."""
    before, *replies = await client.ask([_PLACE[0], *commands, *_PLACE])
    if isinstance(before, hiredis.ReplyError) or before != replies[-2]:
        raise LinkLost("the server has no memory left, and changes between reads")
    return replies


def is_elsewhere(error: hiredis.ReplyError) -> bool:
    """Whether a cluster says that a slot is not this server's to answer for, or not now."""
    return str(error).partition(" ")[0] in ("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN")


async def keys_of(
    client: Client,
    segments: Collection[int],
    count: int,
    values: Values,
    cluster: bool = False,
    *,
    between: Callable[[], Awaitable[object]] | None = None,
) -> dict[int, list[bytes]]:
    """The keys of these segments, of `count`, that are captured. Each that is there throughout is listed.

    By SCAN, in one pass; in a cluster slot by slot. Where there are too many keys for one pass, those of the first
    segments: ask again for the others. `between` is called behind each answer, and may ask by the same client.
    """
    if cluster:
        return await _keys_of_slots(client, segments, values, between)
    found: dict[int, dict[bytes, None]] = {segment: {} for segment in segments}
    least = -(-count // _MOST_PASSES)
    async for keys in _scanned(client):
        if between is not None:
            await between()
        for key in keys:
            segment = segment_of(key, count)
            if segment in found and values.accepts(key):
                found[segment][key] = None
        if len(found) > least and sum(map(len, found.values())) > _MOST_LISTED:
            for segment in list(found)[max(len(found) // 2, least) :]:
                del found[segment]
    return {segment: list(keys) for segment, keys in found.items()}


async def _keys_of_slots(
    client: Client, slots: Iterable[int], values: Values, between: Callable[[], Awaitable[object]] | None
) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    limits = dict.fromkeys(slots, 128)
    while limits:
        if between is not None:
            await between()
        asked = [(b"CLUSTER", b"GETKEYSINSLOT", b"%d" % slot, b"%d" % limit) for slot, limit in limits.items()]
        for (slot, limit), keys in zip(list(limits.items()), await client.ask(asked), strict=True):
            if isinstance(keys, hiredis.ReplyError):
                raise refusal("the server does not list the keys of a slot", keys)
            if len(keys) < limit:  # else there may be more
                found[slot] = [key for key in keys if values.accepts(key)]
                del limits[slot]
            else:
                limits[slot] = 16 * limit
    return found


def batches(found: Mapping[int, Sequence[bytes]]) -> Iterator[list[int]]:
    """The segments, such as are read together: their keys are at most `MOST_KEYS`, or one segment's."""
    together, count = list[int](), 0
    for segment, keys in found.items():
        if together and count + len(keys) > MOST_KEYS:
            yield together
            together, count = [], 0
        together.append(segment)
        count += len(keys)
    if together:
        yield together


async def keys_written(client: Client, commands: Sequence[Sequence[bytes | Omitted]]) -> list[list[bytes] | None]:
    """By command the keys that the server says it writes; None where it does not say. Raises `LinkLost`."""
    asked = [[word if isinstance(word, bytes) else _LONG for word in command] for command in commands]
    found: list[list[bytes] | None] = []
    for reply in await client.ask([(b"COMMAND", b"GETKEYSANDFLAGS", *words) for words in asked]):
        if isinstance(reply, hiredis.ReplyError):
            error = refusal("the server does not say now which keys a command writes", reply)
            if isinstance(error, LinkLost):
                raise error
            found.append(None)
        else:
            keys = [key for key, flags in reply if b"RO" not in flags]
            found.append(None if _LONG in keys else keys)
    return found


class Told(NamedTuple):
    """What a server tells of itself."""

    view: View
    role: Reply
    """What ROLE answers."""
    ends: bool
    """Whether it is shutting down."""


def replication_in(address: Address, info: bytes) -> Mapping[str, str]:
    """What INFO replication answers, by name. Raises `LinkError` where it tells of no stream."""
    found = fields(info)
    if "master_replid" not in found:
        raise LinkError(f"{address} has no changes to replicate: if it is a Sentinel, name it in redis.sentinels")
    return found


def is_cluster(info: bytes) -> bool:
    """Whether the server is a node of a cluster, of what INFO cluster answers."""
    return fields(info).get("cluster_enabled") == "1"


def must_fit(address: Address, cluster: bool, segments: int) -> None:
    """Raises `LinkError` where so many segments do not fit that server."""
    if cluster != (segments == SLOTS):
        what, remedy = ("a", f"={SLOTS}") if cluster else ("no", f" below {SLOTS}")
        raise LinkError(
            f"{address} is {what} node of a cluster; there, and only there, segments are slots: "
            f"set segment.count{remedy}"
        )


async def told_by(
    client: Client,
    segments: int,
    cluster: bool,
    sentinels: Sentinels | None = None,
    writes: bool = False,
    always: bool = False,
) -> Told:
    """What the server tells of itself at this moment. Raises `LinkLost`, `LinkError`.

    `writes`: whether its changes are written now, which without a majority of Sentinels goes on; `always`: they are to
    be, though it be a replica.
    """
    commands: list[Sequence[bytes]] = [(b"ROLE",), (b"INFO", b"server")]
    if cluster:
        commands.append((b"CLUSTER", b"NODES"))
    answers = await client.ask(commands)
    for command, answer in zip(commands, answers, strict=True):
        if isinstance(answer, hiredis.ReplyError):
            raise refusal(f"{b' '.join(command).decode()} was refused", answer)
    role, info, *nodes = answers
    try:
        if cluster:
            view = of_cluster(nodes[0])
        elif sentinels is None:
            view = alone(is_primary(role), segments, always)
        else:
            view = of_sentinels(is_primary(role), sentinels.names(fields(info)["run_id"], writes), segments)
    except (ValueError, IndexError) as error:
        raise LinkError(f"CLUSTER NODES was answered with {nodes[0][:200]!r}: {error}") from error
    return Told(view, role, b"shutdown_in_milliseconds" in info)


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
    """The offset of a server's stream, of what ROLE answers. Raises `LinkLost` where a replica has none now."""
    offset = int(role[1] if role[0] == b"master" else role[4])
    if offset < 0:
        raise LinkLost("the server has not its primary's stream now")
    return offset


def is_primary(role: Reply) -> bool:
    """Whether it is one, of what ROLE answers."""
    return bool(role[0] == b"master")


def replicas_of(role: Reply) -> list[tuple[str, int, int]]:
    """Host, port and acknowledged offset of a primary's replicas."""
    return [(host.decode(), int(port), int(offset)) for host, port, offset in role[2]]
