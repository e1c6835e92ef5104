"""A batch in tasks and frames: read and walked, its changes passed on, its rows fed to the sinks.

Spark's source plans a batch: which offsets of which partition, once, whatever is killed. What stands there a task reads
itself, a partition at a time, walks it (`marks.py`), and hands what counts to the writer; a small batch the driver. So
every reader of the job is one (`kafka.Reader`), and Spark starts no Python worker for a hundred records.

Weighed: Spark's source reading too (per record 7 µs of CPU in the JVM, then as much again to pass key and value to
Python by Arrow, where librdkafka takes 4.5 in place; and 0.2 s per batch, however small), with the walk alone in Python
and values that stay in the JVM (the Kafka sink takes them through Python anyway), and this.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import pickle
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from deelog_schemas.config import Config
from deelog_schemas.errors import RecordError
from deelog_spark.batches.columns import Batches, batches_of, rows_of
from deelog_spark.folding.diff_record import CHANGE, ROW_DDL, Row, renderer_of
from deelog_spark.folding.walk import Ended, Flags, Marks, Segment, located
from deelog_spark.kafka import Message, Reader, headers_of
from deelog_spark.sinks.kafka import Halt, Writer, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BLOB: Final = "blob binary"


@dataclass(frozen=True, slots=True)
class Walk:
    """What it takes to read and walk a batch: shipped to every task. `begin` and `end` are offsets by partition."""

    config: Config
    partitions: int
    count: int
    segments: Mapping[int, Segment]
    void: frozenset[tuple[int, int]]
    begin: Mapping[int, int]
    end: Mapping[int, int]

    def some(self) -> list[int]:
        """The partitions of which there is something to read."""
        return sorted(p for p, end in self.end.items() if end > self.begin[p])

    def walker(self, partition: int, reader: Reader) -> Walker:
        """A fresh walk of a partition that a task reads."""
        topic = self.config.topics.changes
        return Walker(self, partition, reader.chunks(topic, partition, self.begin[partition], self.end[partition]))


@dataclass(frozen=True, slots=True)
class Walked:
    """What a walk of one partition found."""

    partition: int
    segments: dict[int, Segment]
    ended: list[Ended]
    records: int
    kept: int
    """Of them, captured changes that count."""
    repeats: int
    newest_ms: int
    """Kafka's timestamp of the last record, 0 without one."""
    error: str | None


# -- reading and walking -----------------------------------------------------------------------------------------------


class Walker:
    """Walks one partition of a batch, once, as `source` reads it: `rows`, or `walk` where they are not wanted."""

    def __init__(self, task: Walk, partition: int, source: Generator[list[Message]]) -> None:
        self._task, self._partition, self._source = task, partition, source
        self._marks = Marks(task.segments, task.void, task.partitions, task.count)
        self._newest_ms = 0
        self.error: str | None = None
        """Set where a record is not ours: nothing behind it is walked."""

    def rows(self) -> Iterator[Row]:
        """The captured changes that count, in order."""
        partition = self._partition
        for messages, headers, flags in self._chunks():
            for row in np.flatnonzero(flags).tolist():
                message: Any = messages[row]
                yield Row(
                    partition, message.offset(), 0, CHANGE, "", headers[row] or b"", message.key(), message.value()
                )

    def walk(self) -> Walked:
        """Walks all of it."""
        for _ in self._chunks():
            pass
        return self.found

    @property
    def ended(self) -> bool:
        """Whether a reset has ended: how it differs rests on more than this walk."""
        return bool(self._marks.ended)

    @property
    def found(self) -> Walked:
        """What there was up to here."""
        marks = self._marks
        return Walked(
            self._partition,
            marks.now,
            marks.ended,
            marks.records,
            marks.kept,
            marks.repeats,
            self._newest_ms,
            self.error,
        )

    def _chunks(self) -> Iterator[tuple[list[Message], list[bytes | None], Flags]]:
        task, partition = self._task, self._partition
        topic = task.config.topics.changes
        # What is read no further gives its consumer back now, not when somebody drops the last reference.
        with contextlib.closing(self._source) as source:
            for messages in source:
                told = list(map(headers_of, messages))
                keys: list[Any] = [message.key() for message in messages]
                keyless = keys.index(None) if None in keys else len(keys)
                good: Any = messages[:keyless]
                headers, controls = [header for header, _ in told], [control for _, control in told]
                self._newest_ms = messages[-1].timestamp()[1]
                row = keyless
                try:
                    flags = self._marks.steps(
                        partition,
                        np.fromiter((message.offset() for message in good), np.int64, keyless),
                        pa.array(headers[:keyless], pa.binary()),
                        pa.array(controls[:keyless], pa.binary()),
                    )
                    if keyless == len(messages):
                        yield messages, headers, flags
                        continue
                    problem = RecordError("the record has no key")
                except RecordError as refused:
                    problem, row = refused, self._marks.row
                offset: Any = messages[row].offset()
                self.error = str(located(problem, topic, partition, offset, *told[row]))
                return


def walk(spark: SparkSession, task: Walk) -> list[Walked]:
    """Walks every partition of a batch, in tasks."""
    rows = tasks(spark, task.some(), functools.partial(_walk, task), _BLOB).collect()
    return sorted((pickle.loads(row["blob"]) for row in rows), key=lambda w: w.partition)


def walk_here(task: Walk, reader: Reader, most_bytes: int) -> tuple[list[Walked], list[Row]] | None:
    """Walks a small batch in this process, and its captured changes that count; None where it takes more bytes."""
    read = reader.together(task.config.topics.changes, task.begin, task.end, most_bytes)
    if read is None:
        return None
    walkers = [
        Walker(task, partition, (some for some in [messages] if some)) for partition, messages in sorted(read.items())
    ]
    rows = [row for walker in walkers for row in walker.rows()]
    return [walker.found for walker in walkers], rows


def _walk(task: Walk, partitions: Iterator[int]) -> Batches:
    with reader(task.config) as mine:
        for partition in partitions:
            yield _blob(task.walker(partition, mine).walk())


def tasks(
    spark: SparkSession, partitions: list[int], work: Callable[[Iterator[int]], Batches], schema: str
) -> DataFrame:
    """What `work` makes of each partition, a task for each."""

    def run(batches: Batches) -> Batches:
        # Thousands of messages at a time, none of them in a cycle: looking for some takes as long as the walk.
        gc.disable()
        try:
            yield from work(partitions[number] for batch in batches for number in batch["id"].to_pylist())
        finally:
            gc.enable()

    return spark.range(0, len(partitions), 1, max(1, len(partitions))).mapInArrow(run, schema)


def _blob(found: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(found)], pa.binary())], ["blob"])


def kept(spark: SparkSession, task: Walk) -> DataFrame:
    """The captured changes that count, as columns of `Row`: in order, a task per partition."""
    return tasks(spark, task.some(), functools.partial(_kept, task), ROW_DDL)


def _kept(task: Walk, partitions: Iterator[int]) -> Batches:
    with reader(task.config) as mine:
        for partition in partitions:
            yield from batches_of(task.walker(partition, mine).rows())


# -- the Kafka sink ----------------------------------------------------------------------------------------------------


def write_kafka(
    rows: DataFrame, config: Config, checkpoint: str, batch: int, ends: dict[int, int], first: bool = False
) -> list[Written]:
    """Writes a batch to the diff topic, a transaction per output partition, where it was not written yet."""
    task = functools.partial(_write, config, checkpoint, batch, ends, first)
    return [pickle.loads(row["blob"]) for row in rows.mapInArrow(task, _BLOB).collect()]


def pass_on(spark: SparkSession, task: Walk, checkpoint: str, batch: int) -> list[tuple[Walked, Written]]:
    """Walks a batch and writes it to the diff topic in one reading.

    A partition in which a reset ends, or that holds what is not ours, is left unwritten: its walk says so, and is whole
    but for what comes behind what is not ours. So is one of which nothing counts.
    """
    mapper = functools.partial(_pass_on, task, checkpoint, batch)
    return [pickle.loads(row["blob"]) for row in tasks(spark, task.some(), mapper, _BLOB).collect()]


def _pass_on(task: Walk, checkpoint: str, batch: int, partitions: Iterator[int]) -> Batches:
    from deelog_spark.sinks.kafka import Written

    def rows(walker: Walker) -> Iterator[Row]:
        for row in walker.rows():
            if not walker.ended:
                yield row
        if walker.error is not None or walker.ended:
            raise Halt

    with reader(task.config) as mine:
        for partition in partitions:
            walker = task.walker(partition, mine)
            counting = rows(walker)
            written = Written(partition)
            try:
                first = [next(counting)]
            except (StopIteration, Halt):
                pass
            else:
                told = itertools.chain(first, counting)
                written = _writer(task.config).write(partition, told, checkpoint, batch, task.end[partition])
            yield _blob((walker.found, written))


_readers: dict[str, Reader] = {}
_writers: dict[str, Writer] = {}
_KEPT: Final = 4
"""Jobs of one Spark application whose connections a worker keeps, the last used ones."""


@contextmanager
def reader(config: Config) -> Iterator[Reader]:
    """This process's reader: a worker serves batch after batch, its connections stay, unless one went wrong."""
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


def _writer(config: Config) -> Writer:
    """This process's writer: a worker serves batch after batch, its producers stay."""
    name = repr(sorted(config.raw.items()))
    writer = _writers.pop(name, None) or Writer(config, renderer_of(config))
    _writers[name] = writer
    if len(_writers) > _KEPT:
        _writers.pop(next(iter(_writers))).close()
    return writer


def _write(config: Config, checkpoint: str, batch: int, ends: dict[int, int], first: bool, batches: Batches) -> Batches:
    for partition, group in itertools.groupby(rows_of(batches), key=lambda row: row.partition):
        yield _blob(_writer(config).write(partition, group, checkpoint, batch, ends[partition], first))
