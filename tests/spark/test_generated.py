"""The job on generated change topics, with a real Kafka and a real Spark. Each segment has its own history.

A topic with many segments has as many histories, interleaved. One run of the job checks all of them, and a failure
names the segments that are wrong.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from deelog_schemas.config import Config
from deelog_schemas.envelope import JsonCodec
from deelog_schemas.fold import SegmentReader
from deelog_schemas.header import CONTROL_HEADER_NAME, HEADER_NAME, Kind, unpack
from deelog_schemas.keys import partition_of, segment_of
from deelog_schemas.operation import Entry
from deelog_schemas.records import ON_CHANGES, Record, decode
from deelog_spark import DiffJob
from deelog_spark.batches import tasks
from deelog_spark.sinks.kafka import Written
from tests.spark.history import TURNS, History, Turn
from tests.spark.processes import until_read
from tests.spark.reference import DiffRecord, expected, held, in_topic
from tests.spark.scenes import Carried
from tests.spark.test_diff_job import run
from tests.support.changes import Cache, config_of
from tests.support.kafka import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS = st.integers(0, 2**32 - 1)
CODEC = JsonCodec("p.c", "grid", "p", "c")
WITHOUT_RESETS = {name: weight for name, weight in TURNS.items() if name in ("put", "claim", "again", "late", "forget")}
ON_KAFKA = settings(
    deadline=None,
    print_blob=True,
    # Each example runs the job: shrinking one would run it a hundred times more.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def keys_of(segment: int, segments: int) -> list[bytes]:
    """Three keys of a segment, and its keys of one byte."""
    short = [bytes([n]) for n in range(128) if segment_of(bytes([n]), segments) == segment]
    long = (b"k%d" % n for n in itertools.count())
    return [*short[:2], *itertools.islice((key for key in long if segment_of(key, segments) == segment), 3)]


class Topic:
    """The histories of all segments, which are written to a cache's change topic in parts."""

    def __init__(self, cache: Cache, seed: int) -> None:
        self.cache, self.chance = cache, random.Random(seed)
        self._written = [0] * cache.segments
        self.histories = [self._history(segment, seed) for segment in range(cache.segments)]

    def _history(self, segment: int, seed: int) -> History:
        cache, chance = self.cache, random.Random(f"{seed} {segment}")
        keys = keys_of(segment, cache.segments)
        return History(chance, cache.codec, keys, segment, segments=cache.segments, partitions=cache.partitions)

    def play(self, most: int, turns: dict[str, int] = TURNS) -> None:
        """Plays and writes up to this many turns of each segment."""
        for history in self.histories:
            history.play(self.chance.randint(0, most), turns)
        self.write()

    def settle(self) -> None:
        """Brings the topic up to date with the cache."""
        for history in self.histories:
            history.settle()
        self.write()

    def write(self) -> None:
        """Writes the rest in transactions of random length, some of which are aborted."""
        turns = self._interleaved()
        while some := list(itertools.islice(turns, self.chance.randint(1, 120))):
            if self.chance.random() < 0.1:
                with self.cache.batch(aborted=True):
                    self._raw(self._phantoms(some))
            with self.cache.batch():
                self._raw(some)

    def _interleaved(self) -> Iterator[Turn]:
        """A few records of each segment in turn, so that a whole reset is often in one batch or in two."""
        left = [iter(h.rows[done:]) for h, done in zip(self.histories, self._written, strict=True)]
        self._written = [len(history.rows) for history in self.histories]
        while left:
            place = self.chance.randrange(len(left))
            burst = list(itertools.islice(left[place], 1 + int(self.chance.expovariate(0.25))))
            if not burst:
                left.pop(place)
            yield from burst

    def _phantoms(self, turns: list[Turn]) -> list[Turn]:
        """Changes at the positions of the next ones, with other content."""
        changes = [turn for turn in turns if turn.kind is Kind.CHANGE]
        values = self.chance.sample(changes, len(changes))
        return [turn._replace(value=other.value) for turn, other in zip(changes, values, strict=True)]

    def _raw(self, turns: Iterable[Turn]) -> None:
        cache = self.cache
        for turn in turns:
            headers = [(HEADER_NAME, turn.header)]
            if turn.control is not None:
                headers.append((CONTROL_HEADER_NAME, turn.control))
            partition = partition_of(unpack(turn.header).segment, cache.partitions, cache.segments)
            cache.raw(cache.topics.changes, partition, turn.key, turn.value, headers)

    def entries(self) -> dict[bytes, tuple[bytes, int | None]]:
        """The entries of the cache."""
        return {e.key: (e.value, e.expires_at) for h in self.histories for e in h.entries.values()}


def check(topic: Topic, config: Config, start: dict[int, int]) -> dict[int, list[DiffRecord]]:
    """The diff topic has exactly the differences of the reference."""
    wanted, found = expected(config, topic.cache.partitions, start), in_topic(config, topic.cache.partitions)
    for number in sorted(wanted.keys() | found.keys()):
        told = "\n".join(map(str, map(record_of, topic.histories[number].rows)))
        assert found.get(number, []) == wanted.get(number, []), f"segment {number}, whose history is\n{told}"
    return found


def record_of(turn: Turn) -> Record:
    """The decoded record."""
    headers = ((HEADER_NAME, turn.header), (CONTROL_HEADER_NAME, turn.control))
    return decode("t", 0, turn.offset, turn.key, turn.value, [h for h in headers if h[1] is not None])


def decoded(record: Record) -> tuple[bytes, Entry | None]:
    key = CODEC.decode_key(record.key)
    return key, None if record.value is None else CODEC.decode_value(record.value).after


def alone(seed: int) -> History:
    """A history without Kafka."""
    history = History(random.Random(seed), CODEC, keys_of(3, 8), 3, segments=8)
    history.play(80)
    history.settle()
    return history


@settings(max_examples=300)
@given(seed=SEEDS)
def test_a_history_is_read_as_it_was_meant(seed: int) -> None:
    """Cache and reading rule agree on every history, with repeated, late, lost and abandoned records."""
    history, reader = alone(seed), SegmentReader(3)
    for turn in history.rows:
        reader.apply(record_of(turn), decoded)
    assert reader.entries == history.entries


def test_histories_hold_every_turn() -> None:
    """Otherwise the tests below would check less than they seem to."""
    found: Counter[str] = Counter()
    for seed in range(30):
        reader, gone = SegmentReader(3), set()
        for record in map(record_of, alone(seed).rows):
            kind, opened, mark, repeats = record.header.kind, reader.open, reader.mark, reader.repeats
            inside = "no reset" if opened is None else "a reset"
            found[f"{kind.name} in {inside}"] += 1
            changes = reader.apply(record, decoded)
            found["a repeat in " + inside] += reader.repeats > repeats
            found["an older epoch in " + inside] += record.header.epoch < mark[0] and reader.repeats > repeats
            found["an empty reset"] += kind is Kind.RESET_END and reader.open is not opened and not reader.entries
            found["a lone tombstone"] += kind is Kind.TOMBSTONE and bool(changes)
            found["a key of one byte"] += bool(changes) and len(changes[0].key) == 1
            found["differences of a reset"] += bool(changes) and changes[0].cause == "reset"
            for change in changes:
                found["a create behind a delete"] += change.after is not None and change.key in gone
                gone.add(change.key) if change.after is None else gone.discard(change.key)
    assert {f"{kind.name} in {inside}" for kind in ON_CHANGES for inside in ("no reset", "a reset")} <= found.keys()
    assert not [name for name, number in found.items() if not number], found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("small", "segments"),
    [(True, 96), (False, 32)],
    ids=["by the driver", "by executors"],
)
def test_generated_topics(
    kafka: Broker,
    prefix: str,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    carried_by_driver: Carried,
    small: bool,
    segments: int,
) -> None:
    """Split into batches anywhere, with restarts between parts, and a start without state at the end."""
    if not small:
        carried_by_driver(0)

    made = 0
    passed: list[bool] = []
    real = tasks.pass_on

    def pass_on(*args: Any) -> list[tuple[tasks.Walked, Written]]:
        found = real(*args)
        passed.append(not any(walked.ended for walked, _ in found))
        return found

    monkeypatch.setattr(tasks, "pass_on", pass_on)

    @settings(ON_KAFKA, max_examples=2)
    @given(seed=SEEDS)
    def exact(seed: int) -> None:
        nonlocal made
        made += 1
        chance = random.Random(seed)
        most, partitions = chance.randint(400, 2000), chance.randint(1, 4)
        fields = {"segment_count": segments, "diff_max_offsets_per_trigger": most}
        config, over = (
            config_of(kafka.bootstrap, f"{prefix}-{made}", str(tmp_path / f"{made} {name}"), **fields)
            for name in ("first", "over")
        )
        topic = Topic(Cache(config, partitions), seed)
        if chance.random() < 0.5:
            topic.play(20)
        start = topic.cache.ends()
        run(config, spark)
        topic.play(40)
        run(config, spark)
        check(topic, config, start)
        topic.settle()
        run(config, spark)
        topic.play(20, WITHOUT_RESETS)
        run(config, spark)
        found = check(topic, config, start)
        assert {key: (row.value, row.expires_at) for key, row in held(found).items()} == topic.entries()
        run(over, spark)
        assert in_topic(over, partitions) == found

    exact()
    assert small or (any(passed) and not all(passed)), passed


@pytest.mark.parametrize(
    "size", [20_000, pytest.param(0, marks=pytest.mark.slow)], ids=["by the driver", "by executors"]
)
def test_all_segments_reset_in_one_batch(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, carried_by_driver: Carried, size: int
) -> None:
    """Each with changes before, within and after it; all begin before the first ends."""
    carried_by_driver(size)
    config = config_of(kafka.bootstrap, prefix, str(tmp_path / "cp"), segment_count=64)
    cache = Cache(config, 3)
    keys = [[cache.key(segment, n) for n in range(4)] for segment in range(64)]
    before = run(config, spark)
    with cache.batch():
        for one in keys:
            for key in one[:3]:
                cache.put(key, b"before")
            cache.put(one[0], b"lost", lost=True)
            cache.put(one[1], None, lost=True)
        for segment in range(64):
            cache.begin(segment)
        for segment, one in enumerate(keys):
            cache.rows(segment, [one[0]])
            cache.put(one[2], None)
            cache.put(one[3], b"inside")
        for segment in range(64):
            cache.end(segment)
        for one in keys:
            cache.put(one[1], b"behind")
            cache.put(one[3], None)
    told = run(config, spark)
    assert (told["batches"] - before["batches"], told["resets"]) == (1, {"overflow": 64})
    found = in_topic(config, 3)
    assert found == expected(config, 3)
    assert [sorted(row.op for row in found[segment]) for segment in range(64)] == [sorted("cccuddccd")] * 64
    assert [row.cause for row in found[0]] == ["change"] * 3 + ["reset"] * 4 + ["change"] * 2


@pytest.mark.slow
def test_two_caches_on_one_application(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, carried_by_driver: Carried
) -> None:
    """At the same time, through the same workers."""
    carried_by_driver(0)
    configs = [
        config_of(kafka.bootstrap, f"{prefix}{n}", str(tmp_path / f"{n}"), diff_max_offsets_per_trigger=300)
        for n in range(2)
    ]
    topics = [Topic(Cache(config), number) for number, config in enumerate(configs)]
    jobs = [DiffJob(config, spark) for config in configs]
    try:
        for job in jobs:
            job.start()
        for topic in topics:
            topic.play(80)
            topic.settle()
        for topic, config in zip(topics, configs, strict=True):
            until_read(topic.cache)
            check(topic, config, {})
    finally:
        for job in jobs:
            job.stop()
