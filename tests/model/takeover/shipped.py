"""The product's decisions, as the model calls them: each is the product's function, and a rule may replace it.

Arguments are converted to the product's types (member texts, byte keys, `ScannedRecord`s). Answers are cached by
argument: the functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from deelog_connector.core import history as past
from deelog_connector.core import ledger, rules
from deelog_connector.core.effects import ScannedRecord
from deelog_connector.core.history import History
from deelog_connector.core.oplog import Budget, OpLog
from deelog_connector.core.positions_table import PositionsTable
from deelog_connector.core.scan import Claimant, SegmentScan, reason_to_reset
from deelog_connector.core.segment import RECHECK, Phase, PositionsView
from deelog_schemas.digest import digest_of
from deelog_schemas.errors import RecordError
from deelog_schemas.fold import SegmentReader
from deelog_schemas.header import Header, Kind
from deelog_schemas.operation import Entry, Operation, Reason
from deelog_schemas.positions import ClaimState, PositionState, ResetState, StateRecord
from deelog_schemas.records import Record
from deelog_spark.folding.by_records import StartFold
from tests.model.takeover.state import Claim, Claims, Op, Rec

TOPIC: Final = "t"
MEMBERS: Final = [f"n{m % 10}@{m // 10}" for m in range(60)]
_KEYS: Final = [b"k%d" % k for k in range(10)]
_KINDS: Final = {
    "op": Kind.CHANGE, "claim": Kind.CLAIM, "active": Kind.ACTIVE, "rel": Kind.RELEASE, "rb": Kind.RESET_BEGIN,
    "rs": Kind.READ, "re": Kind.RESET_END, "sk": Kind.SKIPPED,
}  # fmt: skip
PHASES: Final = {
    "c": Phase.CLAIM, "k": Phase.CLAIM, "l": Phase.LOOK, "f": Phase.FENCE, "a": Phase.ACTIVE, "r": Phase.READ,
    "t": Phase.OWED, "u": Phase.ROWS, "o": Phase.WRITING, "z": Phase.RELEASED,
}  # fmt: skip
ROLES: Final = {phase: role for role, phase in reversed(PHASES.items())}


class Scan(NamedTuple):
    """The result of a scan, with the model's numbers for keys and members."""

    written: int | None
    phantoms: frozenset[int]
    claims: Claims
    open_reset: bool
    end_beyond: bool
    ahead: tuple[int, int]
    torn: bool
    complete: bool
    """Whether a reset was read with all of its rows."""


class Seen(NamedTuple):
    """The decisions of LOOK from the claims that it has read."""

    outranked: bool
    victims: Claims
    nodes: tuple[int, ...]
    """The nodes of the victims, without the process's own node."""


@dataclass(frozen=True)
class Decisions:
    """The product's functions. A rule is removed by replacing the function that enforces it."""

    outranking: Callable[..., Claimant | None] = rules.outranking
    to_fence: Callable[..., frozenset[Claimant]] = rules.to_fence
    foreign: Callable[..., frozenset[str]] = rules.foreign
    where_to_read: Callable[..., rules.ReadStart] = rules.where_to_read
    scan: Callable[[History], SegmentScan] = SegmentScan
    reason_to_reset: Callable[..., str | None] = reason_to_reset
    is_overtaken: Callable[..., bool] = rules.is_overtaken
    ranked: Callable[[PositionsView], frozenset[Claimant]] = lambda known: known.ranked
    to_correct: Callable[..., list[bytes]] = rules.to_correct
    advanced_read_from: Callable[..., int | None] = ledger.advanced_read_from
    holds: Callable[..., bool] = past.holds
    common_point: Callable[[History, History], int] = past.common_point
    holds_all_after: Callable[[int, int], bool] = rules.holds_all_after
    knows_what_it_drops: Callable[[int, int, int], bool] = rules.knows_what_it_drops
    recheck: Mapping[Phase, Phase] = field(default_factory=lambda: RECHECK)
    coalesce: Callable[[OpLog, int, int, int], int] = lambda log, above, acked, _last: log.coalesce(above, acked)
    state_of_claim: Callable[[StateRecord], StateRecord] = lambda record: record

    def but(self, **changes: Any) -> Decisions:
        """A copy with some of them replaced."""
        return replace(self, **changes)


class _Decoding:
    """The part of the Spark job's tables that its fold needs."""

    def entry(self, record: Record) -> tuple[bytes, Entry | None]:
        return _decoded(record)


class Shipped:
    """`Decisions` in the model's terms."""

    def __init__(self, decisions: Decisions) -> None:
        self.decisions = decisions
        self.scan = lru_cache(1 << 16)(self._scan)
        self.claims_after = lru_cache(1 << 14)(self._claims_after)
        self.derived = lru_cache(1 << 16)(self._derived)
        self.derived_late = lru_cache(1 << 16)(self._derived_late)
        self.seen = lru_cache(1 << 14)(self._seen)

    # -- LOOK and READ ---------------------------------------------------------------------------------------------

    def _scan(self, history: History, written: int | None, records: tuple[Rec, ...]) -> Scan:
        scan = self.decisions.scan(history)
        scan.written = written
        for offset, r in enumerate(records):
            reset_id = r.val[0] if r.kind == "re" else r.val
            control: dict[str, Any] = {"epoch": r.by, "member": MEMBERS[r.who], "id": reset_id, "first": r.seq}
            key = _KEYS[r.key] if r.kind in ("op", "rs") else b""
            if r.kind == "re":
                control["count"] = sum(map(bool, r.val[1]))
            scan.apply(ScannedRecord(offset, _KINDS[r.kind], r.seg, r.epoch, r.seq, key, control))
        phantoms = frozenset(map(_KEYS.index, scan.phantoms))
        claims = _numbers(scan.claims)
        last = scan.ahead, scan.is_truncated, bool(scan.complete_resets)
        return Scan(scan.written, phantoms, claims, scan.open_reset, scan.end_beyond, *last)

    def start(self, history: History, epoch: int, known: tuple[Any, ...]) -> rules.ReadStart:
        """Where READ begins."""
        _, position, reset, _ = known
        state = (
            PositionState(position[0], position[1], position[2], position[1], 0, 0, position[3], 0, TOPIC, "")
            if position
            else None
        )
        opened = ResetState("", reset[0], reset[1], "", reset[2], "") if reset else None
        return self.decisions.where_to_read(history, epoch, state, opened, TOPIC)

    def _seen(self, claims: Claims, released: Claim | tuple[()], epoch: int, member: int) -> Seen:
        """Whether to step down and which members to fence, by the claims and the last release."""
        d, mine = self.decisions, MEMBERS[member]
        seen = frozenset((e, MEMBERS[m]) for e, m in claims)
        ended = (released[0], MEMBERS[released[1]]) if released else None
        victims = d.to_fence(seen, mine)
        nodes = sorted({MEMBERS.index(m) % 10 for m in d.foreign(victims, mine)})
        ranked = d.ranked(PositionsView(seen, released=ended))
        return Seen(d.outranking(ranked, epoch, mine) is not None, _numbers(victims), tuple(nodes))

    def reset_reason(self, scan: Scan, complete_from: int, owed: str | None) -> str | None:
        """DECIDE."""
        found = SegmentScan((), scan.written, set(), set(), scan.open_reset, scan.end_beyond)
        found.missing = int(scan.torn)
        return self.decisions.reason_to_reset(found, complete_from, owed)

    def corrections(self, phantoms: frozenset[int], log: tuple[Op, ...], written: int) -> list[int]:
        """The keys to correct."""
        pending = {_KEYS[k] for _, q, k, _ in log if q > written}
        return [_KEYS.index(k) for k in self.decisions.to_correct({_KEYS[k] for k in phantoms}, pending)]

    def phase_after_failure(self, role: str) -> str | None:
        """The role in which a primary resumes after a failed transaction. None: its role stays."""
        target = self.decisions.recheck.get(PHASES[role])
        return None if target is None else ROLES[target]

    # -- the positions topic ---------------------------------------------------------------------------------------

    def _claims_after(self, claims: Claims, claim: Claim | None, gone: Claims) -> Claims:
        """The claims on the positions topic after one is added and others are removed."""
        table = PositionsTable()
        more = [claim] if claim else []
        for record in [_claim(e, m) for e, m in (*claims, *more)] + [_claim(None, m) for _, m in gone]:
            table.apply(self.decisions.state_of_claim(record))
        return _numbers(table.claimants(0))

    # -- op logs ---------------------------------------------------------------------------------------------------

    def coalesced(self, log: tuple[Op, ...], above: int, acked: int) -> tuple[Op, ...]:
        """The op log after coalescing: in (above, acked] only the newest operation of each key is left."""
        shipped = OpLog(Budget(1 << 30, 1 << 30))
        for e, q, k, v in log:
            shipped.append(Operation(e, q, Reason.PUT, _KEYS[k], b"%d" % v, None, 0, True))
        self.decisions.coalesce(shipped, above, acked, log[-1][1])
        return tuple((o.epoch, o.sequence, _KEYS.index(o.key), int(o.value or b"")) for o in shipped)

    # -- what a reader derives -------------------------------------------------------------------------------------

    def _derived_late(
        self, records: tuple[tuple[int, Rec], ...], base: int, reset: tuple[int, ...]
    ) -> tuple[tuple[tuple[int, int], ...], str]:
        """The entries that a reader derives after compaction. It begins at the base offset."""
        named = ResetState("named", reset[0], reset[1], "", reset[2], "") if reset else None
        fold = StartFold(0, base, named)
        for offset, r in records:
            try:
                fold.apply(_record(r)._replace(offset=offset), _TABLES)
            except RecordError as error:
                return (), f"V7 a late reader stops: {error}"[:120]
        fold.finish()
        entries = tuple(sorted((_KEYS.index(k), int(e.value)) for k, e in fold.entries.items()))
        return entries, "V1 a reset is left open" if fold.open is not None else ""

    def _derived(self, records: tuple[Rec, ...]) -> tuple[tuple[tuple[int, int], ...], str]:
        """The entries that a reader derives from a segment's records, and its error."""
        reader = SegmentReader(0)
        for record in records:
            try:
                reader.apply(_record(record), _decoded)
            except RecordError as error:
                return (), f"V7 a reader stops: {error}"[:120]
        entries = tuple(sorted((_KEYS.index(k), int(e.value)) for k, e in reader.entries.items()))
        if reader.open is not None:
            return entries, "V1 a reset is left open"
        return entries, "V3 a reader sees a position twice" if reader.repeats else ""


def _claim(epoch: int | None, member: int) -> StateRecord:
    text = MEMBERS[member]
    return StateRecord("claim", 0, text, None if epoch is None else ClaimState(epoch, text, "", "", 1, 1, 0))


def _numbers(claims: Any) -> Claims:
    return tuple(sorted((e, MEMBERS.index(m)) for e, m in claims))


_TABLES: Final[Any] = _Decoding()


@lru_cache(1 << 16)
def _record(r: Rec) -> Record:
    control: dict[str, Any] = {"epoch": r.by, "member": MEMBERS[r.who], "id": str(r.val), "reason": "model"}
    if r.kind == "re":
        rid, entries = r.val
        live = [(_KEYS[k], b"%d" % v) for k, v in enumerate(entries) if v]
        control |= {"id": str(rid), "count": len(live), "digest": digest_of(live)}
    key = _KEYS[r.key] if r.kind in ("op", "rs") else b""
    value = b"%d" % r.val if r.kind in ("op", "rs") and r.val else None
    return Record(TOPIC, 0, 0, Header(_KINDS[r.kind], 0, r.epoch, r.seq, 0), key, value, control)


def _decoded(record: Record) -> tuple[bytes, Entry | None]:
    return record.key, None if record.value is None else Entry(record.key, record.value, None)
