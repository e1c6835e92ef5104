"""What the job remembers between batches, as files below `diff.checkpoint.location`.

    start.json            identity and the state that batch 0 begins from; written last at a start
    plans/<batch>.json    what a batch reads and what follows from it; written before the first sink
    rows/<batch>.parquet/ rows of a batch that depend on the diff topic; written before its plan
    state/<batch>.json    the plan with the totals after it; written when every sink has the batch
    progress.json         totals, for people and programs; written after each batch
    spark/                Spark's own checkpoint

Weighed: state in the diff topic (a second reader of it in every batch), Spark's state store (needs a stateful
operator), and these files. Batch n starts from state n-1, whatever newer file lies there. Every file appears by a
rename of one that was synced, so that a reader sees it whole or not at all. The location is a directory that the
driver and, on a cluster, the executors mount.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final

from deelog_spark.errors import BusyError, CheckpointError
from deelog_spark.folding.walk import Open, Segment

LAYOUT: Final = 2
START: Final = -1
"""The batch number of a start."""
_KEPT: Final = 3


@dataclass(frozen=True, slots=True)
class Identity:
    """What a checkpoint belongs to. All of it must be the same at every start."""

    layout: int
    topic: str
    topic_id: str
    prefix: str
    partitions: int
    segments: int


def _ops() -> dict[str, int]:
    return {"c": 0, "u": 0, "d": 0}


@dataclass(slots=True)
class Totals:
    """Since the first start, whatever was killed meanwhile. `changes` and `resets_rows` count diff records by op."""

    batches: int = 0
    records: int = 0
    repeats: int = 0
    resets: dict[str, int] = field(default_factory=dict)
    changes: dict[str, int] = field(default_factory=_ops)
    resets_rows: dict[str, int] = field(default_factory=_ops)
    dead_letters: int = 0

    def plus(self, other: Totals) -> Totals:
        """The sum."""
        return Totals(
            self.batches + other.batches,
            self.records + other.records,
            self.repeats + other.repeats,
            _sum(self.resets, other.resets),
            _sum(self.changes, other.changes),
            _sum(self.resets_rows, other.resets_rows),
            self.dead_letters + other.dead_letters,
        )


def _sum(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {name: a.get(name, 0) + b.get(name, 0) for name in [*a, *(n for n in b if n not in a)]}


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch, planned or done. `begin` and `end` are input offsets by partition."""

    checkpoint: str
    number: int
    begin: dict[int, int]
    end: dict[int, int]
    segments: dict[int, Segment]
    totals: Totals
    """Of this batch alone in a plan, of all up to it in a state."""
    rows: int = 0
    """Materialised ones."""
    written_ms: int = 0
    void: list[tuple[int, int]] = field(default_factory=list)
    """Ends, by segment and offset, that close nothing (`Marks`)."""

    small: bool = False
    """Whether the driver carries the rows itself."""
    kept: bool = True
    """Whether there are captured changes that count."""
    newest_ms: int = 0
    """Kafka's timestamp of the last record that was read, 0 where it is not known."""

    def done(self, before: Totals, found: Mapping[str, Mapping[str, int]], letters: int) -> Batch:
        """The state after this planned batch. `found` counts its rows by cause and op, beside its dead letters."""
        changes, rows = _sum(_ops(), found["change"]), _sum(_ops(), found["reset"])
        own = replace(self.totals, changes=changes, resets_rows=rows, dead_letters=letters)
        return replace(self, totals=before.plus(own), written_ms=time.time_ns() // 1_000_000)


class Checkpoint:
    """The files. Take it with `lock()` before anything else; `release()` it at the end."""

    def __init__(self, location: str) -> None:
        self.root = Path(location.removeprefix("file://")).absolute()
        self._lock: IO[str] | None = None

    def lock(self) -> None:
        """BusyError where another process on this machine holds it; CheckpointError where it is not a directory."""
        try:
            for name in ("plans", "state", "rows"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            self._lock = (self.root / "lock").open("a", encoding="utf-8")
        except OSError as error:
            raise CheckpointError(
                f"diff.checkpoint.location {self.root} cannot be written ({error.strerror}): name a directory that is "
                "the job's own"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise BusyError(f"another diff job uses the checkpoint {self.root}: stop it or name another one") from error

    def release(self) -> None:
        """Gives the lock back."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def spark(self) -> Path:
        """Spark's own part."""
        return self.root / "spark"

    # -- start -----------------------------------------------------------------------------------------------------

    def started(self, identity: Identity) -> Batch | None:
        """The start's state, None where the job never got so far; CheckpointError where it is of something else."""
        told = self._read("start.json")
        if told is None:
            return None
        if told["layout"] != LAYOUT:
            raise CheckpointError(
                f"the checkpoint {self.root} has layout {told['layout']}, this version knows {LAYOUT}: delete it, "
                "the job then starts over and emits differences only"
            )
        known = Identity(**told["identity"])
        for name, (there, here) in {
            n: (v, getattr(identity, n)) for n, v in asdict(known).items() if v != getattr(identity, n)
        }.items():
            raise CheckpointError(
                f"the checkpoint {self.root} belongs to {name} {there}, not to {here}: name another "
                "diff.checkpoint.location, or delete this one; the job then starts over and emits differences only"
            )
        return _batch(told["state"])

    def begin(self, identity: Identity) -> None:
        """Before a start is planned: what it is planned for."""
        self._write("begun.json", asdict(identity))

    def begun(self, identity: Identity) -> bool:
        """Whether the start that was planned last, if any, was planned for this."""
        return self._read("begun.json") == asdict(identity)

    def finish_start(self, identity: Identity, state: Batch) -> None:
        """A start is done: the sinks have its rows."""
        told = {"layout": LAYOUT, "identity": asdict(identity), "state": _json(state)}
        self._write("start.json", told)

    def forget(self) -> None:
        """Back to no state. Plans go first: one of an earlier start must not be taken for the next one's."""
        for path in (self.root / "plans").iterdir():
            path.unlink()
        for name in ("begun.json", "start.json"):
            (self.root / name).unlink(missing_ok=True)
        for name in ("state", "rows"):
            for path in (self.root / name).iterdir():
                _remove(path)
        shutil.rmtree(self.spark, ignore_errors=True)

    def reads_to(self, number: int) -> dict[int, int] | None:
        """The input end of a batch by partition, from the log that Spark writes before it runs one."""
        path = self.spark / "offsets" / str(number)
        try:
            last = path.read_text("utf-8").strip().splitlines()[-1]
        except FileNotFoundError:
            return None
        (offsets,) = json.loads(last).values()
        return {int(p): offset for p, offset in offsets.items()}

    # -- batches ---------------------------------------------------------------------------------------------------

    def plan(self, number: int) -> Batch | None:
        """What was planned for a batch."""
        return self._batch(f"plans/{number}.json")

    def state(self, number: int) -> Batch | None:
        """The state after a batch."""
        return self._batch(f"state/{number}.json")

    def latest(self) -> Batch | None:
        """The newest state."""
        numbers = [int(p.stem) for p in (self.root / "state").glob("*.json")]
        return self.state(max(numbers)) if numbers else None

    def now(self) -> Batch | None:
        """The newest state, be it the start's; None where the job never got so far. Needs no lock."""
        told = self._read("start.json")
        return None if told is None else self.latest() or _batch(told["state"])

    def rows_path(self, number: int) -> Path:
        """Where a batch's materialised rows lie."""
        return self.root / "rows" / f"{number}.parquet"

    def rows_draft(self, number: int) -> Path:
        """Where to put a batch's rows, as a directory that is not there; they count once `write_plan` moves them."""
        draft = self.rows_path(number).with_suffix(".tmp")
        shutil.rmtree(draft, ignore_errors=True)
        return draft

    def write_plan(self, batch: Batch, written: Path | None) -> Batch:
        """Puts the rows, if there are any in the draft `written`, in their place, then the plan."""
        if written is not None:
            if batch.rows:
                path = self.rows_path(batch.number)
                shutil.rmtree(path, ignore_errors=True)
                for file in written.iterdir():
                    _sync(file)
                _sync(written)
                written.rename(path)
                _sync(path.parent)
            else:
                shutil.rmtree(written)
        self._write(f"plans/{batch.number}.json", _json(batch))
        return batch

    def write_state(self, state: Batch) -> None:
        """A batch is done; older files go."""
        self._write(f"state/{state.number}.json", _json(state))
        for name in ("plans", "state", "rows"):
            for path in (self.root / name).iterdir():
                if path.suffix != ".tmp" and int(path.stem) <= state.number - _KEPT:
                    _remove(path)

    def write_progress(self, state: Batch) -> None:
        """Totals and input offsets, for whoever waits for the job to catch up."""
        told = {**asdict(state.totals), "batch": state.number, "input_offsets": _keys(state.end)}
        self._write("progress.json", told, sync=False)

    # -- files -----------------------------------------------------------------------------------------------------

    def _batch(self, name: str) -> Batch | None:
        told = self._read(name)
        return None if told is None else _batch(told)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self.root / name).read_text("utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CheckpointError(
                f"{self.root / name} is not JSON ({error}): delete the checkpoint; the job then starts over and emits "
                "differences only"
            ) from error
        return found

    def _write(self, name: str, told: Mapping[str, Any], sync: bool = True) -> None:
        path = self.root / name
        temporary = path.with_suffix(".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(told, file, separators=(",", ":"))
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.rename(path)
        if sync:
            _sync(path.parent)


def _sync(path: Path) -> None:
    """Brings a file or the names in a directory to the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _keys(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(p): offset for p, offset in sorted(offsets.items())}


def _json(batch: Batch) -> dict[str, Any]:
    segments = {}
    for number, segment in batch.segments.items():
        opened = segment.open
        segments[str(number)] = [segment.mark.hex()] + (
            []
            if opened is None
            else [opened.reset_id, opened.reason, opened.begin, opened.position.hex(), opened.mark.hex()]
        )
    return {
        "checkpoint": batch.checkpoint,
        "number": batch.number,
        "begin": _keys(batch.begin),
        "end": _keys(batch.end),
        "segments": segments,
        "totals": asdict(batch.totals),
        "rows": batch.rows,
        "written_ms": batch.written_ms,
        "void": batch.void,
        "small": batch.small,
        "kept": batch.kept,
        "newest_ms": batch.newest_ms,
    }


def _batch(told: dict[str, Any]) -> Batch:
    segments = {}
    for number, (mark, *rest) in told.pop("segments").items():
        opened = None
        if rest:
            reset_id, reason, begin, position, inner = rest
            opened = Open(reset_id, reason, begin, bytes.fromhex(position), bytes.fromhex(inner))
        segments[int(number)] = Segment(bytes.fromhex(mark), opened)
    begin = {int(p): offset for p, offset in told.pop("begin").items()}
    end = {int(p): offset for p, offset in told.pop("end").items()}
    totals = Totals(**told.pop("totals"))
    void = [(segment, offset) for segment, offset in told.pop("void")]
    return Batch(begin=begin, end=end, segments=segments, totals=totals, void=void, **told)
