"""CLUSTER: the view in the words of Redis Cluster."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from deelog_interceptors.grid.data.segment import Role
from deelog_interceptors.grid.resp import replies
from deelog_interceptors.grid.resp.commands import Call, Reply, command, integer_of, unknown_subcommand
from deelog_interceptors.grid.resp.host import Host
from deelog_interceptors.grid.topology.view import State, View, first_slot
from deelog_schemas.keys import slot_of


def short_id(member: str) -> str:
    """A member as Redis Cluster names nodes: 40 hexadecimal digits."""
    return hashlib.sha1(member.encode(), usedforsecurity=False).hexdigest()


def slot_ranges(view: View) -> Iterator[tuple[int, int, str]]:
    """`(first slot, last slot, primary)`; neighbours with the same primary are one range. Unserved slots are left out.

    Backups are not named: to a client of Redis Cluster a node is either a master or a replica, but a grid node is both.
    """
    segments = len(view.rows)
    start, before = 0, None
    for number in range(segments + 1):
        primary: str | None = None
        if number < segments:
            row = view.rows[number]
            if row.state is State.ONLINE and row.primary in view.members:
                primary = row.primary
        if primary != before:
            slot = first_slot(number, segments)
            if before is not None:
                yield start, slot - 1, before
            start, before = slot, primary


@command("CLUSTER", -2)
def cluster(call: Call) -> Reply:
    node, view = call.node, call.node.view
    match call.arguments[1].upper():
        case b"SLOTS":
            return _slots(node, view)
        case b"SHARDS":
            return _shards(node, view, call.connection.protocol)
        case b"NODES":
            return replies.bulk(_nodes(node, view))
        case b"MYID":
            return replies.bulk(short_id(node.member))
        case b"INFO":
            return replies.bulk(_info(view))
        case b"KEYSLOT" if len(call.arguments) == 3:
            return replies.integer(slot_of(call.arguments[2]))
        case b"COUNTKEYSINSLOT" if len(call.arguments) == 3:
            return replies.integer(len(_keys_in(node, integer_of(call.arguments[2]))))
        case b"GETKEYSINSLOT" if len(call.arguments) == 4:
            keys = _keys_in(node, integer_of(call.arguments[2]))
            return replies.array(map(replies.bulk, keys[: integer_of(call.arguments[3])]))
    return unknown_subcommand(call)


def _keys_in(node: Host, slot: int) -> list[bytes]:
    segments = node.store.segments
    if not 0 <= slot < 16384:
        return []
    segment = segments[slot * len(segments) // 16384]
    return [key for key in segment.data if slot_of(key) == slot] if segment.role is Role.PRIMARY else []


def _slots(node: Host, view: View) -> bytes:
    def described(name: str) -> bytes:
        host, port = view.members[name].client_place
        return replies.array(
            (replies.bulk(host), replies.integer(port), replies.bulk(short_id(name)), replies.array(()))
        )

    return replies.array(
        replies.array((replies.integer(first), replies.integer(last), described(primary)))
        for first, last, primary in slot_ranges(view)
    )


def _shards(node: Host, view: View, protocol: int) -> bytes:
    """One shard per primary."""
    shards: dict[str, list[tuple[int, int]]] = {}
    for first, last, primary in slot_ranges(view):
        shards.setdefault(primary, []).append((first, last))

    def described(name: str) -> bytes:
        host, port = view.members[name].client_place
        facts = {
            "id": replies.bulk(short_id(name)),
            "port": replies.integer(port),
            "ip": replies.bulk(host),
            "endpoint": replies.bulk(host),
            "role": replies.bulk("master"),
            "replication-offset": replies.integer(0),
            "health": replies.bulk("online"),
        }
        return replies.mapping(((replies.bulk(key), value) for key, value in facts.items()), protocol)

    def shard(primary: str, ranges: list[tuple[int, int]]) -> bytes:
        slots = replies.array(replies.integer(slot) for pair in ranges for slot in pair)
        nodes = replies.array((described(primary),))
        return replies.mapping(((replies.bulk("slots"), slots), (replies.bulk("nodes"), nodes)), protocol)

    return replies.array(shard(primary, ranges) for primary, ranges in shards.items())


def _nodes(node: Host, view: View) -> str:
    ranges: dict[str, list[str]] = {}
    for first, last, primary in slot_ranges(view):
        ranges.setdefault(primary, []).append(f"{first}-{last}" if last > first else str(first))
    lines = []
    for number, (name, member) in enumerate(view.members.items(), 1):
        host, port = member.client_place
        flags = "myself,master" if name == node.member else "master"
        slots = " ".join(ranges.get(name, ()))
        line = f"{short_id(name)} {host}:{port}@{member.peer.rpartition(':')[2]} {flags} - 0 0 {number} connected"
        lines.append(f"{line} {slots}".rstrip())
    return "\n".join(lines) + "\n"


def _info(view: View) -> str:
    served = sum(last - first + 1 for first, last, _ in slot_ranges(view))
    primaries = {primary for _, _, primary in slot_ranges(view)}
    facts = {
        "cluster_enabled": 1,
        "cluster_state": "ok" if served == 16384 else "fail",
        "cluster_slots_assigned": served,
        "cluster_slots_ok": served,
        "cluster_slots_pfail": 0,
        "cluster_slots_fail": 0,
        "cluster_known_nodes": len(view.members),
        "cluster_size": len(primaries),
        "cluster_current_epoch": view.topology_id,
        "cluster_my_epoch": view.topology_id,
    }
    return "".join(f"{key}:{value}\r\n" for key, value in facts.items())
