"""What a poll of the core costs whose segments have nothing to do, and whose one segment in a thousand has.

    python -m benchmarks.bench_poll [--json] [--seconds 1]

Prints `name value unit` lines, or one JSON object. 16,384 segments are the slots of a cluster, all of one node here;
they are written, and rest. The ceiling is one look at each: a list of the segments whose phase is another. Both take
turns, and each gets its median of processor time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from benchmarks.common import Figure, parser, show
from deelog_connector.core import ConnectorCore
from deelog_connector.core.segment import Phase, Segment
from deelog_connector.core.settings import Settings, StreamState
from deelog_schemas.keys import SLOTS

ROUNDS = 20


class Nothing(StreamState):
    """Positions say nothing of a stream."""

    def source(self, segment: int, sequence: int, past: object) -> str:
        return ""


def resting(segments: int, busy: int) -> ConnectorCore:
    """A core that is primary of so many segments, `busy` of which wait for their claims to be read."""
    core = ConnectorCore("node@1", Settings(segments, 8, heartbeat_interval=3600.0), Nothing())
    core.topic_is("topic")
    for number in range(segments):
        core.promote(number, 1)
        segment = core.owned()[-1]
        segment.phase = Phase.LOOK if number < busy else Phase.WRITING
        segment.undecided, segment.written = False, 0
    core.poll(0.0, 0)
    core.producer_opened()
    return core


def median_ms(turns: list[Callable[[], object]], seconds: float) -> list[float]:
    """Processor time of a call of each, in milliseconds."""
    taken: list[list[float]] = [[] for _ in turns]
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(taken[0]) < ROUNDS:
        for turn, times in zip(turns, taken, strict=True):
            began = time.process_time_ns()
            turn()
            times.append((time.process_time_ns() - began) / 1e6)
    return [statistics.median(times) for times in taken]


def measure(seconds: float) -> list[Figure]:
    """All figures."""
    figures: list[Figure] = []
    for name, busy in (("idle", 0), ("busy", SLOTS // 1000)):
        core = resting(SLOTS, busy)
        moment = 3600.0

        def poll(core: ConnectorCore = core) -> None:
            nonlocal moment
            moment += 0.001
            core.poll(moment, 0)

        def look(everyone: Sequence[Segment] = core.primaries()) -> list[Segment]:
            return [segment for segment in everyone if segment.phase is not Phase.WRITING]

        poll_ms, look_ms = median_ms([poll, look], seconds)
        figures += [(f"poll_{name}", poll_ms, "ms"), (f"poll_{name}_ratio", poll_ms / look_ms, "of one look at each")]
    return figures


def main() -> None:
    """See the module."""
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=1.0, help="for each of two cases")
    given = arguments.parse_args()
    show(measure(given.seconds), given.json)


if __name__ == "__main__":
    main()
