"""Frames between nodes. Bad input: one that is too long, one that is no MessagePack, one that is of no known kind."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from deelog_interceptors.grid.replication import frames
from deelog_interceptors.grid.replication.frames import AnyFrame, FrameError, Welcome


def read(sent: bytes) -> AnyFrame:
    async def work() -> AnyFrame:
        reader = asyncio.StreamReader()
        reader.feed_data(sent)
        reader.feed_eof()
        return await frames.read(reader)

    return asyncio.run(work())


def test_a_frame_comes_as_it_was_sent_and_batches_too() -> None:
    assert read(frames.encode(Welcome("n1@5"))) == Welcome("n1@5")
    assert frames.decode_batch(frames.encode_batch(3, 7, [])) == (3, 7, [])


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
