"""From the core's items to Kafka's records: codec, header, tombstones. Runs in the writer's thread."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from deelog_connector.core.batch import entry_key
from deelog_connector.core.effects import ControlItem, Item, OperationsItem, RowsItem, ScannedRecord, StateItem
from deelog_connector.kafka.client import InRecord, OutRecord
from deelog_schemas import canonical
from deelog_schemas.envelope import Codec, Stamp
from deelog_schemas.header import (
    CONTROL_HEADER_NAME,
    CONTROL_KINDS,
    HEADER_NAME,
    Flags,
    Kind,
    node_number,
    pack,
)
from deelog_schemas.positions import encode_state
from deelog_schemas.records import decode


class Encoder:
    """Encodes for one change topic and its positions topic."""

    def __init__(self, codec: Codec, changes: str, positions: str, member: str, tombstones: bool) -> None:
        self._codec = codec
        self._changes, self._positions = changes, positions
        self._member, self._tombstones = member, tombstones
        self._node_id = member.rpartition("@")[0]
        self._node = node_number(member)

    def records(self, items: Sequence[Item]) -> Iterator[OutRecord]:
        """The records of one transaction, in order."""
        now_us = time.time_ns() // 1000
        for item in items:
            if isinstance(item, OperationsItem):
                yield from self._operations(item, now_us)
            elif isinstance(item, RowsItem):
                yield from self._rows(item, now_us)
            elif isinstance(item, ControlItem):
                yield self._control(item)
            else:
                yield self._state(item)

    def _operations(self, item: OperationsItem, now_us: int) -> Iterator[OutRecord]:
        segment, partition, topic = item.segment, item.partition, self._changes
        stamp = Stamp(segment, self._node_id, now_us)
        codec, node, last = self._codec, self._node, len(item.operations) - 1
        for index, operation in enumerate(item.operations):
            flags = Flags.FIRST if index == 0 else 0
            if operation.before is None:
                flags |= Flags.KEY_ONLY_BEFORE
            ends = Flags.LAST if index == last else 0
            key = codec.key(operation.key)
            buries = operation.value is None and self._tombstones
            epoch, sequence = operation.epoch, operation.sequence
            header = pack(Kind.CHANGE, flags | (0 if buries else ends), segment, epoch, sequence, node)
            yield OutRecord(topic, partition, key, codec.change(operation, stamp), [(HEADER_NAME, header)])
            if buries:
                header = pack(Kind.TOMBSTONE, ends, segment, epoch, sequence, node)
                yield OutRecord(topic, partition, key, None, [(HEADER_NAME, header)])

    def _rows(self, item: RowsItem, now_us: int) -> Iterator[OutRecord]:
        stamp = Stamp(item.segment, self._node_id, now_us)
        last = len(item.entries) - 1
        for index, entry in enumerate(item.entries):
            flags = (Flags.FIRST if index == 0 else 0) | (Flags.LAST if index == last else 0)
            snapshot = "first" if item.first and index == 0 else "last" if item.last and index == last else "true"
            header = pack(Kind.READ, flags, item.segment, *item.position, self._node)
            value = self._codec.row(entry, item.position, snapshot, item.reason, stamp)
            yield OutRecord(self._changes, item.partition, self._codec.key(entry.key), value, [(HEADER_NAME, header)])

    def _control(self, item: ControlItem) -> OutRecord:
        flags = Flags.FIRST | Flags.LAST
        header = pack(item.kind, flags, item.segment, *item.position, self._node)
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

    def scanned(self, records: Iterable[InRecord]) -> list[ScannedRecord]:
        """What the core needs of each record; tombstones tell it nothing and are left out, of rows it counts."""
        found = []
        for raw in records:
            record = decode(raw.topic, raw.partition, raw.offset, raw.key, raw.value, raw.headers)
            header = record.header
            if header.kind is Kind.TOMBSTONE:
                continue
            known = header.kind is Kind.CHANGE or header.kind in CONTROL_KINDS
            key = self._codec.decode_key(record.key) if known else b""
            found.append(
                ScannedRecord(
                    raw.offset, header.kind, header.segment, header.epoch, header.sequence, key, record.control
                )
            )
        return found
