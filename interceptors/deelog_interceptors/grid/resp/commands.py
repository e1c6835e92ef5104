"""The table of commands: name, arity, position of the keys, and handler of each.

Weighed in docs/decisions.md, "Commands are a table".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from deelog_interceptors.grid.data.pending import Pending
from deelog_interceptors.grid.data.segment import Role, Segment
from deelog_interceptors.grid.resp import replies
from deelog_interceptors.grid.resp.connection import MOVES, Blocked, Connection
from deelog_interceptors.grid.resp.host import Host
from deelog_schemas.keys import slot_of
from deelog_schemas.operation import OVERHEAD

Reply = bytes | Pending

WRITE: Final = "write"
READONLY: Final = "readonly"

_NO_INTEGER: Final = "ERR value is not an integer or out of range"


class CommandError(Exception):
    """The message is the reply to the client; its first word is the error code."""


@dataclass(slots=True)
class Call:
    """A command being run. `segment` is the keys' segment, for commands that have keys."""

    node: Host
    connection: Connection
    arguments: list[bytes]
    segment: Segment

    @property
    def null(self) -> bytes:
        return self.connection.null

    def room(self, *sizes: int) -> None:
        """Prepares a write: `Blocked` unless payloads of these sizes may be captured and replicated now."""
        self.node.prepare(self.segment, self.size_of(*sizes))

    def size_of(self, *sizes: int) -> int:
        """What payloads of these sizes take in the op log. Raises `CommandError` where it never has so much room."""
        size, most = sum(sizes) + OVERHEAD * len(sizes), self.node.store.core.budget.max_bytes
        if size > most:
            raise CommandError(
                f"ERR captured, this takes {size} bytes, and max.queue.size.in.bytes is {most}: split it"
            )
        return size

    def acked(self, reply: bytes, sequence: int) -> Reply:
        """The reply, once the segment's operations up to `sequence` are acknowledged."""
        return self.node.replicator.reply(self.connection, reply, ((self.segment, sequence),))


Handler = Callable[[Call], Reply]


@dataclass(frozen=True, slots=True)
class Command:
    """As in Redis' COMMAND: `arity` counts the name, negative means at least; keys are at first, first+step … last."""

    name: str
    arity: int
    flags: tuple[str, ...]
    first: int
    last: int
    step: int
    handler: Handler
    tips: tuple[str, ...] = ()
    """How a client sends it to shards and combines the replies."""


EACH_SHARD_SUM: Final = ("request_policy:all_shards", "response_policy:agg_sum")
EACH_SHARD_OK: Final = ("request_policy:all_shards", "response_policy:all_succeeded")
BY_KEY: Final = ("request_policy:multi_shard",)
BY_KEY_SUM: Final = ("request_policy:multi_shard", "response_policy:agg_sum")

TABLE: Final[dict[bytes, Command]] = {}


def command(
    name: str, arity: int, *flags: str, first: int = 0, last: int | None = None, tips: tuple[str, ...] = ()
) -> Callable[[Handler], Handler]:
    """Adds a handler to the table. `last` defaults to `first`; negative counts from the end."""

    def register(handler: Handler) -> Handler:
        last_key = first if last is None else last
        TABLE[name.encode()] = Command(name, arity, flags, first, last_key, 1 if first else 0, handler, tips)
        return handler

    return register


def integer_of(text: bytes) -> int:
    """An argument that is a 64-bit integer, as Redis takes it. Raises `CommandError`."""
    try:
        number = int(text)
    except ValueError:
        raise CommandError(_NO_INTEGER) from None
    if not -(2**63) <= number < 2**63 or text != b"%d" % number:
        raise CommandError(_NO_INTEGER)
    return number


def unknown_subcommand(call: Call) -> bytes:
    """The reply for an unknown subcommand."""
    name, sub = (argument[:128].decode(errors="replace") for argument in call.arguments[:2])
    return replies.error(f"ERR unknown subcommand '{sub}'. Try {name.upper()} HELP.")


def keys_of(spec: Command, arguments: list[bytes]) -> list[bytes]:
    """The keys among the arguments of a command that has some."""
    last = spec.last if spec.last >= 0 else len(arguments) + spec.last
    return arguments[spec.first : last + 1 : spec.step]


class Dispatcher:
    """Runs commands for the connections of one node."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._segments = node.store.segments
        self._nowhere = Segment(-1)

    def __call__(self, connection: Connection, arguments: list[bytes]) -> Reply:
        """See `connection.Execute`."""
        spec = TABLE.get(arguments[0]) or TABLE.get(arguments[0].upper())
        if spec is None:
            name = arguments[0][:128].decode(errors="replace")
            given = "".join(f"'{a[:128].decode(errors='replace')}' " for a in arguments[1:9])
            return replies.error(f"ERR unknown command '{name}', with args beginning with: {given}")
        count = len(arguments)
        if count != spec.arity if spec.arity > 0 else count < -spec.arity:
            return replies.error(f"ERR wrong number of arguments for '{spec.name.lower()}' command")
        segment = self._nowhere
        if spec.first:
            keys = keys_of(spec, arguments)
            slot = slot_of(keys[0])
            for key in keys[1:]:
                if slot_of(key) != slot:
                    return replies.error("CROSSSLOT Keys in request don't hash to the same slot")
            segment = self._segments[slot * len(self._segments) >> 14]
            problem = self._not_here(segment, slot, connection, spec)
            if problem is not None:
                return problem
        try:
            return spec.handler(Call(self._node, connection, arguments, segment))
        except CommandError as error:
            return replies.error(str(error))

    def _not_here(self, segment: Segment, slot: int, connection: Connection, spec: Command) -> bytes | None:
        if segment.role is Role.PRIMARY:
            if segment.closed and WRITE in spec.flags:
                raise Blocked(MOVES, self._node.role_changed)
            return None
        if segment.role is Role.BACKUP:
            # One that is not in sync may have nothing yet, or what was.
            if connection.readonly and READONLY in spec.flags and self._node.member in segment.in_sync:
                return None
            # Often the old primary redirects the client here before this node has read the view. Wait for it a little,
            # or the two nodes would redirect the client to one another until it gives up. Once for all that came
            # together, or a pipeline that was sent by an old map of the slots waits for each of its commands.
            if not connection.waited:
                connection.waited = True
                raise Blocked(MOVES, self._node.role_changed_soon)
        address = self._node.view.client_address(segment.primary)
        if address is None:
            return replies.error("CLUSTERDOWN Hash slot not served")
        return replies.error(f"MOVED {slot} {address}")


def command_info(spec: Command) -> bytes:
    """One element of COMMAND's reply."""
    flags = replies.array(replies.simple(flag) for flag in spec.flags)
    numbers = (spec.arity, spec.first, spec.last, spec.step)
    arity, *positions = (replies.integer(number) for number in numbers)
    empty, tips = replies.array(()), replies.array(replies.bulk(tip) for tip in spec.tips)
    return replies.array([replies.bulk(spec.name.lower()), arity, flags, *positions, empty, tips, empty, empty])


def commands(names: Iterable[bytes] | None = None) -> bytes:
    """COMMAND's reply for these names, by default for all."""
    if names is None:
        return replies.array(command_info(spec) for spec in TABLE.values())
    specs = [TABLE.get(name.upper()) for name in names]
    return replies.array(replies.NULL2 if spec is None else command_info(spec) for spec in specs)
