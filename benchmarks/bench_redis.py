"""What a SET of a replication stream costs until it is in the op log, beside hiredis alone.

    python -m benchmarks.bench_redis [--json] [--seconds 0.5]

Prints `name value unit` lines, or one JSON object. The stream is 20,000 SETs of 100 bytes in pieces of 64 KB. `hiredis`
parses them; `stream` is `Stream.feed`, which tells the offset behind each as well; `changes` says besides what each
changes; `oplog` is all that happens to it on the loop, the tape included, until it is an operation of the core's op
log, of 256 segments. The ways take turns, and each gets its median of processor time: a busy machine disturbs all of
them alike.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import hiredis

from benchmarks.bench_poll import Nothing
from benchmarks.common import parser, show
from deelog_connector.core import ConnectorCore
from deelog_connector.core.settings import Settings
from deelog_interceptors.redis.commands import changes
from deelog_interceptors.redis.lineage import Lineage
from deelog_interceptors.redis.source import Anchor
from deelog_interceptors.redis.stream import Stream
from deelog_interceptors.redis.tape import Tape
from deelog_interceptors.redis.values import Values
from deelog_schemas.config import parse

NUMBER = 20_000
PIECE = 1 << 16
SEGMENTS = 256
_NEEDED = {"topic.prefix": "p", "cache.name": "c", "node.id": "n", "bootstrap.servers": "h:1"}
VALUES = Values(parse({"cache.value.format": "json", **_NEEDED}))


def sent(number: int) -> bytes:
    return b"*3\r\n$3\r\nSET\r\n$12\r\nkey:%08d\r\n$100\r\n%s\r\n" % (number, b"v" * 100)


STREAM = b"".join(map(sent, range(NUMBER)))
PIECES = [STREAM[at : at + PIECE] for at in range(0, len(STREAM), PIECE)]


def parsed() -> None:
    reader = hiredis.Reader()
    for piece in PIECES:
        reader.feed(piece)
        while reader.gets() is not False:
            pass


def streamed() -> None:
    stream = Stream(0, 1 << 20)
    for piece in PIECES:
        stream.feed(piece)
    assert stream.offset == len(STREAM)


def changed() -> None:
    stream = Stream(0, 1 << 20)
    for piece in PIECES:
        for arguments, _ in stream.feed(piece):
            changes(arguments)


def handed_over() -> Callable[[], None]:
    """What hands all of it over, to a core that writes every segment."""
    core = ConnectorCore("node@1", Settings(SEGMENTS, 8, max_operations=NUMBER, max_bytes=1 << 30), Nothing())
    tape = Tape(Lineage((("a" * 40, 0),)), 0, 0, 0, SEGMENTS, VALUES)
    for segment, one in enumerate(tape.segments):
        core.promote(segment, 1)
        one.open(Anchor(0, 0), 0, {})

    def run() -> None:
        stream = Stream(0, 1 << 20)
        for piece in PIECES:
            tape.feed(stream.feed(piece), 0)
            for segment in tape.busy:
                tape.segments[segment].hand_over(segment, tape.offset, core)
            tape.busy.clear()
        assert core.budget.operations == NUMBER

    return run


WAYS: dict[str, Callable[[], Callable[[], None]]] = {
    "hiredis": lambda: parsed,
    "stream": lambda: streamed,
    "changes": lambda: changed,
    "oplog": handed_over,
}
"""Each prepares what is measured then."""


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=0.5, help="for each way")
    given = options.parse_args()
    taken: dict[str, list[float]] = {name: [] for name in WAYS}
    gc.disable()
    while min(map(sum, taken.values())) < given.seconds:
        for name, prepared in WAYS.items():
            way = prepared()
            begin = time.process_time()
            way()
            taken[name].append(time.process_time() - begin)
    medians = {name: statistics.median(found) / NUMBER for name, found in taken.items()}
    figures = [(name, medians[name] * 1e6, "µs/SET") for name in WAYS]
    figures += [(f"{name}_ratio", medians[name] / medians["hiredis"], "×hiredis") for name in list(WAYS)[1:]]
    show(figures, as_json=given.json)


if __name__ == "__main__":
    main()
