"""What nodes say to one another: one MessagePack value per frame, behind its length as four bytes, big-endian.

Whoever dials a node speaks as a primary or as a member that reports to the controller; the dialled node answers on
the same connection, so that question, stream and answer keep their order and end together.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

import msgspec

from deelog_connector.cache_side import History
from deelog_interceptors.grid.topology.requests import Request
from deelog_schemas.errors import DeelogError
from deelog_schemas.operation import Entry, Operation

MAX_FRAME_BYTES: Final = 64 << 20
CHUNK_BYTES: Final = 1 << 20
"""Frames are made about this large; one entry may make one larger."""


class FrameError(DeelogError):
    """The other side does not speak this protocol, or not of this cache; the connection is closed."""


class Frame(msgspec.Struct, tag=True, array_like=True, gc=False):
    """Base of all frames."""


class Hello(Frame):
    """First frame of whoever dials. `cluster` is the change topic's name."""

    cluster: str
    member: str
    segments: int


class Welcome(Frame):
    """The answer to Hello: who is really here."""

    member: str


class Heartbeat(Frame):
    """To the controller: the sender lives, knows this view, and asks for this."""

    number: int
    topology_id: int
    leaving: bool
    requests: list[Request]


class Heard(Frame):
    """From the controller: heartbeat `number` was heard, when the last view was this one. It renews the lease."""

    number: int
    topology_id: int


class Ask(Frame):
    """From a primary: report what you hold of these segments, `(segment, epoch)`."""

    topology_id: int
    items: list[tuple[int, int]]


class Report(Frame):
    """From a backup: what it holds in this epoch's view. Whatever was streamed for the segment before is void."""

    topology_id: int
    segment: int
    epoch: int
    history: History


class Diverged(Frame):
    """From a primary: you hold operations beyond `point` that I have not; which keys did they touch?"""

    segment: int
    epoch: int
    point: int


class Wanted(Frame):
    """From a backup: these keys. None: it no longer knows, the state must come."""

    segment: int
    epoch: int
    point: int
    keys: list[bytes] | None


class Patch(Frame):
    """From a primary, in one step: drop what is beyond `point`, take these keys' values (None: gone), these operations.

    The values are those of the primary behind `operations`. Catch-up by operations begins with it.
    """

    topology_id: int
    segment: int
    epoch: int
    point: int
    history: History
    values: list[tuple[bytes, bytes | None, int | None]]
    operations: list[Operation]


class StateChunk(Frame):
    """From a primary: a part of the state as of `cut`. `first` begins it anew, `last` swaps it in."""

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
    """From a node: what you sent for these segments is of an older view than mine, or I am no backup of yours."""

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

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyFrame] = msgspec.msgpack.Decoder(AnyFrame)
_batches: msgspec.msgpack.Decoder[Batch] = msgspec.msgpack.Decoder(Batch)


def encode_batch(segment: int, epoch: int, operations: list[Operation]) -> msgspec.Raw:
    """A batch as it is shared between frames."""
    return msgspec.Raw(_encoder.encode(Batch(segment, epoch, operations)))


def decode_batch(raw: msgspec.Raw) -> Batch:
    """Raises `FrameError`."""
    try:
        return _batches.decode(raw)
    except msgspec.MsgspecError as error:
        raise FrameError(f"not a batch of operations: {error}") from error


def encode(frame: AnyFrame) -> bytes:
    """A frame with its length."""
    body = _encoder.encode(frame)
    return len(body).to_bytes(4, "big") + body


async def read(reader: asyncio.StreamReader) -> AnyFrame:
    """The next frame. Raises `FrameError`, and `asyncio.IncompleteReadError` or `OSError` where the connection ends."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {size} bytes; at most {MAX_FRAME_BYTES} are taken")
    body = await reader.readexactly(size)
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise FrameError(f"not a frame: {error}") from error
