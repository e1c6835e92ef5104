"""The heads of snapshots: as servers write them (`test_link.py` has them from servers), and broken ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deelog_interceptors.redis.snapshot import SnapshotError, stream_database


def string(data: bytes, form: int = 0) -> bytes:
    sizes = {0: bytes([len(data) & 0x3F]), 1: bytes([0x40 | len(data) >> 8, len(data) & 0xFF])}
    return sizes.get(form, b"\x80" + len(data).to_bytes(4, "big")) + data


def aux(name: bytes, value: bytes) -> bytes:
    return b"\xfa" + string(name) + value


HEAD = aux(b"valkey-ver", string(b"8.0.1")) + aux(b"redis-bits", b"\xc0\x40") + aux(b"ctime", b"\xc2\1\2\3\4")
END = b"\xff" + b"\0" * 8


@pytest.mark.parametrize("version", [b"REDIS0010", b"REDIS0012", b"VALKEY080"])
@pytest.mark.parametrize(
    ("value", "wanted"), [(b"\xc0\x05", 5), (b"\xc1\xff\x00", 255), (b"\xc2\1\0\1\0", 65537), (string(b"12"), 12)]
)
def test_the_database_is_read(version: bytes, value: bytes, wanted: int) -> None:
    assert stream_database(version + HEAD + aux(b"repl-stream-db", value) + END) == wanted


@pytest.mark.parametrize("form", [0, 1, 2])
def test_strings_of_every_form_are_passed_over(form: int) -> None:
    long = b"\xfa" + string(b"x" * 40, form) + string(b"y" * 60, form)
    assert stream_database(b"REDIS0010" + long + aux(b"repl-stream-db", b"\xc0\x05") + END) == 5


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "does not begin with"),
        (b"HELLO0010" + END, "does not begin with"),
        (b"REDIS00x0" + END, "does not begin with"),
        (b"REDIS0010" + HEAD + END, "does not say which database"),
        (b"REDIS0010" + HEAD[:-2], "is broken"),
        (b"REDIS0010\xfa\x81" + END, "is broken"),
        (b"REDIS0010\xfa\xc3" + END, "is broken"),
        (b"REDIS0010" + aux(b"repl-stream-db", string(b"x")), "is broken"),
    ],
)
def test_what_is_no_snapshot(data: bytes, said: str) -> None:
    with pytest.raises(SnapshotError, match=said):
        stream_database(data)


@given(st.binary(max_size=60))
def test_anything_at_all_is_a_number_or_an_error(data: bytes) -> None:
    try:
        assert isinstance(stream_database(b"REDIS0010" + data), int)
    except SnapshotError:
        pass
