"""Plans a start or a batch before any sink is written, and writes the plan down.

Everything that depends on the diff topic is decided here. Once a part of a batch is written, the diff topic has
changed and a second read would give something else; a replay reads the plan instead.
"""

from __future__ import annotations

import functools
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from deelog_schemas.config import Config
from deelog_schemas.errors import RecordError
from deelog_schemas.keys import partition_of, segments_of
from deelog_spark.batches import ranges, tasks
from deelog_spark.batches.checkpoint import LAYOUT, START, Batch, Checkpoint, Identity, Totals
from deelog_spark.errors import BusyError, CheckpointError, LossError, TopicError
from deelog_spark.folding import by_columns, by_records
from deelog_spark.folding.diff_record import RESET, Renderer, Row, tolerant
from deelog_spark.folding.walk import Ended, Segment
from deelog_spark.kafka import REQUEST_SECONDS, Cluster, KafkaException
from deelog_spark.sinks.kafka import BatchMarker, Writer, Written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("deelog.diff")

TOPIC_WAIT_SECONDS: Final = 60.0
START_OVER: Final = "the job then starts over and emits differences only"
_RESET_FIRST: Final = (
    "ask for a reset of the segment (signal reset-segment) and wait for its end; then delete the checkpoint, or set "
    f"on.data.loss=reset: {START_OVER}"
)
_LETTER_BYTES: Final = 65_536
_MOST_BYTES: Final = 2**31 - 1
"""The largest `max.message.bytes` that a topic takes."""


class Planner:
    """Plans for one cache.

    Checks the topics when it is made, and waits up to 60 s for them, or until `stopping`. Raises TopicError.
    """

    def __init__(
        self,
        config: Config,
        cluster: Cluster,
        checkpoint: Checkpoint,
        writer: Writer,
        renderer: Renderer,
        stopping: Callable[[], bool],
        spark: Callable[[], SparkSession],
    ) -> None:
        self._spark = spark
        self.config, self.topics = config, config.topics
        self._cluster, self._checkpoint, self._writer, self._renderer = cluster, checkpoint, writer, renderer
        layout = cluster.layout(self.topics.changes, TOPIC_WAIT_SECONDS, stopping)
        self.partitions, self.segments = layout.partitions, int(config["segment.count"])
        settings = cluster.settings(self.topics.changes)
        self._check_changes(settings)
        changes, diff = self.topics.changes, self.topics.diff
        diff_id, prefix = self._prepare_diff(settings), config["topic.prefix"]
        self.identity = Identity(
            LAYOUT, changes, layout.topic_id, prefix, self.partitions, self.segments, diff, diff_id
        )
        if tolerant(config):
            self._prepare_dead_letters(settings)
        self._layout = ranges.Layout(self.topics.changes, self.topics.diff, self.partitions, self.segments)

    # -- topics ----------------------------------------------------------------------------------------------------

    def _check_changes(self, settings: Mapping[str, str]) -> None:
        """A reset is read again when it ends: nothing of it may have been compacted by then."""
        needed = self.config["reader.max.lag.ms"]
        if "compact" in settings["cleanup.policy"] and int(settings["min.compaction.lag.ms"]) < needed:
            raise TopicError(
                f"topic {self.topics.changes} is compacted and its min.compaction.lag.ms is below reader.max.lag.ms "
                f"({needed}): what a reset brought could be gone before the job reads it; raise the topic's setting or "
                "lower reader.max.lag.ms"
            )

    def _prepare_diff(self, changes: Mapping[str, str]) -> str:
        """The topic's id."""
        lag = str(self.config["reader.max.lag.ms"])
        # A difference holds two values, each of which filled a record of the change topic.
        largest = str(min(2 * int(changes["max.message.bytes"]), _MOST_BYTES))
        settings = {
            "cleanup.policy": "compact",
            "min.compaction.lag.ms": lag,
            "delete.retention.ms": lag,
            "max.message.bytes": largest,
        }
        replicas = self.config["topic.creation.default.replication.factor"]
        diff = self._cluster.ensure(self.topics.diff, self.partitions, replicas, settings)
        if diff.partitions != self.partitions:
            raise TopicError(
                f"topic {self.topics.diff} has {diff.partitions} partitions, {self.topics.changes} has "
                f"{self.partitions}: they must have the same number; delete the diff topic and the checkpoint, the job "
                "creates it as it must be"
            )
        actual = self._cluster.settings(self.topics.diff)
        self._check_diff(actual)
        self._raise_limit(self.topics.diff, actual, largest)
        return diff.topic_id

    def _check_diff(self, settings: Mapping[str, str]) -> None:
        """The diff topic is the job's state: it may lose only what is overwritten."""
        needed = self.config["reader.max.lag.ms"]
        if (kept := int(settings["delete.retention.ms"])) < needed:
            log.warning(
                "topic %s: delete.retention.ms=%d is below reader.max.lag.ms=%d: who was away may miss deletes",
                self.topics.diff,
                kept,
                needed,
            )
        policy, lag = settings["cleanup.policy"], int(settings["min.compaction.lag.ms"])
        if policy != "compact" or lag < needed:
            raise TopicError(
                f"topic {self.topics.diff} has cleanup.policy={policy} and min.compaction.lag.ms={lag}: it would lose "
                "records that the job still needs; set cleanup.policy=compact and min.compaction.lag.ms to "
                f"reader.max.lag.ms ({needed}) or more, and delete topic and checkpoint if records may be gone already"
            )

    def check_diff(self, stopping: Callable[[], bool]) -> None:
        """CheckpointError where the diff topic was deleted: nobody would write again what it had."""
        try:
            found = self._cluster.layout(self.topics.diff, REQUEST_SECONDS, stopping).topic_id
        except TopicError:
            if stopping():
                return
            found = ""
        if found != self.identity.diff_id:
            why = "was deleted and made again" if found else "was deleted"
            remedy = f"delete the checkpoint {self._checkpoint.root}; {START_OVER}"
            raise CheckpointError(f"topic {self.topics.diff} {why}: {remedy}")

    def _prepare_dead_letters(self, changes: Mapping[str, str]) -> None:
        topic = self.config["errors.deadletterqueue.topic.name"]
        # A dead letter is a record of the change topic with a few more headers.
        largest = str(min(int(changes["max.message.bytes"]) + _LETTER_BYTES, _MOST_BYTES))
        replicas = self.config["topic.creation.default.replication.factor"]
        self._cluster.ensure(topic, 1, replicas, {"max.message.bytes": largest})
        self._raise_limit(topic, self._cluster.settings(topic), largest)

    def _raise_limit(self, topic: str, settings: Mapping[str, str], largest: str) -> None:
        """The change topic's limit may have been raised since the topic was created."""
        if int(settings["max.message.bytes"]) >= int(largest):
            return
        try:
            self._cluster.alter(topic, {"max.message.bytes": largest})
        except KafkaException as error:
            log.warning(
                "topic %s does not take records of %s bytes, which the job may have to write: set its "
                "max.message.bytes (%s)",
                topic,
                largest,
                error.args[0].str(),
            )

    def _bounds(self) -> tuple[dict[int, int], dict[int, int]]:
        changes = self.topics.changes
        return self._cluster.begins(changes, self.partitions), self._cluster.ends(changes, self.partitions)

    # -- start -----------------------------------------------------------------------------------------------------

    def resume(self) -> Batch | Totals:
        """The start's state where the job goes on from its checkpoint; the totals so far where it has to start over.

        Raises CheckpointError, BusyError, LossError.
        """
        first = self._checkpoint.started(self.identity)
        if first is None:
            return Totals()
        latest = self._checkpoint.latest() or first
        if latest.number >= 0 and self._checkpoint.reads_to(latest.number) is None:
            raise CheckpointError(
                f"{self._checkpoint.spark} lacks batch {latest.number}, which {self._checkpoint.root} has: delete the "
                f"whole checkpoint; {START_OVER}"
            )
        marks = self._check_marks(latest)
        if self._was_away_too_long(latest):
            log.warning("what is unread is older than reader.max.lag.ms: starting over from the base offsets")
            self._checkpoint.forget()
            return latest.totals
        if self.config["on.data.loss"] == "fail":
            self.check_loss(latest)
        elif lost := self._lost(latest):
            log.warning("%s; on.data.loss=reset: starting over from the base offsets", lost)
            self._checkpoint.forget()
            return latest.totals
        self._check_ahead(latest, marks)
        waiting = [n for n, s in latest.segments.items() if s.open is not None and not s.open.reset_id]
        self._request_resets(waiting, "records are gone from the change topic")
        return first

    def _was_away_too_long(self, latest: Batch) -> bool:
        """Whether compaction may have taken what is unread: a delete and its tombstone leave nothing behind."""
        oldest = int(time.time() * 1000) - int(self.config["reader.max.lag.ms"])
        if latest.written_ms > oldest:
            return False
        ends = self._bounds()[1]
        unread = [partition for partition, end in latest.end.items() if ends[partition] != end]
        # Nothing from there on is that old. What is gone may have been, so this must be where the job goes on.
        young = self._cluster.since(self.topics.changes, self.partitions, oldest)
        return any(not 0 <= young[partition] <= latest.end[partition] for partition in unread)

    def _check_marks(self, latest: Batch) -> dict[int, BatchMarker]:
        """The diff topic's marks, by partition."""
        marks = {}
        for partition in range(self.partitions):
            stored = self._writer.stored(partition)
            name = f"{self.topics.changes}[{partition}]"
            if stored is None:
                raise CheckpointError(
                    f"{name}: the group {self.topics.diff_group} holds no offset beside a checkpoint that is not empty "
                    f"(groups expire, or it was deleted): delete the checkpoint {self._checkpoint.root}; {START_OVER}"
                )
            if stored.checkpoint != latest.checkpoint:
                raise BusyError(
                    f"{name}: {self.topics.diff} was last written with another checkpoint: use that one, or delete "
                    f"{self._checkpoint.root}; {START_OVER}"
                )
            marks[partition] = stored
        return marks

    def _check_ahead(self, latest: Batch, marks: Mapping[int, BatchMarker]) -> None:
        """CheckpointError where the diff topic was written further than this checkpoint knows of.

        The sinks know a batch by its number. An older checkpoint would give numbers that they have to other records.
        """
        # A kill leaves the diff topic one batch ahead, which Spark runs again to the same end.
        planned = self._checkpoint.reads_to(latest.number + 1) or {}
        for partition, mark in sorted(marks.items()):
            if mark.end > latest.end[partition] and mark.end != planned.get(partition):
                raise CheckpointError(
                    f"{self.topics.changes}[{partition}]: {self.topics.diff} was written up to offset {mark.end} with "
                    f"the checkpoint {self._checkpoint.root}, and its state is up to {latest.end[partition]}: it is an "
                    f"older copy, or lost files: delete it; {START_OVER}"
                )

    def check_loss(self, latest: Batch) -> None:
        """LossError, with its remedy, where the offsets to be read next are gone."""
        if lost := self._lost(latest):
            remedy = f"set on.data.loss=reset, or delete the checkpoint {self._checkpoint.root}: {START_OVER}"
            if self.config["on.data.loss"] == "reset":
                remedy = "start the job again: it starts over and asks for resets"
            raise LossError(f"{lost}; {remedy}")

    def _lost(self, latest: Batch) -> str | None:
        """Which of the offsets to be read next are gone; None where none is."""
        begins, ends = self._bounds()
        for partition, offset in sorted(latest.end.items()):
            if not begins[partition] <= offset <= ends[partition]:
                return (
                    f"{self.topics.changes}[{partition}]: offset {offset} is to be read next, but the partition holds "
                    f"[{begins[partition]}, {ends[partition]}): records are lost"
                )
        return None

    def start(self) -> Batch:
        """The plan of a start: every segment is folded to the log's end and compared with the diff topic.

        Raises LossError, RecordError.
        """
        checkpoint = uuid.uuid4().hex[:12]
        marks = {partition: self._writer.stored(partition, claims=True) for partition in range(self.partitions)}
        read = {partition: mark.end for partition, mark in marks.items() if mark is not None}
        self._writer.claim(range(self.partitions), checkpoint)  # before the diff topic is read
        view = self._cluster.positions(self.topics.positions, self.identity.topic_id)
        begins, ends = self._bounds()
        on = {n: partition_of(n, self.partitions, self.segments) for n in range(self.segments)}
        lowest = dict(begins)
        if view.segments not in (0, self.segments):
            raise CheckpointError(
                f"{self.topics.positions}: the cache has segment.count={view.segments}, and here it is "
                f"{self.segments}: set segment.count={view.segments}"
            )
        if foreign := [n for n in {*view.base, *view.open} if n >= self.segments]:
            raise CheckpointError(
                f"{self.topics.positions} knows segment {max(foreign)}, and segment.count is {self.segments}: set it "
                "to what the nodes have"
            )
        # A base beyond the end is of a log that was made again or cut.
        lost = [n for n, base in sorted(view.base.items()) if not begins[on[n]] <= base < ends[on[n]]]
        for partition in range(self.partitions):
            mine = segments_of(partition, self.partitions, self.segments)
            bases = [view.base.get(n, begins[partition]) for n in mine if n not in lost]
            lowest[partition] = max(begins[partition], min(bases, default=ends[partition]))
        if lost and self.config["on.data.loss"] == "fail":
            first, p = lost[0], on[lost[0]]
            base = view.base[first]
            why = f"(offset {base}) is not in what the partition holds, [{begins[p]}, {ends[p]})"
            raise LossError(
                f"{self.topics.changes}[{p}]: the base of segment {first} "
                f"{'is of an earlier topic of this name' if base == by_records.LOST else why}: set "
                "on.data.loss=reset, or ask for a reset of the segment (signal reset-segment)"
            )
        # Without a base the diff topic's entries count, and these lack what is gone. A mark at 0 has read nothing.
        unread = [n for n, p in on.items() if n not in view.base and 0 < read.get(p, 0) < begins[p]]
        if unread and self.config["on.data.loss"] == "fail":
            p = on[unread[0]]
            raise LossError(
                f"{self.topics.changes}[{p}]: the job has read up to offset {read[p]}, the partition begins at "
                f"{begins[p]}, and segments {', '.join(map(str, unread))} have no base offset to begin from: set "
                "on.data.loss=reset, or ask for a reset of these segments (signal reset-segment)"
            )
        lost += unread
        view.base.update(dict.fromkeys(lost, by_records.LOST))
        # Dead letters below these offsets were written with an earlier checkpoint.
        work = functools.partial(_start, view, begins, ends, read if tolerant(self.config) else {})
        new = ranges.OffsetRange(self.topics.changes, lowest, ends)
        while True:  # each turn gives up one more segment
            try:
                written, states = self._fold(START, new, on, work)
                break
            except by_records.ResetMismatch as problem:
                if self.config["on.data.loss"] == "fail":
                    raise RecordError(f"{problem.error}, or set on.data.loss=reset") from problem
                log.warning("%s", problem.error)
                lost.append(problem.ended.segment)
                view.base[problem.ended.segment] = by_records.LOST
        for number in on.keys() - states.keys():  # neither topic has a record of it
            _, states[number] = work(ranges.no_records(self.config), self._renderer, number, on[number])
        segments = {n: state for n, state in states.items() if state is not None}
        plan = Batch(checkpoint, START, ends, ends, segments, Totals(), rows=ranges.count(written))
        self._request_resets(lost, "records are gone from the change topic, or a reset did not match")
        return self._checkpoint.write_plan(plan, written)

    def _fold(
        self, number: int, new: ranges.OffsetRange, wanted: Iterable[int], work: ranges.Work
    ) -> tuple[Path, dict[int, Segment | None]]:
        """Folds segments. Returns the draft of their rows, for `write_plan`, and their states.

        Raises RecordError and ResetMismatch.
        """
        diff = self.topics.diff
        begins, ends = self._cluster.begins(diff, self.partitions), self._cluster.ends(diff, self.partitions)
        old = ranges.OffsetRange(diff, {p: begins[p] for p in new.end}, {p: ends[p] for p in new.end})
        place = self._checkpoint.rows_draft(number)
        task = ranges.FoldTask(self.config, self._layout, old, new, frozenset(wanted), work)
        ranges.fold(self._spark, self._cluster.reader, task, place)
        return place, ranges.states(place)

    # -- batches ---------------------------------------------------------------------------------------------------

    def walk(self, before: Batch, end: Mapping[int, int], void: frozenset[tuple[int, int]]) -> tasks.WalkTask:
        """How to walk a batch from the state `before` to the offsets `end`."""
        return tasks.WalkTask(self.config, self.partitions, self.segments, before.segments, void, before.end, end)

    def batch(
        self,
        before: Batch,
        number: int,
        end: dict[int, int],
        small: int,
        bytes_: int,
        walked: list[tasks.Walked] | None = None,
    ) -> tuple[Batch, list[Row]]:
        """The plan of a batch. Walks it, unless `walked` is given; reads and checks the resets that end in it.

        The driver walks a batch of at most `small` offsets and `bytes_` bytes: the plan comes with its captured changes
        that count. Raises RecordError, LossError.
        """
        void: set[tuple[int, int]] = set()
        few = sum(end[p] - before.end[p] for p in end) <= small
        rows: list[Row] | None = None
        while True:  # each turn voids one more end
            if walked is None or void:
                task = self.walk(before, end, frozenset(void))
                here = tasks.walk_here(task, self._cluster.reader, bytes_) if few else None
                walked, rows = (tasks.walk(self._spark(), task), None) if here is None else here
            self.raise_first(one.error for one in walked)
            ended = [one for w in walked for one in w.ended]
            try:
                written = self._resets(before, number, ended, frozenset(void)) if ended else None
                break
            except by_records.ResetMismatch as problem:
                if self.config["on.data.loss"] == "fail":
                    raise RecordError(f"{problem.error}; {_RESET_FIRST}") from problem
                void.add((problem.ended.segment, problem.ended.end))
                log.warning("%s", problem.error)
                self._request_resets([problem.ended.segment], "a reset did not match its count and digest")
        count = ranges.count(written)
        plan = replace(self.gathered(before, number, end, walked), rows=count, void=sorted(void))
        plan = replace(plan, small=rows is not None and count <= small and ranges.size(written) <= bytes_)
        return self._checkpoint.write_plan(plan, written), rows or []

    def raise_first(self, errors: Iterable[str | None]) -> None:
        """Raises the first error of the tasks, if there is one: RecordError, with the remedy."""
        for error in errors:
            if error is not None:
                raise RecordError(f"{error}; {_foreign(self.topics.changes)}")

    def gathered(self, before: Batch, number: int, end: dict[int, int], walked: list[tasks.Walked]) -> Batch:
        """The plan of a walked batch, without the rows of resets."""
        segments, totals = dict(before.segments), Totals(batches=1)
        for one in walked:
            segments.update(one.segments)
            reasons = [reset.reason for reset in one.ended]
            own = {reason: reasons.count(reason) for reason in reasons}
            totals = totals.plus(Totals(records=one.records, repeats=one.repeats, resets=own))
        if totals.repeats:
            log.warning("batch %d: %d records came again and were dropped", number, totals.repeats)
        kept = any(one.kept for one in walked)
        newest = max((one.newest_ms for one in walked), default=0)
        return Batch(before.checkpoint, number, before.end, end, segments, totals, kept=kept, newest_ms=newest)

    def _resets(self, before: Batch, number: int, ended: list[Ended], void: frozenset[tuple[int, int]]) -> Path:
        """The rows of the resets that end in a batch: a draft for `write_plan`."""
        begins = self._cluster.begins(self.topics.changes, self.partitions)
        by_segment: dict[int, list[Ended]] = {}
        low: dict[int, int] = {}
        high: dict[int, int] = {}
        for one in ended:
            partition = partition_of(one.segment, self.partitions, self.segments)
            if one.begin < begins[partition]:
                problem = RecordError(
                    f"reset {one.reset_id} of segment {one.segment} begins at offset {one.begin}, the partition at "
                    f"{begins[partition]}: {_RESET_FIRST}"
                )
                raise by_records.ResetMismatch(one, problem.at(self.topics.changes, partition, one.end))
            by_segment.setdefault(one.segment, []).append(one)
            reads = before.end[partition]
            if one.begin < reads:  # else what was open before was superseded: nothing of it counts
                reads = by_records.reads_from(before.segments.get(one.segment), reads)
            low[partition] = min(low.get(partition, reads), reads)
            high[partition] = max(high.get(partition, 0), one.end + 1)
        # No record of an earlier attempt may come to the diff topic after the fold has read it.
        self._writer.fence(high)
        states = {n: before.segments[n] for n in by_segment if n in before.segments}
        work = functools.partial(_resets, states, by_segment, void, before.end)
        new = ranges.OffsetRange(self.topics.changes, low, high)
        return self._fold(number, new, by_segment, work)[0]

    def report_dead_letters(self, number: int, results: Iterable[Written]) -> int:
        """Logs a batch's dead letters and requests resets of their segments. Returns how many there are."""
        letters: dict[int, int] = {}
        topic = self.config["errors.deadletterqueue.topic.name"]
        for written in results:
            if written.reason is not None:
                log.warning("%s; put on %s", written.reason, topic)
            for segment, many in written.letters.items():
                letters[segment] = letters.get(segment, 0) + many
        many = sum(letters.values())
        if many:
            log.warning("batch %d: %d records cannot be decoded and were put on %s", number, many, topic)
            self._request_resets(list(letters), f"records that cannot be decoded were put on {topic}")
        return many

    # -- signals ---------------------------------------------------------------------------------------------------

    def _request_resets(self, segments: list[int], reason: str) -> None:
        """Sends the signal `reset-segment` to the owners, with `on.data.loss=reset`."""
        if segments and self.config["on.data.loss"] == "reset":
            data = {"cache": self.config["cache.name"], "segments": sorted(segments), "reason": reason}
            value = orjson.dumps({"id": uuid.uuid4().hex, "type": "reset-segment", "data": data})
            self._writer.signal(self.config["topic.prefix"].encode(), value)
            log.warning("asked for a reset of segments %s: %s", data["segments"], reason)


def _start(
    view: by_records.PositionsView,
    begins: Mapping[int, int],
    ends: Mapping[int, int],
    dead_letter_ends: Mapping[int, int],
    tables: ranges.Tables,
    renderer: Renderer,
    number: int,
    partition: int,
) -> tuple[list[Row], Segment | None]:
    begin, end = begins[partition], ends[partition]
    if view.base.get(number, 0) >= begin:
        diff, new = tables.columns()
        plain = by_columns.start(diff, new, tables.codec, renderer, partition, view, number, end)
        if plain is not None:
            return plain
    started = by_records.start(tables, renderer, partition, view, [number], begin, end)
    rows = [row for row in started.rows if row.cause == RESET or row.offset >= dead_letter_ends.get(partition, 0)]
    return rows, started.segments.get(number)


def _resets(
    before: Mapping[int, Segment],
    ended: Mapping[int, list[Ended]],
    void: frozenset[tuple[int, int]],
    begins: Mapping[int, int],
    tables: ranges.Tables,
    renderer: Renderer,
    number: int,
    partition: int,
) -> tuple[list[Row], None]:
    state, begin = before.get(number, Segment()), begins[partition]
    diff, new = tables.columns()
    plain = by_columns.resets(diff, new, tables.codec, renderer, partition, state, tables.control, ended[number], begin)
    if plain is not None:
        return plain, None
    return by_records.resets(tables, renderer, partition, before, ended[number], void, begin), None


def _foreign(topic: str) -> str:
    """The remedy for a foreign record."""
    return (
        f"stop what else writes to {topic}; then ask for a reset of every segment of that partition (signal "
        f"reset-segment) and delete the checkpoint: {START_OVER}"
    )
