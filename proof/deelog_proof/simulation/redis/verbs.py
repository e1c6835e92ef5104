"""Scripts of Redis: settings, the arguments and effect of each verb, and whether it is a fault.

Servers are `r1`, `r2`, …, the connectors beside them `c1`, `c2`, …. `primary`, `replica`, `writer` and `reader` are the
primary, another server, and the connectors beside them, at the time; `primary2` and so on are of the second shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from deelog_proof.memory.redis_keyspace import WRITES
from deelog_proof.simulation import common_verbs
from deelog_proof.simulation.common_verbs import LACKS, live, moment
from deelog_proof.simulation.context import POSITIONS
from deelog_proof.simulation.language import Language, Settings, Verbs, numbered, on_or_off, one_of, whole
from deelog_proof.simulation.redis.beside import Beside
from deelog_proof.simulation.redis.context import RedisContext
from deelog_proof.simulation.redis.server import DATA, Server
from deelog_schemas.keys import slot_of

SETTINGS: Final[Settings] = {
    "servers": 2,
    "shards": 1,
    "sentinels": 0,
    "segments": 4,
    "partitions": 2,
    "keys": 8,
    "backlog": 1 << 20,
    "batch": 50,
    "chunk": 2,
    "max_operations": 500,
    "acks_all": 1,
    "tombstones": 1,
    "strategy": 0,
    "seed": 0,
}
"""Settings and their defaults; `backlog` is in bytes, `strategy` the index of `reset.strategy` in the list of its
values. More than one shard are a cluster, whose segments are its slots."""
TAGS: Final = ("a", "b", "c", "d", "e", "f")
"""Of keys in a cluster: it has the slots of these, and no others."""
LEAST: Final[Settings] = {"sentinels": 0, "acks_all": 0, "tombstones": 0, "strategy": 0, "seed": 0}
"""The least value of a setting, where it is not 1."""

SHARED: Final = (
    "crash", "pause", "resume", "hang", "lose", "fence", "cut", "heal", "break", "slow", "kafka", "nokafka", "yeskafka",
    "away", "back", "at",
)  # fmt: skip
"""The verbs that scripts of any cache have."""
VERBS: Final = Verbs()
_verb = VERBS.verb


@_verb("command", fault=False)
def write(cluster: RedisContext, *words: str) -> bool:
    """A client's command to the primary; several with `/` between them are one transaction."""
    return _write(cluster, cluster.addressee(words), words)


@_verb("server", "command", fault=False)
def write_to(cluster: RedisContext, name: str, *words: str) -> bool:
    """The same of a client that takes another server for the primary."""
    return _write(cluster, name, words)


@_verb("server")
def failover(cluster: RedisContext, name: str) -> bool:
    """A replica becomes primary, and all others follow it at once."""
    if not split(cluster, name):
        return False
    for other in cluster.servers():
        if cluster.shard(other.node_id) == cluster.shard(name):
            follow(cluster, other.node_id)
    return True


@_verb("server")
def split(cluster: RedisContext, name: str) -> bool:
    """A replica becomes primary. The former one lives on as a primary, until it is to follow.

    Without Sentinels one that has never had this primary's stream does not: nobody could tell which of both is later.
    """
    server = _server(cluster, name)
    if server is None or server.paused or server.redis.primary is None:
        return False
    if not cluster.may_lead(server):
        return False
    cluster.promote(server)
    return True


@_verb("server", fault=False)
def follow(cluster: RedisContext, name: str) -> bool:
    """A server becomes a replica of the primary."""
    server = _server(cluster, name)
    if server is None or name in cluster.primaries:
        return False
    server.now(cluster.follow, server)
    return True


@_verb("tag", "server")
def move(cluster: RedisContext, tag: str, name: str) -> bool:
    """The slot of a tag begins to move to the shard of a server, key by key."""
    return cluster.shards > 1 and cluster.moves.begin(slot_of(tag.encode()), cluster.shard(name))


@_verb("tag")
def abort(cluster: RedisContext, tag: str) -> bool:
    """A move that has begun is given up: what has gone comes back."""
    return cluster.moves.abort(slot_of(tag.encode()))


@_verb("server", fault=False)
def save(cluster: RedisContext, name: str) -> bool:
    """A server saves what it has, for `restart NAME saved`."""
    server = _server(cluster, name)
    if server is None:
        return False
    cluster.saved[name] = server.redis.saved()
    return True


@_verb("", "data", fault=False)
def restart(cluster: RedisContext, name: str, data: str = "none") -> bool:
    """A new process in the place of one that has ended; a server with no data, the same, or what was saved."""
    if name not in cluster.nodes or live(cluster.nodes, name) is not None:
        return False
    cluster.restart(name, data)
    return True


@_verb("connector")
def leave(cluster: RedisContext, name: str) -> bool:
    """SIGTERM of a connector."""
    node = live(cluster.nodes, name)
    if not isinstance(node, Beside) or node.paused or not node.serves:
        return False
    node.leave()
    return True


@_verb("server", "number")
def trim(cluster: RedisContext, name: str, count: str) -> bool:
    """The backlog keeps its last bytes alone."""
    server = _server(cluster, name)
    if server is None:
        return False
    server.redis.stream.trim(int(count))
    return True


@_verb()
def recreate_positions(cluster: RedisContext) -> None:
    """The positions topic is made again."""
    cluster.kafka.recreate(POSITIONS)


def _write(cluster: RedisContext, name: str, words: Sequence[str]) -> bool:
    server = _server(cluster, name)
    return server is not None and not server.paused and cluster.write(server, words)


def _server(cluster: RedisContext, name: str) -> Server | None:
    node = live(cluster.nodes, name)
    return node if isinstance(node, Server) else None


def _is_server(argument: str, settings: Settings, _: Sequence[str]) -> str:
    known = (*_named(("primary", "replica"), settings), *_numbered("r", settings))
    return "" if argument in known else f"{argument} is no server: they are {', '.join(known)}"


def _is_connector(argument: str, settings: Settings, _: Sequence[str]) -> str:
    known = (*_named(("writer", "reader"), settings), *_numbered("c", settings))
    return "" if argument in known else f"{argument} is no connector: they are {', '.join(known)}"


def _named(names: Sequence[str], settings: Settings) -> list[str]:
    return [f"{name}{shard or ''}" for shard in (0, *range(2, settings["shards"] + 1)) for name in names]


def _numbered(kind: str, settings: Settings) -> list[str]:
    return [f"{kind}{number}" for number in range(1, settings["servers"] + 1)]


def _is_command(argument: str, _: Settings, __: Sequence[str]) -> str:
    return "" if argument.upper() in COMMANDS else f"{argument} is none of {', '.join(sorted(COMMANDS))}"


COMMANDS: Final = frozenset(name.decode() for name in WRITES)
VERBS.update((name, common_verbs.VERBS[name]) for name in SHARED)
VERBS["twin"] = common_verbs.VERBS["twin"]._replace(shapes=("connector",))  # two servers have no place
LANGUAGE: Final = Language(
    SETTINGS,
    LEAST,
    VERBS,
    {
        "server": _is_server,
        "connector": _is_connector,
        "command": _is_command,
        "data": one_of(DATA),
        "tag": one_of(TAGS),
        "partition": numbered("partition"),
        "number": whole,
        "state": on_or_off,
        "topic": one_of(("changes", "positions")),
        "lack": one_of(LACKS),
        "moment": moment,
    },
)
