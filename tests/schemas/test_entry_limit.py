"""What fits into a record, compared with the records that the codecs make of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from deelog_schemas.avro.codec import AvroCodec, AvroKeys, Written
from deelog_schemas.avro.schema import envelope_text, key_text, registry_prefix
from deelog_schemas.config import Config, parse
from deelog_schemas.connect import names_of
from deelog_schemas.entry_limit import EntryLimit
from deelog_schemas.envelope import Codec, Stamp
from deelog_schemas.formats import codec_of
from deelog_schemas.operation import Entry, Operation

GIVEN = {"topic.prefix": "p", "cache.name": "c", "node.id": "n", "bootstrap.servers": "h:1"}
LIMIT = 100_000
STAMP = Stamp(7, "n", 1_800_000_000_000_000)
MOMENT = 1_800_000_000_000
PLAIN, ESCAPED, CONTROL, BROKEN = b"x", b'"', b"\x01", b"\xff"


def config_of(**fields: str) -> Config:
    """Records of 100,000 bytes; entries of 80,000, or half as much where a record has two."""
    most = 40_000 if fields.get("before_image") == "full" else 80_000
    given = {name.replace("_", "."): value for name, value in fields.items()}
    limits = {"max.entry.bytes": str(most), "producer.override.message.max.bytes": str(LIMIT)}
    return parse(GIVEN | limits | given)


def codec(config: Config) -> Codec:
    if config["value.converter"] != "avro":
        return codec_of(config, "grid")
    names, formats = names_of("p.c", "grid"), (config["cache.key.format"], config["cache.value.format"])
    texts = key_text(names, formats[0]), envelope_text(names, *formats)

    def written(number: int, text: str) -> Written:
        return Written(registry_prefix(number), text, {registry_prefix(number): text}, lambda prefix: text)

    return AvroCodec("grid", "p", "c", AvroKeys(written(1, texts[0])), written(2, texts[1]))


def largest(codec: Codec, key: bytes, value: bytes, full: bool) -> int:
    """The largest record of an entry: an update, a row, or a delete, with its key."""
    image = value if full else None
    update = codec.change(Operation(9, 9, "put", key, value, MOMENT, 17, True, image), STAMP)
    row = codec.row(Entry(key, value, MOMENT), (9, 9), "incremental", "overflow", STAMP)
    return len(codec.key(key)) + max(len(update), len(row))


WAYS = [
    {"cache_value_format": "string"},
    {"cache_value_format": "json"},
    {"cache_value_format": "string", "value_converter": "cloudevents"},
    {"cache_value_format": "string", "value_converter_schemas_enable": "true", "key_converter_schemas_enable": "true"},
    {"key_converter": "avro", "value_converter": "avro", "value_converter_schema_registry_url": "http://r",
     "key_converter_schema_registry_url": "http://r"},
    *({"cache_key_format": "bytes", "cache_value_format": "bytes", "binary_handling_mode": mode}
      for mode in ("bytes", "base64", "base64-url-safe", "hex")),
]  # fmt: skip


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: " ".join(way.values()))
def test_what_is_taken_fits_and_what_is_refused_does_not(way: dict[str, str], full: bool) -> None:
    config = config_of(**way, **({"before_image": "full"} if full else {}))
    limit, made = EntryLimit.of(config), codec(config)
    taken = refused = 0
    kinds = (PLAIN, BROKEN) if config["cache.key.format"] == "bytes" else (PLAIN, ESCAPED, CONTROL)
    for of_key, of_value in itertools.product(kinds, kinds):
        for many, more in itertools.product((1, 3_000, 12_000, 26_000), (0, 3_000, 16_000, 30_000, 60_000, 79_000)):
            key, value = of_key * many, of_value * more
            if len(key) + len(value) > limit.most:
                continue
            record, problem = largest(made, key, value, full), limit.problem(key, value)
            if problem:
                refused += 1
                assert record > LIMIT * 0.7, (of_key, many, of_value, more)
                assert "max.message.bytes" in problem
            else:
                taken += 1
                assert record <= LIMIT - 2_000, (of_key, many, of_value, more)
            if len(key) + len(value) <= limit.sure:
                assert not problem
    assert taken
    assert refused or config["value.converter"] == "avro"


@pytest.mark.parametrize(
    ("fits", "does_not"),
    [
        (lambda room: (b"", b"x" * (room - 8), 0), lambda room: (b"", b"x" * (room - 7), 0)),
        (lambda room: (b"xx", b"x" * (room - 14), 0), lambda room: (b"xx", b"x" * (room - 13), 0)),
        (lambda room: (b"", b"x" * 50, room - 58), lambda room: (b"", b"x" * 50, room - 57)),
    ],
)
def test_a_key_counts_thrice_and_what_transforms_add_once(
    fits: Callable[[int], tuple[bytes, bytes, int]], does_not: Callable[[int], tuple[bytes, bytes, int]]
) -> None:
    """Text has two quotes each time: eight for an empty key and a value."""
    limit = EntryLimit(most=10**6, room=5_000, key="string", value="string", keys=3, values=1)
    assert limit.problem(*fits(5_000)) == ""
    assert "take up to 5001 bytes of a record, 5000 fit" in limit.problem(*does_not(5_000))


def test_the_limit_that_is_configured_goes_first() -> None:
    limit = EntryLimit.of(config_of(max_entry_bytes="10"))
    assert limit.problem(b"k", b"123456789") == ""
    assert limit.problem(b"k", b"1234567890") == "key and value are 11 bytes, max.entry.bytes allows 10"
    assert limit.sure == 10


def test_by_default_a_large_value_of_plain_text_is_taken_whole() -> None:
    limit = EntryLimit.of(parse(GIVEN))
    assert limit.problem(b"k" * 1000, b"x" * (limit.most - 1000)) == ""


def test_a_topic_may_take_less_and_has_no_say_where_it_takes_more() -> None:
    limit = EntryLimit.of(config_of())
    assert limit.room == LIMIT - 10_000
    assert limit.within(LIMIT) == limit
    assert limit.within(LIMIT - 1).room == limit.room - 1
    assert (limit.within(50_000).room, limit.within(50_000).sure) == (40_000, 40_000 // 18)
    assert limit.within(1000).room == 500  # what is beside an entry is not half of so small a record
