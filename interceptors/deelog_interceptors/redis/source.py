"""What a position in Kafka says of the stream that it was written from: the `source` text of its record.

Numbers are counted from there: an operation's sequence is that of a position plus the changes of its segment between
the two offsets. A position names where its run begins as well, for whoever does not have all of the run.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from deelog_schemas import canonical
from deelog_schemas.errors import RecordError
from deelog_schemas.keys import SLOTS


class Anchor(NamedTuple):
    """The changes of a segment up to `offset` have the sequences up to `sequence`."""

    offset: int
    sequence: int


class Source(NamedTuple):
    """See the module."""

    id: str
    """The replication id that the offsets are of."""
    begin: Anchor
    end: Anchor
    low: int
    """All changes of the stream up to this offset, of any segment, are in Kafka."""
    database: int
    """The database of the commands behind it."""
    later: Mapping[bytes, int] = MappingProxyType({})
    """Keys with a change up to `end` that is told with one behind it; and the offset of the change that the key's row
    shows already, 0 where it is none's."""
    past: tuple[tuple[int, int], ...] = ()
    """The last sequences of epochs before the position's."""
    rank: int = 0
    """That of the server's view, by which the segment was its to write."""


def encode_source(source: Source) -> str:
    """As the record has it."""
    fields: dict[str, Any] = {
        "id": source.id,
        "from": list(source.begin),
        "to": list(source.end),
        "low": [source.low, source.database],
    }
    if source.rank:
        fields["rank"] = source.rank
    if source.past:
        fields["past"] = [list(epoch) for epoch in source.past]
    if source.later:
        fields["later"] = {base64.b64encode(key).decode(): shown for key, shown in source.later.items()}
    return canonical.dumps(fields).decode()


@lru_cache(maxsize=SLOTS)
def decode_source(text: str) -> Source:
    """What `encode_source` gave. Raises `RecordError`.

    A takeover looks at those of all segments several times.
    """
    fields = canonical.loads(text.encode(), "the source of a position")
    try:
        (begin, first), (end, last), (low, database) = fields["from"], fields["to"], fields["low"]
        later = {base64.b64decode(key, validate=True): shown for key, shown in fields.get("later", {}).items()}
        past = tuple((epoch, sequence) for epoch, sequence in fields.get("past", ()))
        rank = fields.get("rank", 0)
        numbers = (begin, first, end, last, low, database, rank, *chain.from_iterable(past), *later.values())
        if not isinstance(fields["id"], str) or any(type(number) is not int for number in numbers):
            raise ValueError("a field of another type")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RecordError(f"the source of a position is not one of a stream: {error!r}") from error
    return Source(fields["id"], Anchor(begin, first), Anchor(end, last), low, database, later, past, rank)
