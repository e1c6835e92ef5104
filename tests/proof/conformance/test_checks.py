"""The checks without Kafka: caches that are captured right pass each, and wrong ones are found.

`test_conformance.py` runs them with a real Kafka.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from deelog_proof.conformance import checks as module
from deelog_proof.conformance.checks import (
    CHECKS,
    KEYS,
    SEGMENTS,
    Check,
    Life,
    NotConformant,
    Trial,
    a_reset_is_the_content_at_one_moment,
    changes_arrive_in_order,
    nothing_is_lost_while_kafka_is_away,
)
from deelog_proof.conformance.driver import Driver
from deelog_proof.conformance.history import Change, Reset, Step, Write
from deelog_proof.conformance.observed import Observed
from deelog_schemas.config import Config
from deelog_schemas.keys import segment_of

EVERY = range(SEGMENTS)


class Topic:
    """The change topic of one check. It is a broker, too, which notes that it is stopped and started."""

    bootstrap = "h:1"

    def __init__(self) -> None:
        self.steps: dict[int, list[Step]] = {segment: [] for segment in EVERY}
        self.entries: dict[int, dict[str, str]] = {segment: {} for segment in EVERY}
        self.faults: list[str] = []
        self.calls: list[str] = []
        self.driver: Captured | None = None
        self.late: list[Captured] = []
        """Caches whose first resets come when the topic is read."""
        self.lock = threading.Lock()

    def observe(self, bootstrap: str, topic: str) -> Observed:
        assert bootstrap == self.bootstrap
        assert topic.startswith("conformance-")
        while self.late:
            late = self.late.pop()
            for segment in EVERY:
                late.reset(segment, "start")
        with self.lock:
            content = {key: value for entries in self.entries.values() for key, value in entries.items()}
            return Observed({n: list(steps) for n, steps in self.steps.items() if steps}, content, list(self.faults))

    def publish(self, config: Config, topic: str, key: str, value: bytes) -> None:
        assert (topic, key) == (config.topics.signal, config["topic.prefix"])
        signal = json.loads(value)
        assert (signal["type"], signal["data"]["cache"]) == ("reset-segment", "cache")
        assert self.driver is not None
        for segment in signal["data"]["segments"]:
            self.driver.reset(segment, "signal")

    def stop(self) -> None:
        self.calls.append("stop Kafka")

    def start(self) -> None:
        self.calls.append("start Kafka")


class Captured(Driver):
    """A dictionary; each write is a step of the topic at once."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        topic.driver = self

    def start(self, fields: Mapping[str, str], entries: Mapping[str, str]) -> None:
        self.topic.calls.append("start")
        self.fields, self.entries = dict(fields), dict(entries)
        for segment in EVERY:
            self.reset(segment, "start")

    def of(self, segment: int) -> dict[str, str]:
        return {key: value for key, value in self.entries.items() if segment_of(key.encode(), SEGMENTS) == segment}

    def reset(self, segment: int, reason: str) -> None:
        with self.topic.lock:
            self.topic.entries[segment] = self.of(segment)
            self.topic.steps[segment].append(Reset(reason, self.of(segment)))

    def append(self, change: Change) -> None:
        segment = segment_of(change.key.encode(), SEGMENTS)
        self.topic.steps[segment].append(change)
        if change.value is None:
            self.topic.entries[segment].pop(change.key, None)
        else:
            self.topic.entries[segment][change.key] = change.value

    def write(self, key: str, value: str) -> None:
        with self.topic.lock:
            op = "u" if key in self.entries else "c"
            self.entries[key] = value
            self.append(Change(op, key, value))

    def delete(self, key: str) -> None:
        with self.topic.lock:
            del self.entries[key]
            self.append(Change("d", key, None))

    def clear(self) -> None:
        self.entries.clear()
        for segment in EVERY:
            self.reset(segment, "clear")

    def content(self) -> Mapping[str, str]:
        return self.entries

    def stop(self) -> None:
        self.topic.calls.append("stop")


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    topic = Topic()
    monkeypatch.setattr(module, "SECONDS", 10.0)
    monkeypatch.setattr(module, "observe", topic.observe)
    monkeypatch.setattr(module, "publish", topic.publish)
    return topic


class Patient(Captured):
    """Signals wait for the first write: a topic without Kafka is quicker than it."""

    def start(self, fields: Mapping[str, str], entries: Mapping[str, str]) -> None:
        self.written = threading.Event()
        super().start(fields, entries)

    def write(self, key: str, value: str) -> None:
        super().write(key, value)
        self.written.set()

    def reset(self, segment: int, reason: str) -> None:
        if reason == "signal":
            assert self.written.wait(60)
        super().reset(segment, reason)


def run(check: Check, topic: Topic, kind: type[Captured] = Patient) -> None:
    check(lambda: kind(topic), topic)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_what_is_captured_right_passes(check: Check, topic: Topic) -> None:
    run(check, topic)
    assert topic.calls.count("start") == topic.calls.count("stop") > 0
    changes = [step for steps in topic.steps.values() for step in steps if isinstance(step, Change)]
    assert changes


class Late(Captured):
    """The resets of its start come when the topic is read for the first time, and later signals at once."""

    def start(self, fields: Mapping[str, str], entries: Mapping[str, str]) -> None:
        self.entries = dict(entries)
        self.topic.late.append(self)


@pytest.mark.parametrize(
    "check",
    [
        *(changes_arrive_in_order, module.a_clear_empties_the_topic, module.threads_keep_the_order_of_each_key),
        *(nothing_is_lost_while_kafka_is_away, module.a_stop_writes_what_is_left),
    ],
    ids=lambda check: check.__name__,
)
def test_a_cache_is_written_once_its_segments_were_reset(check: Check, topic: Topic) -> None:
    """Before that, writes need not become change records."""
    early: list[str] = []

    class Watched(Late):
        def write(self, key: str, value: str) -> None:
            early.extend([key] if self in self.topic.late else [])
            super().write(key, value)

    run(check, topic, Watched)
    assert early == []


@pytest.mark.parametrize(
    ("check", "writes"),
    [
        ("changes_arrive_in_order", 300),
        ("entries_of_the_start_are_sent", 10 + 100),
        ("a_clear_empties_the_topic", 60 + 10),
        ("threads_keep_the_order_of_each_key", 4 * 200),
        ("a_restart_sends_the_cache_anew", 1),
        ("nothing_is_lost_while_kafka_is_away", 50 + 200),
        ("a_stop_writes_what_is_left", 2000),
    ],
)
def test_each_check_writes_as_much_as_it_needs(check: str, writes: int, topic: Topic) -> None:
    """With less, a check could pass without having seen anything."""
    seen: list[str] = []

    class Counted(Captured):
        def write(self, key: str, value: str) -> None:
            super().write(key, value)
            seen.append(key)

        def delete(self, key: str) -> None:
            super().delete(key)
            seen.append(key)

    run(getattr(module, check), topic, Counted)
    assert len(seen) == writes


def test_an_error_of_a_thread_is_raised(topic: Topic) -> None:
    class Failing(Captured):
        def write(self, key: str, value: str) -> None:
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        run(module.threads_keep_the_order_of_each_key, topic, Failing)


def test_kafka_is_away_while_it_is_written(topic: Topic) -> None:
    class Noted(Captured):
        def delete(self, key: str) -> None:
            super().delete(key)
            self.topic.calls.append("delete")

    run(nothing_is_lost_while_kafka_is_away, topic, Noted)
    away = topic.calls[topic.calls.index("stop Kafka") : topic.calls.index("start Kafka")]
    assert "delete" in away


def test_kafka_is_started_again_though_a_write_fails(topic: Topic) -> None:
    class Failing(Captured):
        def write(self, key: str, value: str) -> None:
            if "stop Kafka" in self.topic.calls:
                raise OSError("not without Kafka")
            super().write(key, value)

    with pytest.raises(OSError, match="not without Kafka"):
        run(nothing_is_lost_while_kafka_is_away, topic, Failing)
    assert topic.calls == ["start", "stop Kafka", "start Kafka", "stop"]


# -- caches that are captured wrong -------------------------------------------------------------------------------


class ForgetsDeletes(Captured):
    def delete(self, key: str) -> None:
        del self.entries[key]


class AlwaysCreates(Captured):
    def append(self, change: Change) -> None:
        super().append(change._replace(op="d" if change.value is None else "c"))


class LosesTheEnd(Captured):
    """Of each segment, the last step."""

    def stop(self) -> None:
        for steps in self.topic.steps.values():
            del steps[-1]


class IgnoresClears(Captured):
    def clear(self) -> None:
        self.entries.clear()


class KeepsTheStartToItself(Captured):
    def reset(self, segment: int, reason: str) -> None:
        entries, self.entries = self.entries, {} if reason == "start" else self.entries
        super().reset(segment, reason)
        self.entries = entries


class ResetsAtEachWrite(Captured):
    def append(self, change: Change) -> None:
        segment = segment_of(change.key.encode(), SEGMENTS)
        self.topic.entries[segment] = self.of(segment)
        self.topic.steps[segment].append(Reset("overflow", self.of(segment)))


class WritesTwice(Captured):
    def append(self, change: Change) -> None:
        super().append(change)
        self.topic.faults = ["segment 1: 1 positions were written twice"]


class LosesWrites(Captured):
    """The cache itself."""

    def content(self) -> Mapping[str, str]:
        return dict(list(self.entries.items())[1:])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (ForgetsDeletes, r"the next write is Write\(key='key-\d+', value=None\)"),
        (AlwaysCreates, r"Change\(op='c'.* the next write is"),
        (LosesTheEnd, r"the topic ends after \d+ of \d+ writes; missing: Write"),
        (ResetsAtEachWrite, "no write became a change record: everything came by resets"),
        (WritesTwice, "segment 1: 1 positions were written twice"),
        (LosesWrites, r"the cache does not hold what was written: key-\d+: None instead of 'key-\d+ in turn \d+'$"),
    ],
)
def test_what_is_captured_wrong_is_found(kind: type[Captured], words: str, topic: Topic) -> None:
    with pytest.raises(NotConformant, match=words):
        run(changes_arrive_in_order, topic, kind)


@pytest.mark.parametrize(
    ("check", "kind"),
    [
        ("entries_of_the_start_are_sent", KeepsTheStartToItself),
        ("a_clear_empties_the_topic", IgnoresClears),
        ("threads_keep_the_order_of_each_key", AlwaysCreates),
        ("a_restart_sends_the_cache_anew", KeepsTheStartToItself),
        ("nothing_is_lost_while_kafka_is_away", LosesTheEnd),
        ("a_stop_writes_what_is_left", LosesTheEnd),
        ("a_reset_is_the_content_at_one_moment", ResetsAtEachWrite),
    ],
)
def test_each_check_finds_who_breaks_what_it_checks(check: str, kind: type[Captured], topic: Topic) -> None:
    with pytest.raises(NotConformant):
        run(getattr(module, check), topic, kind)


def test_a_reset_that_mixes_two_moments_is_found(topic: Topic) -> None:
    class Mixes(Captured):
        """A reset has the oldest value of each key. Signals wait until each key was written twice."""

        def start(self, fields: Mapping[str, str], entries: Mapping[str, str]) -> None:
            self.oldest: dict[str, str] = {}
            self.written = threading.Event()
            super().start(fields, entries)

        def write(self, key: str, value: str) -> None:
            self.oldest.setdefault(key, value)
            super().write(key, value)
            if value == f"turn {2 * len(KEYS)}":
                self.written.set()

        def of(self, segment: int) -> dict[str, str]:
            return {key: self.oldest.get(key, value) for key, value in super().of(segment).items()}

        def reset(self, segment: int, reason: str) -> None:
            if reason == "signal":
                assert self.written.wait(60)
            super().reset(segment, reason)

    with pytest.raises(NotConformant, match=r"Reset\(reason='signal'.*cannot come after"):
        run(a_reset_is_the_content_at_one_moment, topic, Mixes)


# -- their parts --------------------------------------------------------------------------------------------------


def test_work_creates_updates_and_deletes_and_no_value_comes_twice(topic: Topic) -> None:
    driver = Captured(topic)
    driver.start({}, {})
    life = Life(driver, {})
    life.work(KEYS[:6], 60)
    changes = [step for steps in topic.steps.values() for step in steps if isinstance(step, Change)]
    assert {change.op for change in changes} == {"c", "u", "d"}
    assert [write.key for write in life.history.writes[:7]] == [f"key-{number}" for number in (0, 1, 2, 3, 4, 5, 0)]
    deletes = [turn for turn, write in enumerate(life.history.writes) if write.value is None]
    assert {turn % 3 for turn in deletes} == {2}
    assert len(deletes) >= 8
    assert len(life.history.writes) == len(changes) == 60
    values = [write.value for write in life.history.writes if write.value is not None]
    assert len(set(values)) == len(values)
    assert life.history.content == driver.content() != {}
    assert {write.key for write in life.history.writes} == set(KEYS[:6])
    life.clear()
    assert (life.history.writes[-1], life.history.content) == (Write(None, None), {})


def test_a_cache_gets_the_configuration_of_its_trial(topic: Topic) -> None:
    trials = [Trial(lambda: Captured(topic), topic) for _ in range(2)]
    fields: list[dict[str, str]] = []
    for trial in trials:
        with trial.life({"key-1": "x"}) as life:
            driver: Any = life.driver
            fields.append(driver.fields)
            assert driver.entries == {"key-1": "x"}
    assert fields[0].pop("topic.prefix") != fields[1].pop("topic.prefix")
    assert fields[0] == fields[1]
    assert (fields[0]["bootstrap.servers"], fields[0]["segment.count"]) == ("h:1", "4")


def test_a_life_that_fails_is_stopped_and_not_compared(topic: Topic) -> None:
    topic.faults = ["a fault"]
    with pytest.raises(ValueError, match="broken"), Trial(lambda: Captured(topic), topic).life():
        raise ValueError("broken")
    assert topic.calls == ["start", "stop"]
    with pytest.raises(NotConformant, match="a fault"), Trial(lambda: Captured(topic), topic).life():
        pass


def test_steps_of_a_life_are_those_since_its_begin(topic: Topic) -> None:
    trial = Trial(lambda: Captured(topic), topic)
    with trial.life() as life:
        life.write("key-1", "a")
    first = {segment: list(steps) for segment, steps in topic.steps.items()}
    assert life.steps == first
    with trial.life() as life:
        assert trial.steps() == {segment: [Reset("start", {})] for segment in EVERY}
        trial.wait_for_resets(1)
    assert life.steps == {segment: [Reset("start", {})] for segment in EVERY}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Sleeping takes a second of the checks' clock and no other; returns how often was slept."""
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: float(len(slept)), sleep=slept.append)
    monkeypatch.setattr(module, "time", clock)
    return lambda: len(slept)


def test_resets_are_waited_for(topic: Topic, clock: Callable[[], int]) -> None:
    trial = Trial(lambda: Captured(topic), topic)
    with trial.life():
        trial.wait_for_resets(1)
        assert clock() == 0
        trial.ask_reset()
        trial.wait_for_resets(2)
        assert clock() == 0
        topic.steps[2].pop()
        with pytest.raises(NotConformant, match="not every segment was reset 2 times within 10 s"):
            trial.wait_for_resets(2)
        assert clock() == 11
        trial.ask_reset()


def test_with_threads_only_the_order_of_each_key_counts(topic: Topic) -> None:
    one, other = [key for key in KEYS if segment_of(key.encode(), SEGMENTS) == 1][:2]

    def swapped(threads: bool) -> None:
        """Two writes of one segment, the later one first in the topic."""
        topic.steps = {segment: [] for segment in EVERY}
        with Trial(lambda: Captured(topic), topic).life({one: "0", other: "0"}, threads=threads) as life:
            life.write(one, "a")
            life.write(other, "b")
            steps = topic.steps[1]
            steps[-2:] = reversed(steps[-2:])

    swapped(threads=True)
    with pytest.raises(NotConformant, match=r"segment 1: .*cannot come after 0 of 2 writes"):
        swapped(threads=False)


def test_three_differences_are_shown(topic: Topic) -> None:
    def lives() -> None:
        with Trial(lambda: Captured(topic), topic).life() as life:
            for key in KEYS[:5]:
                life.write(key, "a")
            topic.entries = {segment: {} for segment in EVERY}

    with pytest.raises(NotConformant) as caught:
        lives()
    assert str(caught.value) == "the topic does not hold what was written: " + ", ".join(
        f"{key}: None instead of 'a'" for key in sorted(KEYS[:5])[:3]
    )
