"""What a plain consumer reads from a change topic: by segment, the changes and resets in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from deelog_proof.audit.topics import read_topic
from deelog_proof.conformance.history import Change, Reset, Step
from deelog_schemas.envelope import JsonCodec
from deelog_schemas.fold import SegmentReader
from deelog_schemas.header import Kind
from deelog_schemas.operation import Entry
from deelog_schemas.records import Record


@dataclass
class Observed:
    """A change topic from its first record to its end at the time of reading."""

    steps: dict[int, list[Step]] = field(default_factory=dict)
    """By segment. The changes within a reset are part of it."""
    content: dict[str, str] = field(default_factory=dict)
    """What the cache holds, by the reading rule."""
    faults: list[str] = field(default_factory=list)
    """Deletes without a tombstone, positions that were written twice, resets without an end."""


def observe(bootstrap: str, topic: str) -> Observed:
    """Reads a topic of JSON. Raises `RecordError` where a reset's digest is not that of its rows."""
    codec, observed = JsonCodec(topic, "", "", ""), Observed()
    readers: dict[int, SegmentReader] = {}
    deleted: set[bytes] = set()

    def decoded(record: Record) -> tuple[bytes, Entry | None]:
        entry = None if record.value is None else codec.decode_value(record.value).after
        return codec.decode_key(record.key), entry

    for record, _ in read_topic(bootstrap, topic):
        segment, kind = record.header.segment, record.header.kind
        reader = readers.setdefault(segment, SegmentReader(segment))
        steps = observed.steps.setdefault(segment, [])
        resets = len(reader.resets)
        reader.apply(record, decoded)
        if len(reader.resets) > resets:
            steps.append(Reset(reader.resets[-1], _text(reader)))
        if record.key in deleted and kind is not Kind.TOMBSTONE:
            observed.faults.append(f"no tombstone comes between the delete of {record.key!r} and its next record")
        deleted.discard(record.key)
        if kind is Kind.CHANGE and reader.open is None and record.value is not None:
            op, (key, entry) = codec.decode_value(record.value).op, decoded(record)
            steps.append(Change(op, key.decode(), None if entry is None else entry.value.decode()))
            if op == "d":
                deleted.add(record.key)
    observed.faults += [f"no tombstone comes after the delete of {key!r}" for key in deleted]
    for segment, reader in readers.items():
        observed.content.update(_text(reader))
        observed.faults += [f"segment {segment}: {reader.repeats} positions were written twice"] * bool(reader.repeats)
        observed.faults += [f"segment {segment}: a reset has no end"] * (reader.open is not None)
    return observed


def _text(reader: SegmentReader) -> dict[str, str]:
    return {key.decode(): entry.value.decode() for key, entry in reader.entries.items()}
