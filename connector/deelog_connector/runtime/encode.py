"""Encodes the core's items as Kafka records: codec, header, tombstones. Runs in a thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from deelog_connector.core.batch import entry_key
from deelog_connector.core.effects import (
    ControlItem,
    Hanging,
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
    PipedItem,
    PipedOperations,
    PipedRows,
    Skipped,
    TransformedOperation,
)
from deelog_schemas import canonical
from deelog_schemas.envelope import Codec, Stamp
from deelog_schemas.errors import RecordError, RegistryError
from deelog_schemas.header import CONTROL_HEADER_NAME, HEADER_NAME, Kind, node_number, pack
from deelog_schemas.keys import control_key
from deelog_schemas.member import node_id_of
from deelog_schemas.operation import Operation
from deelog_schemas.positions import decode_state, encode_state
from deelog_schemas.records import ON_CHANGES, ON_POSITIONS, Record, decode


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
        if operation.value is None:
            self.deletes += 1
        elif operation.existed:
            self.updates += 1
        else:
            self.creates += 1
        self.captured_us = max(self.captured_us, operation.ts_us)


_CHANGE: Final = int(Kind.CHANGE)
_TOMBSTONE: Final = int(Kind.TOMBSTONE)


class Encoder:
    """Encodes for one change topic and its positions topic. `tally` is of the last encoded transaction.

    `letters` encodes dead letters, where there can be some.
    """

    def __init__(
        self,
        codec: Codec,
        changes: str,
        positions: str,
        member: str,
        tombstones: bool,
        traced: bool = False,
        letters: DeadLetterEncoder | None = None,
        *,
        clock: Clock,
    ) -> None:
        self._codec, self._traced, self._letters = codec, traced, letters
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
        segment, partition, operations = item.segment, item.partition, item.operations
        stamp = Stamp(segment, self._node_id, now_us)
        topic, node, tombstones, traced = self._changes, self._node, self.tombstones, self._traced
        key_of, value_of, updates, deletes = self._codec.key, self._codec.change, 0, 0
        for operation in operations:
            epoch, sequence, _, key, value, _, _, existed, _ = operation
            raw = key_of(key)
            headers: list[tuple[str, str | bytes | None]] = [
                (HEADER_NAME, pack(_CHANGE, segment, epoch, sequence, node))
            ]
            if traced:
                headers += operation.trace
            yield OutRecord(topic, partition, raw, value_of(operation, stamp), headers)
            if value is None:
                deletes += 1
                if tombstones:
                    header = pack(_TOMBSTONE, segment, epoch, sequence, node)
                    yield OutRecord(topic, partition, raw, None, [(HEADER_NAME, header), *headers[1:]])
            elif existed:
                updates += 1
        tally = self.tally
        tally.creates += len(operations) - updates - deletes
        tally.updates += updates
        tally.deletes += deletes
        tally.captured_us = max(tally.captured_us, operations[-1].ts_us)

    def _piped_operations(self, item: PipedOperations, now_us: int) -> Iterator[OutRecord]:
        """Encodes operations after a pipeline; without one `_operations` does it."""
        stamp = Stamp(item.segment, self._node_id, now_us)
        for part in item.parts:
            if isinstance(part, TransformedOperation):
                yield from self._transformed(item, part, stamp)
            elif isinstance(part, Skipped):
                yield self._skipped(item, part)
            else:
                yield self._dead_letter(part, item.segment, item.partition, stamp)

    def _transformed(self, item: PipedOperations, part: TransformedOperation, stamp: Stamp) -> Iterator[OutRecord]:
        topic, partition, operation = self._changes, item.partition, part.operation
        key, value = self._codec.key(operation.key), self._codec.change(operation, stamp)
        header = pack(_CHANGE, item.segment, operation.epoch, operation.sequence, self._node)
        self.tally.count(operation)
        yield OutRecord(topic, partition, key, value, [(HEADER_NAME, header), *part.headers])
        if operation.value is None and self.tombstones:
            header = pack(_TOMBSTONE, item.segment, operation.epoch, operation.sequence, self._node)
            yield OutRecord(topic, partition, key, None, [(HEADER_NAME, header), *part.headers])

    def _skipped(self, item: PipedOperations, part: Skipped) -> OutRecord:
        self._skips += 1
        header = pack(Kind.SKIPPED, item.segment, part.epoch, part.last, self._node)
        control = canonical.dumps({"epoch": part.epoch, "member": self._member, "first": part.first})
        key = self._codec.key(control_key("skipped", item.segment, self._member, self._skips))
        headers: list[tuple[str, str | bytes | None]] = [(HEADER_NAME, header), (CONTROL_HEADER_NAME, control)]
        return OutRecord(self._changes, item.partition, key, None, headers)

    def _dead_letter(self, letter: DeadLetter, segment: int, partition: int, stamp: Stamp) -> OutRecord:
        assert self._letters is not None  # the configuration has a topic where there are dead letters
        return self._letters.record(letter, self._codec, segment, partition, self._node, stamp)

    def _piped_rows(self, item: PipedRows, now_us: int) -> Iterator[OutRecord]:
        for record, headers in zip(self._rows(item.rows, now_us), item.headers, strict=True):
            record.headers.extend(headers)
            yield record
        stamp = Stamp(item.rows.segment, self._node_id, now_us)
        for letter in item.letters:
            yield self._dead_letter(letter, item.rows.segment, item.rows.partition, stamp)

    def _rows(self, item: RowsItem, now_us: int) -> Iterator[OutRecord]:
        topic, partition, codec, last = self._changes, item.partition, self._codec, len(item.entries) - 1
        stamp, header = Stamp(item.segment, self._node_id, now_us), self._header(Kind.READ, item)
        for index, entry in enumerate(item.entries):
            snapshot = "first" if item.first and index == 0 else "last" if item.last and index == last else "true"
            if item.incremental:
                snapshot = "incremental"
            value = codec.row(entry, item.position, snapshot, item.reason, stamp)
            yield OutRecord(topic, partition, codec.key(entry.key), value, [header])
        self.tally.rows += len(item.entries)

    def _taken_back(self, item: TakenBackItem, now_us: int) -> Iterator[OutRecord]:
        """Deletes for consumers that do not know resets. Their kind is that of a tombstone, at the position of the
        reset's rows: a reader that knows resets skips them there, like the tombstone of an applied delete. As changes
        they would be repeats."""
        stamp, header = Stamp(item.segment, self._node_id, now_us), self._header(Kind.TOMBSTONE, item)
        for key in item.keys:
            delete = Operation(*item.position, item.reason, key, None, None, now_us, True)
            raw = self._codec.key(key)
            yield OutRecord(self._changes, item.partition, raw, self._codec.change(delete, stamp), [header])
            if self.tombstones:
                yield OutRecord(self._changes, item.partition, raw, None, [header])

    def _control(self, item: ControlItem) -> OutRecord:
        control = (CONTROL_HEADER_NAME, canonical.dumps(item.fields))
        key = self._codec.key(entry_key(item, self._member))
        return OutRecord(self._changes, item.partition, key, None, [self._header(item.kind, item), control])

    def _state(self, item: StateItem) -> OutRecord:
        value = None if item.state is None else encode_state(item.state)
        return OutRecord(self._positions, item.partition, item.key, value, [self._header(item.kind, item)])

    def _header(
        self, kind: Kind, item: RowsItem | TakenBackItem | ControlItem | StateItem
    ) -> tuple[str, str | bytes | None]:
        return HEADER_NAME, pack(kind, item.segment, *item.position, self._node)


class Decoder:
    """Decodes what a scan reads. Raises `RecordError` with topic, partition and offset."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def scanned(self, records: Iterable[InRecord], keys: AbstractSet[int] = frozenset()) -> list[ScannedRecord]:
        """The fields of each record that the core needs. Tombstones without a value are left out, except for segments
        in `keys`: of these the core needs every key, and whether it was deleted."""
        scanned = []
        for raw in records:
            record = decode(raw.topic, raw.partition, raw.offset, raw.key, raw.value, raw.headers)
            kind, segment, epoch, sequence, _ = record.header
            wanted = segment in keys
            if kind is Kind.TOMBSTONE and record.value is None and not wanted:
                continue
            gone = wanted and self._is_gone(record)
            key = self._codec.decode_key(record.key)
            scanned.append(ScannedRecord(raw.offset, kind, segment, epoch, sequence, key, record.control, gone))
        return scanned

    def hanging(self, raw: InRecord, on_positions: bool) -> Hanging:
        """What the first record of an open transaction says of its writer."""
        kinds = ON_POSITIONS if on_positions else ON_CHANGES
        record = decode(raw.topic, raw.partition, raw.offset, raw.key, raw.value, raw.headers, kinds)
        kind, segment, epoch, _, node = record.header
        if not on_positions:
            return Hanging(segment, epoch, node, record.control.get("member", ""))
        state = decode_state(record.key, record.value, kind).state
        return Hanging(segment, epoch, node, state.member if state is not None else "")

    def _is_gone(self, record: Record) -> bool:
        kind, value = record.header.kind, record.value
        if kind is not Kind.CHANGE or value is None:
            return kind is Kind.TOMBSTONE
        try:
            return self._codec.decode_value(value).after is None
        except (RecordError, RegistryError):
            # Written in another format, or in a schema that nobody tells: taking it back again does no harm.
            return False
