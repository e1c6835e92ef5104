"""Between the core and the encoder: operations that are skipped, and the user's transforms.

A dropped operation has a position, and without a record its absence would look like a loss: the takeover counts
sequences. So a record is written at its position (`Kind.SKIPPED`), one for consecutive ones, which READ counts and
readers skip. Weighed in docs/decisions.md, "A dropped operation leaves a record".

A reset's end must match the rows before it. So where rows go through transforms, count and digest are computed here,
from the written rows.

A correction replaces a phantom, so it is never skipped; one that a transform drops or fails on becomes a delete, as in
a reset. For the same reason a pending operation does not replace a phantom where it may be dropped
(`Settings.may_skip`).

Runs in a thread, before the transaction is begun: a slow transform delays the writer, not the cache or
the readers, and a failing one leaves no transaction open.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from deelog_connector.core.effects import ControlItem, Item, OperationsItem, RowsItem
from deelog_connector.errors import TransformFailed
from deelog_connector.kafka_port import Clock
from deelog_connector.transforms.loading import Step, steps_of
from deelog_connector.transforms.record import Header, Record, Row
from deelog_connector.transforms.values import Unencodable, Values
from deelog_schemas.config import Config
from deelog_schemas.digest import entry_digest, format_digest
from deelog_schemas.entry_limit import EntryLimit
from deelog_schemas.errors import DeelogError
from deelog_schemas.header import CONTROL_HEADER_NAME, HEADER_NAME, Kind
from deelog_schemas.operation import Entry, Operation, Reason
from deelog_schemas.records import MAX_SKIPPED

log = logging.getLogger(__name__)

RESERVED_HEADERS: Final = (HEADER_NAME, CONTROL_HEADER_NAME)
_LOG_SECONDS: Final = 1.0
_MOST_SHOWN: Final = 1000
SLOW_SECONDS: Final = 10.0

Headers = tuple[Header, ...]


class Closing(DeelogError):
    """The connector is being closed while transforms run."""


class TransformedOperation(NamedTuple):
    """An operation to be written, with the user's headers."""

    operation: Operation
    headers: Headers = ()


class Skipped(NamedTuple):
    """Operations that are not written: `first` to `last`, all of this epoch."""

    epoch: int
    first: int
    last: int


class DeadLetter(NamedTuple):
    """A change or row that a transform failed on, as captured, and why: for the dead-letter topic."""

    captured: Operation | Entry
    position: tuple[int, int]
    reason: str
    """Of the reset, for an entry."""
    step: str
    """The class of the transform."""
    error: str
    kind: str
    """The class of its exception, empty where it returned something invalid."""


@dataclass(frozen=True, slots=True)
class PipedOperations:
    """An `OperationsItem` that went through the pipeline."""

    segment: int
    partition: int
    parts: Sequence[TransformedOperation | Skipped | DeadLetter]


@dataclass(frozen=True, slots=True)
class PipedRows:
    """A `RowsItem` that went through the pipeline: `rows` are those that are left, with their headers."""

    rows: RowsItem
    headers: Sequence[Headers]
    letters: Sequence[DeadLetter]


PipedItem = Item | PipedOperations | PipedRows


class _Failure(Exception):
    def __init__(self, step: Step, error: BaseException | str) -> None:
        self.step = step
        self.kind = "" if isinstance(error, str) else f"{type(error).__module__}.{type(error).__qualname__}"
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        # It goes into headers, logs and pages, and may be of any length and hold halves of characters.
        text = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
        super().__init__(text.encode(errors="backslashreplace").decode())


class Pipeline:
    """The pipeline of one configuration. Its only state: per segment, the sums of an open reset's rows. It adds to
    `counts`: `filtered` and `erroneous`."""

    def __init__(self, config: Config, steps: Sequence[Step], clock: Clock, counts: Counter[str]) -> None:
        self._steps, self._clock, self._counts = steps, clock, counts
        self._mode: str = config["event.processing.failure.handling.mode"]
        self._skipped = frozenset(config["skipped.operations"])
        self._topic = config.topics.changes
        self._cache = config.topics.cache
        self._limit = EntryLimit.of(config)
        self._keys = Values(config["cache.key.format"])
        self._values = Values(config["cache.value.format"])
        self._sums: dict[int, tuple[int, int]] = {}
        """By segment, count and sum of digests of the reset's rows so far."""
        self.closing = threading.Event()
        self._logged_at = -_LOG_SECONDS
        self._unlogged = 0
        self.at: tuple[float, str] | None = None
        """`(since, alias)` of the running transform, in monotonic seconds; None while none runs."""

    @classmethod
    def of(cls, config: Config, clock: Clock, counts: Counter[str]) -> Pipeline | None:
        """None where there is nothing to do, so that it costs nothing. Raises `ConfigError`."""
        steps = steps_of(config)
        may_skip = steps or config["skipped.operations"] != ("none",)
        return cls(config, steps, clock, counts) if may_skip else None

    def __call__(self, items: Sequence[Item]) -> list[PipedItem]:
        """The items of a transaction to be encoded. Raises `TransformFailed`, `Closing`."""
        return [self._item(item) for item in items]

    def _item(self, item: Item) -> PipedItem:
        if isinstance(item, OperationsItem):
            return PipedOperations(item.segment, item.partition, list(self._operations(item)))
        if isinstance(item, RowsItem):
            return self._rows(item)
        if isinstance(item, ControlItem) and item.kind is Kind.RESET_BEGIN:
            self._sums[item.segment] = (0, 0)
        if isinstance(item, ControlItem) and item.kind is Kind.RESET_END:
            count, total = self._sums.pop(item.segment, (0, 0))
            return replace(item, fields={**item.fields, "count": count, "digest": format_digest(total)})
        return item

    # -- operations -----------------------------------------------------------------------------------------------

    def _operations(self, item: OperationsItem) -> Iterator[TransformedOperation | Skipped | DeadLetter]:
        run: Skipped | None = None
        for operation in item.operations:
            transformed, letter = self._operation(item, operation)
            if letter is not None:
                yield letter
            if transformed is None:
                if run is not None and _follows(run, operation):
                    run = run._replace(last=operation.sequence)
                    continue
                if run is not None:
                    yield run
                run = Skipped(operation.epoch, operation.sequence, operation.sequence)
                continue
            if run is not None:
                yield run
                run = None
            yield transformed
        if run is not None:
            yield run

    def _operation(
        self, item: OperationsItem, operation: Operation
    ) -> tuple[TransformedOperation | None, DeadLetter | None]:
        correction = operation.reason == Reason.CORRECT
        code = "d" if operation.value is None else "u" if operation.existed else "c"
        if code in self._skipped and not correction:
            self._counts["filtered"] += 1
            return None, None
        if not self._steps:
            return TransformedOperation(operation, operation.trace), None
        letter = None
        try:
            changed = self._transformed(item.segment, operation, code)
        except _Failure as failure:
            letter = self._failed(failure, item.segment, operation.position, operation, operation.reason)
            changed = None
        if changed is not None:
            value, before, headers = changed
            return TransformedOperation(
                operation._replace(value=value, before=before), (*operation.trace, *headers)
            ), letter
        if correction:
            # CHECK correct-phantoms: a phantom does not stay, even if its correction is dropped.
            return TransformedOperation(operation._replace(value=None, expires_at=None, before=None)), letter
        return None, letter

    def _transformed(
        self, segment: int, operation: Operation, code: str
    ) -> tuple[bytes | None, bytes | None, Headers] | None:
        epoch, sequence, reason, key, value, expires_at, ts_us, _, image = operation
        before = None if image is None or code == "c" else image
        why = None if reason == Reason.PUT else reason
        source = self._source(segment, (epoch, sequence), why, ts_us)
        result = self._run(key, code, before, value, expires_at, source, ts_us)
        if result is None:
            self._counts["filtered"] += 1
            return None
        after, old, headers = result
        return after, (image if before is None else old), headers

    # -- rows of a reset ------------------------------------------------------------------------------------------

    def _rows(self, item: RowsItem) -> PipedRows:
        now_us = self._clock.time_ns() // 1000
        entries: list[Entry] = []
        headers: list[Headers] = []
        letters: list[DeadLetter] = []
        for entry in item.entries:
            try:
                result = self._row(item, entry, now_us)
            except _Failure as failure:
                letter = self._failed(failure, item.segment, item.position, entry, item.reason)
                letters += [letter] if letter is not None else []
                continue
            if result is not None:
                entries.append(result[0])
                headers.append(result[1])
        if item.incremental:  # its rows are not part of a reset
            return PipedRows(replace(item, entries=entries), headers, letters)
        count, total = self._sums.get(item.segment, (0, 0))
        total += sum(entry_digest(entry.key, entry.value) for entry in entries)
        self._sums[item.segment] = (count + len(entries), total)
        return PipedRows(replace(item, entries=entries), headers, letters)

    def _row(self, item: RowsItem, entry: Entry, now_us: int) -> tuple[Entry, Headers] | None:
        if not self._steps:
            return entry, ()
        source = self._source(item.segment, item.position, item.reason, now_us)
        result = self._run(entry.key, "r", None, entry.value, entry.expires_at, source, now_us)
        if result is None:
            self._counts["filtered"] += 1
            return None
        value, _, headers = result
        assert value is not None  # a transform that removes it has failed
        return entry._replace(value=value), headers

    # -- one record -----------------------------------------------------------------------------------------------

    def _source(self, segment: int, position: tuple[int, int], reason: str | None, ts_us: int) -> dict[str, Any]:
        epoch, sequence = position
        return {
            "cache": self._cache, "segment": segment, "epoch": epoch, "seq": sequence, "reason": reason, "ts_us": ts_us
        }  # fmt: skip

    def _run(
        self,
        key: bytes,
        code: str,
        before: bytes | None,
        after: bytes | None,
        expires_at: int | None,
        source: dict[str, Any],
        ts_us: int,
    ) -> tuple[bytes | None, bytes | None, Headers] | None:
        """`(after, before, headers)`, or None where it is dropped. Raises `_Failure`."""
        if self.closing.is_set():
            raise Closing("the connector is being closed")
        step = self._steps[0]
        try:
            old, new = self._values.read(before), self._values.read(after)
            record = Record(
                self._topic,
                self._keys.decoded(key),
                code,
                old.row(),
                new.row(expires_at),
                MappingProxyType(source),
                ts_us,
            )
            for step in self._steps:
                result = self._step(step, record)
                if result is None:
                    return None
                record = result
            value, image = new.written(record.after), old.written(record.before)
        except Unencodable as error:
            raise _Failure(step, str(error)) from error
        added = sum(map(_size, record.headers))
        if problem := self._limit.problem(key, max(value or b"", image or b"", key=len), added):
            raise _Failure(step, problem)
        return value, image, record.headers

    def _step(self, step: Step, record: Record) -> Record | None:
        self.at = (self._clock.monotonic(), step.alias)
        try:
            if step.predicate is not None:
                holds = step.predicate.test(record)
                if type(holds) is not bool:
                    raise _Failure(step, f"its predicate answered {_shown(holds)}, which is neither True nor False")
                if holds is step.negate:
                    return record
            result = step.transform.apply(record)
            if result is not record and result is not None:
                _check(step, record, result)
        except _Failure:
            raise
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise _Failure(step, error) from error
        finally:
            self.at = None
        return result

    # -- failures -------------------------------------------------------------------------------------------------

    def _failed(
        self, failure: _Failure, segment: int, position: tuple[int, int], captured: Operation | Entry, reason: str
    ) -> DeadLetter | None:
        step = failure.step
        problem = (
            f"transform {step.alias} ({step.name}) failed on cache {self._cache}, segment {segment}, position "
            f"{position[0]}.{position[1]}: {failure}"
        )
        if self._mode == "fail":
            raise TransformFailed(
                f"{problem}. Nothing is written until that is mended. Mend the class or its options, or set "
                "event.processing.failure.handling.mode to skip, warn or dead-letter, and start the process again; if "
                "the cause was outside of the process, resume the connector"
            ) from failure
        self._counts["erroneous"] += 1
        if self._mode != "skip":
            self._log(f"{problem}; the change is left out ({self._mode})")
        if self._mode != "dead-letter":
            return None
        return DeadLetter(captured, position, reason, step.name, problem, failure.kind)

    def _log(self, problem: str) -> None:
        """Logs at most one line a second, which counts the suppressed ones."""
        now = self._clock.monotonic()
        if now - self._logged_at < _LOG_SECONDS:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more since the last such line)" if self._unlogged else ""
        log.warning("%s%s", problem, more)
        self._logged_at, self._unlogged = now, 0


def _follows(run: Skipped, operation: Operation) -> bool:
    same = (operation.epoch, operation.sequence) == (run.epoch, run.last + 1)
    return same and operation.sequence < run.first + MAX_SKIPPED


def _check(step: Step, given: Record, result: object) -> None:
    """Raises `_Failure` where a transform changed what it must not."""
    if type(result) is not Record:
        raise _Failure(step, f"it returned {_shown(result)}, which is neither a Record nor None")
    changed = [n for n in ("topic", "key", "op", "ts_us", "source") if getattr(result, n) != getattr(given, n)]
    for name, was, now in (("before", given.before, result.before), ("after", given.after, result.after)):
        if (was is None) != (now is None):
            changed.append(name)
        elif now is not None and (type(now) is not Row or was is None or now.expires_at != was.expires_at):
            changed.append(f"{name}.expires_at")
    if changed:
        raise _Failure(
            step, f"it changed {', '.join(changed)}; a transform may change values and add headers, or drop the record"
        )
    if type(result.headers) is not tuple or not all(map(_is_header, result.headers)):
        raise _Failure(
            step, f"its headers are not a tuple of (name, text, bytes or None), or one is named {RESERVED_HEADERS[0]}…"
        )


def _is_header(header: object) -> bool:
    if type(header) is not tuple or len(header) != 2 or not isinstance(header[0], str) or not header[0]:
        return False
    try:
        header[0].encode()
        header[1].encode() if isinstance(header[1], str) else None
    except UnicodeEncodeError:
        return False
    return isinstance(header[1], str | bytes | None) and not header[0].startswith(RESERVED_HEADERS)


def _size(header: tuple[str, str | bytes | None]) -> int:
    name, value = header
    return len(name.encode()) + len(value.encode() if isinstance(value, str) else value or b"")


def _shown(result: object) -> str:
    """A transform's result by its type only: its text may hold a value of the cache."""
    return f"a {type(result).__name__}"
