"""The checks. Each starts a cache with its own topics, writes to it, and compares the writes with the topic."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, Protocol

from deelog_connector.kafka.publish import publish
from deelog_proof.conformance.driver import Driver
from deelog_proof.conformance.history import Change, History, Reset, Step, Write
from deelog_proof.conformance.observed import Observed, observe
from deelog_schemas.config import parse
from deelog_schemas.keys import segment_of

SEGMENTS: Final = 4
SECONDS: Final = 120.0
"""Seconds that a change may take to arrive in Kafka."""
KEYS: Final = [f"key-{number}" for number in range(20)]


class Kafka(Protocol):
    """A broker that a check may stop, such as `deelog_connector.devkafka.broker.EmbeddedKafka`."""

    @property
    def bootstrap(self) -> str:
        """`host:port`."""

    def stop(self) -> None:
        """Stops it and keeps its data."""

    def start(self) -> None:
        """Starts it again; returns once it serves."""


class NotConformant(AssertionError):
    """The topic and the cache do not agree."""


class Life:
    """A started cache, and its history."""

    def __init__(self, driver: Driver, entries: Mapping[str, str]) -> None:
        self.driver = driver
        self.history = History(dict(entries))
        self.steps: dict[int, list[Step]] = {}
        """By segment: the topic's records of this life, once it has ended."""

    def write(self, key: str, value: str) -> None:
        """As `Driver` does, and records it."""
        self.driver.write(key, value)
        self.history.writes.append(Write(key, value))

    def delete(self, key: str) -> None:
        """As `Driver` does, and records it."""
        self.driver.delete(key)
        self.history.writes.append(Write(key, None))

    def clear(self) -> None:
        """As `Driver` does, and records it."""
        self.driver.clear()
        self.history.writes.append(Write(None, None))

    def work(self, keys: list[str], turns: int) -> None:
        """Creates, updates and deletes keys that are absent at first, no value twice."""
        held = set[str]()
        for turn in range(turns):
            key = keys[turn * 7 % len(keys)]
            if key in held and turn % 3 == 2:
                self.delete(key)
                held.discard(key)
            else:
                self.write(key, f"{key} in turn {turn}")
                held.add(key)


class Trial:
    """Topics of one check, and the lives of caches that are captured into them, one after the other."""

    def __init__(self, make: Callable[[], Driver], kafka: Kafka) -> None:
        self._make, self._bootstrap = make, kafka.bootstrap
        self._fields = {
            "bootstrap.servers": kafka.bootstrap,
            "topic.prefix": f"conformance-{uuid.uuid4().hex[:12]}",
            "cache.name": "cache",
            "node.id": "node",
            "segment.count": str(SEGMENTS),
            "topic.creation.default.partitions": "2",
            "topic.creation.default.replication.factor": "1",
            "commit.interval.ms": "10",
        }
        self._config = parse(self._fields)
        self._over: Counter[int] = Counter()
        """By segment: the steps of lives that have ended."""

    @contextmanager
    def life(self, entries: Mapping[str, str] | None = None, *, threads: bool = False) -> Iterator[Life]:
        """Starts a cache; stops it at the end, and compares. `threads`: only the order of each key is known."""
        life = Life(self._make(), entries or {})
        life.driver.start(self._fields, life.history.entries)
        try:
            yield life
        except BaseException:
            life.driver.stop()
            raise
        content = dict(life.driver.content())
        life.driver.stop()
        self._compare(life, content, threads)

    def steps(self) -> dict[int, list[Step]]:
        """By segment: the records of this life so far."""
        observed = self._observe()
        return {segment: observed.steps.get(segment, [])[self._over[segment] :] for segment in range(SEGMENTS)}

    def wait_for_resets(self, count: int) -> None:
        """Returns once every segment was reset `count` times in this life; then writes become change records."""
        deadline = time.monotonic() + SECONDS
        while any(sum(isinstance(step, Reset) for step in steps) < count for steps in self.steps().values()):
            if time.monotonic() > deadline:
                raise NotConformant(f"not every segment was reset {count} times within {SECONDS:g} s")
            time.sleep(0.05)

    def ask_reset(self) -> None:
        """Sends the signal `reset-segment` for every segment."""
        data = {"cache": self._config["cache.name"], "segments": list(range(SEGMENTS))}
        signal = {"id": "conformance", "type": "reset-segment", "data": data}
        publish(self._config, self._config.topics.signal, self._config["topic.prefix"], json.dumps(signal).encode())

    def _observe(self) -> Observed:
        return observe(self._bootstrap, self._config.topics.changes)

    def _compare(self, life: Life, content: Mapping[str, str], threads: bool) -> None:
        history, observed = life.history, self._observe()
        problems = observed.faults
        for name, held in (("the cache", content), ("the topic", observed.content)):
            if held != history.content:
                problems.append(f"{name} does not hold what was written: {_difference(history.content, held)}")
        for segment in range(SEGMENTS):
            steps = observed.steps.get(segment, [])[self._over[segment] :]
            mine = {key for key in history.keys if segment_of(key.encode(), SEGMENTS) == segment}
            for keys in [{key} for key in mine] if threads else [mine]:
                if problem := history.of(keys).contradiction(_of(steps, keys) if threads else steps):
                    problems.append(f"segment {segment}: {problem}")
            self._over[segment] += len(steps)
            life.steps[segment] = steps
        if problems:
            raise NotConformant("\n".join(problems))


def _of(steps: list[Step], keys: set[str]) -> list[Step]:
    """The steps, limited to some keys."""
    return [
        Reset(step.reason, {key: value for key, value in step.entries.items() if key in keys})
        if isinstance(step, Reset)
        else step
        for step in steps
        if isinstance(step, Reset) or step.key in keys
    ]


def _difference(expected: Mapping[str, str], held: Mapping[str, str]) -> str:
    keys = sorted(key for key in expected.keys() | held.keys() if expected.get(key) != held.get(key))
    return ", ".join(f"{key}: {held.get(key)!r} instead of {expected.get(key)!r}" for key in keys[:3])


def _require_changes(life: Life) -> None:
    """A reset may stand for any write, but not for all of them."""
    if not any(isinstance(step, Change) for steps in life.steps.values() for step in steps):
        raise NotConformant("no write became a change record: everything came by resets")


# -- the checks ----------------------------------------------------------------------------------------------------


def changes_arrive_in_order(make: Callable[[], Driver], kafka: Kafka) -> None:
    """Every create, update and delete is a record, in the order of the writes; a delete has its tombstone."""
    trial = Trial(make, kafka)
    with trial.life() as life:
        trial.wait_for_resets(1)
        life.work(KEYS, 300)
    _require_changes(life)


def entries_of_the_start_are_sent(make: Callable[[], Driver], kafka: Kafka) -> None:
    """Kafka gets the entries from before the capture, whatever is written right after its start."""
    with Trial(make, kafka).life(dict.fromkeys(KEYS, "of the start")) as life:
        for key in KEYS[::2]:
            life.delete(key)
        life.work(KEYS[::2], 100)


def a_clear_empties_the_topic(make: Callable[[], Driver], kafka: Kafka) -> None:
    """No entry from before a clear is left, and every later write is there."""
    trial = Trial(make, kafka)
    with trial.life() as life:
        trial.wait_for_resets(1)
        life.work(KEYS, 60)
        life.clear()
        life.work(KEYS[:5], 10)


def threads_keep_the_order_of_each_key(make: Callable[[], Driver], kafka: Kafka) -> None:
    """Several threads write, each its own keys: each key's changes arrive in the order of its writes."""
    trial = Trial(make, kafka)
    with trial.life(threads=True) as life, ThreadPoolExecutor(4) as threads:
        trial.wait_for_resets(1)
        for work in [threads.submit(life.work, KEYS[thread::4], 200) for thread in range(4)]:
            work.result(SECONDS)


def a_reset_is_the_content_at_one_moment(make: Callable[[], Driver], kafka: Kafka) -> None:
    """Resets while the cache is written to hold what it held at one moment; the changes after it follow."""
    trial, enough = Trial(make, kafka), threading.Event()

    def write(life: Life) -> None:
        turn = 0
        while not enough.wait(0.005):
            life.write(KEYS[turn % len(KEYS)], f"turn {turn}")
            turn += 1

    with trial.life() as life, ThreadPoolExecutor(1) as thread:
        trial.wait_for_resets(1)
        writing = thread.submit(write, life)
        try:
            for count in (2, 3):
                trial.ask_reset()
                trial.wait_for_resets(count)
        finally:
            enough.set()
        writing.result(SECONDS)
    _require_changes(life)


def a_restart_sends_the_cache_anew(make: Callable[[], Driver], kafka: Kafka) -> None:
    """A restarted cache is another cache: entries that it lacks are deleted, and every segment is reset."""
    trial = Trial(make, kafka)
    with trial.life(dict.fromkeys(KEYS, "first life")):
        trial.wait_for_resets(1)
    with trial.life(dict.fromkeys(KEYS[::3], "second life")) as life:
        life.write(KEYS[1], "written in the second life")


def nothing_is_lost_while_kafka_is_away(make: Callable[[], Driver], kafka: Kafka) -> None:
    """Writes go on while the broker is down, and arrive once it is back."""
    trial = Trial(make, kafka)
    with trial.life() as life:
        trial.wait_for_resets(1)
        life.work(KEYS[:10], 50)
        kafka.stop()
        try:
            life.work(KEYS[10:], 200)
        finally:
            kafka.start()


def a_stop_writes_what_is_left(make: Callable[[], Driver], kafka: Kafka) -> None:
    """Writes from just before the stop are in Kafka after it."""
    trial = Trial(make, kafka)
    with trial.life() as life:
        trial.wait_for_resets(1)
        life.work(KEYS, 2000)


Check = Callable[[Callable[[], Driver], Kafka], None]
CHECKS: Final[tuple[Check, ...]] = (
    changes_arrive_in_order,
    entries_of_the_start_are_sent,
    a_clear_empties_the_topic,
    threads_keep_the_order_of_each_key,
    a_reset_is_the_content_at_one_moment,
    a_restart_sends_the_cache_anew,
    nothing_is_lost_while_kafka_is_away,
    a_stop_writes_what_is_left,
)
