"""The diff job: reads a change topic and writes its differences, each once.

    with DiffJob("diff.properties") as job:
        job.start().await_termination()

A start without state folds the topic up to its end and writes how the result differs from the diff topic; from there
`foreachBatch` goes on. A batch has four steps: walk it by header (`folding/walk.py`); read and check the resets that
end in it, and write down how they differ from the diff topic (`batches/plan.py`); write each sink; write the state.
Each step is done once, even after `kill -9` at any point: a replay skips what is done.

With spark-submit: `spark-submit --packages … job.py --config FILE [--available-now]`.
Alternatives: docs/decisions.md, "Kafka is the state".
"""

from __future__ import annotations

import functools
import itertools
import logging
import operator
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import orjson
import pyarrow as pa
import tenacity

from deelog_schemas.config import Given, Role, config_of
from deelog_schemas.errors import DeelogError, RecordError
from deelog_schemas.kafka.progress import MAX_STALL_SECONDS, STALL_SECONDS
from deelog_spark.batches import columns, ranges, tasks
from deelog_spark.batches.checkpoint import START, Batch, Checkpoint, Totals
from deelog_spark.batches.plan import START_OVER, Planner
from deelog_spark.errors import CheckpointError, DiffError, LossError
from deelog_spark.folding.diff_record import CHANGE, RESET, ROW_DDL, ROW_ORDER, ROW_SCHEMA, Row, connected, renderer_of
from deelog_spark.java_options import kafka_options
from deelog_spark.kafka import Cluster, KafkaException, unreachable
from deelog_spark.report import BatchReport
from deelog_spark.session import is_lost, is_spark_error, load_kafka, refuse_connect, session, spark_error, uri_of
from deelog_spark.sinks.kafka import BatchMarker, Writer, Written, stays_hidden
from deelog_spark.sinks.sink import sinks_of
from deelog_spark.tables import latest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from deelog_spark.metrics import Metrics

log = logging.getLogger("deelog.diff")
_T = TypeVar("_T")

_SETTLE_SECONDS: Final = 5.0
_STOP_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.2
_LOOK_SECONDS: Final = 10.0
_WRITTEN_AT_ONCE: Final = 16
_RENEW_SECONDS: Final = 3600.0
_VISIBLE_SECONDS: Final = 5.0
"""How late the markers of a commit may be before its producer is replaced, which waits for them."""
_ATTEMPTS: Final = 6
_REST_SECONDS: Final = 2.0
"""As long as a cancelled task of Spark goes on (`spark.python.task.killTimeout`): it would fence the next attempt."""


def _tell(_: tenacity.RetryCallState) -> None:
    log.warning("a producer of the diff topic stands still, and brokers answer others: a new one goes on")


_REPLACING: Final = tenacity.Retrying(
    retry=tenacity.retry_if_exception(is_lost),
    stop=tenacity.stop_after_attempt(_ATTEMPTS),
    wait=tenacity.wait_fixed(_REST_SECONDS),
    before_sleep=_tell,
    reraise=True,
)

_Done = tuple[Batch, list[Written], "Callable[[], DataFrame]"]
"""A batch that is in the diff topic: its plan, what was written, and its rows for the other sinks."""


class DiffJob:
    """One job. Call `start()` once, and `stop()` at the end, also after an error; `with` does that.

    `config` is a file, a dict of its fields or a `Config`. `spark` is your own session, which is left running, or None
    for one that the job makes and stops. `on_batch` is called after each batch, the start included; the next one waits
    for it. Raises `ConfigError`; `RegistryError` where the configured schema registry does not answer.
    """

    def __init__(
        self,
        config: Given,
        spark: SparkSession | None = None,
        on_batch: Callable[[BatchReport], None] | None = None,
    ) -> None:
        self.config = config = connected(config_of(config, Role.DIFF))
        self.topics = config.topics
        self._given, self._spark = spark, spark
        self._on_batch = on_batch
        self._renderer = renderer_of(config)
        self._writer = Writer(config, self._renderer)
        self._patience = STALL_SECONDS
        self._checkpoint = Checkpoint(config["diff.checkpoint.location"])
        self._sinks = sinks_of(config, self._session, lambda: self._stopping)
        self._metrics: Metrics | None = None
        self._cluster: Cluster | None = None
        self._planner: Planner | None = None
        self._query: StreamingQuery | None = None
        self._started: Batch | None = None
        self._failure: BaseException | None = None
        self._stopping = False
        self._in_batch = threading.Lock()
        self._ended = threading.Event()
        self._beside: threading.Thread | None = None
        self._gone: CheckpointError | None = None
        """The diff topic was deleted."""

    SMALL_RECORDS = 20_000
    """The driver writes batches of at most so many records itself: 0.1 s instead of 1."""
    SMALL_BYTES = 16 << 20
    """And of at most so many bytes."""

    # -- life ------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, available_now: bool = False) -> Self:
        """Starts the stream, after the fold of a start without state. `available_now` stops it at the topic's end.

        Waits up to 60 s for the topics. Raises TopicError, CheckpointError, LossError, BusyError, RecordError,
        SinkError, RightsError; DiffError where Spark fails, and with a session of Spark Connect.
        """
        refuse_connect(self._given)
        try:
            return self._start(available_now)
        except Exception as error:
            if not is_spark_error(error):
                raise
            raise self._of_spark(error) from error

    def _start(self, available_now: bool) -> Self:
        self._checkpoint.lock()
        if self.config["diff.metrics.port"]:
            from deelog_spark.metrics import Metrics  # late: prometheus_client is an extra

            self._metrics = Metrics(self.config)
        self._cluster = Cluster(self.config)
        self._planner = plans = Planner(
            self.config,
            self._cluster,
            self._checkpoint,
            self._writer,
            self._renderer,
            lambda: self._stopping,
            self._session,
        )
        for sink in self._sinks:
            sink.open()
        self._replacing(plans, functools.partial(self._fence, plans))
        state = plans.resume()
        if isinstance(state, Batch):
            self._started = state
            # At each start: one that runs for minutes a day comes to no hour.
            self._replacing(plans, functools.partial(self._renew, plans.partitions, state.checkpoint))
            self._start_sinks(self._checkpoint.latest() or state, None)
        else:
            self._started = self._replacing(plans, functools.partial(self._begin, plans, state))
        spark = self._session()
        source = spark.readStream.format("kafka").options(**kafka_options(self.config))
        source = source.option("assign", _json({self.topics.changes: list(range(plans.partitions))}))
        source = source.option("startingOffsets", _json({self.topics.changes: _keys(self._started.end)}))
        source = source.option("maxOffsetsPerTrigger", self.config["diff.max.offsets.per.trigger"])
        trigger: dict[str, Any] = {"availableNow": True}
        if not available_now:
            trigger = {"processingTime": f"{self.config['diff.trigger.interval.ms']} milliseconds"}
        writing = load_kafka(source).writeStream.foreachBatch(self._batch).trigger(**trigger)
        writing = writing.option("checkpointLocation", uri_of(self._checkpoint.spark))
        self._query = writing.queryName(f"{self.topics.diff}-{uuid.uuid4().hex[:8]}").start()
        given = plans, self._started.checkpoint
        self._beside = threading.Thread(target=self._look_after, args=given, name="deelog-diff-looks", daemon=True)
        self._beside.start()
        return self

    def await_termination(self, timeout: float | None = None) -> bool:
        """Waits at most `timeout` seconds for the job's end; whether it has ended. Raises the error that ended it."""
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
            if self._gone is not None:
                raise self._gone
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def request_stop(self) -> None:
        """Lets no further batch begin and `await_termination` return. Safe in a signal handler."""
        self._stopping = True

    def stop(self) -> None:
        """Stops the job after the running batch and frees everything; does nothing where it was never started.

        A batch that takes longer than 60 s is interrupted; the next start does it again.
        """
        self._stopping = True
        self._ended.set()
        if self._query is not None:
            # `query.stop()` waits for the batch, whose Python part may wait for Spark: let it finish first.
            if self._in_batch.acquire(timeout=_STOP_SECONDS):
                self._in_batch.release()
            deadline = time.monotonic() + _SETTLE_SECONDS
            while self._query.isActive and self._query.status["isTriggerActive"] and time.monotonic() < deadline:
                time.sleep(_SETTLE_SECONDS / 100)  # Spark writes its own file after the batch
            self._query.stop()
            self._query = None
        if self._spark is not None and self._given is None:
            self._spark.stop()
            self._spark = None
        if self._beside is not None:
            self._beside.join(_SETTLE_SECONDS)  # a request to brokers that are away takes longer, and ends by itself
        self._writer.close()
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        self._checkpoint.release()

    def _explained(self, error: Exception) -> BaseException:
        failure = self._failure
        if isinstance(failure, KafkaException):
            return unreachable(failure)
        if failure is not None and not isinstance(failure, LossError) and not is_spark_error(failure):
            return failure
        latest = self._checkpoint.latest() or self._started
        if latest is not None and self._planner is not None:
            try:
                self._planner.check_loss(latest)
            except LossError as lost:
                return lost
        return failure if isinstance(failure, LossError) else self._of_spark(failure or error)

    def _of_spark(self, error: BaseException) -> DeelogError:
        """An error of Spark as the job reports it, with its remedy."""
        explained = spark_error(error)
        if not isinstance(explained, RecordError):
            return explained
        remedy = "delete the diff topic and the checkpoint, which the job then makes anew"
        if str(explained).startswith(f"{self.topics.changes}["):
            remedy = (
                "find out what wrote it, or set errors.tolerance=all and errors.deadletterqueue.topic.name to put such "
                "records aside, and start the job again"
            )
        return RecordError(f"{explained}; {remedy}")

    # -- start -----------------------------------------------------------------------------------------------------

    def _begin(self, plans: Planner, before: Totals) -> Batch:
        """A start without state: writes how the folded topic differs from the diff topic; the state after it."""
        begun = time.monotonic()
        plan = self._checkpoint.plan(START) if self._checkpoint.begun(plans.identity) else None
        if plan is None or not self._writer.claimed(range(plans.partitions), plan.checkpoint):
            self._checkpoint.forget()
            self._checkpoint.begin(plans.identity)
            plan = plans.start()
        results: list[Written] = []
        size = ranges.size(self._checkpoint.rows_path(START)) if plan.rows else 0
        few = plan.rows <= self.SMALL_RECORDS and size <= self.SMALL_BYTES
        mine: dict[int, list[Row]] = {}
        if few and plan.rows:
            table = ranges.rows_of(self._checkpoint.rows_path(START))
            for row in columns.rows_of(table.to_batches()):
                mine.setdefault(row.partition, []).append(row)
        elif plan.rows:
            rows = columns.ordered(self._rows_frame(START), plans.partitions)
            results += tasks.write_kafka(rows, self.config, plan.checkpoint, START, plan.end, self._patience)
        for partition in range(plans.partitions):  # each gets its marker, with rows or without
            some = mine.get(partition, [])
            end = plan.end[partition]
            results.append(self._writer.write(partition, some, plan.checkpoint, START, end))
        plans.raise_first(written.error for written in results)
        counts = _counts(results)
        if self._fence(plans):  # a commit that was answered may not be visible yet
            raise stays_hidden(self.topics.diff)
        self._start_sinks(plan, (lambda: self._decoded(self._rows_frame(START))) if plan.rows else None)
        state = plan.done(before, counts, plans.report_dead_letters(START, results))
        self._checkpoint.finish_start(plans.identity, state)
        self._report(state, time.monotonic() - begun)
        return state

    def _fence(self, plans: Planner) -> bool:
        """After it, every commit of this job and of earlier ones is visible, and earlier ones commit no more.

        Whether some are visible only because they were taken back: what they wrote is to be written again.
        """
        partitions = range(plans.partitions)
        self._writer.fence(partitions)
        hidden = self._writer.hidden(partitions, patience=self._patience)
        if hidden:
            log.warning("%s%s: what was written there stays hidden: it is written again", self.topics.diff, hidden)
        for partition in hidden:
            self._writer.take_back(partition, self._visible(partition))
        return bool(hidden)

    def _visible(self, partition: int) -> BatchMarker | None:
        """The last marker whose rows are known to be visible; None where the checkpoint knows of none."""
        state, end = self._checkpoint.now(), 0
        if state is not None:
            end = state.end.get(partition, 0)
        else:
            state = self._checkpoint.plan(START)  # not finished: none of its rows are
        return None if state is None else BatchMarker(state.checkpoint, state.number, end)

    def _start_sinks(self, state: Batch, rows: Callable[[], DataFrame] | None) -> None:
        for sink in self._sinks:
            sink.start(rows, lambda: latest(self._session(), self.config), state.checkpoint, state.number)

    def _rows_frame(self, number: int) -> DataFrame:
        rows = self._session().read.schema(ROW_DDL).parquet(uri_of(self._checkpoint.rows_path(number)))
        return rows.where(rows["cause"].isin(CHANGE, RESET))

    def _session(self) -> SparkSession:
        self._spark = self._spark or session()
        return self._spark

    def _decoded(self, rows: DataFrame) -> DataFrame:
        return columns.decoded(columns.decodable(rows, self.config), self.config, self.topics.changes)

    # -- batches ---------------------------------------------------------------------------------------------------

    def _batch(self, _: DataFrame, number: int) -> None:
        with self._in_batch:
            if self._stopping:
                raise DiffError("the job is stopping")
            if self._gone is not None:
                raise self._gone
            begun = time.monotonic()
            try:
                assert self._planner is not None
                state = self._replacing(self._planner, functools.partial(self._run, number))
            except BaseException as error:
                if self._failure is None:
                    self._failure = error
                raise
            self._report(state, time.monotonic() - begun)

    def _replacing(self, plans: Planner, work: Callable[[], _T]) -> _T:
        """Repeats `work`, the batch or the start, where it has lost a producer: what it has written is skipped."""
        for attempt in _REPLACING:
            with attempt:
                earlier = attempt.retry_state.attempt_number - 1
                # A task's process ends with its error, and with what `Progress` has learned there.
                self._patience = min(STALL_SECONDS * 2**earlier, MAX_STALL_SECONDS)
                if earlier:
                    # The lost one's open transaction hides its marker from a task that has an older producer.
                    self._fence(plans)
                return work()
        raise AssertionError("unreachable")

    def _run(self, number: int) -> Batch:
        before = self._checkpoint.state(number - 1) if number else self._started
        end = self._checkpoint.reads_to(number)
        plans = self._planner
        if before is None or end is None or plans is None:
            raise CheckpointError(
                f"the checkpoint {self._checkpoint.root} lacks batch {number - 1}: delete it; {START_OVER}"
            )
        plan = self._checkpoint.plan(number)
        if plan is not None and (plan.checkpoint, plan.begin, plan.end) != (before.checkpoint, before.end, end):
            plan = None
        few = sum(end[p] - before.end[p] for p in end) <= self.SMALL_RECORDS
        if few or plan is not None:
            plan, results, rows = self._planned(plans, before, number, end, plan)
        else:
            plan, results, rows = self._passed_on(plans, before, number, end)
        plans.raise_first(written.error for written in results)
        fresh = [written.partition for written in results if written.records]
        if self._writer.hidden(fresh, _VISIBLE_SECONDS, self._patience):
            raise stays_hidden(self.topics.diff)
        counts = _counts(results)
        if self._sinks:
            some = any(any(ops.values()) for ops in counts.values())
            differences = self._decoded(rows()) if some else None
            for sink in self._sinks:
                sink.write(differences, plan.checkpoint, number)
        state = plan.done(before.totals, counts, plans.report_dead_letters(number, results))
        self._checkpoint.write_state(state)
        return state

    def _passed_on(self, plans: Planner, before: Batch, number: int, end: dict[int, int]) -> _Done:
        """A large batch, in one reading unless a reset ends in it.

        It needs no plan on disk: without resets, a batch gives the same rows whenever it is walked. Where a plan is
        needed after all, the partitions that were written are skipped.
        """
        task = plans.walk(before, end, frozenset())
        pairs = tasks.pass_on(self._session(), task, before.checkpoint, number, self._patience)
        walked = [one for one, _ in pairs]
        # Writers' errors first: where one stopped, its walk ended early, and no plan may be made of it.
        plans.raise_first(written.error for _, written in pairs)
        plans.raise_first(one.error for one in walked)
        if any(one.ended for one in walked):
            return self._planned(plans, before, number, end, None, walked)
        plan = plans.gathered(before, number, end, walked)
        return plan, [written for _, written in pairs], lambda: tasks.kept(self._session(), task)

    def _planned(
        self,
        plans: Planner,
        before: Batch,
        number: int,
        end: dict[int, int],
        plan: Batch | None,
        walked: list[tasks.Walked] | None = None,
    ) -> _Done:
        changes: list[Row] | None = None
        if plan is None:
            plan, changes = plans.batch(before, number, end, self.SMALL_RECORDS, self.SMALL_BYTES, walked)
        task = plans.walk(before, end, frozenset(plan.void))
        if plan.small and changes is None:
            changes = self._changes(task)
        if plan.small and changes is not None:
            return plan, *self._write_here(plan, changes)
        spark = self._session()
        if not plan.rows:
            rows = tasks.kept(spark, task)
        elif not plan.kept:
            rows = columns.ordered(self._rows_frame(number), plans.partitions)
        else:
            rows = columns.merged(tasks.kept(spark, task), self._rows_frame(number), plans.partitions)
        some = plan.kept or plan.rows
        results = (
            tasks.write_kafka(rows, self.config, plan.checkpoint, number, plan.end, self._patience) if some else []
        )
        return plan, results, lambda: rows

    def _changes(self, task: tasks.WalkTask) -> list[Row] | None:
        """The captured changes that count of a small batch that was planned earlier."""
        assert self._cluster is not None
        walked = tasks.walk_here(task, self._cluster.reader, self.SMALL_BYTES)
        return None if walked is None else walked[1]

    def _write_here(self, plan: Batch, rows: list[Row]) -> tuple[list[Written], Callable[[], DataFrame]]:
        """Writes a small batch with the driver's own producers."""
        if plan.rows:
            resets = ranges.rows_of(self._checkpoint.rows_path(plan.number))
            rows = sorted([*rows, *columns.rows_of(resets.to_batches())], key=operator.attrgetter(*ROW_ORDER))

        def frame() -> DataFrame:
            table = pa.Table.from_batches(columns.batches_of(rows), ROW_SCHEMA)
            return self._session().createDataFrame(table).coalesce(1)  # one task, no shuffle

        def write(part: tuple[int, list[Row]]) -> Written:
            return self._writer.write(*part, plan.checkpoint, plan.number, plan.end[part[0]])

        parts = [(number, list(group)) for number, group in itertools.groupby(rows, key=lambda row: row.partition)]
        # A transaction waits for the brokers most of its time.
        with ThreadPoolExecutor(_WRITTEN_AT_ONCE, "deelog-write") as pool:
            return list(pool.map(write, parts)), frame

    def _renew(self, partitions: int, checkpoint: str) -> None:
        self._writer.renew(range(partitions), checkpoint)
        self._writer.close()

    def _look_after(self, plans: Planner, checkpoint: str) -> None:
        """Notices that the diff topic is gone, and renews the offsets, also where nothing changes for days."""
        renewed = time.monotonic()
        while not self._ended.wait(_LOOK_SECONDS):
            try:
                plans.check_diff(lambda: self._stopping)
                if time.monotonic() < renewed + _RENEW_SECONDS:
                    continue
                renewed = time.monotonic()
                with self._in_batch:
                    if self._stopping or self._failure is not None:
                        return
                    self._renew(plans.partitions, checkpoint)
            except CheckpointError as error:
                self._gone = error
                return
            except (DiffError, KafkaException, TimeoutError) as error:  # the next batch meets it, too
                log.warning("the job looks again later: %s", str(error) or "the brokers do not answer")

    def _report(self, state: Batch, seconds: float) -> None:
        self._checkpoint.write_progress(state)
        totals = state.totals
        report = BatchReport(
            topic=self.topics.changes,
            batch=state.number,
            seconds=round(seconds, 3),
            records=totals.records,
            repeats=totals.repeats,
            resets=totals.resets,
            changes=totals.changes,
            resets_rows=totals.resets_rows,
            dead_letters=totals.dead_letters,
            lag=self._lag(state),
            behind=round(max(0.0, state.written_ms - state.newest_ms) / 1000, 3) if state.newest_ms else None,
            open_resets=sum(segment.open is not None for segment in state.segments.values()),
        )
        log.info("%s", orjson.dumps(report).decode())
        if self._metrics is not None:
            self._metrics.observe(report)
        if self._on_batch is not None:
            self._on_batch(report)

    def _lag(self, state: Batch) -> int | None:
        """Offsets between the state and the topic's end; None where the brokers do not answer."""
        assert self._cluster is not None
        try:
            ends = self._cluster.ends(self.topics.changes, len(state.end))
        except KafkaException as error:
            log.warning("the lag is unknown: %s", error)
            return None
        return sum(max(0, ends[p] - offset) for p, offset in state.end.items())


def _counts(results: list[Written]) -> dict[str, dict[str, int]]:
    """Rows by cause and op."""
    sums: dict[str, dict[str, int]] = {CHANGE: {}, RESET: {}}
    for written in results:
        for cause, counts in written.ops.items():
            for op, n in counts.items():
                sums[cause][op] = sums[cause].get(op, 0) + n
    return sums


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _keys(offsets: dict[int, int]) -> dict[str, int]:
    return {str(p): offset for p, offset in offsets.items()}
