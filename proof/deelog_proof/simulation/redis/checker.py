"""Checks the topic of a run against its servers, with an independent reader and the history of the run.

The parts, by the names in a violation: `twice` (no position is committed twice), `digest` (a reset's digest is that of
its rows), `told` (each SET that the primary has kept is in the topic, or a later reset covers it), `taken` (nothing is
taken back without another primary), `limit` (nobody keeps more than it may), `alive` (after the faults end the
topic has what the primary has, in time), `broken` (an exception), `health` (then everybody is well, and one connector
alone writes), and `expected` (a count that the script expects).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from deelog_connector.kafka_port import InRecord
from deelog_interceptors.redis.values import READS, encode, encode_string
from deelog_proof.memory.log import Log
from deelog_proof.simulation.context import CHANGES
from deelog_proof.simulation.judge import Judge
from deelog_proof.simulation.redis.beside import Beside
from deelog_proof.simulation.redis.context import RedisContext
from deelog_proof.simulation.redis.server import Server
from deelog_schemas import keys
from deelog_schemas.envelope import JsonCodec
from deelog_schemas.errors import RecordError
from deelog_schemas.fold import SegmentReader
from deelog_schemas.header import Kind
from deelog_schemas.operation import Entry
from deelog_schemas.records import Record, decode

REST_SECONDS: Final = 3.0
"""So long everything must be equal: what is wrong may be written late."""

Content = dict[bytes, tuple[bytes, int | None]]
"""Value and expiry by key."""


class Term(NamedTuple):
    """A server as primary: its data is that of another term, up to an offset of that one's stream."""

    before: int
    fork: int


@dataclass(slots=True)
class Write:
    """A value that a client has set, up to an offset of a term's stream."""

    key: bytes
    value: bytes
    term: int
    offset: int
    at: float


class RedisChecker(Judge):
    """Called by the world."""

    def __init__(self, world: RedisContext) -> None:
        super().__init__(world.engine)
        self.world = world
        self._codec = JsonCodec(CHANGES, "redis", "p", "c")
        self._offsets = dict.fromkeys(range(world.partitions), 0)
        self.readers = {segment: SegmentReader(segment) for segment in range(world.segments)}
        self._told: set[tuple[bytes, bytes]] = set()
        """Key and value of all changes in the topic."""
        self._reset_at: dict[int, float] = {}
        """When the last reset of a segment ended."""
        self._writes: list[Write] = []
        self._done: list[tuple[int, int]] = []
        """Term and offset of each transaction of clients."""
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
        self._terms.append(Term(self._of_stream.get(id_, -1), offset))
        self._look()

    def _look(self) -> None:
        """Whose the ids of streams are: a primary takes a new one when its first replica comes."""
        for server in self.world.servers():
            if server.redis.primary is None and server.member in self._of_server:
                self._of_stream[server.redis.stream.id] = self._of_server[server.member]

    def written(self, server: Server, commands: Sequence[Sequence[bytes]]) -> None:
        """These commands of a client's transaction were carried out."""
        self.counts["commands"] += len(commands)
        term, offset = self._of_server[server.member], server.redis.stream.offset
        values: dict[bytes, bytes] = {}
        self._done.append((term, offset))
        for name, *words in commands:
            if name in (b"SET", b"MSET") and b"KEEPTTL" not in words:  # that one is told as an image
                pairs = words if name == b"MSET" else words[:2]
                values.update(zip(pairs[::2], pairs[1::2], strict=True))
        self._writes += [Write(key, value, term, offset, self.world.engine.now) for key, value in values.items()]

    # -- what the topic says ------------------------------------------------------------------------------------------

    def stable(self, log: Log) -> None:
        """The last stable offset of a partition moved."""
        if log.topic != CHANGES:
            return
        records, self._offsets[log.partition] = log.read(self._offsets[log.partition], 1_000_000)
        for raw in records:
            try:
                self._record(raw)
            except RecordError as error:
                self.fail("digest", str(error))

    def _record(self, raw: InRecord) -> None:
        record = decode(*raw)
        header = record.header
        reader = self.readers[header.segment]
        epoch, sequence = header.position
        self.say(f"p{raw.partition}@{raw.offset} s{header.segment} {header.kind.name} @{epoch}.{sequence}")
        self.counts[f"record {header.kind.name}"] += 1
        repeats, resets = reader.repeats, len(reader.resets)
        reader.apply(record, self._entry)
        if reader.repeats > repeats:
            self.fail("twice", f"segment {header.segment}: @{epoch}.{sequence} at {raw.partition}@{raw.offset}")
        if len(reader.resets) > resets:
            self.counts[f"reset {reader.resets[-1]}"] += 1
            self._reset_at[header.segment] = self.world.engine.now
        if header.kind is Kind.CHANGE:
            key, entry = self._entry(record)
            if entry is not None:
                self._told.add((key, entry.value))

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
        for server in self.world.servers():
            if server is not self.world.leader and not server.redis.is_linked:
                return f"{server.member} does not follow {self.world.primary}"
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
                return f"{key!r}: {self.world.primary} has {content.get(key)}, the topic {derived.get(key)}"
        return None

    def _content(self) -> Content:
        """What the primary has."""
        keyspace, content = self.world.leader.redis.keyspace, Content()
        for key, entry in keyspace.databases[0].items():
            value = encode(entry.kind, keyspace.run(0, READS[entry.kind](key), 0))
            assert value is not None
            content[key] = value, entry.expires_at
        return content

    def final(self) -> None:
        writers = [node.member for node in self.world.connectors() if node.core.primaries()]
        if len(writers) != 1:
            self.fail("health", f"there are the writers {writers}")
        kept = self._kept()
        self.counts["transactions"] += len(self._done)
        self.counts["lost by servers"] += sum(offset > kept.get(term, -1) for term, offset in self._done)
        for write in self._writes:
            if write.offset <= kept.get(write.term, -1):
                self._is_told(write)
        corrections = sum(node.core.counts.corrections for node in self.world.everybody if isinstance(node, Beside))
        if corrections and len(self._terms) == 1:
            self.fail("taken", f"{corrections} changes are taken back, and there was one primary throughout")

    def _kept(self) -> dict[int, float]:
        """By term: up to which offset of it the primary has everything."""
        term, upto, kept = self._of_server[self.world.leader.member], math.inf, dict[int, float]()
        while term >= 0:
            kept[term] = upto
            term, upto = self._terms[term]
        return kept

    def _is_told(self, write: Write) -> None:
        segment = keys.segment_of(write.key, self.world.segments)
        is_told = (write.key, encode_string(write.value)) in self._told
        if not is_told and self._reset_at.get(segment, -1.0) < write.at:
            self.fail("told", f"segment {segment}: {write} is not in the topic")
