"""The frames between nodes: a length of four bytes, big-endian, and one MessagePack value.

The dialling node speaks as a primary, or as a member that reports to the controller. The dialled node answers on the
same connection, so that requests, stream and answers keep their order and end together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from deelog_connector.cache_side import History
from deelog_interceptors.grid.topology.requests import Request
from deelog_schemas.errors import DeelogError
from deelog_schemas.operation import Entry, Operation

LENGTH_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 64 << 20
CHUNK_BYTES: Final = 1 << 20
"""Target size of a frame in bytes; a single entry may exceed it."""


class FrameError(DeelogError):
    """The other side does not speak this protocol, or serves another cache; the connection is closed."""


class Frame(msgspec.Struct, tag=True, array_like=True, gc=False):
    """Base of all frames."""


class Hello(Frame):
    """The first frame of the dialling node. `cluster` is the change topic's name."""

    cluster: str
    member: str
    segments: int


class Welcome(Frame):
    """The answer to Hello: the member that listens here."""

    member: str


class Heartbeat(Frame):
    """To the controller: the sender lives, has read this view, and makes these requests."""

    number: int
    topology_id: int
    leaving: bool
    requests: list[Request]


class Heard(Frame):
    """From the controller: heartbeat `number` was heard in this view. It renews the lease."""

    number: int
    topology_id: int


class Ask(Frame):
    """From a primary: report what you hold of these segments, `(segment, epoch)`."""

    topology_id: int
    items: list[tuple[int, int]]


class Report(Frame):
    """From a backup: what it holds in this epoch's view. It replaces what the segment was streamed before."""

    topology_id: int
    segment: int
    epoch: int
    history: History


class Diverged(Frame):
    """From a primary: which keys did the backup's operations after `point` change? The primary does not have them."""

    segment: int
    epoch: int
    point: int


class Wanted(Frame):
    """From a backup: these keys. None: they are unknown, and the whole state is needed."""

    segment: int
    epoch: int
    point: int
    keys: list[bytes] | None


class Patch(Frame):
    """From a primary, in one step: drop operations after `point`, set these keys (None: remove), apply `operations`.

    The values are the primary's after `operations`. Catch-up by operations begins with this frame.
    """

    topology_id: int
    segment: int
    epoch: int
    point: int
    history: History
    values: list[tuple[bytes, bytes | None, int | None]]
    operations: list[Operation]


class StateChunk(Frame):
    """From a primary: a part of the state as of `cut`. `first` starts a new state, `last` swaps it in."""

    topology_id: int
    segment: int
    epoch: int
    cut: int
    history: History
    first: bool
    last: bool
    entries: list[Entry]


class Batch(NamedTuple):
    """Operations of one segment in sequence order."""

    segment: int
    epoch: int
    operations: list[Operation]


class Replicate(Frame):
    """From a primary: operations; each batch is an encoded `Batch`, shared by all backups that get it."""

    topology_id: int
    batches: list[msgspec.Raw]


class Answers(Frame):
    """From a backup: `(segment, epoch, highest sequence applied)`."""

    topology_id: int
    items: list[tuple[int, int, int]]


class Refused(Frame):
    """From a backup: frames for these segments are refused. They are of an older view, or it is no backup of theirs."""

    topology_id: int
    items: list[tuple[int, int]]


AnyFrame = (
    Hello
    | Welcome
    | Heartbeat
    | Heard
    | Ask
    | Report
    | Diverged
    | Wanted
    | Patch
    | StateChunk
    | Replicate
    | Answers
    | Refused
)

_UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyFrame] = msgspec.msgpack.Decoder(AnyFrame)
_batches: msgspec.msgpack.Decoder[Batch] = msgspec.msgpack.Decoder(Batch)


def encode_batch(segment: int, epoch: int, operations: list[Operation]) -> msgspec.Raw:
    """An encoded batch, which several frames may share."""
    return msgspec.Raw(_encoder.encode(Batch(segment, epoch, operations)))


def decode_batch(raw: msgspec.Raw) -> Batch:
    """Raises `FrameError`."""
    try:
        return _batches.decode(raw)
    except _UNDECODABLE as error:
        raise FrameError(f"not a batch of operations: {error}") from error


def encode(frame: AnyFrame) -> bytes:
    """A frame with its length."""
    body = _encoder.encode(frame)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def fitting(operations: Sequence[Operation], most: int) -> int:
    """How many of these operations a frame may have: `most`, and no more bytes than `CHUNK_BYTES` but for the last."""
    size = 0
    for count, operation in enumerate(operations[:most], 1):
        size += operation.size
        if size >= CHUNK_BYTES:
            return count
    return min(len(operations), most)


async def read(reader: asyncio.StreamReader, segments: int) -> AnyFrame:
    """The next frame, with the numbers of `segments` segments in it but for the batches.

    Raises `FrameError`, and `asyncio.IncompleteReadError` or `OSError` where the connection ends.
    """
    size = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    if size > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {size} bytes; at most {MAX_FRAME_BYTES} are taken")
    body = await reader.readexactly(size)
    try:
        frame = _decoder.decode(body)
    except _UNDECODABLE as error:
        raise FrameError(f"not a frame: {error}") from error
    for number in _numbers(frame):
        if not 0 <= number < segments:
            raise FrameError(f"segment {number} of {segments}")
    return frame


def _numbers(frame: AnyFrame) -> Iterable[int]:
    match frame:
        case Ask() | Answers() | Refused():
            return (item[0] for item in frame.items)
        case Heartbeat():
            return (request.segment for request in frame.requests)
        case Report() | Diverged() | Wanted() | Patch() | StateChunk():
            return (frame.segment,)
    return ()
