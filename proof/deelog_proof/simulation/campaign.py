"""Runs many seeds in as many processes as there are cores, and shortens the scripts of failing ones.

Weighed in docs/decisions.md, "A campaign is a pool".
"""

from __future__ import annotations

import gc
import hashlib
import logging
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event as Flag
from types import FrameType
from typing import Any, Final

from deelog_proof.simulation.caches import CACHES
from deelog_proof.simulation.run import Run
from deelog_proof.simulation.script import GRID, Script
from deelog_proof.simulation.shrink import shrink
from deelog_schemas.errors import DeelogError

DEFAULT_STEPS: Final = 3000
MAX_FAILURES: Final = 100
"""A campaign ends after this many failing seeds."""
STUCK_SECONDS: Final = 60.0
"""Processor seconds that one run may take; each million events of its script's length adds as many."""
_AT_ONCE: Final = 8
"""Seeds that a process gets at a time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a campaign runs; `kinds` in the order of the cache's `faults`. The script of a seed depends on them."""

    first: int
    last: int
    steps: int = DEFAULT_STEPS
    kinds: tuple[str, ...] = tuple(CACHES[GRID].guard.faults)
    cache: str = GRID

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return self.last - self.first + 1

    def script(self, seed: int) -> Script:
        """The script of one of its seeds."""
        return CACHES[self.cache].generate(seed, self.steps, self.kinds)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one run. `part` and `text` are of its violation, empty without one."""

    seed: int
    digest: str
    steps: int
    simulated: float
    cpu: float
    counts: dict[str, int]
    part: str = ""
    text: str = ""
    trace: tuple[str, ...] = ()

    @property
    def way(self) -> str:
        """How it failed, the same for two runs that fail for the same reason."""
        return f"{self.part} {self.text.partition(': ')[2].partition('(')[0]}" if self.part == "broken" else self.part


@dataclass(slots=True)
class Tally:
    """The sum of all outcomes so far."""

    plan: Plan
    seeds: int = 0
    steps: int = 0
    # The last digits of a sum of floats depend on the order.
    simulated: float = field(default=0.0, compare=False)
    cpu: float = field(default=0.0, compare=False)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)
    _digest: int = 0

    def add(self, outcome: Outcome) -> None:
        """Adds an outcome; the order does not matter."""
        self.seeds += 1
        self.steps += outcome.steps
        self.simulated += outcome.simulated
        self.cpu += outcome.cpu
        self.counts.update(outcome.counts)
        self._digest += int.from_bytes(hashlib.sha256(f"{outcome.seed} {outcome.digest}".encode()).digest())
        if outcome.part:
            self.failures.append(outcome)
            self.failures.sort(key=lambda o: o.seed)

    @property
    def digest(self) -> str:
        """The digest of all traces: the same for the same seeds, in any order."""
        return f"{self._digest % 2**256:064x}"

    def faults(self) -> dict[str, int]:
        """The number of injected faults, by verb."""
        return {name[6:]: n for name, n in sorted(self.counts.items()) if name.startswith("fault ") and n}

    def missing(self) -> list[str]:
        """See `vacuity.Guard`."""
        plan = self.plan
        return CACHES[plan.cache].guard.missing(self.counts, plan.kinds, self.seeds, plan.steps)


class CampaignError(DeelogError):
    """A campaign cannot go on."""

    exit_code = 4


class StuckError(Exception):
    """A run took too long: probably an endless loop within one step."""


@contextmanager
def _alone(seconds: float) -> Iterator[None]:
    """Turns off logging and garbage collection, and ends a run in an endless loop."""

    def stuck(_number: int, _frame: FrameType | None) -> None:
        raise StuckError(f"the run has taken {seconds:g} s of processor time")

    silent, collects = logging.root.manager.disable, gc.isenabled()
    former = signal.signal(signal.SIGVTALRM, stuck)
    logging.disable(logging.CRITICAL)
    gc.disable()
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)
        logging.disable(silent)
        if collects:
            gc.enable()


def run(script: Script, trace: bool = False, stuck_seconds: float = STUCK_SECONDS) -> Outcome:
    """Runs one script, in the main thread; an exception out of the run counts as a violation too."""
    begin = time.process_time()
    world: Run[Any] | None = None
    events = len(script.events)
    try:
        with _alone(stuck_seconds * (1 + events / 1e4)):
            world = CACHES[script.cache].world(script)
            verdict = world.run()
            violation = verdict.violation
            part, text = (violation.part, str(violation).partition(": ")[2]) if violation is not None else ("", "")
            lines = tuple(verdict.trace) if trace else ()
            return Outcome(
                script.settings["seed"], verdict.digest, verdict.steps, verdict.seconds, time.process_time() - begin,
                dict(verdict.counts), part, text, lines,
            )  # fmt: skip
    except Exception as error:  # noqa: BLE001 - reported as a run that broke
        where = "".join(traceback.format_exception(error)[-3:])
        lines = tuple(world.checker.trace) if world is not None and trace else ()
        digest = world.checker.digest if world is not None else ""
        steps = world.engine.steps if world is not None else 0
        cpu = time.process_time() - begin
        text = f"outside any node: {error!r}\n{where}"
        return Outcome(script.settings["seed"], digest, steps, 0.0, cpu, {}, "broken", text, lines)


# -- many -------------------------------------------------------------------------------------------------------------


def outcomes(plan: Plan, jobs: int) -> Generator[Outcome, None, None]:
    """The outcome of each seed, in the order in which they end. With one job everything runs in this process.

    Closing it, or an exception, ends each process after its current run.
    """
    if jobs == 1:
        for seed in range(plan.first, plan.last + 1):
            yield run(plan.script(seed))
        return
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    parts = (range(at, min(at + _AT_ONCE, plan.last + 1)) for at in range(plan.first, plan.last + 1, _AT_ONCE))
    with ProcessPoolExecutor(jobs, context, _begin_worker, (plan, stop)) as pool:
        try:
            under_way: set[Future[list[Outcome]]] = set()
            while True:
                for _, part in zip(range(2 * jobs - len(under_way)), parts, strict=False):
                    under_way.add(pool.submit(_work, part))
                if not under_way:
                    return
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for future in done:
                    yield from future.result()
        except BrokenProcessPool as error:
            raise CampaignError(
                f"a process of the campaign was killed, mostly for want of memory: give fewer than --jobs {jobs}"
            ) from error
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)


_worker: tuple[Plan, Flag] | None = None


def _begin_worker(plan: Plan, stop: Flag) -> None:
    global _worker
    _worker = plan, stop
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal signals all processes; the parent ends this one
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, name="end with parent", daemon=True).start()


def _work(seeds: Sequence[int]) -> list[Outcome]:
    assert _worker is not None
    plan, stop = _worker
    return [run(plan.script(seed)) for seed in seeds if not stop.is_set()]


# -- the shortest -----------------------------------------------------------------------------------------------------


class _EnoughError(Exception):
    """The time is up."""


class Shortening:
    """Shortens a failing script, for `seconds` at most; `best` is the shortest failing script so far.

    Shorter scripts must fail in the same way, see `Outcome.way`.
    """

    def __init__(self, script: Script, outcome: Outcome, seconds: float) -> None:
        self.best, self.outcome = script, outcome
        self.runs = 0
        self.complete = False
        self._progress: Callable[[int, int], None] = lambda left, runs: None
        self._way, self._until = outcome.way, time.monotonic() + seconds

    def run(self, progress: Callable[[int, int], None]) -> None:
        """Returns when no event can be left out, or the time is up. `progress` gets the number of lines and runs."""
        self._progress = progress
        try:
            shrink(self.best, self._fails)
            self.complete = True
        except _EnoughError:
            pass

    def _fails(self, script: Script) -> bool:
        if time.monotonic() > self._until:
            raise _EnoughError
        self.runs += 1
        self._progress(len(self.best.events), self.runs)
        outcome = run(script)
        if outcome.way != self._way:
            return False
        self.best, self.outcome = script, outcome
        return True
