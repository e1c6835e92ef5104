"""The records of the positions topic: typed, and as canonical JSON.

The positions topic keeps what must survive the compaction of the change topic. Its keys are UTF-8 text (`keys.py`),
its values canonical JSON, and each record carries the `deelog` header. A null value removes its key.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, get_type_hints

from deelog_schemas import canonical
from deelog_schemas.errors import RecordError, shown
from deelog_schemas.header import Kind, Position


class ClaimState(NamedTuple):
    """`claim/<segment>/<member>`: a member claimed a segment, and no member that fenced it is active yet.

    `prefix` and `cache` are its `topic.prefix` and `cache.name`: other names may give the same topic. `segments` and
    `partitions` are its segment map. Other names and another map are refused. `number` distinguishes the claimant's own
    records: one is written with its CLAIM and another with each ACTIVE, and they are read back. `spare`: whoever
    supersedes it has to fence its spare producer, and not the other one. `highest`: the highest epoch that the claimant
    knew of, where that is another one: of a topic that is made again no other record may tell it. A version that does
    not know these two refuses them.
    """

    epoch: int
    member: str
    prefix: str
    cache: str
    segments: int
    partitions: int
    number: int
    spare: bool = False
    highest: int = 0


class PositionState(NamedTuple):
    """`position/<segment>`: the written position, and where a reader may begin.

    `read_from`: every record of the segment below this offset is in the history of every in-sync owner. All sequences
    above `read_from_sequence` are at that offset or after it, so a reader that begins there knows which it must find.
    Of those at or below `coalesced_to`, later ones replaced at most `coalesced`; of those above it none.
    `base_offset`: the offset where the last completed reset begins. `leader_epoch` is the partition's when an owner saw
    the log up to `read_from`; `topic_id` is as last read from Kafka. `source`: where that is in the cache's own stream,
    in words of its interceptor; nobody else reads it.
    """

    epoch: int
    sequence: int
    read_from: int
    read_from_sequence: int
    coalesced_to: int
    coalesced: int
    base_offset: int
    leader_epoch: int
    topic_id: str
    member: str
    source: str = ""

    @property
    def position(self) -> Position:
        return self.epoch, self.sequence


class ResetState(NamedTuple):
    """`reset/<segment>`: an open reset. `begin_offset` is -1 until its begin was read back."""

    reset_id: str
    epoch: int
    sequence: int
    reason: str
    begin_offset: int
    member: str


class ReleaseState(NamedTuple):
    """`release/<segment>`: the last position at a clean handover or stop; `known` is false before DECIDE.

    `highest` as in a claim, whose place it takes.
    """

    epoch: int
    sequence: int
    member: str
    known: bool
    highest: int = 0


State = ClaimState | PositionState | ResetState | ReleaseState

_BY_PREFIX: Final[dict[str, tuple[Kind, type[Any]]]] = {
    "claim": (Kind.CLAIM_STATE, ClaimState),
    "position": (Kind.POSITION, PositionState),
    "reset": (Kind.RESET_STATE, ResetState),
    "release": (Kind.RELEASE_STATE, ReleaseState),
}
_SEGMENTS: Final = range(1 << 32)  # what the header's field holds
_FIELDS: Final[dict[type[Any], dict[str, type]]] = {shape: get_type_hints(shape) for _, shape in _BY_PREFIX.values()}
_TYPES: Final = {shape: [*fields.values()] for shape, fields in _FIELDS.items()}


def encode_state(state: State) -> bytes:
    """Canonical JSON of a state, without what is as by default."""
    fields = state._asdict()
    for name, default in state._field_defaults.items():
        if fields[name] == default:
            del fields[name]
    return canonical.dumps(fields)


class StateRecord(NamedTuple):
    """A decoded record of the positions topic. `state` is None where the key is removed."""

    what: str
    """`claim`, `position`, `reset` or `release`."""
    segment: int
    member: str
    """The member in a claim's key, else empty."""
    state: State | None


def decode_state(key: bytes, value: bytes | None, kind: Kind) -> StateRecord:
    """Decodes key and value; raises `RecordError` where they are not ours or do not fit the header's kind."""
    try:
        what, segment, *rest = key.decode().split("/", 2)
        expected, shape = _BY_PREFIX[what]
        number = int(segment)
        if segment != str(number) or number not in _SEGMENTS:  # `int` also takes signs, blanks and underscores
            raise ValueError(f"segment {segment!r}")
        if len(rest) != (what == "claim") or "" in rest:
            raise ValueError("a claim's key ends in its member, no other key has one")
        if kind is not expected and (what, kind) != ("position", Kind.POSITION_RENEWAL):
            raise ValueError(f"kind {kind.name}")
    except (ValueError, KeyError) as error:
        raise RecordError(f"key {key!r} is not one of a positions topic ({error})") from error
    member = rest[0] if rest else ""
    state = None if value is None else _state(shape, value, f"the value of {key!r}")
    if isinstance(state, ClaimState) and state.member != member:
        raise RecordError(f"the value of {key!r} is a claim of another member, {state.member!r}")
    return StateRecord(what, number, member, state)


def _state(shape: type[Any], value: bytes, what: str) -> State:
    content, fields = canonical.loads(value, what), _FIELDS[shape]
    if shape._field_defaults:
        content = shape._field_defaults | content
    if content.keys() != fields.keys():
        raise RecordError(f"{what} has the fields {sorted(content)}, not those of {shape.__name__}: {sorted(fields)}")
    values = [content[name] for name in fields]
    if [*map(type, values)] != _TYPES[shape]:  # not isinstance: true is no int
        wrong = next(name for name, kind in fields.items() if type(content[name]) is not kind)
        raise RecordError(f"{what} has in `{wrong}` no {fields[wrong].__name__} but {shown(content[wrong])}")
    state: State = shape._make(values)
    return state
