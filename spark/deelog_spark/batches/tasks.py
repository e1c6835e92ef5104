"""A batch in Spark's tasks: walked, and written to the diff topic.

Spark's source plans a batch: which offsets of which partition, once, whatever is killed. A task reads these offsets
itself (`kafka.Reader`), a partition at a time, walks them by header (`folding/walk.py`) and hands the changes that
count to the writer. The driver does the same for a small batch: Spark starts no Python worker for a hundred records.
Alternatives: docs/decisions.md, "Who reads Kafka".
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import gc
import itertools
import pickle
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from deelog_schemas.config import Config
from deelog_schemas.errors import RecordError
from deelog_spark.batches.columns import Batches, batches_of, rows_of
from deelog_spark.folding.diff_record import CHANGE, ROW_DDL, Row, renderer_of
from deelog_spark.folding.walk import Ended, Flags, PartitionWalk, Segment, located
from deelog_spark.kafka import Message, Reader, headers_of
from deelog_spark.sinks.kafka import NeedsPlan, Writer, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BLOB: Final = "blob binary"


@dataclass(frozen=True, slots=True)
class WalkTask:
    """How to read and walk a batch: shipped to every task. `begin` and `end` are input offsets by partition."""

    config: Config
    partitions: int
    count: int
    """`segment.count`."""
    segments: Mapping[int, Segment]
    """The state before the batch."""
    void: frozenset[tuple[int, int]]
    """See `PartitionWalk`."""
    begin: Mapping[int, int]
    end: Mapping[int, int]

    def some(self) -> list[int]:
        """The partitions with offsets to read."""
        return sorted(p for p, end in self.end.items() if end > self.begin[p])

    def walker(self, partition: int, reader: Reader) -> Walker:
        """A new walk of a partition, read by `reader`."""
        topic = self.config.topics.changes
        return Walker(self, partition, reader.chunks(topic, partition, self.begin[partition], self.end[partition]))


@dataclass(frozen=True, slots=True)
class Walked:
    """The result of walking one partition of a batch."""

    partition: int
    segments: dict[int, Segment]
    """The state of each segment that had a record."""
    ended: list[Ended]
    records: int
    kept: int
    """Of them, captured changes that count."""
    repeats: int
    newest_ms: int
    """Kafka's timestamp of the last record, 0 without one."""
    error: str | None
    """Where a record is not deelog's: what is wrong, with its place. The walk ended before that record."""


class Walker:
    """Walks one partition of a batch, once, over the messages of `source`: by `rows`, or by `walk` without rows."""

    def __init__(self, task: WalkTask, partition: int, source: Generator[list[Message]]) -> None:
        self._task, self._partition, self._source = task, partition, source
        self._walk = PartitionWalk(task.segments, task.void, task.partitions, task.count)
        self._newest_ms = 0
        self.error: str | None = None
        """As in `Walked`."""

    def rows(self) -> Iterator[Row]:
        """The captured changes that count, in order."""
        partition = self._partition
        for messages, headers, flags in self._chunks():
            for row in np.flatnonzero(flags).tolist():
                message: Any = messages[row]
                header, value = headers[row] or b"", message.value()
                moment_ms = message.timestamp()[1] if value is None else 0
                yield Row(partition, message.offset(), 0, CHANGE, "", header, message.key(), value, moment_ms)

    def walk(self) -> Walked:
        """Walks it all."""
        for _ in self._chunks():
            pass
        return self.result

    @property
    def ended(self) -> bool:
        """Whether a reset has ended so far."""
        return bool(self._walk.ended)

    @property
    def result(self) -> Walked:
        """What was walked so far."""
        walk = self._walk
        return Walked(
            self._partition, walk.now, walk.ended, walk.records, walk.kept, walk.repeats, self._newest_ms, self.error
        )

    def _chunks(self) -> Iterator[tuple[list[Message], list[bytes | None], Flags]]:
        task, partition = self._task, self._partition
        topic = task.config.topics.changes
        # A source that is not read to its end gives its consumer back now, not when the last reference is dropped.
        with contextlib.closing(self._source) as source:
            for messages in source:
                pairs = list(map(headers_of, messages))
                keys: list[Any] = [message.key() for message in messages]
                keyless = keys.index(None) if None in keys else len(keys)
                good: Any = messages[:keyless]
                headers, controls = [header for header, _ in pairs], [control for _, control in pairs]
                self._newest_ms = messages[-1].timestamp()[1]
                row, ended = keyless, len(self._walk.ended)
                try:
                    flags = self._walk.steps(
                        partition,
                        np.fromiter((message.offset() for message in good), np.int64, keyless),
                        pa.array(headers[:keyless], pa.binary()),
                        pa.array(controls[:keyless], pa.binary()),
                    )
                    self._date(ended, good)
                    if keyless == len(messages):
                        yield messages, headers, flags
                        continue
                    problem = RecordError("the record has no key")
                except RecordError as error:
                    problem, row = error, self._walk.row
                offset: Any = messages[row].offset()
                self.error = str(located(problem, topic, partition, offset, *pairs[row]))
                return

    def _date(self, known: int, messages: list[Any]) -> None:
        """Gives the resets behind the first `known` the time of their ends, which are among the messages."""
        ended = self._walk.ended
        for number in range(known, len(ended)):
            message = messages[bisect.bisect_left(messages, ended[number].end, key=lambda one: one.offset())]
            ended[number] = replace(ended[number], moment_ms=message.timestamp()[1])


def walk(spark: SparkSession, task: WalkTask) -> list[Walked]:
    """Walks every partition of a batch, in tasks."""
    rows = run_tasks(spark, task.some(), functools.partial(_walk, task), _BLOB).collect()
    return sorted((pickle.loads(row["blob"]) for row in rows), key=lambda w: w.partition)


def walk_here(task: WalkTask, reader: Reader, most_bytes: int) -> tuple[list[Walked], list[Row]] | None:
    """Walks a small batch in this process.

    Returns the walks and the captured changes that count; None where the batch takes more than `most_bytes`.
    """
    read = reader.together(task.config.topics.changes, task.begin, task.end, most_bytes)
    if read is None:
        return None
    walkers = [
        Walker(task, partition, (some for some in [messages] if some)) for partition, messages in sorted(read.items())
    ]
    rows = [row for walker in walkers for row in walker.rows()]
    return [walker.result for walker in walkers], rows


def _walk(task: WalkTask, partitions: Iterator[int]) -> Batches:
    with reader(task.config) as mine:
        for partition in partitions:
            yield _blob(task.walker(partition, mine).walk())


def run_tasks(
    spark: SparkSession, partitions: list[int], work: Callable[[Iterator[int]], Batches], schema: str
) -> DataFrame:
    """Runs `work` on each partition, in a task of its own; the batches that it yields, of `schema`."""

    def run(batches: Batches) -> Batches:
        # Thousands of messages at a time, none of them in a cycle: a collection takes as long as the walk.
        gc.disable()
        try:
            yield from work(partitions[number] for batch in batches for number in batch["id"].to_pylist())
        finally:
            gc.enable()

    return spark.range(0, len(partitions), 1, max(1, len(partitions))).mapInArrow(run, schema)


def _blob(result: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], ["blob"])


def kept(spark: SparkSession, task: WalkTask) -> DataFrame:
    """The captured changes that count, as columns of `Row`: in order, a task per partition."""
    return run_tasks(spark, task.some(), functools.partial(_kept, task), ROW_DDL)


def _kept(task: WalkTask, partitions: Iterator[int]) -> Batches:
    with reader(task.config) as mine:
        for partition in partitions:
            yield from batches_of(task.walker(partition, mine).rows())


# -- the Kafka sink ----------------------------------------------------------------------------------------------------


def write_kafka(
    rows: DataFrame,
    config: Config,
    checkpoint: str,
    batch: int,
    ends: dict[int, int],
    patience: float,
) -> list[Written]:
    """Writes a batch to the diff topic, a transaction per output partition; skips partitions that have it."""
    task = functools.partial(_write, config, checkpoint, batch, ends, patience)
    return [pickle.loads(row["blob"]) for row in rows.mapInArrow(task, _BLOB).collect()]


def _write(
    config: Config,
    checkpoint: str,
    batch: int,
    ends: dict[int, int],
    patience: float,
    batches: Batches,
) -> Batches:
    for partition, group in itertools.groupby(rows_of(batches), key=lambda row: row.partition):
        end = ends[partition]
        yield _blob(writer(config).write(partition, group, checkpoint, batch, end, patience=patience))


def pass_on(
    spark: SparkSession, task: WalkTask, checkpoint: str, batch: int, patience: float
) -> list[tuple[Walked, Written]]:
    """Walks a batch and writes it to the diff topic in one reading.

    Nothing is written of a partition in which a reset ends, which has a foreign record, or in which nothing counts.
    Its walk is complete, or complete up to the first foreign record.
    """
    mapper = functools.partial(_pass_on, task, checkpoint, batch, patience)
    return [pickle.loads(row["blob"]) for row in run_tasks(spark, task.some(), mapper, _BLOB).collect()]


def _pass_on(task: WalkTask, checkpoint: str, batch: int, patience: float, partitions: Iterator[int]) -> Batches:
    def rows(walker: Walker) -> Iterator[Row]:
        for row in walker.rows():
            if not walker.ended:
                yield row
        if walker.error is not None or walker.ended:
            raise NeedsPlan

    with reader(task.config) as mine:
        for partition in partitions:
            walker = task.walker(partition, mine)
            counting = rows(walker)
            written = Written(partition)
            try:
                first = [next(counting)]
            except (StopIteration, NeedsPlan):
                pass
            else:
                every = itertools.chain(first, counting)
                end = task.end[partition]
                written = writer(task.config).write(partition, every, checkpoint, batch, end, patience=patience)
            yield _blob((walker.result, written))


# -- connections -------------------------------------------------------------------------------------------------------

_readers: dict[str, Reader] = {}
_writers: dict[str, Writer] = {}
_KEPT: Final = 4
"""Jobs of one Spark application whose connections a worker keeps, the last used ones."""


@contextmanager
def reader(config: Config) -> Iterator[Reader]:
    """This process's reader. A worker serves many batches: its connections stay, unless the body raises."""
    name = repr(sorted(config.raw.items()))
    reader = _readers.pop(name, None) or Reader(config)
    try:
        yield reader
    except BaseException:
        reader.close()
        raise
    _readers[name] = reader
    if len(_readers) > _KEPT:
        _readers.pop(next(iter(_readers))).close()


def writer(config: Config) -> Writer:
    """This process's writer. A worker serves many batches: its producers stay."""
    name = repr(sorted(config.raw.items()))
    mine = _writers.pop(name, None) or Writer(config, renderer_of(config))
    _writers[name] = mine
    if len(_writers) > _KEPT:
        _writers.pop(next(iter(_writers))).close()
    return mine
