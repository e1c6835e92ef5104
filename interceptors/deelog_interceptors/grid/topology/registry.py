"""The content of the topology topic: registered members, the controller, and the last view."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson

from deelog_connector.errors import NodeSuperseded
from deelog_interceptors.grid.topology.topic import TopologyRecord
from deelog_interceptors.grid.topology.view import Registration, SegmentState, View, decode_view, encode_view
from deelog_schemas.errors import ConfigError, FieldError, RecordError
from deelog_schemas.member import Member, is_newer_process, node_id_of


class Registry:
    """Call `read` with the records in order. `on_view` gets each new view, `on_change` follows each `read`."""

    def __init__(
        self, topic: str, segments: int, on_view: Callable[[View], None], on_change: Callable[[], None]
    ) -> None:
        self.members: dict[str, Registration] = {}
        """By node id, the newest incarnation."""
        self.controller: str | None = None
        self.view = View(0, "", {}, tuple(SegmentState() for _ in range(segments)))
        self.view_stands = False
        """Whether the topic has a view, so that who starts later finds it. The controller sets it, too."""
        self._recorded = 0
        """The last view that was read as such. A later one is known of a member's registration alone."""
        self._told = 0
        """The view that the last registration of this member was made with."""
        self.own: str | None = None
        """The member that this process is, once it registers."""
        self.token = ""
        self.overwritten = False
        """An older process wrote its registration over this one's."""
        self._topic, self._segments = topic, segments
        self._on_view, self._on_change = on_view, on_change
        self._first_count: int | None = None
        self._has_registered = False
        self._waiting: dict[str, asyncio.Event] = {}

    def lost(self) -> None:
        """The topic was made again, or has lost records: nothing is there that is not read from now on."""
        self.view_stands, self._recorded, self._told = False, 0, 0

    @property
    def must_register(self) -> bool:
        """Whether this member is to register again: an older process wrote over it, or it has to tell a view.

        Whoever told it may write over that with its next registration, and end.
        """
        return self.overwritten or self.view.topology_id > max(self._recorded, self._told)

    def registration(self, own: Registration) -> tuple[str, bytes]:
        """The record with which a member registers: with the last view that it knows, if the topic has not got it."""
        body: dict[str, Any] = {"member": own.member, "client": own.client, "peer": own.peer, "token": self.token}
        body["segment_count"] = self._segments
        if self.view.topology_id > self._recorded:
            body["view"] = orjson.loads(encode_view(self.view))
        self.overwritten, self._told = False, self.view.topology_id
        return f"member/{node_id_of(own.member)}", orjson.dumps(body)

    def peer_addresses(self) -> dict[str, str]:
        """The peer addresses of the other members of the view and of the controller, by member."""
        addresses = {name: registration.peer for name, registration in self.view.members.items()}
        addresses |= {r.member: r.peer for r in self.members.values() if r.member == self.controller}
        addresses.pop(self.own or "", None)
        return addresses

    def expect(self, mark: str) -> asyncio.Event:
        """An event that is set when the record with `mark` (a token or nonce) is read; call before writing it."""
        return self._waiting.setdefault(mark, asyncio.Event())

    def read(self, records: list[TopologyRecord]) -> None:
        """Reads the next records. Raises `RecordError`, `ConfigError` (another segment.count), `NodeSuperseded`."""
        for record in records:
            if record.value is None:
                continue
            try:
                self._take(record.key, record.value)
            except RecordError as error:
                raise error.at(self._topic, 0, record.offset) from None
            except (ValueError, KeyError, TypeError) as error:
                raise RecordError(f"not of this version: {error!r}").at(self._topic, 0, record.offset) from error
        self._on_change()

    def _take(self, key: str, value: bytes) -> None:
        if key == "view":
            view = decode_view(value)
            self.view_stands, self._recorded = True, view.topology_id
            self._view_read(view)
        elif key == "controller":
            body = orjson.loads(value)
            self.controller = body["member"]
            self._mark(body["nonce"])
        elif key.startswith("member/"):
            self._registered(orjson.loads(value))
        else:
            raise RecordError(f"key {key[:80]!r} is not one of a topology topic")

    def _view_read(self, view: View) -> None:
        self._check_segments(len(view.rows))
        if view.topology_id > self.view.topology_id:
            self.view, self.controller = view, view.controller
            self._on_view(view)

    def _registered(self, body: dict[str, Any]) -> None:
        registration = Registration(str(body["member"]), str(body["client"]), str(body["peer"]))
        member, token = Member.parse(registration.member), str(body["token"])
        known = self.members.get(member.node_id)
        if known is None or not is_newer_process(known.member, registration.member):
            self.members[member.node_id] = registration
        if token == self.token:
            self.overwritten = False
        own = None if self.own is None else Member.parse(self.own)
        if own is not None and member.node_id == own.node_id and token != self.token:
            # Of one name the first in the log keeps it.
            newer = member.incarnation > own.incarnation - (not self._has_registered)
            self.overwritten = not newer
            if newer:
                raise NodeSuperseded(registration.member, str(own), registration.client)
        if "view" in body:
            self._view_read(decode_view(orjson.dumps(body["view"])))
        if self._first_count is None:
            self._first_count = int(body["segment_count"])
        self._has_registered |= token == self.token
        if token == self.token and not self.view.topology_id:
            # Before the first view, the first registration sets the number of segments.
            self._check_segments(self._first_count)
        self._mark(token)

    def _check_segments(self, count: int) -> None:
        if count != self._segments:
            problem = f"the cluster has {count}; use that, it never changes"
            raise ConfigError([FieldError("segment.count", problem, str(self._segments))])

    def _mark(self, mark: str) -> None:
        event = self._waiting.pop(mark, None)
        if event is not None:
            event.set()
