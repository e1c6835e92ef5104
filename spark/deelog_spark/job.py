"""The diff job: a change topic in, its differences out, each once.

    job = DiffJob(load("diff.properties", "diff")).start()
    job.await_termination()

A start without state folds the topic up to its end and emits how that differs from the diff topic; from there
`foreachBatch` goes on. A batch is: walk it by headers (`marks.py`); read the resets that end in it from Kafka, check
them, and materialise how they differ from the diff topic (`fold.py`); write each sink; write the state. What is done
is found done when a batch is tried again, after `kill -9` at any point.

Weighed: a stateful operator per key or per segment (2.7 to 80 times the cost per record, and it needs the whole
history in its own store), and this, where Kafka is the state. With spark-submit:
`spark-submit --packages … job.py --config FILE [--available-now]`.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

import orjson
import pyarrow.parquet as pq

from deelog_schemas.config import Config
from deelog_schemas.errors import RecordError
from deelog_schemas.keys import segments_of
from deelog_spark import fold, frames
from deelog_spark.checkpoint import LAYOUT, START, Batch, Checkpoint, Identity, Totals
from deelog_spark.errors import BusyError, CheckpointError, DiffError, LossError, TopicError
from deelog_spark.kafka import Cluster
from deelog_spark.marks import Ended, Segment
from deelog_spark.parquet import ParquetSink
from deelog_spark.rows import CHANGE, RESET, Renderer, Row
from deelog_spark.session import session
from deelog_spark.writer import Writer, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("deelog.diff")

TOPIC_WAIT_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.2
_RENEW_SECONDS: Final = 3600.0
_START_OVER: Final = "the job then starts over and emits differences only"


class DiffJob:
    """One job. `start()` it once; you must call `stop()` at the end, also after an error.

    `spark` is your own session, which is left running, or None for one that the job makes and ends. `on_batch` is
    called behind each batch, the start included, with the totals and its seconds; keep it short.
    """

    def __init__(
        self,
        config: Config,
        spark: SparkSession | None = None,
        on_batch: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.config = config
        self.topics = config.topics
        self._given, self._spark = spark, spark
        self._on_batch = on_batch
        self._codec = frames.codec_of(config)
        self._renderer = Renderer(self._codec)
        self._writer = Writer(config, self._renderer)
        self._checkpoint = Checkpoint(config["diff.checkpoint.location"])
        path = config["diff.parquet.path"]
        self._parquet = ParquetSink(path) if "parquet" in config["diff.sinks"] else None
        self._cluster: Cluster | None = None
        self._query: StreamingQuery | None = None
        self._started: Batch | None = None
        self._failure: BaseException | None = None
        self._stopping = False
        self._in_batch = threading.Lock()
        self._renewed = time.monotonic()

    SMALL_RECORDS = 20_000
    """A batch of no more goes through the driver, where producers and Python are warm: 0.1 s instead of 1."""
    SMALL_BYTES = 16 << 20
    """And of no more than this."""

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self, available_now: bool = False) -> Self:
        """Starts the stream, after the fold of a start without state. `available_now` ends it at today's end.

        Waits up to 60 s for the topics. Raises `DeelogError`s: TopicError, CheckpointError, LossError, BusyError,
        RecordError. Nothing is left running then but what `stop()` ends.
        """
        self._checkpoint.lock()
        self._cluster = Cluster(self.config)
        self._layout()
        for partition in range(self._partitions):
            self._writer.fence(partition)
        self._started = self._resume() or self._begin()
        spark = self._spark = self._spark or session()
        source = spark.readStream.format("kafka").options(**frames.kafka_options(self.config))
        source = source.option("assign", _json({self.topics.changes: list(range(self._partitions))}))
        source = source.option("startingOffsets", _json({self.topics.changes: _keys(self._started.end)}))
        source = source.option("maxOffsetsPerTrigger", self.config["diff.max.offsets.per.trigger"])
        trigger: dict[str, Any] = {"availableNow": True}
        if not available_now:
            trigger = {"processingTime": f"{self.config['diff.trigger.interval.ms']} milliseconds"}
        writing = source.load().writeStream.foreachBatch(self._batch).trigger(**trigger)
        writing = writing.option("checkpointLocation", self._checkpoint.spark.as_uri())
        self._query = writing.queryName(f"{self.topics.diff}-{uuid.uuid4().hex[:8]}").start()
        return self

    def await_termination(self, timeout: float | None = None) -> bool:
        """Waits until the job ends, at most `timeout` seconds; whether it has. Raises what ended it."""
        if self._query is None:
            raise RuntimeError("start() the job first")
        from pyspark.errors import StreamingQueryException

        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                if self._query.awaitTermination(_POLL_SECONDS):  # type: ignore[arg-type]
                    return True
            except StreamingQueryException as error:
                if self._stopping:
                    return True
                raise self._explained(error) from error
            if self._stopping:
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False

    @property
    def stopping(self) -> bool:
        """Whether somebody asked for the end."""
        return self._stopping

    def request_stop(self) -> None:
        """Asks for the end: no further batch begins and `await_termination` returns. Safe in a signal handler."""
        self._stopping = True

    def stop(self) -> None:
        """Ends the job behind the batch that runs now. A batch that takes longer than 60 s is cut off and done anew
        by the next start. Frees everything; no error where it was never started."""
        self._stopping = True
        if self._query is not None:
            # Spark waits for a batch whose Python part waits for Spark: let it finish before the query is ended.
            if self._in_batch.acquire(timeout=_STOP_SECONDS):
                self._in_batch.release()
            self._query.stop()
            self._query = None
        if self._spark is not None and self._given is None:
            self._spark.stop()
            self._spark = None
        self._writer.close()
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        self._checkpoint.release()

    def _explained(self, error: Exception) -> BaseException:
        if self._failure is not None:
            return self._failure
        try:
            self._check_loss(self._checkpoint.latest() or self._started)
        except LossError as lost:
            return lost
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return DiffError(f"the stream ended: {first}; look at the log of Spark, and start the job again")

    # -- topics ----------------------------------------------------------------------------------------------------

    @property
    def _kafka(self) -> Cluster:
        assert self._cluster is not None
        return self._cluster

    def _layout(self) -> None:
        topics, config = self.topics, self.config
        found = self._kafka.layout(topics.changes, TOPIC_WAIT_SECONDS)
        self._partitions, self._segments = found.partitions, config["segment.count"]
        self._identity = Identity(
            LAYOUT, topics.changes, found.topic_id, config["topic.prefix"], self._partitions, self._segments
        )
        self._audit(self._kafka.settings(topics.changes))
        lag = str(config["reader.max.lag.ms"])
        settings = {"cleanup.policy": "compact", "min.compaction.lag.ms": lag, "delete.retention.ms": lag}
        try:
            diff = self._kafka.layout(topics.diff)
        except TopicError:
            replicas = config["topic.creation.default.replication.factor"]
            self._kafka.create(topics.diff, self._partitions, replicas, settings)
            diff = self._kafka.layout(topics.diff)
        if diff.partitions != self._partitions:
            raise TopicError(
                f"topic {topics.diff} has {diff.partitions} partitions, {topics.changes} has {self._partitions}: they "
                "must have the same number; delete the diff topic and the checkpoint, the job creates it as it must be"
            )
        self._tables = fold.Tables(
            self._kafka, topics.changes, topics.diff, self._partitions, self._segments, self._codec
        )

    def _audit(self, settings: dict[str, str]) -> None:
        """A region of a reset is read again when it ends: nothing in it may have been compacted by then."""
        needed = self.config["reader.max.lag.ms"]
        if "compact" in settings["cleanup.policy"] and int(settings["min.compaction.lag.ms"]) < needed:
            raise TopicError(
                f"topic {self.topics.changes} is compacted and its min.compaction.lag.ms is below reader.max.lag.ms "
                f"({needed}): what a reset brought could be gone before the job reads it; raise the topic's setting or "
                "lower reader.max.lag.ms"
            )

    # -- start -----------------------------------------------------------------------------------------------------

    def _resume(self) -> Batch | None:
        """The state to go on from, None where the job must start over."""
        first = self._checkpoint.started(self._identity)
        if first is None:
            return None
        latest = self._checkpoint.latest() or first
        if latest.number >= 0 and self._checkpoint.reads_to(latest.number) is None:
            raise CheckpointError(
                f"{self._checkpoint.spark} lacks batch {latest.number}, which {self._checkpoint.root} has: delete the "
                f"whole checkpoint; {_START_OVER}"
            )
        self._check_marks(latest)
        age = time.time() * 1000 - latest.written_ms
        behind = self._kafka.ends(self.topics.changes, self._partitions) != latest.end
        if behind and age > self.config["reader.max.lag.ms"]:
            log.warning("the state is older than reader.max.lag.ms: starting over from the base offsets")
            self._over(latest)
            return None
        try:
            self._check_loss(latest)
        except LossError as lost:
            if self.config["on.data.loss"] == "fail":
                raise
            log.warning("%s; on.data.loss=reset: starting over from the base offsets", lost)
            self._over(latest)
            return None
        held = [n for n, s in latest.segments.items() if s.open is not None and not s.open.reset_id]
        self._ask(held, "records are gone from the change topic")
        return first

    def _over(self, latest: Batch) -> None:
        self._checkpoint.forget()
        self._carried = latest.totals

    _carried = Totals()

    def _check_marks(self, latest: Batch) -> None:
        for partition in range(self._partitions):
            stored = self._writer.stored(partition)
            name = f"{self.topics.changes}[{partition}]"
            if stored is None:
                raise CheckpointError(
                    f"{name}: the group {self.topics.diff_group} holds no offset beside a checkpoint that is not empty "
                    f"(groups expire, or it was deleted): delete the checkpoint {self._checkpoint.root}; {_START_OVER}"
                )
            if stored.checkpoint != latest.checkpoint:
                raise BusyError(
                    f"{name}: {self.topics.diff} was last written with another checkpoint: use that one, or delete "
                    f"{self._checkpoint.root}; {_START_OVER}"
                )

    def _check_loss(self, latest: Batch | None) -> None:
        if latest is None:
            return
        begins = self._kafka.begins(self.topics.changes, self._partitions)
        ends = self._kafka.ends(self.topics.changes, self._partitions)
        for partition, offset in sorted(latest.end.items()):
            if not begins[partition] <= offset <= ends[partition]:
                raise LossError(
                    f"{self.topics.changes}[{partition}]: offset {offset} is to be read next, but the partition holds "
                    f"[{begins[partition]}, {ends[partition]}): records are lost; set on.data.loss=reset, or delete "
                    f"the checkpoint {self._checkpoint.root}: {_START_OVER}"
                )

    def _begin(self) -> Batch:
        """A start without state: fold to the log's end, emit how it differs from the diff topic, go on from there."""
        begun = time.monotonic()
        plan = self._checkpoint.plan(START)
        if plan is None:
            self._checkpoint.forget()
            plan = self._plan_start()
        counted: dict[str, dict[str, int]] = {CHANGE: {}, RESET: {}}
        rows = list(self._materialised(plan))
        for partition in range(self._partitions):
            mine = [row for row in rows if row.partition == partition]
            written = self._writer.write(partition, mine, plan.checkpoint, START, plan.end[partition], first=True)
            _count(counted, written.ops)
        if self._parquet is not None and rows:
            spark = self._spark = self._spark or session()
            self._parquet.write(self._decoded(self._rows_frame(spark, START)), plan.checkpoint, START)
        state = plan.done(self._carried, counted)
        self._checkpoint.finish_start(self._identity, state)
        self._report(state, time.monotonic() - begun)
        return state

    def _plan_start(self) -> Batch:
        known = self._kafka.known(self.topics.positions)
        begins = self._kafka.begins(self.topics.changes, self._partitions)
        ends = self._kafka.ends(self.topics.changes, self._partitions)
        segments: dict[int, Segment] = {}
        lost: list[int] = []

        def parts() -> Iterator[list[Row]]:
            for p in range(self._partitions):
                numbers = segments_of(p, self._partitions, self._segments)
                found = fold.start(self._tables, self._renderer, p, known, numbers, begins[p], ends[p])
                segments.update(found.segments)
                lost.extend(found.lost)
                if found.lost and self.config["on.data.loss"] == "fail":
                    raise LossError(
                        f"{self.topics.changes}[{p}]: the base of segment {found.lost[0]} (offset "
                        f"{known.base[found.lost[0]]}) is below the first offset {begins[p]}: set on.data.loss=reset, "
                        "or ask for a reset of the segment (signal reset-segment)"
                    )
                yield found.rows

        checkpoint = uuid.uuid4().hex[:12]
        empty = Batch(checkpoint, START, ends, ends, segments, Totals())
        plan = self._checkpoint.write_plan(empty, parts())
        self._ask(lost, "records are gone from the change topic")
        return plan

    def _materialised(self, plan: Batch) -> Iterator[Row]:
        if plan.rows:
            yield from frames.rows_of(pq.ParquetFile(self._checkpoint.rows_path(plan.number)).iter_batches())

    def _rows_frame(self, spark: SparkSession, number: int) -> DataFrame:
        return spark.read.parquet(self._checkpoint.rows_path(number).as_uri())

    def _decoded(self, rows: DataFrame) -> DataFrame:
        return frames.decoded(rows, self.config)

    # -- batches ---------------------------------------------------------------------------------------------------

    def _batch(self, raw: DataFrame, number: int) -> None:
        with self._in_batch:
            if self._stopping:
                raise DiffError("the job is stopping")
            begun = time.monotonic()
            try:
                state = self._do(raw, number)
            except BaseException as error:
                if self._failure is None:
                    self._failure = error
                raise
            self._report(state, time.monotonic() - begun)

    def _do(self, raw: DataFrame, number: int) -> Batch:
        before = self._checkpoint.state(number - 1) if number else self._started
        end = self._checkpoint.reads_to(number)
        if before is None or end is None:
            raise CheckpointError(
                f"the checkpoint {self._checkpoint.root} lacks batch {number - 1}: delete it; {_START_OVER}"
            )
        records = frames.cut(raw)
        plan = self._checkpoint.plan(number)
        if plan is None or (plan.checkpoint, plan.begin, plan.end) != (before.checkpoint, before.end, end):
            plan = self._plan(records, before, number, end)
        task = self._walk(before, frozenset(plan.void))
        rows: DataFrame
        if plan.small:
            table = frames.kept_table(records, task)
            if plan.rows:
                table = frames.merged_table(table, pq.read_table(self._checkpoint.rows_path(number)))
            found = self._write(frames.rows_of(table.to_batches()), plan)
        else:
            rows = frames.kept(records, task)
            if plan.rows:
                rows = frames.merged(rows, self._rows_frame(raw.sparkSession, number), self._partitions)
            found = frames.write_kafka(rows, self.config, plan.checkpoint, number, plan.end)
        counted: dict[str, dict[str, int]] = {CHANGE: {}, RESET: {}}
        for written in found:
            if written.error is not None:
                raise RecordError(f"{written.error}; {_foreign(self.topics.changes)}")
            _count(counted, written.ops)
        if self._parquet is not None and any(any(ops.values()) for ops in counted.values()):
            if plan.small:
                rows = raw.sparkSession.createDataFrame(table)
            self._parquet.write(self._decoded(rows), plan.checkpoint, number)
        state = plan.done(before.totals, counted)
        self._renew(state)
        self._checkpoint.write_state(state)
        return state

    def _write(self, rows: Iterator[Row], plan: Batch, first: bool = False) -> list[Written]:
        """Writes a small batch's rows, ordered by partition, with the driver's own producers."""
        found = []
        for partition, group in itertools.groupby(rows, key=lambda row: row.partition):
            end = plan.end[partition]
            found.append(self._writer.write(partition, group, plan.checkpoint, plan.number, end, first))
        return found

    def _walk(self, before: Batch, void: frozenset[tuple[int, int]]) -> frames.Walk:
        return frames.Walk(self.topics.changes, self._partitions, self._segments, before.segments, void)

    def _plan(self, records: DataFrame, before: Batch, number: int, end: dict[int, int]) -> Batch:
        """Walks the batch, reads the resets that end in it, and puts what follows where a replay finds it."""
        void: set[tuple[int, int]] = set()
        small = sum(end[p] - before.end[p] for p in end) <= self.SMALL_RECORDS
        while True:
            walked = frames.walk(records, self._walk(before, frozenset(void)), small)
            for found in walked:
                if found.error is not None:
                    raise RecordError(f"{found.error}; {_foreign(self.topics.changes)}")
            ended = {w.partition: w.ended for w in walked if w.ended}
            try:
                rows = [self._resets(p, before, e, frozenset(void)) for p, e in ended.items()]
                break
            except fold.Void as problem:
                if self.config["on.data.loss"] == "fail":
                    raise problem.error from problem
                void.add((problem.ended.segment, problem.ended.end))
                log.warning("%s", problem.error)
                self._ask([problem.ended.segment], "a reset did not match its count and digest")
        segments = dict(before.segments)
        totals = Totals(batches=1)
        for found in walked:
            segments.update(found.segments)
            own: dict[str, int] = {}
            for one in found.ended:
                own[one.reason] = own.get(one.reason, 0) + 1
            totals = totals.plus(Totals(records=found.records, repeats=found.repeats, resets=own))
        if totals.repeats:
            log.warning("batch %d: %d records came again and were dropped", number, totals.repeats)
        plan = Batch(before.checkpoint, number, before.end, end, segments, totals, void=sorted(void))
        plan = replace(plan, small=small and sum(w.size for w in walked) <= self.SMALL_BYTES)
        return self._checkpoint.write_plan(plan, rows)

    def _resets(self, partition: int, before: Batch, ended: list[Ended], void: frozenset[tuple[int, int]]) -> list[Row]:
        low = self._kafka.begins(self.topics.changes, self._partitions)[partition]
        for one in ended:
            if one.begin < low:
                problem = RecordError(
                    f"reset {one.reset_id} of segment {one.segment} begins at offset {one.begin}, the partition at "
                    f"{low}: ask for a reset of the segment (signal reset-segment)"
                )
                raise fold.Void(one, problem.at(self.topics.changes, partition, one.end))
        # Nothing of an earlier attempt may appear in the diff topic behind the read of what it tells.
        self._writer.fence(partition)
        begin = before.end[partition]
        return fold.resets(self._tables, self._renderer, partition, before.segments, ended, void, begin)

    def _renew(self, state: Batch) -> None:
        """Commits every partition's mark anew now and then: offsets of a partition without changes would expire."""
        if time.monotonic() - self._renewed > _RENEW_SECONDS:
            for partition, end in state.end.items():
                self._writer.write(partition, [], state.checkpoint, state.number, end)
            self._writer.close()
            self._renewed = time.monotonic()

    def _report(self, state: Batch, seconds: float) -> None:
        self._checkpoint.write_progress(state)
        ends = self._kafka.ends(self.topics.changes, self._partitions)
        told: dict[str, Any] = {
            "batch": state.number,
            "seconds": round(seconds, 3),
            "records": state.totals.records,
            "repeats": state.totals.repeats,
            "resets": state.totals.resets,
            "changes": state.totals.changes,
            "resets_rows": state.totals.resets_rows,
            "lag": sum(max(0, ends[p] - offset) for p, offset in state.end.items()),
        }
        log.info("%s", orjson.dumps(told).decode())
        if self._on_batch is not None:
            self._on_batch(told)

    # -- signals ---------------------------------------------------------------------------------------------------

    def _ask(self, segments: list[int], reason: str) -> None:
        """Asks the owners for resets (signal `reset-segment`), where `on.data.loss` says so."""
        if segments and self.config["on.data.loss"] == "reset":
            data = {"cache": self.config["cache.name"], "segments": sorted(segments), "reason": reason}
            value = orjson.dumps({"id": uuid.uuid4().hex, "type": "reset-segment", "data": data})
            self._writer.signal(self.config["topic.prefix"].encode(), value)
            log.warning("asked for a reset of segments %s: %s", data["segments"], reason)


def _count(into: dict[str, dict[str, int]], ops: dict[str, dict[str, int]]) -> None:
    for cause, counts in ops.items():
        for op, n in counts.items():
            into[cause][op] = into[cause].get(op, 0) + n


def _foreign(topic: str) -> str:
    return (
        f"stop what else writes to {topic}, remove the record (kafka-delete-records up to the offset behind it), then "
        f"delete the checkpoint: {_START_OVER}"
    )


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _keys(offsets: dict[int, int]) -> dict[str, int]:
    return {str(p): offset for p, offset in offsets.items()}


if __name__ == "__main__":
    from deelog_spark.cli import diff

    diff()
