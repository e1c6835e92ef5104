"""The cluster view: the members, and per segment its state, primary, in-sync members and epoch.

Weighed in docs/decisions.md, "A view is one record".
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, NamedTuple

import orjson

from deelog_schemas.errors import RecordError
from deelog_schemas.keys import SLOTS


class State(StrEnum):
    """State of a segment; `controller.VALID` is the one table of transitions."""

    NON_EXISTENT = "NonExistent"
    NEW = "New"
    ONLINE = "Online"
    OFFLINE = "Offline"


class SegmentState(NamedTuple):
    """One segment. Members are `<node.id>@<incarnation>`; the primary of an Online segment is among `in_sync`.

    `owners` are the assigned members, the preferred primary first; `in_sync` may for a while name others. `target` is
    the member that the primary shall release the segment for. `must_reset` is the reason of a reset that this epoch's
    primary must write; None once it reports the reset done.
    """

    state: State = State.NON_EXISTENT
    epoch: int = 0
    primary: str | None = None
    in_sync: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    target: str | None = None
    must_reset: str | None = None

    @property
    def holders(self) -> tuple[str, ...]:
        """The members that hold the segment or shall hold it."""
        return self.owners + tuple(member for member in self.in_sync if member not in self.owners)


class Registration(NamedTuple):
    """A member as it registered: where it listens, `host:port`."""

    member: str
    client: str
    peer: str
    leaving: bool = False

    @property
    def client_place(self) -> tuple[str, int]:
        """Host and port for clients, an IPv6 address without brackets."""
        host, _, port = self.client.rpartition(":")
        return host.strip("[]"), int(port)


class View(NamedTuple):
    """The state of the cluster that all nodes apply. `rows[n]` is segment n."""

    topology_id: int
    controller: str
    members: dict[str, Registration]
    rows: tuple[SegmentState, ...]

    def client_address(self, member: str | None) -> str | None:
        """Where clients reach a member, `host:port` as Redis writes it, so IPv6 without brackets.

        None for None, and for a member that is not in the view.
        """
        registration = None if member is None else self.members.get(member)
        return None if registration is None else "{}:{}".format(*registration.client_place)


def first_slot(segment: int, segments: int) -> int:
    """The first hash slot of a segment."""
    return -(-segment * SLOTS // segments)


_VERSION: Final = 1


def encode_view(view: View) -> bytes:
    """A view as JSON."""
    names = sorted({name for row in view.rows for name in (*row.holders, row.primary, row.target) if name is not None})
    index: dict[str | None, int] = {name: number for number, name in enumerate(names)}
    index[None] = -1
    states = list(State)
    rows = [
        [
            states.index(row.state),
            row.epoch,
            index[row.primary],
            [index[member] for member in row.in_sync],
            [index[member] for member in row.owners],
            index[row.target],
            row.must_reset,
        ]
        for row in view.rows
    ]
    return orjson.dumps(
        {
            "version": _VERSION,
            "topology_id": view.topology_id,
            "controller": view.controller,
            "segment_count": len(view.rows),
            "members": [list(member) for member in view.members.values()],
            "names": names,
            "rows": rows,
        }
    )


def decode_view(data: bytes) -> View:
    """The view that `encode_view` wrote; `RecordError` where it did not."""
    try:
        body: dict[str, Any] = orjson.loads(data)
        if body["version"] != _VERSION or len(body["rows"]) != body["segment_count"]:
            raise ValueError(f"version {body['version']}, {len(body['rows'])} of {body['segment_count']} rows")
        names: list[str | None] = [*body["names"], None]
        states = list(State)
        rows = tuple(
            SegmentState(
                states[state],
                epoch,
                names[primary],
                tuple(body["names"][member] for member in in_sync),
                tuple(body["names"][member] for member in owners),
                names[target],
                must_reset,
            )
            for state, epoch, primary, in_sync, owners, target, must_reset in body["rows"]
        )
        members = {fields[0]: Registration(*fields) for fields in body["members"]}
        return View(body["topology_id"], body["controller"], members, rows)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise RecordError(f"not a view that this version can read: {error!r}") from error
