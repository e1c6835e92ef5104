"""What reading a replication stream costs, beside hiredis alone.

    python -m benchmarks.bench_redis [--json] [--seconds 0.5]

Prints `name value unit` lines, or one JSON object. The stream is 20,000 SETs of 100 bytes in pieces of 64 KB. `hiredis`
parses them; `stream` is `Stream.feed`, which tells the offset behind each as well; `changes` says besides what each
changes. The ways take turns, and each gets its median of processor time: a busy machine disturbs all of them alike.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import hiredis

from benchmarks.common import parser, show
from deelog_interceptors.redis.commands import changes
from deelog_interceptors.redis.stream import Stream

NUMBER = 20_000
PIECE = 1 << 16


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


WAYS: dict[str, Callable[[], None]] = {"hiredis": parsed, "stream": streamed, "changes": changed}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=0.5, help="for each way")
    given = options.parse_args()
    taken: dict[str, list[float]] = {name: [] for name in WAYS}
    gc.disable()
    while min(map(sum, taken.values())) < given.seconds:
        for name, way in WAYS.items():
            begin = time.process_time()
            way()
            taken[name].append(time.process_time() - begin)
    medians = {name: statistics.median(found) / NUMBER for name, found in taken.items()}
    figures = [(name, medians[name] * 1e6, "µs/SET") for name in WAYS]
    figures += [(f"{name}_ratio", medians[name] / medians["hiredis"], "×hiredis") for name in ("stream", "changes")]
    show(figures, as_json=given.json)


if __name__ == "__main__":
    main()
