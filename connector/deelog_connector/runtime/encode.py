"""Encodes the core's items as Kafka records: codec, header, tombstones. Runs in a thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from deelog_connector.core.batch import entry_key
from deelog_connector.core.effects import (
    ControlItem,
    OperationsItem,
    RowsItem,
    ScannedRecord,
    StateItem,
    TakenBackItem,
)
from deelog_connector.kafka_port import Clock, InRecord, OutRecord
from deelog_connector.transforms.dead_letters import DeadLetterEncoder
from deelog_connector.transforms.pipeline import (
    DeadLetter,
    Headers,
    PipedItem,
    PipedOperations,
    PipedRows,
    Skipped,
    TransformedOperation,
)
from deelog_schemas import canonical
from deelog_schemas.envelope import Codec, Stamp
from deelog_schemas.errors import RecordError
from deelog_schemas.header import (
    CONTROL_HEADER_NAME,
    CONTROL_KINDS,
    HEADER_NAME,
    Flags,
    Kind,
    node_number,
    pack,
)
from deelog_schemas.keys import control_key
from deelog_schemas.member import node_id_of
from deelog_schemas.operation import Operation
from deelog_schemas.positions import encode_state
from deelog_schemas.records import Record, decode


@dataclass(slots=True)
class Tally:
    """The content of a transaction, for the metrics, which count it once it is committed."""

    creates: int = 0
    updates: int = 0
    deletes: int = 0
    rows: int = 0
    captured_us: int = 0
    """When the newest of its operations was captured, Unix microseconds; 0 for none."""
    encoded_us: int = 0
    """When the transaction was encoded."""

    def count(self, operation: Operation) -> None:
        """Counts an operation."""
        self.deletes += operation.value is None
        self.updates += operation.existed and operation.value is not None
        self.creates += not operation.existed and operation.value is not None
        self.captured_us = max(self.captured_us, operation.ts_us)


_ALONE: Final = Flags.FIRST | Flags.LAST


class Encoder:
    """Encodes for one change topic and its positions topic. `tally` is of the last encoded transaction.

    `context` are headers of every record of an entry; only items of a pipeline have them. `letters`
    encodes dead letters, where there can be some.
    """

    def __init__(
        self,
        codec: Codec,
        changes: str,
        positions: str,
        member: str,
        tombstones: bool,
        traced: bool = False,
        context: Headers = (),
        letters: DeadLetterEncoder | None = None,
        *,
        clock: Clock,
    ) -> None:
        self._codec, self._traced, self._context, self._letters = codec, traced, context, letters
        self.tally = Tally()
        self._clock = clock
        self._skips = 0
        self._changes, self._positions = changes, positions
        self._member, self.tombstones = member, tombstones
        self._node_id = node_id_of(member)
        self._node = node_number(member)

    def records(self, items: Sequence[PipedItem]) -> Iterator[OutRecord]:
        """The records of one transaction, in order."""
        now_us = self._clock.time_ns() // 1000
        self.tally = Tally(encoded_us=now_us)
        for item in items:
            if isinstance(item, OperationsItem):
                yield from self._operations(item, now_us)
            elif isinstance(item, RowsItem):
                yield from self._rows(item, now_us)
            elif isinstance(item, TakenBackItem):
                yield from self._taken_back(item, now_us)
            elif isinstance(item, ControlItem):
                yield self._control(item)
            elif isinstance(item, StateItem):
                yield self._state(item)
            elif isinstance(item, PipedOperations):
                yield from self._piped_operations(item, now_us)
            else:
                yield from self._piped_rows(item, now_us)

    def _operations(self, item: OperationsItem, now_us: int) -> Iterator[OutRecord]:
        segment, partition, topic = item.segment, item.partition, self._changes
        stamp = Stamp(segment, self._node_id, now_us)
        codec, node, last, tombstones = self._codec, self._node, len(item.operations) - 1, self.tombstones
        traced, updates, deletes = self._traced, 0, 0
        for index, operation in enumerate(item.operations):
            flags = Flags.FIRST if index == 0 else 0
            if operation.before is None:
                flags |= Flags.KEY_ONLY_BEFORE
            ends = Flags.LAST if index == last else 0
            key = codec.key(operation.key)
            gone = operation.value is None
            if gone:
                deletes += 1
            elif operation.existed:
                updates += 1
            buries = gone and tombstones
            epoch, sequence = operation.epoch, operation.sequence
            header = pack(Kind.CHANGE, flags | (0 if buries else ends), segment, epoch, sequence, node)
            headers: list[tuple[str, str | bytes | None]] = [(HEADER_NAME, header)]
            if traced:
                headers += operation.trace
            yield OutRecord(topic, partition, key, codec.change(operation, stamp), headers)
            if buries:
                header = pack(Kind.TOMBSTONE, ends, segment, epoch, sequence, node)
                yield OutRecord(topic, partition, key, None, [(HEADER_NAME, header), *headers[1:]])
        tally = self.tally
        tally.creates += last + 1 - updates - deletes
        tally.updates += updates
        tally.deletes += deletes
        tally.captured_us = max(tally.captured_us, item.operations[last].ts_us)

    def _piped_operations(self, item: PipedOperations, now_us: int) -> Iterator[OutRecord]:
        """Encodes operations after a pipeline; without one `_operations` does it."""
        stamp = Stamp(item.segment, self._node_id, now_us)
        last = len(item.parts) - 1
        for index, part in enumerate(item.parts):
            begins, ends = Flags.FIRST if index == 0 else 0, Flags.LAST if index == last else 0
            if isinstance(part, TransformedOperation):
                yield from self._transformed(item, part, begins, ends, stamp)
            elif isinstance(part, Skipped):
                yield self._skipped(item, part, begins | ends)
            else:
                yield self._dead_letter(part, item.segment, item.partition, stamp)

    def _transformed(
        self, item: PipedOperations, part: TransformedOperation, begins: int, ends: int, stamp: Stamp
    ) -> Iterator[OutRecord]:
        topic, partition, operation = self._changes, item.partition, part.operation
        flags = begins | (Flags.KEY_ONLY_BEFORE if operation.before is None else 0)
        key, value = self._codec.key(operation.key), self._codec.change(operation, stamp)
        buries = operation.value is None and self.tombstones
        header = pack(Kind.CHANGE, flags | (0 if buries else ends), item.segment, *operation.position, self._node)
        more = (*self._context, *part.headers)
        self.tally.count(operation)
        yield OutRecord(topic, partition, key, value, [(HEADER_NAME, header), *more])
        if buries:
            header = pack(Kind.TOMBSTONE, ends, item.segment, *operation.position, self._node)
            yield OutRecord(topic, partition, key, None, [(HEADER_NAME, header), *more])

    def _skipped(self, item: PipedOperations, part: Skipped, flags: int) -> OutRecord:
        self._skips += 1
        header = pack(Kind.SKIPPED, flags, item.segment, part.epoch, part.last, self._node)
        control = canonical.dumps({"epoch": part.epoch, "member": self._member, "first": part.first})
        key = self._codec.key(control_key("skipped", item.segment, self._member, self._skips))
        headers: list[tuple[str, str | bytes | None]] = [(HEADER_NAME, header), (CONTROL_HEADER_NAME, control)]
        return OutRecord(self._changes, item.partition, key, None, headers)

    def _dead_letter(self, letter: DeadLetter, segment: int, partition: int, stamp: Stamp) -> OutRecord:
        assert self._letters is not None  # the configuration has a topic where there are dead letters
        return self._letters.record(letter, self._codec, segment, partition, self._node, stamp)

    def _piped_rows(self, item: PipedRows, now_us: int) -> Iterator[OutRecord]:
        for record, headers in zip(self._rows(item.rows, now_us), item.headers, strict=True):
            record.headers.extend((*self._context, *headers))
            yield record
        stamp = Stamp(item.rows.segment, self._node_id, now_us)
        for letter in item.letters:
            yield self._dead_letter(letter, item.rows.segment, item.rows.partition, stamp)

    def _rows(self, item: RowsItem, now_us: int) -> Iterator[OutRecord]:
        stamp = Stamp(item.segment, self._node_id, now_us)
        last = len(item.entries) - 1
        for index, entry in enumerate(item.entries):
            flags = (Flags.FIRST if index == 0 else 0) | (Flags.LAST if index == last else 0)
            snapshot = "first" if item.first and index == 0 else "last" if item.last and index == last else "true"
            if item.incremental:
                snapshot = "incremental"
            header = pack(Kind.READ, flags, item.segment, *item.position, self._node)
            value = self._codec.row(entry, item.position, snapshot, item.reason, stamp)
            yield OutRecord(self._changes, item.partition, self._codec.key(entry.key), value, [(HEADER_NAME, header)])
        self.tally.rows += len(item.entries)

    def _taken_back(self, item: TakenBackItem, now_us: int) -> Iterator[OutRecord]:
        """Deletes for consumers that do not know resets. Their kind is that of a tombstone, at the position of the
        reset's rows: a reader that knows resets skips them there, like the tombstone of an applied delete. As changes
        they would be repeats."""
        stamp = Stamp(item.segment, self._node_id, now_us)
        last = len(item.keys) - 1
        for index, key in enumerate(item.keys):
            flags = (Flags.FIRST if index == 0 else 0) | (Flags.LAST if index == last else 0)
            delete = Operation(*item.position, item.reason, key, None, None, now_us, True)
            raw = self._codec.key(key)
            header = pack(Kind.TOMBSTONE, flags | Flags.KEY_ONLY_BEFORE, item.segment, *item.position, self._node)
            value = self._codec.change(delete, stamp)
            yield OutRecord(self._changes, item.partition, raw, value, [(HEADER_NAME, header)])
            if self.tombstones:
                header = pack(Kind.TOMBSTONE, flags, item.segment, *item.position, self._node)
                yield OutRecord(self._changes, item.partition, raw, None, [(HEADER_NAME, header)])

    def _control(self, item: ControlItem) -> OutRecord:
        header = pack(item.kind, _ALONE, item.segment, *item.position, self._node)
        headers: list[tuple[str, str | bytes | None]] = [
            (HEADER_NAME, header),
            (CONTROL_HEADER_NAME, canonical.dumps(item.fields)),
        ]
        key = self._codec.key(entry_key(item, self._member))
        return OutRecord(self._changes, item.partition, key, None, headers)

    def _state(self, item: StateItem) -> OutRecord:
        header = pack(item.kind, 0, item.segment, *item.position, self._node)
        value = None if item.state is None else encode_state(item.state)
        return OutRecord(self._positions, item.partition, item.key, value, [(HEADER_NAME, header)])


class Decoder:
    """Decodes what a scan reads. Raises `RecordError` with topic, partition and offset."""

    def __init__(self, codec: Codec, segments: int) -> None:
        self._codec, self._segments = codec, segments

    def scanned(self, records: Iterable[InRecord], keys: AbstractSet[int] = frozenset()) -> list[ScannedRecord]:
        """The fields of each record that the core needs. Tombstones without a value are left out, except for segments
        in `keys`: of these the core needs every key, and whether it was deleted."""
        scanned = []
        for raw in records:
            record = decode(raw.topic, raw.partition, raw.offset, raw.key, raw.value, raw.headers)
            kind, _, segment, epoch, sequence, _ = record.header
            wanted = segment in keys and kind not in CONTROL_KINDS
            if kind is Kind.TOMBSTONE and record.value is None and not wanted:
                continue
            gone = wanted and self._is_gone(record)
            key = self._codec.decode_key(record.key)
            scanned.append(ScannedRecord(raw.offset, kind, segment, epoch, sequence, key, record.control, gone))
        return scanned

    def _is_gone(self, record: Record) -> bool:
        kind, value = record.header.kind, record.value
        if kind is not Kind.CHANGE or value is None:
            return kind is Kind.TOMBSTONE
        try:
            return self._codec.decode_value(value).after is None
        except RecordError:
            return False  # written in another format: taking back a deleted key again does no harm
