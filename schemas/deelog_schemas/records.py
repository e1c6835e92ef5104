"""From Kafka's bytes to a deelog record, or to an error that names topic, partition and offset.

`decode` takes what every client provides (topic, partition, offset, key, value, headers), so that the connector, the
Spark job and a plain consumer agree on which records are not deelog's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from deelog_schemas import canonical
from deelog_schemas.errors import RecordError
from deelog_schemas.header import CONTROL_HEADER_NAME, CONTROL_KINDS, HEADER_NAME, Header, Kind, unpack

ON_POSITIONS = frozenset({Kind.POSITION, Kind.POSITION_RENEWAL, Kind.RESET_STATE, Kind.CLAIM_STATE, Kind.RELEASE_STATE})
ON_CHANGES = frozenset(Kind) - ON_POSITIONS

_OF_ALL: Final[dict[str, type]] = {"epoch": int, "member": str}
_CONTROL_FIELDS: Final[dict[Kind, dict[str, type]]] = {
    Kind.CLAIM: {**_OF_ALL, "segments": int, "partitions": int},
    Kind.ACTIVE: _OF_ALL,
    Kind.RELEASE: {**_OF_ALL, "known": bool},
    Kind.RESET_BEGIN: {**_OF_ALL, "id": str, "reason": str},
    Kind.RESET_END: {**_OF_ALL, "id": str, "count": int, "digest": str},
    Kind.SKIPPED: {**_OF_ALL, "first": int},
}
"""The fields of `deelog.control` that a reader may rely on. There may be more."""

MAX_SKIPPED: Final = 1 << 20
"""The most operations that one skipped record covers: a reader may have to list them."""


class Record(NamedTuple):
    """A record of a change or positions topic.

    `key` and `value` are Kafka's bytes, still in their converter's format. `control` is the header `deelog.control`.
    It is empty unless this is a control record. Its fields by kind:

    - claim: `epoch, member, segments, partitions`; active: `epoch, member`; release: `epoch, member, known`
    - reset begin: `epoch, member, id, reason`; reset end: `epoch, member, id, count, digest`,
      and `taken_back` where it deletes keys for consumers that do not know resets: how many
    - skipped: `epoch, member, first`: it covers the operations from `first` to its own sequence, all of its epoch

    `epoch` is that of the claim, in a skipped record that of its operations. The position is in the `deelog` header.
    """

    topic: str
    partition: int
    offset: int
    header: Header
    key: bytes
    value: bytes | None
    control: dict[str, Any]


def decode(
    topic: str,
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]] | None,
    allowed: frozenset[Kind] = ON_CHANGES,
) -> Record:
    """Decodes one record; raises `RecordError` with topic, partition and offset where it is not ours.

    `allowed` are the kinds that this topic may contain.
    """
    try:
        raw, control_raw = _find(headers)
        header = unpack(raw)
        if header.kind not in allowed:
            raise RecordError(f"record kind {header.kind.name} does not belong on this topic")
        if key is None:
            raise RecordError("the record has no key")
        if value is None and (header.kind is Kind.CHANGE or header.kind is Kind.READ):
            raise RecordError(f"a {header.kind.name} record without a value: it would pass for a delete")
        control = _control(header.kind, control_raw) if header.kind in CONTROL_KINDS else {}
        if header.kind is Kind.SKIPPED and not 0 < control["first"] <= header.sequence < control["first"] + MAX_SKIPPED:
            raise RecordError(f"a SKIPPED record for operations {control['first']} to {header.sequence}")
    except RecordError as error:
        raise error.at(topic, partition, offset) from error
    return Record(topic, partition, offset, header, key, value, control)


def _control(kind: Kind, raw: bytes | None) -> dict[str, Any]:
    if raw is None:
        raise RecordError(f"a {kind.name} record without header `{CONTROL_HEADER_NAME}`")
    control = canonical.loads(raw, f"header `{CONTROL_HEADER_NAME}`")
    for name, shape in _CONTROL_FIELDS[kind].items():
        value = control.get(name)
        if type(value) is not shape or value == "":
            raise RecordError(
                f"header `{CONTROL_HEADER_NAME}` of a {kind.name} record has no {shape.__name__} `{name}`"
            )
    return control


def _find(headers: Iterable[tuple[str, bytes | None]] | None) -> tuple[bytes, bytes | None]:
    raw = control = None
    for name, content in headers or ():
        if name == HEADER_NAME:
            raw = content
        elif name == CONTROL_HEADER_NAME:
            control = content
    if raw is None:
        raise RecordError(f"the record has no header `{HEADER_NAME}`: it was not written by deelog")
    return raw, control
