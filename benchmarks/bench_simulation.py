"""How fast the simulation runs: steps of the product's code per second of one core, beside steps that do nothing.

    python -m benchmarks.bench_simulation [--json] [--seeds 40] [--rounds 3]

Prints `name value unit` lines, or one JSON object. `steps` is seeds 1, 2, … with the default faults, drawing of their
scripts included; `ceiling` is the same engine, the same number of nodes' worth of pending events and a delay drawn for
each, whose events call nothing: what no simulation on this engine can exceed. The two take turns, and each gets its
median of processor time, so that a busy machine disturbs both alike. `speed` is simulated time over processor time,
`steps_slowest` the seed with the fewest steps per second.
"""

from __future__ import annotations

import statistics
import time

from benchmarks.common import Figure, parser, show
from deelog_proof.memory.engine import Engine
from deelog_proof.simulation.campaign import Outcome, Plan, run

EMPTY_STEPS = 200_000
PENDING = 100
"""Events that wait at any time; the runs of seeds 1 to 9 have 76 to 184 of them (median of each run)."""


def empty_steps() -> float:
    """Steps per second of the engine alone."""
    engine = Engine(1)
    stream = engine.stream("nothing")

    def nothing() -> None:
        engine.after(stream.expovariate(1000.0), nothing)

    for _ in range(PENDING):
        engine.after(0.0, nothing)
    begin = time.process_time()
    for _ in range(EMPTY_STEPS):
        engine.step()
    return EMPTY_STEPS / (time.process_time() - begin)


def seeds(count: int) -> tuple[float, list[Outcome]]:
    """Processor seconds of seeds 1 to `count`, and what came of them."""
    plan = Plan(1, count)
    begin = time.process_time()
    found = [run(plan.script(seed)) for seed in range(1, count + 1)]
    seconds = time.process_time() - begin
    failing = [outcome.seed for outcome in found if outcome.part]
    if failing:
        raise SystemExit(f"seeds {failing} fail: deelog simulate --replay {failing[0]}")
    return seconds, found


def main() -> None:
    """Measures and prints."""
    arguments = parser(__doc__)
    arguments.add_argument("--seeds", type=int, default=40)
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    ceilings: list[float] = []
    taken: list[float] = []
    found: list[Outcome] = []
    for _ in range(given.rounds):
        ceilings.append(empty_steps())
        seconds, found = seeds(given.seeds)
        taken.append(seconds)
    ceiling, seconds = statistics.median(ceilings), statistics.median(taken)
    steps = sum(outcome.steps for outcome in found)
    figures: list[Figure] = [
        ("simulation_steps", steps / seconds, "steps/s of a core"),
        ("simulation_steps_slowest", min(o.steps / o.cpu for o in found), "steps/s of a core"),
        ("simulation_ceiling", ceiling, "steps/s of a core"),
        ("simulation_share", steps / seconds / ceiling, "of the ceiling"),
        ("simulation_seeds", 60 * given.seeds / seconds, "seeds/min of a core"),
        ("simulation_speed", sum(o.simulated for o in found) / seconds, "simulated s/s of a core"),
    ]
    show(figures, given.json)


if __name__ == "__main__":
    main()
