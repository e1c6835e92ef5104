"""Commands of a replication stream in any pieces. Bad input: garbage, lengths that are none, other types of RESP,
arguments longer than they say, numbers that a server does not write so, a stream that ends inside a command."""

from __future__ import annotations

import random
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deelog_interceptors.redis.stream import Omitted, Stream, StreamError

MAX = 1000


def sent(*arguments: bytes) -> bytes:
    """A command as a server sends it."""
    return b"*%d\r\n" % len(arguments) + b"".join(b"$%d\r\n%s\r\n" % (len(one), one) for one in arguments)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in pairwise(bounds)]


SIZED = st.integers(0, 5000).map(lambda size: b"\r\n$" * size)
ARGUMENTS = st.lists(st.binary(max_size=8) | SIZED, min_size=1, max_size=4)
LONG = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5000\r\n" + b"v" * 5000 + b"\r\n"


@settings(max_examples=300)
@given(st.lists(ARGUMENTS, min_size=1, max_size=6), st.lists(st.integers(0), max_size=12), st.integers(0, 2**40))
def test_commands_in_any_pieces_with_the_offset_behind_each(
    commands: list[list[bytes]], cuts: list[int], first: int
) -> None:
    stream = Stream(first, MAX)
    found = [one for piece in pieces(b"".join(sent(*c) for c in commands), cuts) for one in stream.feed(piece)]
    offset = first
    for command, (arguments, end) in zip(commands, found, strict=True):
        offset += len(sent(*command))
        assert end == offset
        for argument, given_ in zip(arguments, command, strict=True):
            assert argument == given_ or argument == Omitted(len(given_))
            assert isinstance(argument, bytes) or len(given_) > MAX
    assert stream.offset == offset


def test_an_argument_above_the_limit_is_passed_over_and_not_held() -> None:
    value = b"v" * (1 << 20)
    stream = Stream(0, 100_000)
    found = stream.feed(sent(b"SET", b"a", b"1")) + stream.feed(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n" % (64 << 20))
    tracemalloc.start()
    for _ in range(64):
        found += stream.feed(value)
    assert tracemalloc.get_traced_memory()[1] < 2 << 20  # one piece and what was held before it
    tracemalloc.stop()
    found += stream.feed(b"\r\n" + sent(b"SET", b"b", b"2"))
    assert [arguments for arguments, _ in found] == [
        [b"SET", b"a", b"1"],
        [b"SET", b"k", Omitted(64 << 20)],
        [b"SET", b"b", b"2"],
    ]
    assert stream.offset == found[-1][1] == 27 + 33 + (64 << 20) + 27


def test_a_long_command_of_short_arguments_is_whole() -> None:
    command = [b"MSET", *(b"%d" % number for number in range(20_000))]
    stream, data = Stream(7, MAX), sent(*command) + sent(b"PING")
    found = [one for piece in pieces(data, list(range(0, len(data), 700))) for one in stream.feed(piece)]
    assert [arguments for arguments, _ in found] == [command, [b"PING"]]
    assert found[-1][1] == 7 + len(data)


BROKEN = {
    "garbage": b"hello\r\n",
    "an inline command": b"PING\r\n",
    "no array": b"$4\r\nPING\r\n",
    "an integer": b":1\r\n",
    "a status": b"+OK\r\n",
    "a nested array": b"*1\r\n*1\r\n$1\r\nx\r\n",
    "an integer inside": b"*2\r\n:1\r\n:2\r\n",
    "a null inside": b"*1\r\n$-1\r\n",
    "a null array": b"*-1\r\n",
    "a count that is none": b"*x\r\n",
    "a length that is none": b"*1\r\n$x\r\n",
    "a length without end": b"*1\r\n$" + b"1" * 2000,
    "a longer argument": b"*1\r\n$1\r\nxx\r\n",
    "a number with a zero before it": b"*1\r\n$01\r\nx\r\n" + sent(b"PING"),
    "a keepalive inside": b"\n" + sent(b"PING"),
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("behind", [b"", LONG], ids=["first", "behind a long one"])
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "by bytes"])
def test_what_is_no_stream_is_an_error_that_names_the_offset(what: str, behind: bytes, at_once: bool) -> None:
    data = behind + BROKEN[what]
    with pytest.raises(StreamError, match=r"^behind offset \d+: "):
        feed(Stream(40, MAX), [data] if at_once else [data[n : n + 1] for n in range(len(data))])


@pytest.mark.parametrize("tail", [b"*2\r\n$%d\r\n", LONG[:-2] + b"xx", b"*4" + LONG[2:] + b":1\r\n"])
def test_a_long_command_that_is_broken(tail: bytes) -> None:
    with pytest.raises(StreamError, match=r"^behind offset 0: "):
        feed(Stream(0, MAX), pieces(tail + b"?" * 2000, random.Random(1).sample(range(4000), 9)))


def feed(stream: Stream, data: list[bytes]) -> None:
    for piece in data:
        stream.feed(piece)
