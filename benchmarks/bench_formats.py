"""What an operation costs as an envelope in each format, beside JSON.

    python -m benchmarks.bench_formats [--json] [--seconds 0.5]

Prints `name value unit` lines, or one JSON object. `json` is `JsonCodec.change` without a schema block, the default and
the measure of the others; `json_schemas` with one, `avro` `AvroCodec.change`, `cloudevents` `CloudEventsCodec.change`;
`fastavro` builds a dict and gives it to `fastavro.schemaless_writer`, what one would write by hand, and its bytes are
first checked to be those of `avro`. `bytes` lines are the size of one record's value. The ways take turns, and each
gets its median of processor time: a busy machine then disturbs all of them alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO

import fastavro

from benchmarks.bench_codec import CODEC, OPERATIONS, STAMP, by_codec, envelope, medians_us
from benchmarks.common import parser, show
from deelog_schemas.avro import pinned
from deelog_schemas.avro.codec import AvroCodec, AvroKeys, Written
from deelog_schemas.avro.schema import envelope_text, registry_prefix
from deelog_schemas.cloudevents import CloudEventsCodec
from deelog_schemas.connect import names_of
from deelog_schemas.envelope import Codec, JsonCodec
from deelog_schemas.operation import Operation

TEXT = envelope_text(names_of("shop.sessions", "grid"), "string", "string")
PREFIX = registry_prefix(2)
SCHEMA = fastavro.parse_schema(json.loads(TEXT))
KEY = pinned.written_key("string")
CODECS: dict[str, Codec] = {
    "json_schemas": JsonCodec("shop.sessions", "grid", "shop", "sessions", value_schemas=True),
    "avro": AvroCodec(
        "grid", "shop", "sessions", AvroKeys(KEY), Written(PREFIX, TEXT, {PREFIX: TEXT}, lambda prefix: TEXT)
    ),
    "cloudevents": CloudEventsCodec("shop.sessions", "grid", "shop", "sessions"),
}


def fastavros(operation: Operation) -> bytes:
    """The envelope by fastavro."""
    out = BytesIO()
    out.write(PREFIX)
    fastavro.schemaless_writer(out, SCHEMA, envelope(operation, STAMP))
    return out.getvalue()


def by(codec: Codec, operations: list[Operation]) -> None:
    change = codec.change
    for operation in operations:
        change(operation, STAMP)


def by_fastavro(operations: list[Operation]) -> None:
    for operation in operations:
        fastavros(operation)


def measure(seconds: float) -> dict[str, tuple[float, str]]:
    figures: dict[str, tuple[float, str]] = {}
    for name, operations in OPERATIONS.items():
        if any(CODECS["avro"].change(one, STAMP) != fastavros(one) for one in operations):
            raise SystemExit(f"{name}: the codec and fastavro give other bytes; the figures would not compare")
        ways: dict[str, Callable[[], None]] = {
            "json": lambda operations=operations: by_codec(operations),  # type: ignore[misc]
            "fastavro": lambda operations=operations: by_fastavro(operations),  # type: ignore[misc]
        }
        for way, codec in CODECS.items():
            ways[way] = lambda codec=codec, operations=operations: by(codec, operations)  # type: ignore[misc]
        found = medians_us(ways, seconds)
        for way, took in found.items():
            figures[f"{name}_{way}"] = took, "us"
            if way != "json":
                figures[f"{name}_{way}_to_json"] = took / found["json"], "ratio"
        for way, codec in {"json": CODEC, **CODECS}.items():
            figures[f"{name}_{way}_size"] = len(codec.change(operations[0], STAMP)), "bytes"
    return figures


def main() -> None:
    """Measures and prints."""
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=0.5, help="time for each way of each operation")
    options = arguments.parse_args()
    show([(name, value, unit) for name, (value, unit) in measure(options.seconds).items()], options.json)


if __name__ == "__main__":
    main()
