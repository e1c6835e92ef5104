"""Records of a change topic, all of segment 3, as a plain consumer reads them."""

from __future__ import annotations

from typing import Any

from deelog_proof.audit.topics import Read
from deelog_schemas import canonical
from deelog_schemas.envelope import JsonCodec, Stamp
from deelog_schemas.header import CONTROL_HEADER_NAME, HEADER_NAME, Kind, pack
from deelog_schemas.keys import control_key
from deelog_schemas.operation import Entry, Operation
from deelog_schemas.records import Record, decode

TOPIC = "demo.sessions"
CODEC = JsonCodec(TOPIC, "grid", "demo", "sessions")
STAMP = Stamp(3, "n1", 1_000_000)


def record(kind: Kind, position: tuple[int, int], key: bytes, value: bytes | None, told: Any = None) -> Record:
    headers: list[tuple[str, bytes | None]] = [(HEADER_NAME, pack(kind, 3, *position, 0))]
    if told is not None:
        headers.append((CONTROL_HEADER_NAME, canonical.dumps(told)))
    return decode(TOPIC, 0, 0, key, value, headers)


def change(position: tuple[int, int], key: bytes, value: bytes | None, reason: str = "put") -> Read:
    operation = Operation(*position, reason, key, value, None, 777, value is None)
    return Read(record(Kind.CHANGE, position, CODEC.key(key), CODEC.change(operation, STAMP)), 50)


def tombstone(position: tuple[int, int], key: bytes) -> Read:
    return Read(record(Kind.TOMBSTONE, position, CODEC.key(key), None), 50)


def row(position: tuple[int, int], key: bytes, value: bytes) -> Read:
    raw = CODEC.row(Entry(key, value, None), position, "true", "overflow", STAMP)
    return Read(record(Kind.READ, position, CODEC.key(key), raw), 50)


def control(kind: Kind, position: tuple[int, int], at_ms: int, **told: Any) -> Read:
    key = CODEC.key(control_key(kind.name.lower(), 3, "n1@1", 1))
    return Read(record(kind, position, key, None, {"epoch": position[0], "member": "n1@1", **told}), at_ms)
