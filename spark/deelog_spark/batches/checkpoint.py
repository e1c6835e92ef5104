"""The job's state between batches, as files below `diff.checkpoint.location`.

    begun.json            identity that a start was planned for; written first at a start
    start.json            identity and the state that batch 0 begins from; written last at a start
    plans/<batch>.json    what a batch reads and what follows from it; written before the first sink
    rows/<batch>.parquet/ rows of a batch that depend on the diff topic; written before its plan
    state/<batch>.json    the plan with the totals after it; written when every sink has the batch
    progress.json         totals, for people and programs; written after each batch
    spark/                Spark's own checkpoint

Batch n begins from state n-1, even where a newer file exists. Every file is renamed into place after it was synced, so
that a reader sees all of it or nothing. The location is a directory that the driver and, on a cluster, the executors
mount. Alternatives: docs/decisions.md, "What the job remembers".
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    """What a checkpoint belongs to. Every field must be the same at every start."""

    layout: int
    topic: str
    topic_id: str
    prefix: str
    partitions: int
    segments: int
    diff: str = ""
    diff_id: str = ""
    """Of the diff topic: name and id, empty in a checkpoint of an earlier version."""


def _ops() -> dict[str, int]:
    return {"c": 0, "u": 0, "d": 0}


@dataclass(slots=True)
class Totals:
    """Counts since the first start, exact over crashes."""

    batches: int = 0
    records: int = 0
    repeats: int = 0
    resets: dict[str, int] = field(default_factory=dict)
    """Completed resets by reason."""
    changes: dict[str, int] = field(default_factory=_ops)
    """Records of the diff topic that a change caused, by op."""
    resets_rows: dict[str, int] = field(default_factory=_ops)
    """Records of the diff topic that a reset caused, by op."""
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
    """Of this batch alone in a plan, of all batches up to it in a state."""
    rows: int = 0
    """How many rows `rows/` has of it."""
    written_ms: int = 0
    """When the batch was done, Unix milliseconds; 0 in a plan."""
    void: list[tuple[int, int]] = field(default_factory=list)
    """Ends, by segment and offset, that close nothing (`PartitionWalk`)."""
    small: bool = False
    """Whether the driver writes the rows itself."""
    kept: bool = True
    """Whether there are captured changes that count."""
    newest_ms: int = 0
    """Kafka's timestamp of the last record that was read, 0 if unknown."""

    def done(self, before: Totals, counts: Mapping[str, Mapping[str, int]], dead_letters: int) -> Batch:
        """The state after this planned batch. `counts` has the number of its rows by cause and op."""
        changes, rows = _sum(_ops(), counts["change"]), _sum(_ops(), counts["reset"])
        own = replace(self.totals, changes=changes, resets_rows=rows, dead_letters=dead_letters)
        return replace(self, totals=before.plus(own), written_ms=time.time_ns() // 1_000_000)


class Checkpoint:
    """Reads and writes the files. Call `lock()` first and `release()` at the end."""

    def __init__(self, location: str) -> None:
        self.root = Path(location.removeprefix("file://")).absolute()
        self._lock: IO[str] | None = None

    def lock(self) -> None:
        """BusyError where another process on this machine has the lock; CheckpointError where files cannot be made."""
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
        """Releases the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def spark(self) -> Path:
        """The directory of Spark's own checkpoint."""
        return self.root / "spark"

    # -- start -----------------------------------------------------------------------------------------------------

    def started(self, identity: Identity) -> Batch | None:
        """The start's state, None where no start was finished; CheckpointError where it is of another identity."""
        start = self._read("start.json")
        if start is None:
            return None
        with undamaged(self.root / "start.json"):
            layout = start["layout"]
            if layout == LAYOUT:
                named, state = Identity(**start["identity"]), _batch(start["state"])
        if layout != LAYOUT:
            raise CheckpointError(
                f"the checkpoint {self.root} has layout {layout}, this version knows {LAYOUT}: delete it, "
                "the job then starts over and emits differences only"
            )
        for name, there in asdict(named).items():
            here = getattr(identity, name)
            if there not in ("", here):
                raise CheckpointError(
                    f"the checkpoint {self.root} belongs to {name} {there}, not to {here}: name another "
                    "diff.checkpoint.location, or delete this one; the job then starts over and emits differences only"
                )
        return state

    def begin(self, identity: Identity) -> None:
        """Writes down, before a start is planned, what it is planned for."""
        self._write("begun.json", asdict(identity))

    def begun(self, identity: Identity) -> bool:
        """Whether the last planned start, if any, was planned for this identity."""
        return self._read("begun.json") == asdict(identity)

    def finish_start(self, identity: Identity, state: Batch) -> None:
        """Writes the start's state. Call it when every sink has the start's rows."""
        self._write("start.json", {"layout": LAYOUT, "identity": asdict(identity), "state": _json(state)})

    def forget(self) -> None:
        """Deletes everything. Plans go first: one of an earlier start must not pass for the next one's."""
        for path in (self.root / "plans").iterdir():
            path.unlink()
        for name in ("begun.json", "start.json"):
            (self.root / name).unlink(missing_ok=True)
        for name in ("state", "rows"):
            for path in (self.root / name).iterdir():
                _remove(path)
        shutil.rmtree(self.spark, ignore_errors=True)

    def reads_to(self, number: int) -> dict[int, int] | None:
        """A batch's input end by partition, which Spark writes before it runs the batch; None where it did not."""
        path = self.spark / "offsets" / str(number)
        with undamaged(path):
            try:
                last = path.read_text("utf-8").strip().splitlines()[-1]
            except FileNotFoundError:
                return None
            (offsets,) = json.loads(last).values()
            return {int(p): int(offset) for p, offset in offsets.items()}

    # -- batches ---------------------------------------------------------------------------------------------------

    def plan(self, number: int) -> Batch | None:
        """The plan of a batch, if there is one."""
        return self._batch(f"plans/{number}.json")

    def state(self, number: int) -> Batch | None:
        """The state after a batch, if there is one."""
        return self._batch(f"state/{number}.json")

    def latest(self) -> Batch | None:
        """The newest state, if a batch is done."""
        numbers = [n for p in (self.root / "state").glob("*.json") if (n := _number(p)) is not None]
        return self.state(max(numbers)) if numbers else None

    def now(self) -> Batch | None:
        """The newest state, that of the start included; None where no start was finished. Needs no lock."""
        start = self._read("start.json")
        if start is None:
            return None
        latest = self.latest()
        with undamaged(self.root / "start.json"):
            return latest or _batch(start["state"])

    def rows_path(self, number: int) -> Path:
        """The directory of a batch's rows."""
        return self.root / "rows" / f"{number}.parquet"

    def rows_draft(self, number: int) -> Path:
        """A directory for a batch's rows, which does not exist yet; they count once `write_plan` has moved it."""
        draft = self.rows_path(number).with_suffix(".tmp")
        shutil.rmtree(draft, ignore_errors=True)
        return draft

    def write_plan(self, batch: Batch, written: Path | None) -> Batch:
        """Moves the draft `written` into place, unless it has no rows, then writes the plan."""
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
        """Writes the state after a batch and deletes older files. Call it when every sink has the batch."""
        self._write(f"state/{state.number}.json", _json(state))
        for name in ("plans", "state", "rows"):
            for path in (self.root / name).iterdir():
                number = _number(path)
                if number is not None and number <= state.number - _KEPT:
                    _remove(path)

    def write_progress(self, state: Batch) -> None:
        """Writes totals and input offsets, for whoever waits for the job to catch up."""
        progress = {**asdict(state.totals), "batch": state.number, "input_offsets": _keys(state.end)}
        self._write("progress.json", progress, sync=False)

    # -- files -----------------------------------------------------------------------------------------------------

    def _batch(self, name: str) -> Batch | None:
        content = self._read(name)
        with undamaged(self.root / name):
            return None if content is None else _batch(content)

    def _read(self, name: str) -> dict[str, Any] | None:
        with undamaged(self.root / name):
            try:
                content: dict[str, Any] = json.loads((self.root / name).read_text("utf-8"))
            except FileNotFoundError:
                return None
            if not isinstance(content, dict):
                raise TypeError("no object")
            return content

    def _write(self, name: str, content: Mapping[str, Any], sync: bool = True) -> None:
        path = self.root / name
        temporary = path.with_suffix(".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(content, file, separators=(",", ":"))
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.rename(path)
        if sync:
            _sync(path.parent)


@contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """Raises CheckpointError where the body cannot read what `path` holds: for example a file that was cut."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise CheckpointError(
            f"{path} is damaged ({type(error).__name__}: {why}): delete the checkpoint; the job then starts over and "
            "emits differences only"
        ) from error


def _number(path: Path) -> int | None:
    """The batch that a file is of; None for a draft, and for what a shared file system has put there."""
    return int(path.stem) if path.suffix in (".json", ".parquet") and path.stem.lstrip("-").isdecimal() else None


def _sync(path: Path) -> None:
    """Syncs a file, or the names in a directory."""
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


def _batch(content: dict[str, Any]) -> Batch:
    segments = {}
    for number, (mark, *rest) in content.pop("segments").items():
        opened = None
        if rest:
            reset_id, reason, begin, position, inner = rest
            opened = Open(reset_id, reason, begin, bytes.fromhex(position), bytes.fromhex(inner))
        segments[int(number)] = Segment(bytes.fromhex(mark), opened)
    begin = {int(p): offset for p, offset in content.pop("begin").items()}
    end = {int(p): offset for p, offset in content.pop("end").items()}
    totals = Totals(**content.pop("totals"))
    void = [(segment, offset) for segment, offset in content.pop("void")]
    return Batch(begin=begin, end=end, segments=segments, totals=totals, void=void, **content)
