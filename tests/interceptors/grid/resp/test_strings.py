"""Commands on keys and values: their options, what expires, and what they refuse."""

from __future__ import annotations

import time

import pytest

from deelog_schemas.keys import segment_of
from tests.interceptors.grid.data.test_store import expiry_of
from tests.interceptors.grid.resp.served import (
    OTHER,
    SEGMENTS,
    Client,
    FakeNode,
    K,
    here,
    now_ms,
)


def test_set_get_and_their_options(client: Client) -> None:
    assert client("SET", K, "1") == b"OK"
    assert client("set", K, "2", "GET") == b"1"
    assert client("SET", K, "3", "NX") is None
    assert client("SET", K, "3", "NX", "GET") == b"2"
    assert client("SET", K, "3", "XX", "PX", 5000) == b"OK"
    assert 4000 < client("PTTL", K) <= 5000
    assert client("SET", K, "4", "KEEPTTL") == b"OK"
    assert client("PTTL", K) > 4000
    assert client("SET", K, "5") == b"OK"
    assert client("TTL", K) == -1
    assert client("SET", here("other"), "x", "XX") is None
    assert client("GET", K) == b"5"
    assert client("SETEX", K, 100, "6") == b"OK"
    assert client("TTL", K) == 100
    assert client("PERSIST", K) == 1
    assert client("PERSIST", K) == 0
    assert client("TYPE", K) == b"string"
    assert client("EXISTS", K, K) == 2
    assert client("MGET", K, K) == [b"6", b"6"]
    assert client("DEL", K, K) == 1
    assert client("GET", K) is None
    assert client("TYPE", K) == b"none"
    assert client("PTTL", K) == -2


def test_a_time_in_the_past_removes(client: Client, served: FakeNode) -> None:
    client("SET", K, "1")
    assert client("PEXPIREAT", K, now_ms() - 1) == 1
    assert client("GET", K) is None
    client("SET", K, "1")
    for _ in range(2):  # the second finds nothing to remove
        assert client("SET", K, "2", "PXAT", now_ms() - 1) == b"OK"
    assert client("GET", K) is None
    assert [o.reason for o in served.operations] == ["put", "remove", "put", "remove"]


def test_conditions_of_expire(client: Client) -> None:
    assert client("EXPIRE", K, 100) == 0
    client("SET", K, "1")
    assert client("EXPIRE", K, 100, "XX") == 0
    assert client("EXPIRE", K, 100, "GT") == 0
    assert client("EXPIRE", K, 100, "NX") == 1
    assert client("EXPIRE", K, 200, "NX") == 0
    assert client("EXPIRE", K, 50, "GT") == 0
    assert client("EXPIRE", K, 50, "LT") == 1
    assert client("TTL", K) == 50
    client("PERSIST", K)
    assert client("EXPIRE", K, 70, "LT") == 1  # below no time at all
    assert client("EXPIREAT", K, now_ms() // 1000 + 200) == 1
    assert now_ms() + 100_000 < client("PEXPIRETIME", K) <= now_ms() + 200_000
    assert client.error("EXPIRE", K, 1, "NX", "XX").startswith("ERR NX and XX")


def test_an_entry_past_its_time_is_expired_and_captured_once(
    client: Client, served: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = now_ms()
    monkeypatch.setattr(time, "time_ns", lambda: now * 1_000_000)
    client("SET", K, "1", "PX", 1)
    assert client("GET", K) == b"1"
    now += 1
    assert client("GET", K) is None
    assert client("GET", K) is None
    assert [o.reason for o in served.operations] == ["put", "expire"]
    client("SET", K, "2", "PX", 1)
    assert expiry_of(served.store, now) == 0.001
    now += 1
    assert expiry_of(served.store, now) is None
    assert [o.reason for o in served.operations] == ["put", "expire", "put", "expire"]
    assert served.store.expired == 2


@pytest.mark.parametrize("by", ["a view", "a pause"])
def test_what_came_due_while_the_segment_took_no_writes_expires_once_it_does(
    client: Client, served: FakeNode, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """A hand-over that comes to nothing: who was to be primary is gone, or the connector is paused meanwhile."""
    now = now_ms()
    monkeypatch.setattr(time, "time_ns", lambda: now * 1_000_000)
    client("SET", K, "1", "PX", 1)
    epoch = served.view.rows[0].epoch
    served.follow(target=OTHER, epoch=epoch)
    now += 1
    assert expiry_of(served.store, now) is None  # nothing can be captured for a segment that is given away
    assert [o.reason for o in served.operations] == ["put"]
    if by == "a view":
        served.follow()
    else:
        served.core.paused = True
        assert served.roles.hand_over()
    assert expiry_of(served.store, now) is None
    assert [o.reason for o in served.operations] == ["put", "expire"]
    assert client("GET", K) is None


def test_eviction_is_captured_before_the_write_that_caused_it() -> None:
    served = FakeNode(**{"cache.max.entries": str(SEGMENTS * 2)})
    client = Client(served.clients)
    keys = [f"{{{K}}}{n}" for n in range(3)]
    for key in keys[:2]:
        client("SET", key, "v")
    client("GET", keys[0])
    client("SET", keys[2], "v")
    found = [(o.reason, o.key.decode(), o.sequence) for o in served.operations]
    assert found[2:] == [("evict", keys[1], 3), ("put", keys[2], 4)]
    assert client("DBSIZE") == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("SET", b"\xff" + K.encode(), "v"), "cache.key.format"),
        (("SET", K, b"\xff"), "cache.value.format"),
        (("SET", "{" + K + "}", b"x" * 101), "max.entry.bytes"),
        (("SETEX", K, "10", b"\xff"), "cache.value.format"),
        (("SET", K, "v", "EX", "0"), "ERR invalid expire time in 'set' command"),
        (("SET", K, "v", "EX", "x"), "ERR value is not an integer or out of range"),
        (("SET", K, "v", "NX", "XX"), "ERR syntax error"),
        (("SET", K, "v", "EX"), "ERR syntax error"),
        (("SET", K, "v", "EX", "1", "PX", "1"), "ERR syntax error"),
        (("SET", K, "v", "KEEPTTL", "EX", "1"), "ERR syntax error"),
        (("SET", K, "v", "EX", str(1 << 62)), "ERR invalid expire time in 'set' command"),
        (("EXPIRE", K, str(-(1 << 62))), "ERR invalid expire time in 'expire' command"),
    ],
)
def test_what_is_refused_says_why_and_changes_nothing(arguments: tuple[str | bytes, ...], words: str) -> None:
    served = FakeNode(**{"max.entry.bytes": "100"})
    assert words in Client(served.clients).error(*arguments)
    assert served.operations == []


def test_reserved_keys_are_refused_and_the_empty_key_is_not(served: FakeNode, client: Client) -> None:
    reserved = next(k for n in range(99) if segment_of((k := b"\0deelog/%d" % n), SEGMENTS) != SEGMENTS - 1)
    assert "reserved" in client.error("SET", reserved, "v")
    if segment_of(b"", SEGMENTS) != SEGMENTS - 1:
        assert client("SET", "", "empty") == b"OK"
        assert client("GET", "") == b"empty"


@pytest.mark.parametrize("text", ["abc", "1e400", "NaN", "[1,]", b"\xff"])
def test_what_is_to_be_json_is_looked_at(text: str | bytes) -> None:
    client = Client(FakeNode(**{"cache.value.format": "json"}).clients)
    refused = client("SET", K, text)
    assert isinstance(refused, Exception)
    assert str(refused).startswith("ERR cache.value.format: the value is not JSON (")
    assert str(refused).endswith("); set cache.value.format=string for such values")
    assert client("EXISTS", K) == 0
    assert client("SET", K, '{"a":[1]}') == b"OK"


def test_bytes_are_taken_where_the_formats_say_so() -> None:
    client = Client(FakeNode(**{"cache.key.format": "bytes", "cache.value.format": "bytes"}).clients)
    assert client("SET", b"{%s}\xff" % K.encode(), b"\xfe\x00") == b"OK"
    assert client("GET", b"{%s}\xff" % K.encode()) == b"\xfe\x00"


def test_mget_is_refused_beyond_what_one_reply_may_have(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 kB of keys could ask for gigabytes."""
    monkeypatch.setattr("deelog_interceptors.grid.resp.strings._MAX_REPLY_BYTES", 100)
    client("SET", K, "v" * 40)
    assert client("MGET", K, K) == [b"v" * 40] * 2
    assert client.error("MGET", K, K, K) == "ERR the values have more than 100 bytes: ask for fewer keys"
