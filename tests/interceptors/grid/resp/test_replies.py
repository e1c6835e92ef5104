"""Replies of the Redis protocol, byte by byte. Bad input: an error text of several lines."""

from __future__ import annotations

from deelog_interceptors.grid.resp import replies


def test_each_kind_of_reply_is_written_as_the_protocol_says() -> None:
    assert replies.simple("PONG") == b"+PONG\r\n"
    assert replies.integer(-7) == b":-7\r\n"
    assert (replies.bulk("ä"), replies.bulk(b"\xff\r\n"), replies.bulk("")) == (
        b"$2\r\n\xc3\xa4\r\n",
        b"$3\r\n\xff\r\n\r\n",
        b"$0\r\n\r\n",
    )
    assert replies.array(()) == b"*0\r\n"
    assert replies.array(replies.integer(n) for n in (1, 2)) == b"*2\r\n:1\r\n:2\r\n"


def test_an_error_is_one_line() -> None:
    assert replies.error("ERR a\r\nb\nc\rd") == b"-ERR a  b c d\r\n"


def test_a_map_is_flat_in_the_older_protocol() -> None:
    pairs = [(replies.bulk("a"), replies.integer(1)), (replies.bulk("b"), replies.integer(2))]
    body = b"$1\r\na\r\n:1\r\n$1\r\nb\r\n:2\r\n"
    assert replies.mapping(pairs, 3) == b"%2\r\n" + body
    assert replies.mapping(pairs, 2) == b"*4\r\n" + body
