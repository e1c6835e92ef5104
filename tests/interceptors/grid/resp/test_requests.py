"""Requests in any pieces, and what is none."""

from __future__ import annotations

import random
from typing import Any

import hiredis
import pytest

from deelog_interceptors.grid.resp.requests import MAX_ARGUMENTS, RequestError, Requests, TooLarge

COMMANDS = [
    [b"PING"],
    [b"SET", b"k", b""],
    [b"", b"", b""],
    [b"SET", b"k\r\n*1\r\n", b"$5\r\n" * 7],
    [b"SET", b"large", bytes(70_000)],
    [b"MGET", *(b"k%d" % number for number in range(3000))],
]


def encoded(command: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(command) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in command)


def taken(requests: Requests, data: bytes, pieces: list[int]) -> list[list[bytes]]:
    """What comes of these bytes in pieces of these sizes, over and over."""
    found, at, turn = [], 0, 0
    while at < len(data):
        size = pieces[turn % len(pieces)]
        requests.feed(data[at : at + size])
        at, turn = at + size, turn + 1
        while (command := requests.next()) is not None:
            found.append(command)
    return found


@pytest.mark.parametrize("pieces", [[1], [2], [3], [7], [1000], [65_536], [1 << 20], [1, 70_000], [13, 1, 2]])
def test_requests_come_in_any_pieces(pieces: list[int]) -> None:
    data = b"".join(map(encoded, COMMANDS * 2))
    assert taken(Requests(1 << 20), data, pieces) == COMMANDS * 2


def test_any_bytes_are_commands_or_an_error_of_the_request() -> None:
    """Fuzzed: real requests in which bytes are changed, left out, or replaced by RESP3's signs."""
    chance = random.Random(1)
    broken = 0
    for _ in range(3000):
        data = bytearray(b"".join(encoded(command) for command in chance.choices(COMMANDS[:4], k=4)))
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(data))
            data[at : at + chance.randrange(3)] = chance.choice(
                (b"%", b"~", b">", b"_\r\n", b"*9\r\n", b"+", b"-", b"=")
            )
        requests = Requests(1 << 20)
        try:
            for command in taken(requests, bytes(data), [chance.randrange(1, 40)]):
                assert command
                assert all(type(part) is bytes for part in command)
        except RequestError:
            broken += 1
    assert broken > 1000


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"PING\r\n", "expected an array of bulk strings"),
        (b"$4\r\nPING\r\n", "expected an array of bulk strings"),
        (b"\x00", "expected an array of bulk strings"),
        (b"*-1\r\n", "invalid multibulk length"),
        (b"*0\r\n", "invalid multibulk length"),
        (b"*+1\r\n", "invalid multibulk length"),
        (b"*1 \r\n", "invalid multibulk length"),
        (b"*\r\n", "invalid multibulk length"),
        (b"*%d\r\n" % (MAX_ARGUMENTS + 1), "invalid multibulk length"),
        (b"*9999999999\r\n", "invalid multibulk length"),
        (b"*12345678901234", "invalid multibulk length"),
        (b"*1\r\n:5\r\n", "expected bulk strings"),
        (b"*1\r\n+PING\r\n", "expected bulk strings"),
        (b"*1\r\n_\r\n", "expected bulk strings"),
        (b"*2\r\n$3\r\nGET\r\n*20000000\r\n", "expected bulk strings"),
        (b"*2\r\n$3\r\nGET\r\n%1\r\n*0\r\n+x\r\n", "expected bulk strings"),
        (b"*1\r\n=8\r\ntxt:PING\r\n", "expected bulk strings"),
        (b"*1\r\n(12\r\n", "expected bulk strings"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$x\r\n", "invalid bulk length"),
        (b"*1\r\n$12345678901234", "invalid bulk length"),
        (b"*1\r\n$4\r\nPINGxx", "invalid bulk length"),
        (b"*1\r\n$%d\r\n" % ((512 << 20) + 1), "invalid bulk length"),
    ],
)
def test_what_is_no_request(data: bytes, text: str) -> None:
    for size in (1, len(data)):
        with pytest.raises(RequestError, match=text):
            taken(Requests(1000), data, [size])


def test_a_header_that_is_not_complete_is_waited_for() -> None:
    requests = Requests(1000)
    assert taken(requests, b"*12345678", [1]) == []
    with pytest.raises(RequestError):
        taken(requests, b"9\r\n", [1])
    requests = Requests(1000)
    assert taken(requests, b"*1\r\n$000000000", [1]) == []
    assert taken(requests, b"4\r\nPING\r\n", [1]) == [[b"PING"]]


def test_a_command_may_have_as_many_bytes_as_allowed() -> None:
    command = [b"SET", b"k", bytes(970)]
    size = sum(len(part) for part in command) + len(b"$3\r\n\r\n$1\r\n\r\n$970\r\n\r\n")
    assert taken(Requests(size - 2), encoded(command), [5000]) == [command]
    with pytest.raises(TooLarge):
        taken(Requests(size - 3), encoded(command), [5000])


def test_a_stock_client_is_understood() -> None:
    packed = hiredis.pack_command(("SET", "k", 7, b"\xff", 1.5))  # type: ignore[arg-type]
    assert taken(Requests(1000), packed, [4]) == [[b"SET", b"k", b"7", b"\xff", b"1.5"]]


@pytest.mark.parametrize("pieces", [[1], [7, 300], [65_536], [1 << 20]])
@pytest.mark.parametrize(
    "large",
    [
        [b"SET", b"k", bytes(1001)],
        [b"SET", bytes(5000), b"v"],
        [bytes(2000)],
        [b"MGET", *([b"x" * 9] * 3000)],
        [b"SET", bytes(400), bytes(400), bytes(400), b"v"],
    ],
    ids=["last", "in between", "alone", "all of it", "together"],
)
def test_a_command_that_is_too_large_is_passed_over_and_the_next_one_read(
    large: list[bytes], pieces: list[int]
) -> None:
    requests = Requests(1000)
    data, found, at, turn = encoded([b"GET", b"a"]) + encoded(large) * 2 + encoded([b"GET", b"b"]), [], 0, 0
    while at < len(data):
        size = pieces[turn % len(pieces)]
        requests.feed(data[at : at + size])
        at, turn = at + size, turn + 1
        while True:
            try:
                command: Any = requests.next()
            except TooLarge:
                command = TooLarge
            if command is None:
                break
            found.append(command)
        held = len(requests._data) + sum(map(len, requests._arguments)) + sum(map(len, requests._pieces))
        assert held < 2000 + 2 * max(pieces)
    assert found == [[b"GET", b"a"], TooLarge, TooLarge, [b"GET", b"b"]]
