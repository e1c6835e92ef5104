"""Frames between nodes. Bad input: one that is too long, one that is no MessagePack, one that is of no known kind."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from deelog_interceptors.grid.replication import frames
from deelog_interceptors.grid.replication.frames import (
    Answers,
    AnyFrame,
    Ask,
    Diverged,
    FrameError,
    Heartbeat,
    Patch,
    Refused,
    Report,
    StateChunk,
    Wanted,
    Welcome,
)
from deelog_interceptors.grid.topology.requests import SHRINK, Request
from deelog_schemas.operation import Operation, Reason


def read(sent: bytes) -> AnyFrame:
    async def work() -> AnyFrame:
        reader = asyncio.StreamReader()
        reader.feed_data(sent)
        reader.feed_eof()
        return await frames.read(reader, 32)

    return asyncio.run(work())


def test_a_frame_comes_as_it_was_sent_and_batches_too() -> None:
    assert read(frames.encode(Welcome("n1@5"))) == Welcome("n1@5")
    assert frames.decode_batch(frames.encode_batch(3, 7, [])) == (3, 7, [])


@pytest.mark.parametrize("number", [-1, 32, 9999])
def test_the_number_of_a_segment_that_there_is_not_is_refused(number: int) -> None:
    """Negative ones would be taken for the last segments."""
    for frame in (
        Ask(1, [(0, 1), (number, 1)]),
        Answers(1, [(0, 1, 1), (number, 1, 1)]),
        Refused(1, [(number, 1)]),
        Report(1, number, 1, ()),
        Wanted(number, 1, 0, []),
        Diverged(number, 1, 0),
        Patch(1, number, 1, 0, (), [], []),
        StateChunk(1, number, 1, 0, (), True, True, []),
        Heartbeat(1, 1, False, [Request(SHRINK, number, 1, "x")]),
    ):
        with pytest.raises(FrameError, match=f"segment {number} of 32"):
            read(frames.encode(frame))


def test_a_frame_has_operations_up_to_a_number_and_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    operations = [Operation(1, n, Reason.PUT, b"k", b"v" * 10, None, 0, True) for n in range(1, 6)]
    assert [frames.fitting(operations, most) for most in (1, 5, 9)] == [1, 5, 5]
    monkeypatch.setattr(frames, "CHUNK_BYTES", 2 * operations[0].size)
    assert frames.fitting(operations, 9) == 2
    monkeypatch.setattr(frames, "CHUNK_BYTES", 1)
    assert (frames.fitting(operations, 9), frames.fitting([], 9)) == (1, 0)


def test_what_is_no_frame_is_refused_before_it_takes_memory() -> None:
    with pytest.raises(FrameError, match="a frame of 67108865 bytes; at most 67108864 are taken"):
        read((frames.MAX_FRAME_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(asyncio.IncompleteReadError):
        read(frames.MAX_FRAME_BYTES.to_bytes(4, "big"))
    for body in (
        b"\xc1",
        b"\x94\xa5Hello\xa2\xff\xfe\xa1m\x01",
        b"\x91" * 5000,
        msgspec.msgpack.encode(["Nothing", 1]),
    ):
        with pytest.raises(FrameError, match="not a frame"):
            read(len(body).to_bytes(4, "big") + body)
    with pytest.raises(FrameError, match="not a batch of operations"):
        frames.decode_batch(msgspec.Raw(b"\xc1"))
    with pytest.raises(FrameError, match="not a batch of operations"):
        frames.decode_batch(msgspec.Raw(b"\x93\x00\x01\x91\x98\x01\x01\xa2\xff\xfe\xc4\x00\xc0\xc0\x00\xc3"))
