"""The table of formats, and keys and values in different ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from deelog_schemas.config import FIELDS
from deelog_schemas.envelope import Stamp
from deelog_schemas.fold import Change
from deelog_schemas.formats import FORMATS, PARTS, codec_of, connected
from deelog_schemas.operation import Entry, Operation, Reason
from tests.support.changes import config_of

ENTRY = Entry(b"k", b"v", 5)
STAMP = Stamp(3, "n", 1)


@pytest.mark.parametrize("part", PARTS)
def test_every_format_that_the_configuration_allows_is_in_the_table(part: str) -> None:
    assert set(FIELDS[f"{part}.converter"].allowed or ()) <= set(FORMATS)


def test_every_format_can_be_configured() -> None:
    assert {name for part in PARTS for name in FIELDS[f"{part}.converter"].allowed or ()} == set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_reads_what_it_writes(name: str, tmp_path: Path) -> None:
    more = {"key_converter": name} if name in (FIELDS["key.converter"].allowed or ()) else {}
    config = config_of("127.0.0.1:1", "p", str(tmp_path), value_converter=name, **more)
    assert connected(config, "grid") is config
    codec = codec_of(config, "grid")
    assert codec.decode_key(codec.key(b"k")) == b"k"
    operation = Operation(1, 2, Reason.PUT, b"k", b"v", 5, 7, False)
    envelope = codec.decode_value(codec.change(operation, STAMP))
    assert (envelope.op, envelope.after, envelope.source["seq"]) == ("c", ENTRY, 2)


def test_keys_and_values_of_different_formats(tmp_path: Path) -> None:
    config = config_of("127.0.0.1:1", "p", str(tmp_path), value_converter="avro")
    assert connected(config, "grid") is config
    codec = codec_of(config, "grid", cause=True)
    assert codec.key(b"k") == b'{"key":"k"}'
    assert codec.decode_key(codec.key(b"k")) == b"k"
    value = codec.difference(Change(b"k", None, ENTRY, (1, 2), "reset"), 7, "start", STAMP)
    assert value[:2] == b"\xc3\x01"
    envelope = codec.decode_value(value)
    assert (envelope.op, envelope.after, envelope.source["cause"]) == ("c", ENTRY, "reset")
    after = codec.after_of(value)
    assert after is not None
    assert codec.decode_after(after) == ENTRY
    gone = codec.difference(Change(b"k", ENTRY, None, (1, 3), "reset"), 7, None, STAMP)
    assert codec.after_of(gone) == codec.gone
