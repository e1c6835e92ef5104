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
from deelog_interceptors.redis.lineage import told
from deelog_interceptors.redis.link import LinkError, Place, attach, fields
from deelog_interceptors.redis.values import READS
from deelog_schemas.config import Config

_LEAST_VERSION: Final = 7
_ENOUGH_BACKLOG: Final = 64 << 20
_KEY: Final = b"deelog:preflight"
_ASKED: Final[Sequence[tuple[str, Sequence[bytes]]]] = (
    ("role", (b"ROLE",)),
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
_ASKED_OF_A_CLUSTER: Final[Sequence[tuple[str, Sequence[bytes]]]] = (
    ("cluster|nodes", (b"CLUSTER", b"NODES")),
    ("cluster|getkeysinslot", (b"CLUSTER", b"GETKEYSINSLOT", b"0", b"1")),
)


def lines(config: Config) -> list[str]:
    """What the server of that configuration is, and what to change there.

    Raises `DeelogError` where it cannot be used.
    """
    return asyncio.run(_looked_at(config))


async def _looked_at(config: Config) -> list[str]:
    address, client = Address.of(config), Client(Address.of(config))
    try:
        await client.connect()
        server, replication = [fields(await client.ask_one(b"INFO", each)) for each in (b"server", b"replication")]
        kind, version = version_of(server)
        if int(version.partition(".")[0]) < _LEAST_VERSION:
            raise LinkError(f"{address} is {kind} {version}: {_LEAST_VERSION}.0 or newer is needed")
        cluster = await reading.is_cluster(client)
        reading.must_fit(address, cluster, config["segment.count"])
        asked = (*_ASKED, *_ASKED_OF_A_CLUSTER) if cluster else _ASKED
        answers = await client.ask([command for _, command in asked])
        must_have(config["redis.username"] or "default", [right for right, _ in asked], answers)
        role = "primary" if reading.is_primary(answers[0]) else "replica"
        replicas = [one for one in reading.replicas_of(answers[0]) if one[1]] if role == "primary" else []
    finally:
        await client.close()
    place = Place(told(replication), int(replication["master_repl_offset"]), 0)
    link = await attach(address.connect, place, config["max.entry.bytes"], address.username, address.password)
    await link.close()
    many = f", replicas: {len(replicas)}" if role == "primary" else ""
    where = "in a cluster" if cluster else "alone"
    return [f"{address}: {kind} {version}, {role} {where}{many}", *advice(replication, replicas)]


def version_of(server: Mapping[str, str]) -> tuple[str, str]:
    """Whose server it is, and its version, of INFO."""
    valkey = server.get("valkey_version")
    return ("Valkey", valkey) if valkey else ("Redis", server["redis_version"])


def must_have(user: str, rights: Sequence[str], answers: Sequence[Reply]) -> None:
    """Raises `LinkError` with all rights that the answers say are missing."""
    missing = list[str]()
    for right, answer in zip(rights, answers, strict=True):
        if isinstance(answer, hiredis.ReplyError) and "NOPERM" in str(answer):  # of EXEC it is the reason
            missing.append("%R~*" if "to access" in str(answer) else f"+{right}")
    if missing:
        raise LinkError(f"the user {user} lacks rights: ACL SETUSER {user} {' '.join(dict.fromkeys(missing))}")


def advice(replication: Mapping[str, str], replicas: Sequence[object]) -> Iterator[str]:
    """What to change at a server that can be used, of INFO and ROLE."""
    size = int(replication["repl_backlog_size"])
    if size < _ENOUGH_BACKLOG:
        yield (
            f"  repl-backlog-size is {size >> 10} kB: a connector that is away for as many bytes of changes resets all "
            "segments; set it to 256mb or more"
        )
    if replication["role"] == "master" and not replicas:
        yield "  it has no replica: what it loses when it ends is gone from the cache, and a reset says so in Kafka"
    if "min_slaves_good_slaves" in replication:
        yield "  min-replicas-to-write is set, and the connector's link counts there: raise it by one"
