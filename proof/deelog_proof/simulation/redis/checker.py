"""Checks the topic of a run against its servers, with an independent reader and the history of the run.

The parts, by the names in a violation: `twice` (no position is committed twice), `digest` (a reset's digest is that of
its rows), `told` (each SET and DEL that the primary has kept is in the topic, those of a key in order, or a reset of a
later place of the stream covers it), `taken` (nothing is taken back without another primary), `moved` (no key is
deleted because its slot moves), `needless` (nothing is sent anew where nobody has forgotten anything), `limit` (nobody
keeps more than it may), `guest` (no connector counts as a replica of a primary), `alive` (after the faults end the
topic has what the primary has, in time), `broken` (an exception), `health` (then everybody is well, and one connector
of each shard alone writes), and `expected` (a count that the script expects).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from deelog_connector.kafka_port import InRecord
from deelog_interceptors.redis.source import decode_source
from deelog_interceptors.redis.values import READS, encode, encode_string
from deelog_proof.memory.log import Log
from deelog_proof.memory.redis_keyspace import Reply
from deelog_proof.simulation.context import CHANGES, POSITIONS
from deelog_proof.simulation.judge import Judge
from deelog_proof.simulation.redis.beside import Beside
from deelog_proof.simulation.redis.context import RedisContext
from deelog_proof.simulation.redis.server import Server
from deelog_proof.simulation.redis.verbs import SETTINGS
from deelog_schemas import keys
from deelog_schemas.envelope import JsonCodec
from deelog_schemas.errors import RecordError
from deelog_schemas.fold import SegmentReader
from deelog_schemas.header import Kind
from deelog_schemas.operation import Entry
from deelog_schemas.positions import PositionState, decode_state
from deelog_schemas.records import ON_POSITIONS, Record, decode

REST_SECONDS: Final = 3.0
"""So long everything must be equal: what is wrong may be written late."""
_ENDLESS: Final = 1 << 63
_KEEPING: Final = (b"SET", b"MSET", b"APPEND", b"INCR", b"HSET", b"RPUSH", b"PERSIST")
"""Commands that leave what they name, but where it is to expire."""

Content = dict[bytes, tuple[bytes, int | None]]
"""Value and expiry by key."""


class Term(NamedTuple):
    """A server as primary: its data is that of another term, up to an offset of that one's stream."""

    shard: int
    before: int
    fork: int
    begin: int
    """The same in its own stream."""


class Place(NamedTuple):
    """An offset of a term's stream."""

    term: int
    offset: int


@dataclass(slots=True)
class Write:
    """A value that a client has set, or deleted (None), up to a place; `stays`: nothing of the same command ends it."""

    key: bytes
    value: bytes | None
    place: Place
    at: float
    stays: bool


class Covered(NamedTuple):
    """What a reset covers: by term up to which offset; of what came until it ended, what its rows show."""

    upto: dict[int, int]
    ended: float
    shard: int
    """Whose stream it is of; -1: nobody knows."""


class RedisChecker(Judge):
    """Called by the world."""

    def __init__(self, world: RedisContext) -> None:
        super().__init__(world.engine)
        self.world = world
        self._codec = JsonCodec(CHANGES, "redis", "p", "c")
        self._offsets: Counter[Log] = Counter()
        """A topic that is made again has other logs."""
        """How far each partition of both topics is read."""
        self.readers: dict[int, SegmentReader] = {}
        """Of the segments that have records."""
        self._told: dict[tuple[bytes, bytes], int] = {}
        """By key and value of the changes and rows in the topic, which of all was the first one."""
        self._deleted: dict[bytes, list[int]] = {}
        """By key which changes were deletes."""
        self._touched: dict[bytes, list[float]] = {}
        """When clients' commands have named a key."""
        self._ended: set[bytes] = set()
        """The keys of commands after which one may be gone."""
        self._emptied: list[float] = []
        """When they have named none, and meant all."""
        self._sources: dict[int, str] = {}
        """By segment what its last position says of the stream."""
        self._resets: dict[int, list[tuple[Place, float]]] = {}
        """By segment the places of its resets, and when they ended."""
        self._writes: list[Write] = []
        self._done: list[Place] = []
        """That of each transaction of clients."""
        self._terms: list[Term] = []
        self._of_stream: dict[str, int] = {}
        """The term of a stream's id."""
        self._of_server: dict[str, int] = {}
        """The last term of a server's process, by member."""
        self._equal_since: float | None = None

    # -- what servers do ----------------------------------------------------------------------------------------------

    def leads(self, server: Server, id_: str, offset: int) -> None:
        """A server is primary from now on; its data is that of the stream with this id, up to this offset."""
        self._look()
        self._of_server[server.member] = len(self._terms)
        shard = self.world.shard(server.node_id)
        self._terms.append(Term(shard, self._of_stream.get(id_, -1), offset, server.redis.stream.offset))
        self._look()

    def _look(self) -> None:
        """Whose the ids of streams are: a primary takes a new one when its first replica comes."""
        for server in self.world.servers():
            if server.redis.primary is None and server.member in self._of_server:
                self._of_stream[server.redis.stream.id] = self._of_server[server.member]

    def written(self, server: Server, commands: Sequence[tuple[Sequence[bytes], Reply]], asking: bool) -> None:
        """These commands of a client's transaction were carried out, and answered so.

        `asking`: for a slot that is not that server's yet. It is sent anew if it stays, else each key as it comes back.
        """
        self.counts["commands"] += len(commands)
        place = Place(self._of_server[server.member], server.redis.stream.offset)
        values, ends, now = dict[bytes, bytes | None](), set[bytes](), self.world.engine.now
        self._done.append(place)
        for (name, *words), reply in commands:
            if name in (b"SET", b"MSET") and b"KEEPTTL" not in words:  # that one is told as an image
                pairs = words if name == b"MSET" else words[:2]
                values.update(zip(pairs[::2], pairs[1::2], strict=True))
                ends = (ends - set(pairs)) | (set(words) if b"PX" in words else set())
            elif name in (b"DEL", b"UNLINK") and reply == len(words):
                values.update(dict.fromkeys(words))
            else:
                ends.update(words or values)
            for word in set(words):
                self._touched.setdefault(word, []).append(now)
            if name not in _KEEPING or b"PX" in words:
                self._ended.update(words)
            self.counts["swapped"] += name == b"SWAPDB"
            if not words or name == b"SWAPDB":
                self._emptied.append(now)
        if not asking:
            self._writes += [Write(key, value, place, now, key not in ends) for key, value in values.items()]

    # -- what the topic says ------------------------------------------------------------------------------------------

    def stable(self, log: Log) -> None:
        """The last stable offset of a partition moved."""
        if log.topic not in (CHANGES, POSITIONS):
            return
        take = self._record if log.topic == CHANGES else self._state
        records, self._offsets[log] = log.read(self._offsets[log], 1_000_000)
        for raw in records:
            try:
                take(raw)
            except RecordError as error:
                self.fail("digest", str(error))

    def _state(self, raw: InRecord) -> None:
        record = decode(*raw, ON_POSITIONS)
        what, segment, _, state = decode_state(record.key, record.value, record.header.kind)
        if isinstance(state, PositionState):
            self._sources[segment] = state.source
        elif what == "reset" and state is None:  # the position before it is that of the end
            self._look()
            source = decode_source(self._sources[segment])
            place = Place(self._of_stream.get(source.id, -1), source.end.offset)
            self._resets.setdefault(segment, []).append((place, self.world.engine.now))

    def _record(self, raw: InRecord) -> None:
        record = decode(*raw)
        header = record.header
        reader = self.readers.setdefault(header.segment, SegmentReader(header.segment))
        epoch, sequence = header.position
        self.say(f"p{raw.partition}@{raw.offset} s{header.segment} {header.kind.name} @{epoch}.{sequence}")
        self.counts[f"record {header.kind.name}"] += 1
        repeats, resets = reader.repeats, len(reader.resets)
        reader.apply(record, self._entry)
        if reader.repeats > repeats:
            self.fail("twice", f"segment {header.segment}: @{epoch}.{sequence} at {raw.partition}@{raw.offset}")
        if len(reader.resets) > resets:
            self.counts[f"reset {reader.resets[-1]}"] += 1
        if header.kind in (Kind.CHANGE, Kind.READ):
            key, entry = self._entry(record)
            number = self.counts["record CHANGE"] + self.counts["record READ"]
            if entry is None:
                self._deleted.setdefault(key, []).append(number)
                only_moved = self.world.shards > 1 and key not in self._ended and not self._emptied
                if only_moved and not self._has_failed_over:
                    self.fail("moved", f"{key!r} is deleted at {raw.partition}@{raw.offset}, and nobody has")
            else:
                self._told.setdefault((key, entry.value), number)

    def _entry(self, record: Record) -> tuple[bytes, Entry | None]:
        key = self._codec.decode_key(record.key)
        return key, None if record.value is None else self._codec.decode_value(record.value).after

    # -- what holds ---------------------------------------------------------------------------------------------------

    def sample(self) -> None:
        self._look()
        for node in self.world.connectors():
            budget = node.core.budget
            if budget.operations > budget.max_operations + budget.overdrawn:
                self.fail("limit", f"{node.member} holds {budget.operations} operations")
        for server in self.world.servers():
            if server.redis.primary is None and server.redis.acknowledged_by_guests:
                self.fail("guest", f"a connector acknowledges to {server.member}, which is primary, as a replica does")

    def looks_from_now_on(self) -> None:
        """Everything must be equal for a while from now on."""
        self._equal_since = None

    def settled(self) -> str | None:
        waits = self._waits()
        now = self.world.engine.now
        if waits is not None or self._equal_since is None:
            self._equal_since = None if waits is not None else now
        if self._equal_since is not None and now - self._equal_since < REST_SECONDS:
            return "it may not last"
        return waits

    def _waits(self) -> str | None:
        if waits := self.world.disagree():
            return waits
        leaders = self.world.leaders()
        for server in self.world.servers():
            if server not in leaders and not server.redis.is_linked:
                return f"{server.member} does not follow its primary"
        for node in self.world.connectors():
            if problems := node.redis.metrics.problems():
                return f"{node.member}: {problems}"
        for segment, reader in self.readers.items():
            if reader.open is not None:
                return f"segment {segment}: the reset {reader.open.reset_id} has no end"
        derived: Content = {}
        for reader in self.readers.values():
            derived |= {key: (entry.value, entry.expires_at) for key, entry in reader.entries.items()}
        content = self._content()
        for key in content.keys() | derived.keys():
            if content.get(key) != derived.get(key):
                return f"{key!r}: {self.world.primaries} have {content.get(key)}, the topic {derived.get(key)}"
        return None

    def _content(self) -> Content:
        """What primaries have of what is theirs."""
        content = Content()
        for leader in self.world.leaders():
            keyspace, known = leader.redis.keyspace, leader.redis.cluster
            for key, entry in keyspace.databases[0].items():
                if known is None or keys.slot_of(key) in known.me.slots:
                    value = encode(entry.kind, keyspace.run(0, READS[entry.kind](key), 0))
                    assert value is not None
                    content[key] = value, entry.expires_at
        return content

    @property
    def _has_failed_over(self) -> bool:
        """Or a primary has come back."""
        return len(self._terms) > self.world.shards

    def final(self) -> None:
        writers = [node.member for node in self.world.connectors() if node.core.primaries()]
        if len(writers) != self.world.shards:
            self.fail("health", f"there are the writers {writers}")
        self._all_is_told()
        corrections = sum(node.core.counts.corrections for node in self.world.everybody if isinstance(node, Beside))
        if corrections and not self._has_failed_over:
            self.fail("taken", f"{corrections} changes are taken back, and nobody else became primary")
        self._were_called_for()

    def _all_is_told(self) -> None:
        """Whether the topic has what clients have written and the primary has kept."""
        kept = dict[int, int]()
        for leader in self.world.leaders():
            kept |= self._up_to(Place(self._of_server[leader.member], _ENDLESS))
        self.counts["transactions"] += len(self._done)
        self.counts["lost by servers"] += sum(place.offset > kept.get(place.term, -1) for place in self._done)
        resets = {n: [self._covers(*reset) for reset in found] for n, found in self._resets.items()}
        last: dict[bytes, int] = {}
        for write in self._writes:
            if write.place.offset <= kept.get(write.place.term, -1):
                segment = keys.segment_of(write.key, self.world.segments)
                if not any(self._is_covered(write, reset) for reset in resets.get(segment, ())):
                    last[write.key] = self._is_told(segment, write, last.get(write.key, -1))

    def _were_called_for(self) -> None:
        """Whether a reset for a loss followed one; what a small backlog, or another stream, has lost is not known. That
        of the settings holds all of a run.

        A swap of databases that a connector finds on its tape when it takes over is a loss to it.
        """
        servers = [node for node in self.world.everybody if isinstance(node, Server)]
        if self.counts["swapped"]:
            return
        if self.counts["reset unknown_command"]:
            self.fail("needless", f"{self.counts['reset unknown_command']} resets for a command that nobody has sent")
        remember = (
            all(server.redis.most_backlog == SETTINGS["backlog"] for server in servers)
            and not self.world.counts["did trim"]
        )
        same = not self._has_failed_over and len(servers) == len({server.node_id for server in servers})
        remember = remember and not self.world.counts["did move"]
        if self.counts["reset stream_lost"] and remember and same:
            self.fail("needless", f"{self.counts['reset stream_lost']} resets, and the servers have forgotten nothing")

    def _up_to(self, place: Place) -> dict[int, int]:
        """By term: up to which offset of it all is before that place."""
        found = dict[int, int]()
        while place.term >= 0:
            found[place.term] = min(place.offset, found.get(place.term, _ENDLESS))
            term = self._terms[place.term]
            place = Place(term.before, term.fork if place.offset >= term.begin else place.offset)
        return found

    def _covers(self, place: Place, ended: float) -> Covered:
        return Covered(self._up_to(place), ended, self._terms[place.term].shard if place.term >= 0 else -1)

    def _is_covered(self, write: Write, reset: Covered) -> bool:
        if write.place.offset <= reset.upto.get(write.place.term, -1):
            return True
        if write.at > reset.ended:
            return False
        if self._has_failed_over and reset.shard not in (-1, self._terms[write.place.term].shard):
            return True  # what a shard has got, its replica may have lost
        # Its rows are read later than at its place. What was the last of a key by then is a row.
        touched = any(write.at < at <= reset.ended for at in (*self._touched.get(write.key, ()), *self._emptied))
        return write.value is None or not write.stays or touched

    def _is_told(self, segment: int, write: Write, after: int) -> int:
        """Which change tells of the write, behind the one that told of the key's last."""
        if write.value is None:
            number = next((number for number in self._deleted.get(write.key, ()) if number > after), -1)
        else:
            number = self._told.get((write.key, encode_string(write.value)), -1)
        if number < 0:
            self.fail("told", f"segment {segment}: {write} is not in the topic")
        elif number <= after:
            self.fail("told", f"segment {segment}: {write} is told before what came before it")
        return number
