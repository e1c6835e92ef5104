"""Every rule of the diff job, and how it is removed.

If the product's code enforces a rule, the attribute that does so is replaced during a search (`patches`). If topic
settings or the choice of a file enforce it, it is a switch of the model's steps. The fields are those of the takeover
model's rules.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

from deelog_schemas import fold as reading
from deelog_schemas.header import POSITION_BYTES, Kind
from deelog_schemas.records import Record
from deelog_spark.folding import by_records, walk
from deelog_spark.sinks.kafka import BatchMarker, Writer
from tests.model.diff import shipped
from tests.model.diff.model import Diff
from tests.model.diff.state import Config
from tests.model.explore import Result, search


@dataclass(frozen=True)
class Rule:
    """See the module. A patch: (module or class, attribute, replacement)."""

    meaning: str
    config: str
    kind: str
    steps: int
    patches: tuple[tuple[Any, str, Any], ...] = ()


_step, _entry = walk.PartitionWalk.step, walk.PartitionWalk._entry
_apply, _fold_step, _look = by_records.StartFold.apply, reading.fold_step, Writer._look


def _every_record_moves(self: Any, partition: int, offset: int, raw: bytes, control: bytes | None) -> bool:
    kept = _step(self, partition, offset, raw, control)
    if raw[1] == Kind.CLAIM:
        segment = self.now[int.from_bytes(raw[4:8], "big")]
        segment.mark = max(segment.mark, raw[POSITION_BYTES])
    return kept


def _nothing_is_held(self: Any, segment: Any, kind: int, position: bytes) -> bool:
    opened, segment.open = segment.open, None
    try:
        return _entry(self, segment, kind, position)
    finally:
        segment.open = opened


def _tombstones_are_nothing(self: Any, segment: Any, kind: int, position: bytes) -> bool:
    return kind != Kind.TOMBSTONE and _entry(self, segment, kind, position)


def _repeats_count(self: Any, segment: Any, kind: int, position: bytes) -> bool:
    if segment.open is None and kind == Kind.CHANGE and position <= segment.mark:
        return True
    return _entry(self, segment, kind, position)


def _rows_above(entries: Any, mark: Any, kind: Kind, position: Any, key: bytes, entry: Any) -> Any:
    if kind is Kind.READ and position == mark:
        return mark
    return _fold_step(entries, mark, kind, position, key, entry)


def _base_opens(self: Any, record: Record, tables: Any) -> None:
    base, self._base = self._base, None
    _apply(self, record, tables)
    self._base = base


def _finish_and_forget(self: Any) -> None:
    _finish(self)
    self.open = None


_finish = by_records.StartFold.finish


def _no_floor(
    self: Any, partition: int, stored: BatchMarker | None, mark: BatchMarker, first: bool
) -> tuple[bool, int]:
    return _look(self, partition, stored, mark, first)[0], 0


def _never_done(
    self: Any, partition: int, stored: BatchMarker | None, mark: BatchMarker, first: bool
) -> tuple[bool, int]:
    done, floor = _look(self, partition, stored, mark, first)
    return stored is not None and done and floor > mark.end, 0


def _anything_goes(entries: Any, control: Any) -> None:
    return None


def _both(name: str, replacement: Callable[..., Any]) -> tuple[tuple[Any, str, Any], ...]:
    return ((reading, name, replacement), (by_records, name, replacement))


def _old_is_nothing(self: Any, partition: int, only: Any = None) -> dict[int, Any]:
    return {}


_walk: Final = walk.PartitionWalk

RULES: Final[dict[str, Rule]] = {
    "control_moves_no_mark": Rule(
        "a claim moves the mark", "TAIL=1", "D3", 14, ((_walk, "step", _every_record_moves),)
    ),
    "held_back": Rule(
        "changes inside a reset are told at once",
        "LOSE=1 BATCH=1 OPS=2",
        "D",
        20,
        ((_walk, "_entry", _nothing_is_held),),
    ),
    "tombstone_is_the_delete": Rule(
        "a tombstone above the mark is nothing",
        "DEL=1 COMPACT=1 NULLS=0 age=0",
        "D3",
        12,
        ((_walk, "_entry", _tombstones_are_nothing),),
    ),
    "repeats_are_dropped": Rule(
        "a position that comes again is told again", "OPS=2 REPEAT=1", "D", 20, ((_walk, "_entry", _repeats_count),)
    ),
    "rows_at_the_mark_count": Rule("a row at the mark is dropped", "LOSE=1", "D", 14, _both("fold_step", _rows_above)),
    "end_is_checked": Rule(
        "count and digest of an end are not looked at",
        "OPS=2 COMPACT=1 RESETS=1 NULLS=0 age=0",
        "D",
        20,
        _both("check_end", _anything_goes),
    ),
    "age": Rule("no min.compaction.lag.ms", "DEL=1 COMPACT=1", "D3", 14),
    "stale": Rule("a state of any age goes on", "DEL=1 COMPACT=1 STALE=1", "D3", 16),
    "loss": Rule("what is gone is passed over", "OPS=1 RETAIN=1", "D3", 16),
    "base": Rule("a start begins at the head, below the base", "LOSE=1 COMPACT=1", "D", 16),
    "base_begin_opens_nothing": Rule(
        "the begin at the base opens a reset",
        "OPS=2 COMPACT=1 RESETS=1 NULLS=0",
        "D5",
        10,
        ((by_records.StartFold, "apply", _base_opens),),
    ),
    "open_is_named": Rule("a start sees no open reset but by its begin", "LOSE=1 COMPACT=1", "D", 20),
    "open_at_start_waits": Rule(
        "a reset that is open at a start is ignored",
        "LOSE=1",
        "D",
        16,
        ((by_records.StartFold, "finish", _finish_and_forget),),
    ),
    "told_once": Rule("a batch that is written is written again", "OPS=1", "D1", 10, ((Writer, "_look", _never_done),)),
    "rows_below_the_end": Rule(
        "a batch cut anew is written whole", "OPS=2 WALLOST=1 BATCH=1", "D1", 16, ((Writer, "_look", _no_floor),)
    ),
    "old_is_what_was_told": Rule(
        "a difference is to nothing", "OPS=1 SCRATCH=1", "D1", 10, ((shipped.Tables, "entries", _old_is_nothing),)
    ),
}


def run(text: str, max_states: int, max_seconds: float = float("inf"), **more: Any) -> Result:
    """Searches a configuration, written as on the command line. ValueError names an unknown rule."""
    config = Config.parse(text)
    unknown = config.removed - RULES.keys()
    if unknown:
        raise ValueError(f"no such rule: {', '.join(sorted(unknown))}")
    with ExitStack() as stack:
        for name in sorted(config.removed):
            for target, attribute, replacement in RULES[name].patches:
                stack.enter_context(patch.object(target, attribute, replacement))
        return search(Diff(config), max_states, max_seconds, **more)
