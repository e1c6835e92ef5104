"""What encoding an operation as an envelope costs, beside building a dict and dumping it, and beside dumping alone.

    python -m benchmarks.bench_codec [--json] [--seconds 0.5]

Prints `name value unit` lines, or one JSON object. `codec` is `JsonCodec.change`; `dict` builds the same envelope as a
dict and gives it to `orjson.dumps`, what one would write by hand; `dumps` is `orjson.dumps` of a dict that is there
already: less than a codec of dicts can ever take. All give the same bytes, which is checked first. The ways take
turns, and each gets its median of processor time: a busy machine then disturbs all of them alike.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import orjson

from benchmarks.common import parser, show
from deelog_schemas import __version__
from deelog_schemas.envelope import JsonCodec, Stamp
from deelog_schemas.header import Kind, pack, unpack
from deelog_schemas.operation import Operation

STAMP = Stamp(77, "node-1", 1_700_000_000_123_456)
CODEC = JsonCodec("shop.sessions", "grid", "shop", "sessions")
NUMBER = 256
OPERATIONS = {
    "create_100": [
        Operation(3, n, "put", b"session:%06d" % n, b"v" * 100, 1_700_000_600_000, 1_700_000_000_123_000 + n, False)
        for n in range(NUMBER)
    ],
    "update_1000": [
        Operation(3, n, "put", b"session:%06d" % n, b"v" * 1000, None, 1_700_000_000_123_000 + n, True)
        for n in range(NUMBER)
    ],
    "update_quoted": [
        Operation(3, n, "put", b"session:%06d" % n, b'{"id":"%d"}' % n * 10, None, 1_700_000_000_123_000 + n, True)
        for n in range(NUMBER)
    ],
    "delete": [
        Operation(3, n, "expire", b"session:%06d" % n, None, None, 1_700_000_000_123_000 + n, True)
        for n in range(NUMBER)
    ],
}


def envelope(operation: Operation, stamp: Stamp) -> dict[str, Any]:
    """The envelope of an operation as anybody would build it."""
    epoch, sequence, reason, raw, value, expires_at, ts_us, existed, old = operation
    key = raw.decode()
    before = after = None
    if existed or value is None:
        before = {"key": key, "value": None if old is None else old.decode(), "expires_at": None}
    if value is not None:
        after = {"key": key, "value": value.decode(), "expires_at": expires_at}
    return {
        "before": before,
        "after": after,
        "source": {
            "version": __version__,
            "connector": "grid",
            "name": "shop",
            "ts_ms": ts_us // 1000,
            "snapshot": "false",
            "db": "",
            "sequence": f'["{epoch}","{sequence}"]',
            "ts_us": ts_us,
            "ts_ns": ts_us * 1000,
            "cache": "sessions",
            "segment": stamp.segment,
            "epoch": epoch,
            "seq": sequence,
            "node": stamp.node_id,
            "reason": None if reason == "put" else reason,
        },
        "transaction": None,
        "op": "d" if value is None else "u" if existed else "c",
        "ts_ms": stamp.now_us // 1000,
        "ts_us": stamp.now_us,
        "ts_ns": stamp.now_us * 1000,
    }


def by_codec(operations: list[Operation]) -> None:
    change = CODEC.change
    for operation in operations:
        change(operation, STAMP)


def by_dict(operations: list[Operation]) -> None:
    dumps = orjson.dumps
    for operation in operations:
        dumps(envelope(operation, STAMP))


def by_dumps(ready: list[dict[str, Any]]) -> None:
    dumps = orjson.dumps
    for each in ready:
        dumps(each)


def headers() -> None:
    for number in range(NUMBER):
        unpack(pack(Kind.CHANGE, 77, 3, number, 1))


def medians_us(ways: dict[str, Callable[[], None]], seconds: float) -> dict[str, float]:
    """Median processor time of one of `NUMBER` calls in µs, by way; the ways take turns for `seconds` each in all."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    gc.collect()
    until = time.perf_counter() + seconds * len(ways)
    while time.perf_counter() < until:
        for name, way in ways.items():
            begin = time.thread_time_ns()
            way()
            times[name].append((time.thread_time_ns() - begin) / NUMBER / 1000)
    return {name: statistics.median(found) for name, found in times.items()}


def measure(seconds: float) -> dict[str, tuple[float, str]]:
    figures: dict[str, tuple[float, str]] = {}
    for name, operations in OPERATIONS.items():
        ready = [envelope(operation, STAMP) for operation in operations]
        if [CODEC.change(operation, STAMP) for operation in operations] != [orjson.dumps(each) for each in ready]:
            raise SystemExit(f"{name}: the codec and the dict give other bytes; the figures would not compare")
        ways: dict[str, Callable[[], None]] = {
            "codec": lambda operations=operations: by_codec(operations),  # type: ignore[misc]
            "dict": lambda operations=operations: by_dict(operations),  # type: ignore[misc]
            "dumps": lambda ready=ready: by_dumps(ready),  # type: ignore[misc]
        }
        found = medians_us(ways, seconds)
        for way, took in found.items():
            figures[f"{name}_{way}"] = took, "us"
        figures[f"{name}_codec_to_dict"] = found["codec"] / found["dict"], "ratio"
        figures[f"{name}_codec_to_dumps"] = found["codec"] / found["dumps"], "ratio"
    figures["header_pack_unpack"] = medians_us({"header": headers}, seconds)["header"], "us"
    return figures


def main() -> None:
    """Measures and prints."""
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=0.5, help="time for each way of each operation")
    options = arguments.parse_args()
    figures = measure(options.seconds)
    show([(name, value, unit) for name, (value, unit) in figures.items()], options.json)


if __name__ == "__main__":
    main()
