"""What a server lacks for a connector beside it: `deelog validate --connect`.

It is asked all that a connector asks, for a key that is not there, and its stream is attached to where it is now. That
costs it no snapshot, but for an empty one where it has no backlog yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import hiredis

from deelog_interceptors.redis import reading
from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.client import Client, Reply
from deelog_interceptors.redis.hints import Hints
from deelog_interceptors.redis.lineage import told
from deelog_interceptors.redis.link import LinkError, Place, attach, fields, refusal
from deelog_interceptors.redis.sentinels import Sentinels
from deelog_interceptors.redis.values import READS
from deelog_schemas.config import Config

_LEAST_VERSION: Final = 7
_ENOUGH_BACKLOG: Final = 64 << 20
_KEY: Final = b"(preflight)"
_ASKED: Final[Sequence[tuple[str, Sequence[bytes]]]] = (
    ("role", (b"ROLE",)),
    ("info", (b"INFO", b"server")),
    ("info", (b"INFO", b"replication")),
    ("info", (b"INFO", b"cluster")),
    ("ping", (b"PING",)),
    ("scan", (b"SCAN", b"0", b"COUNT", b"1")),
    ("type", (b"TYPE", _KEY)),
    ("memory|usage", (b"MEMORY", b"USAGE", _KEY)),
    ("exists", (b"EXISTS", _KEY)),
    ("pexpiretime", (b"PEXPIRETIME", _KEY)),
    ("command|getkeysandflags", (b"COMMAND", b"GETKEYSANDFLAGS", b"GET", _KEY)),
    *((reads(_KEY)[0].decode().lower(), reads(_KEY)) for reads in READS.values()),
    ("multi", (b"MULTI",)),
    ("exec", (b"EXEC",)),
)
"""By right a command that needs it."""
_UNTRIED: Final = ("+psync", "+replconf")
"""Rights that no question shows."""
_KEYS: Final = ("resetkeys", "%R~*")
"""That to read all keys, in the place of those to some."""
_ASKED_OF_A_CLUSTER: Final[Sequence[tuple[str, Sequence[bytes]]]] = (
    ("cluster|nodes", (b"CLUSTER", b"NODES")),
    ("cluster|getkeysinslot", (b"CLUSTER", b"GETKEYSINSLOT", b"0", b"1")),
)


def lines(config: Config) -> list[str]:
    """What the server of that configuration is, and what to change there.

    Raises `DeelogError` where it cannot be used.
    """
    try:
        return asyncio.run(_looked_at(config))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise LinkError(f"{config['redis.url']} is no Redis or Valkey server: {error!r}") from error


async def _looked_at(config: Config) -> list[str]:
    address, sentinels = Address.of(config), Sentinels.of(config)
    client, user = Client(address), address.username or "default"
    try:
        await client.connect()
        answers = await client.ask([command for _, command in _ASKED])
        if isinstance(answers[2], bytes):
            reading.replication_in(address, answers[2])
        must_have(user, _ASKED, answers)
        role, server, replication = answers[0], *map(fields, answers[1:3])
        kind, version = version_of(server)
        if int(version.partition(".")[0]) < _LEAST_VERSION:
            raise LinkError(f"{address} is {kind} {version}: {_LEAST_VERSION}.0 or newer is needed")
        clustered = reading.is_cluster(answers[3])
        reading.must_fit(address, clustered, config["segment.count"])
        if clustered:
            must_have(user, _ASKED_OF_A_CLUSTER, await client.ask([command for _, command in _ASKED_OF_A_CLUSTER]))
    finally:
        await client.close()
    primary = reading.is_primary(role)
    replicas = [one for one in reading.replicas_of(role) if one[1]] if primary else []
    advised = list(advice(replication, replicas))
    if sentinels is not None:
        try:
            await sentinels.look()
        finally:
            await sentinels.close()
        if sentinels.problem:
            raise LinkError(sentinels.problem)
        advised.insert(0, f"  {sentinels.agreeing} Sentinels name {sentinels.named} as primary of {sentinels.master}")
    if config["redis.reasons"] == "notifications":
        hints = Hints(address)
        try:
            await hints.open()
        finally:
            await hints.close()
        advised += [f"  {hints.lacks}"] if hints.lacks else []
    place = Place(told(replication), int(replication["master_repl_offset"]), 0)
    link = await attach(address.connect, place, config["max.entry.bytes"], address.username, address.password)
    await link.close()
    what = f"primary, replicas: {len(replicas)}" if primary else "replica"
    return [f"{address}: {kind} {version}, {'in a cluster' if clustered else 'alone'}, {what}", *advised]


def version_of(server: Mapping[str, str]) -> tuple[str, str]:
    """Whose server it is, and its version, of INFO."""
    valkey = server.get("valkey_version")
    return ("Valkey", valkey) if valkey else ("Redis", server["redis_version"])


def must_have(user: str, asked: Sequence[tuple[str, Sequence[bytes]]], answers: Sequence[Reply]) -> None:
    """Raises `LinkError` with all rights that are needed where one is missing, and where a command is not there."""
    errors = [(right, one) for (right, _), one in zip(asked, answers, strict=True) if _is_refused(one)]
    missing = [right for right, error in errors if "NOPERM" in str(error)]  # of EXEC it is the reason
    if missing:
        reads = any(command[0] != b"COMMAND" and _KEY in command and right not in missing for right, command in asked)
        everything = dict.fromkeys([*(() if reads else _KEYS), *_UNTRIED, *(f"+{right}" for right, _ in asked)])
        lacking = ", ".join(dict.fromkeys(missing))
        raise LinkError(f"the user {user} may not {lacking}: ACL SETUSER {user} {' '.join(everything)}")
    for right, error in errors:
        raise refusal(f"{right} was refused", error)


def _is_refused(answer: Reply) -> bool:
    """Slots of others are no refusal."""
    return isinstance(answer, hiredis.ReplyError) and not reading.is_elsewhere(answer)


def advice(replication: Mapping[str, str], replicas: Sequence[object]) -> Iterator[str]:
    """What to change at a server that can be used, of INFO and ROLE."""
    size = int(replication["repl_backlog_size"])
    if size < _ENOUGH_BACKLOG:
        yield (
            f"  repl-backlog-size is {size >> 10} kB: a connector that is away for as many bytes of changes resets all "
            "segments; set it to 256mb or more"
        )
    if replication.get("slave_read_only") == "0":
        yield "  it takes writes of its own, which no stream tells: set replica-read-only yes"
    if replication["role"] == "master" and not replicas:
        yield "  it has no replica: what it loses when it ends is gone from the cache, and a reset says so in Kafka"
    if "min_slaves_good_slaves" in replication:
        yield "  min-replicas-to-write is set, and the connector's link counts there: raise it by one"
