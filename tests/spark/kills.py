"""`kill -9` of the job at random instants, and Kafka's end and start again: every sink ends as the reference says.

    python -m tests.spark.kills --kills 30 --seed 1 [--database postgres] [--garbled]

A cache's writer goes on all the while. Each round draws what is killed (the driver, alone or with its JVM; a Python
worker; both), what it should be doing then (or nothing in particular, be it still starting), and the size of batches
that the driver carries itself; without the last one there would be no Python workers. What it did when it was killed
is read from the job's own notes (`watched.py`). With `--garbled` some changes cannot be read and go to a dead-letter
topic, each once. Exit code 1 where anything differs.
"""

from __future__ import annotations

import argparse
import collections
import logging
import os
import random
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from deelog_connector.devkafka import jars
from deelog_schemas.config import Config
from deelog_spark.session import JARS_VARIABLE
from tests.spark import scenes, watched
from tests.spark.processes import WAIT, Job
from tests.spark.reference import DiffRecord, expected, held, in_parquet, in_topic, places
from tests.spark.tables import Database, OnPostgres, Sqlite, in_table
from tests.support.changes import Cache, config_of
from tests.support.kafka import Broker, running_broker
from tests.support.postgres import running_postgres
from tests.support.waiting import waiting

log = logging.getLogger("tests.kills")

WATCHED: Final = (sys.executable, "-m", "tests.spark.watched")
KINDS: Final = ("driver", "worker", "driver and JVM", "driver and worker")
AIMS: Final = (
    "reset",
    "kafka",
    "jdbc: staging",
    "",
    "parquet",
    "jdbc: transaction",
    "plan",
    "starting",
    "state",
)
"""What a round waits for before it kills; with none any instant will do."""
_STACKS: Final = "most recent call first"
"""What `faulthandler` says above each."""
_RESTART_EVERY: Final = 7
_TURNS: Final = 12
_TURN_SECONDS: Final = 0.5
_START_SECONDS: Final = 12.0
_LATER_SECONDS: Final = 0.3
_WITH_DAEMON: Final = 0.3
_BRIEF: Final = ("jdbc: transaction", "state")
"""Too short to wait for an instant within them."""


@dataclass
class Report:
    """What was done, and what came of it."""

    kinds: collections.Counter[str] = field(default_factory=collections.Counter)
    steps: collections.Counter[str] = field(default_factory=collections.Counter)
    ended: int = 0
    """How often the job gave up by itself when a worker was gone."""
    restarts: int = 0
    records: int = 0
    differences: int = 0
    resets: int = 0
    letters: int = 0
    seconds: float = 0.0

    def lines(self) -> list[str]:
        kinds, steps = (", ".join(f"{n} {name}" for name, n in c.most_common()) for c in (self.kinds, self.steps))
        return [
            f"{self.kinds.total()} kills: {kinds}",
            f"what ran then: {steps}",
            f"{self.ended} times the job ended by itself when its worker was gone; {self.restarts} restarts of Kafka",
            f"{self.records} records, {self.resets} resets, {self.differences} differences, {self.letters} letters, "
            f"{self.seconds:.0f} s",
        ]


class Kills:
    """One run. `play` it; what is wrong raises AssertionError."""

    def __init__(self, config: Config, database: Database, broker: Broker, folder: Path, seed: int) -> None:
        self.config, self.database, self.broker, self.folder = config, database, broker, folder
        self.cache = Cache(config)
        self._tolerant = config["errors.tolerance"] == "all"
        self.player = scenes.Player(self.cache, seed, garbled=self._tolerant)
        self.chance = random.Random(seed)
        self.report = Report()
        self._notes = folder / "step"
        self._children: list[psutil.Process] = []
        self._job: Job | None = None
        self._next_turn = 0.0
        self._begun = time.monotonic()

    def play(self, kills: int) -> Report:
        """Kills so often; then lets the job catch up, ends it by SIGTERM and compares."""
        self._begun = time.monotonic()
        kinds = _shuffled(KINDS, kills, self.chance)
        aims = _shuffled(AIMS, kills, self.chance)
        try:
            self._running(0).running()  # before the first record, as the reference reader is
            for number, (kind, aim) in enumerate(zip(kinds, aims, strict=True), 1):
                self._round(kind, aim)
                if number % _RESTART_EVERY == _RESTART_EVERY // 2:
                    self._restart_kafka()
            self._finish()
        finally:
            if self._job is not None:
                self._job.process.kill()
                self._job.close()
        self.report.seconds = time.monotonic() - self._begun
        return self.report

    def _round(self, kind: str, aim: str) -> None:
        job = self._running(20_000 if kind == "driver" and self.chance.random() < 0.5 else 0)
        for _ in range(_TURNS):
            self.player.turn()
        if aim == "starting":
            time.sleep(self.chance.uniform(0, _START_SECONDS))
        below = self._await(job, aim, needs_worker="worker" in kind)
        self._kill(job, kind, below)

    def _running(self, small: int) -> Job:
        if self._job is None or self._job.process.poll() is not None:
            watched.created(self._notes)
            more = {"DEELOG_WATCHED": str(self._notes), "DEELOG_SMALL": str(small)}
            self._job = Job(self.config, self.folder, command=WATCHED, env={**os.environ, **more})
        return self._job

    def _await(self, job: Job, aim: str, needs_worker: bool) -> list[psutil.Process]:
        """Writes on until the job does what is aimed at, which it must do in time; the processes below it."""
        deadline = time.monotonic() + WAIT
        turn = time.monotonic()
        below: list[psutil.Process] = []
        while True:
            assert job.process.poll() is None, job.errors.read_text()
            if time.monotonic() > turn:  # what takes long, so that nothing else does
                self.player.turn()
                below = job.children()
                self._children = list({*self._children, *below})
                turn = time.monotonic() + _TURN_SECONDS
            doing = watched.step(self._notes)
            if (doing == aim or aim in ("", "starting")) and (not needs_worker or _workers(below)):
                break
            if time.monotonic() > deadline:
                job.process.send_signal(signal.SIGUSR1)  # its stacks go to stderr
                waiting(lambda: _STACKS in job.errors.read_text(), WAIT, "its stacks")
                raise AssertionError(f"{doing}, not {aim or 'anything'}; {job.errors.read_text()}")
            time.sleep(0.0005)
        if aim not in _BRIEF:
            time.sleep(self.chance.uniform(0, _LATER_SECONDS))
        return below

    def _kill(self, job: Job, kind: str, below: list[psutil.Process]) -> None:
        victims = below if kind == "driver and JVM" else []
        if "worker" in kind:
            whole = self.chance.random() < _WITH_DAEMON
            victims = _pythons(below) if whole else [self.chance.choice(_workers(below))]
        doing = watched.step(self._notes)
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        if kind == "worker":
            self._after_worker(job)
        else:
            job.process.kill()
            job.close()
            doing = watched.step(self._notes)
        log.info("%.0f s: %s during %s", time.monotonic() - self._begun, kind, doing)
        self.report.kinds[kind] += 1
        self.report.steps[doing] += 1

    def _after_worker(self, job: Job) -> None:
        """The job goes on, or ends with one line; a worker that had nothing to do is not missed before the next batch.
        It must not hang."""
        before = job.told().get("batches", 0)
        self.player.turn()

        def seen() -> bool:
            self._turn()
            return job.process.poll() is not None or job.told().get("batches", 0) > before + 1

        waiting(seen, WAIT, "two batches more, or the end")
        if job.process.poll() is not None:
            assert job.close() == 1, job.errors.read_text()
            assert len(job.said()) == 1, job.errors.read_text()
            self.report.ended += 1

    def _turn(self) -> None:
        """A turn, where the last one is half a second ago."""
        if time.monotonic() > self._next_turn:
            self.player.turn()
            self._next_turn = time.monotonic() + _TURN_SECONDS

    def _restart_kafka(self) -> None:
        if self.chance.random() < 0.5:
            self.broker.kill()
            self.broker.start()
        else:
            self.broker.restart()
        log.info("%.0f s: Kafka is back", time.monotonic() - self._begun)
        self.report.restarts += 1

    def _finish(self) -> None:
        job = self._running(20_000)
        self.player.finish()
        while not job.caught_up(self.cache):  # however much was written: as long as it goes on
            self._await_a_batch(job)
        self._children += job.children()
        letters: list[tuple[int, int]] | None = [] if self._tolerant else None
        wanted = expected(self.config, self.cache.partitions, letters=letters)
        told, rows = job.told(), [t for ts in wanted.values() for t in ts]
        self.report.records, self.report.differences = told["records"], len(rows)
        self.report.resets = sum(told["resets"].values())
        for cause, name in (("change", "changes"), ("reset", "resets_rows")):
            assert told[name] == {op: sum(t.cause == cause and t.op == op for t in rows) for op in "cud"}, name
        if letters is not None:
            assert (told["dead_letters"], places(self.config)) == (len(letters), sorted(letters)), "dead letters differ"
            self.report.letters = len(letters)
        assert in_topic(self.config, self.cache.partitions) == wanted, "the diff topic differs"
        parquet = in_parquet(Path(self.config["diff.parquet.path"]))
        assert by_key(parquet) == by_key(wanted), "the parquet sink differs"
        assert in_table(self.database, self.config) == held(wanted), "the table differs"
        os.kill(job.process.pid, signal.SIGTERM)
        assert job.close() == 0, job.errors.read_text()
        waiting(lambda: not any(child.is_running() for child in self._children), 60, "the end of all processes")

    def _await_a_batch(self, job: Job) -> None:
        before = job.told().get("batches", 0)

        def done() -> bool:
            assert job.process.poll() is None, job.errors.read_text()
            return job.told().get("batches", 0) > before or job.caught_up(self.cache)

        waiting(done, WAIT, "a batch")


def _shuffled(choices: tuple[str, ...], number: int, chance: random.Random) -> list[str]:
    """Each as often as the others, in any order."""
    drawn = [choices[n % len(choices)] for n in range(number)]
    chance.shuffle(drawn)
    return drawn


def _pythons(below: list[psutil.Process]) -> list[psutil.Process]:
    """Spark's Python daemon and the workers that it forks, all of one command line."""
    found = []
    for process in below:
        with suppress(psutil.NoSuchProcess):
            if "pyspark.daemon" in process.cmdline():
                found.append(process)
    return found


def _workers(below: list[psutil.Process]) -> list[psutil.Process]:
    """The workers alone. Those of a daemon that was killed are nobody's children: they are not killed without it."""
    pythons = _pythons(below)
    pids, found = {process.pid for process in pythons}, []
    for process in pythons:
        with suppress(psutil.NoSuchProcess):
            if process.ppid() in pids:
                found.append(process)
    return found


def by_key(told: dict[int, list[DiffRecord]]) -> dict[tuple[int, bytes], list[DiffRecord]]:
    """The differences of each key, in order."""
    found: dict[tuple[int, bytes], list[DiffRecord]] = {}
    for segment, rows in told.items():
        for row in rows:
            found.setdefault((segment, row.key), []).append(row)
    return found


def configured(broker: Broker, prefix: str, folder: Path, database: Database, garbled: bool = False) -> Config:
    """Every sink, and with `garbled` a dead-letter topic."""
    paths = {"diff_parquet_path": str(folder / "pq")}
    more = {**paths, **database.fields, "diff_max_offsets_per_trigger": 300}
    if garbled:
        more |= {"errors_tolerance": "all", "errors_deadletterqueue_topic_name": f"{prefix}.letters"}
    return config_of(broker.bootstrap, prefix, str(folder / "cp"), **more)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--garbled", action="store_true", help="some changes cannot be read")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    log.setLevel(logging.INFO)
    os.environ[JARS_VARIABLE] = ",".join(map(str, (*jars.fetch("spark-kafka"), *jars.fetch("jdbc"))))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deelog-kills-")))
        broker = stack.enter_context(running_broker(folder / "kafka"))
        database: Database = Sqlite(folder / "table.db")
        if options.database == "postgres":
            database = OnPostgres(stack.enter_context(running_postgres()))
        config = configured(broker, "kills", folder, database, options.garbled)
        run = Kills(config, database, broker, folder, options.seed)
        try:
            run.play(options.kills)
        except AssertionError as error:
            sys.stderr.write(f"DIFFERENT: {error}\n")
            return 1
        finally:
            sys.stdout.write("\n".join(run.report.lines()) + "\n")
    sys.stdout.write("every sink is as the reference says\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
