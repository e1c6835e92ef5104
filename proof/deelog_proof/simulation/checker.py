"""Checks the invariants after every event, with an independent reader of the topic and the history of the run.

The parts, by the names in a violation: `fenced` (only the last ACTIVE's member writes), `gap` (a segment's sequences
have no gap outside a reset), `twice` (no position is committed twice), `digest` (a reset's digest is that of its
rows), `row` (a row of an incremental snapshot equals the topic's state at its offset, and a complete snapshot all of
it), `written` (what a node takes for written is in the topic), `lost` (an acknowledged write is in the topic, or
covered by a reset whose owners had all died), `phantom` (no value of a failed write is a key's last one), `repaired`
(a reset follows each injected loss), `needless` (something called for each reset), `vouch` (a node has every
operation that its history claims), `state` (owners with the same history hold the same entries, and the derived state
equals that of the last ACTIVE's member once all is written), `stock` (where resets take back, a consumer that ignores
resets holds the same), `limit` (no op log exceeds its bound), `equal` and `alive` (after the faults end: derived
equals cached, on every owner, in time), `broken` (an assertion or exception), `held` (a paused or stopped connector
writes nothing, a stopped one has no session), `status` (REST says of a connector what it is), `base` (a segment's
base offset never goes back, and a reader that begins there, behind any compaction, derives the same), and `expected`
(a count that the script expects).
"""

from __future__ import annotations

from typing import Final

from deelog_connector.core import history as past
from deelog_connector.core.effects import Commit, Effect, OpenProducer
from deelog_connector.core.history import History
from deelog_connector.kafka_port import InRecord
from deelog_connector.runtime.lifecycle import State
from deelog_connector.runtime.readers import WATCH_SECONDS
from deelog_interceptors.grid.data.segment import Role, Segment
from deelog_interceptors.grid.topology.view import View, decode_view
from deelog_proof.memory.log import Log
from deelog_proof.simulation.base_offsets import base_offset_problems
from deelog_proof.simulation.causes import Causes
from deelog_proof.simulation.context import CHANGES, POSITIONS, TOPOLOGY, Context, Write
from deelog_proof.simulation.filtering import BY_VALUE, captured, content_of
from deelog_proof.simulation.judge import Judge
from deelog_proof.simulation.process import Process
from deelog_proof.simulation.seen import Seen, active_of, epochs_told, positions_of
from deelog_schemas.envelope import JsonCodec
from deelog_schemas.errors import RecordError
from deelog_schemas.fold import SegmentReader
from deelog_schemas.header import Header, Kind, Position, node_number
from deelog_schemas.operation import Entry, Operation
from deelog_schemas.records import Record, decode

LOOKED_SECONDS: Final = WATCH_SECONDS + 0.5
"""Within this time of a loss a node that reaches the brokers has looked at the log's ends."""

_TELLING: Final = frozenset({Kind.CHANGE, Kind.READ, Kind.RESET_BEGIN, Kind.RESET_END, Kind.SKIPPED})
"""Records that change the derived state, or that stand for changes without one."""


class Checker(Judge):
    """Called by the world."""

    def __init__(self, world: Context) -> None:
        super().__init__(world.engine)
        self.world = world
        self._codec = JsonCodec(CHANGES, "grid", "p", "c")
        self._offsets: dict[int, int] = dict.fromkeys(range(world.partitions), 0)
        self.seen = {s: Seen(SegmentReader(s)) for s in range(world.segments)}
        self.writes: list[Write] = []
        self._again = False
        self._lost_at = -LOOKED_SECONDS
        self.causes = Causes(world.node_count, world.interval)
        self._views: View | None = None
        self._topology_read, self._topology_anew = 0, False  # anew: another topic, and no view stands in it

    def answered(self, write: Write) -> None:
        """A client got its reply: part of the hash, but not of the trace, which is long enough."""
        self._hash.update(f"{self.world.engine.now!r} {write.key!r} {write.position}".encode())

    # -- what nodes do ----------------------------------------------------------------------------------------------

    def effect(self, node: Process, effect: Effect) -> None:
        """A core returned an effect."""
        self.counts[type(effect).__name__] += 1
        forbidden = {"": (), "paused": (Commit,), "stopped": (Commit, OpenProducer)}[node.held]
        resumed = node.held == "paused" and self.world.counts["sent resume-writing"]
        if isinstance(effect, forbidden) and not node.leaving and not resumed:
            self.fail("held", f"{node.member} is {node.held}: {effect}")
        if not isinstance(effect, Commit):
            segments = getattr(effect, "segments", getattr(effect, "segment", ""))
            self.say(f"{node.member} {type(effect).__name__} {segments}".rstrip())

    def _well(self, node: Process) -> None:
        """At rest a node says that it is well."""
        connector = node.grid.connector
        stats = connector.stats
        if stats.unwritten or stats.stopped or stats.halted or stats.snapshots:
            self.fail("status", f"{node.member} at rest: {stats}")

    def status(self, node: Process) -> None:
        """What REST says of a connector after a request is what it is."""
        lifecycle, core = node.grid.lifecycle, node.core
        mine, state = {segment.number for segment in core.primaries()}, lifecycle.state
        told = {segment for task in lifecycle.tasks() for segment in task.segments}
        if told != (set() if state is State.STOPPED else mine):
            self.fail("status", f"{node.member} is {state} and the owner of {mine}, its tasks have {told}")
        for offset in lifecycle.offsets():
            position = offset.epoch, offset.sequence
            if offset.segment not in mine or not past.holds(core.history(offset.segment), position):
                self.fail("status", f"{node.member}: {offset}")
        if (state is State.FAILED) != (lifecycle.trace is not None):
            self.fail("status", f"{node.member} is {state}: {lifecycle.trace}")

    def captured(self, node: Process, segment: Segment, operation: Operation) -> None:
        """A primary captured an operation."""
        self.counts[f"captured {operation.reason}"] += 1
        position = f"{operation.epoch}.{operation.sequence}"
        self.say(f"{node.member} s{segment.number} {operation.reason} {operation.key.decode()} @{position}")
        self.world.moment_comes(node, "captured", str(operation.reason))

    def coalesced(self, segment: int) -> None:
        """From now on its sequences may have gaps."""
        self.seen[segment].loose = True

    def view_made(self, view: View) -> None:
        """The controller committed a view."""
        before, anew, self._topology_anew = self._views, self._topology_anew, False
        if before is not None and view.topology_id <= before.topology_id:
            # The last one that its controller knows: later ones may be lost with the topic and all who read them.
            self.counts["views written anew"] += 1
            if view == before:
                return
        self.counts["views"] += 1
        living = {node.member for node in self.world.living()}
        # With the topology its last owners may be lost: the dead, and those who cannot say that they live.
        unheard = self.world.no_kafka | {node.node_id for node in self.world.living() if node.paused}
        heard = {node.member for node in self.world.living() if node.node_id not in unheard}
        for number, row in enumerate(view.rows):
            old = before.rows[number] if before else None
            if old is None or row != old:
                end = f"[{','.join(row.in_sync)}]" + (f" {row.must_reset}" if row.must_reset else "")
                self.say(f"view {view.topology_id} s{number} {row.state} e{row.epoch} {row.primary} {end}")
            dead = old is not None and old.in_sync and (heard if anew else living).isdisjoint(old.in_sync)
            if (dead and (anew or not row.in_sync)) or (row.must_reset and (old is None or row.epoch != old.epoch)):
                self.counts["owners_lost"] += 1
                self.seen[number].owners_lost.append(self.world.engine.now)
        self._views = view
        for number in self.causes.view_made(view):
            self.fail("needless", f"segment {number}: view {view.topology_id} wants a reset")

    def topology_lost(self) -> None:
        """The topology topic is another one."""
        self._topology_read, self._topology_anew = 0, True

    def epochs_lost(self, partition: int) -> None:
        """Nobody is held to an epoch that neither the change topic nor the positions topic tells of any more."""
        told = epochs_told(*(self.world.kafka.logs[topic, partition] for topic in (CHANGES, POSITIONS)))
        for number in (n for n in self.seen if self.world.partition_of(n) == partition):
            if told[number] < self.seen[number].active[0]:
                self.seen[number].active = (0, 0)

    def view_applied(self, node: Process, view: View) -> None:
        """A node applied a view."""
        self.counts["views_applied"] += 1
        self.world.view_comes(node, view)

    # -- what the topic says ----------------------------------------------------------------------------------------

    def stable(self, log: Log) -> None:
        """The last stable offset of a partition moved."""
        if log.topic == TOPOLOGY:
            records, self._topology_read = log.read(self._topology_read, 1_000_000)
            for raw in records:
                if raw.key == b"view" and raw.value is not None:
                    self.view_made(decode_view(raw.value))
        if log.topic != CHANGES:
            return
        records, self._offsets[log.partition] = log.read(self._offsets[log.partition], 1_000_000)
        for raw in records:
            try:
                self._record(raw)
            except RecordError as error:
                seen = self.seen[decode(*raw).header.segment]
                if not seen.damaged and seen.lost_at < 0:
                    self.fail("digest", str(error))
                # Rows of the reset were truncated: a reader detects it and waits for the next reset.
                self.counts["digests that did not match"] += 1
                seen.reader = SegmentReader(seen.reader.segment)

    def _record(self, raw: InRecord) -> None:
        record = decode(*raw)
        header = record.header
        seen = self.seen[header.segment]
        epoch, sequence = header.position
        self.say(f"p{raw.partition}@{raw.offset} s{header.segment} {header.kind.name} @{epoch}.{sequence}")
        self.counts[f"record {header.kind.name}"] += 1
        if header.kind is Kind.ACTIVE:
            self.counts["other owners"] += bool(seen.active[0]) and header.node != seen.active[1]
            seen.active = max(seen.active, active_of(record))
        if header.kind not in (Kind.CLAIM, Kind.ACTIVE):
            self._place(record, seen)
        seen.stock.apply(raw.key, raw.value)
        self.counts["taken back"] += header.kind is Kind.TOMBSTONE and raw.value is not None
        if header.kind is Kind.RESET_BEGIN and not self._again:
            self._called_for(record)
        resets, repeats = len(seen.reader.resets), seen.reader.repeats
        seen.reader.apply(record, self._entry)
        self._resent(record, seen)
        if seen.reader.repeats > repeats and not seen.damaged and not self._again:
            self.fail("twice", f"segment {header.segment}: @{epoch}.{sequence} at {raw.partition}@{raw.offset}")
        seen.positions |= positions_of(record)
        if header.kind is Kind.SKIPPED:
            seen.skipped = max(seen.skipped, header.position)
        elif record.value is not None:
            seen.value_at[self._codec.decode_key(record.key)] = header.position
        if self._taken_back(record, seen) and len(seen.reader.resets) > resets:
            seen.damaged = seen.damaged and raw.offset < seen.mended_from
            seen.resets.append((self.world.engine.now, seen.reader.resets[-1]))
            self.counts[f"reset {seen.reader.resets[-1]}"] += 1

    def _called_for(self, record: Record) -> None:
        header, reason = record.header, record.control["reason"]
        if not self.causes.call_for(reason, header.segment, self.world.partition_of(header.segment), header.epoch):
            self.fail("needless", f"segment {header.segment}: reset for {reason} in epoch {header.epoch}")

    def _taken_back(self, record: Record, seen: Seen) -> bool:
        """Follows what a reset takes back; returns whether it is complete at the end."""
        kind = record.header.kind
        if kind is Kind.RESET_BEGIN:
            seen.taken = set()
        elif kind is Kind.TOMBSTONE and record.value is not None:
            seen.taken.add(record.key)
        elif kind is Kind.READ:
            seen.taken.discard(record.key)
        elif kind is Kind.RESET_END and record.control.get("taken_back", 0) > len(seen.taken):
            if not seen.damaged and seen.lost_at < 0:
                self.fail("stock", f"segment {record.header.segment}: {len(seen.taken)} of what a reset takes back")
            return False
        return True

    def _place(self, record: Record, seen: Seen) -> None:
        header = record.header
        where = f"segment {header.segment}: {header.kind.name} @{header.epoch}.{header.sequence} at {record.offset}"
        if seen.damaged or self._again:
            return
        if seen.active[0] and header.node != seen.active[1]:
            self.fail("fenced", f"{where} is not by the member of the last ACTIVE")
        self._row(record, seen, where)
        if header.kind in (Kind.CHANGE, Kind.SKIPPED) and not seen.loose:
            opened = seen.reader.open
            mark = max(opened.mark if opened else seen.reader.mark, seen.skipped)
            first = record.control["first"] if header.kind is Kind.SKIPPED else header.sequence
            follows = first == mark[1] + 1 if header.epoch == mark[0] else first <= mark[1] + 1
            if not follows and header.position > mark:
                self.fail("gap", f"{where} follows @{mark[0]}.{mark[1]}")

    def _row(self, record: Record, seen: Seen, where: str) -> None:
        header = record.header
        if seen.reader.open is not None:
            return
        if header.kind is Kind.CHANGE and header.position <= seen.row:
            self.fail("row", f"{where} follows a row of @{seen.row[0]}.{seen.row[1]}")
        if header.kind is Kind.READ:
            seen.row, (key, entry) = header.position, self._entry(record)
            self.counts["snapshot rows"] += 1
            if seen.reader.entries.get(key) != entry:
                self.fail("row", f"{where}: {key!r} is {entry}, and was {seen.reader.entries.get(key)}")
            if header.position < seen.reader.mark:
                self.fail("row", f"{where} follows @{seen.reader.mark[0]}.{seen.reader.mark[1]}")

    def _resent(self, record: Record, seen: Seen) -> None:
        """A consumer that starts at a snapshot: upserts on read and change, deletes on delete; a reset replaces all."""
        if seen.resent is None or record.header.kind not in (Kind.CHANGE, Kind.READ, Kind.RESET_END):
            return
        if record.header.kind is Kind.RESET_END:
            seen.resent = dict(seen.reader.entries)
            return
        key, entry = self._entry(record)
        if entry is None:
            seen.resent.pop(key, None)
        else:
            seen.resent[key] = entry

    def snapshot_asked(self, segment: int) -> None:
        """An incremental snapshot of a segment was requested."""
        self.seen[segment].asked += 1

    def snapshot_begun(self, node: Process, segment: int) -> None:
        """An owner begins it or begins again; or a node that has lost the segment, and will notice."""
        seen = self.seen[segment]
        if seen.active[1] != node_number(node.member):
            return
        self.counts["snapshots begun again"] += seen.begun == seen.asked
        seen.begun, seen.resent, seen.whole, seen.sender = seen.asked, {}, False, node.member

    def snapshot_over(self, node: Process, segment: int, whole: bool) -> None:
        """An owner completed it, or gave it up; it may hear of its last rows when another has begun again."""
        self.counts["snapshots"] += whole
        if self.seen[segment].sender == node.member:
            self.seen[segment].whole = whole

    def _entry(self, record: Record) -> tuple[bytes, Entry | None]:
        key = self._codec.decode_key(record.key)
        return key, None if record.value is None else self._codec.decode_value(record.value).after

    def lose(self, partition: int, records: list[InRecord] | None) -> None:
        """Committed records of a partition are lost (None: all): readers start over, and a reset must follow for
        segments whose entries they changed."""
        now = self._lost_at = self.world.engine.now
        self.causes.cut.add(partition)
        if records is not None:
            self.causes.truncated.add(partition)
        gone = [decode(*r) for r in records or ()]
        lost = {r.header.segment for r in gone if self._note_loss(r)} if records is not None else set(self.seen)
        log = self.world.kafka.logs[CHANGES, partition]
        for number, seen in self.seen.items():
            if self.world.partition_of(number) == partition:
                # The last ACTIVE stays: its claims and fences are not in this topic alone.
                active = [active_of(r) for r in gone if r.header.segment == number and r.header.kind is Kind.ACTIVE]
                self.seen[number] = Seen(
                    SegmentReader(number),
                    max(seen.active, *active, (0, 0)),
                    owners_lost=seen.owners_lost,
                    resets=seen.resets,
                    lost=seen.lost,
                    rows_lost=seen.rows_lost,
                    loose=seen.loose,
                )
                self.seen[number].lost_at = now if number in lost else seen.lost_at
                self.seen[number].mended_from = log.end if number in lost else seen.mended_from
                if records is None:
                    seen.lost.append((now, (0, 0)))
                self.seen[number].damaged = True
                if number not in lost:  # records that compaction removed were written all the same
                    self.seen[number].positions = seen.positions
        self._offsets[partition] = log.first
        self._again = True  # earlier damage and the resets after it are checked already
        self.stable(log)
        self._again = False
        self.epochs_lost(partition)
        for number, seen in self.seen.items():
            seen.damaged = seen.damaged or self.world.partition_of(number) == partition

    def looks_from_now_on(self) -> None:
        """Some may have been kept from looking for what was lost: they did not reach Kafka, or were paused."""
        if self._lost_at >= 0:
            self._lost_at = self.world.engine.now

    def lose_part(self, records: list[InRecord]) -> None:
        """A transaction is committed that had lost these records: a loss like any other, but of unread records."""
        for raw in records:
            if raw.topic != CHANGES:
                continue
            record = decode(*raw)
            self.causes.truncated.add(raw.partition)
            if record.header.kind is Kind.RESET_BEGIN and self._given_away(record.header):
                continue  # nobody has read it, and that reset is nobody's any more
            seen = self.seen[record.header.segment]
            # Rows of a snapshot that nobody has vouched for are sent again.
            if self._note_loss(record, rows=seen.whole):
                self.counts["committed in part"] += 1
                seen.damaged, seen.lost_at = True, self.world.engine.now
                self._lost_at = seen.lost_at
                # A reset may become readable only now, though it ended long before.
                seen.mended_from = self.world.kafka.logs[CHANGES, raw.partition].end

    def _given_away(self, header: Header) -> bool:
        """Whether the segment has another owner than the sender of this header."""
        return self._views is not None and header.epoch < self._views.rows[header.segment].epoch

    def _note_loss(self, record: Record, *, rows: bool = True) -> bool:
        """Notes the loss of a record that changes entries; returns whether it does. `rows`: of a snapshot's, too."""
        header = record.header
        takes_back = header.kind is Kind.TOMBSTONE and record.value is not None and not self._is_sent_again(record)
        seen, now = self.seen[header.segment], self.world.engine.now
        nothing_yet = not header.sequence and not any(sequence for _, sequence in seen.positions)
        if (header.kind not in _TELLING or nothing_yet) and not takes_back:
            return False
        source = self._codec.decode_value(record.value or b"").source if header.kind is Kind.READ else {}
        if source.get("snapshot") == "incremental":
            if rows and header.node == seen.active[1]:
                seen.rows_lost.append((now, seen.active))
        else:
            seen.lost.append((now, header.position if header.kind is Kind.CHANGE else (0, 0)))
        return True

    def _is_sent_again(self, record: Record) -> bool:
        """Whether the reset has a row for the key of a delete that is lost, so that the delete changes nothing."""
        log = self.world.kafka.logs[CHANGES, self.world.partition_of(record.header.segment)]
        for slot in reversed(log.slots):
            if slot.record is not None and (slot.transaction is None or slot.transaction.state == "committed"):
                other = decode(*slot.record)
                if other.header.segment == record.header.segment and other.header.kind is Kind.RESET_BEGIN:
                    return False
                if other.key == record.key and other.header.kind is Kind.READ:
                    return True
        return False

    # -- samples ----------------------------------------------------------------------------------------------------

    def sample(self) -> None:
        """Checks what holds at any time on every node."""
        for node in self.world.living():
            budget = node.core.budget
            if budget.operations > budget.max_operations + budget.overdrawn:
                self.fail("limit", f"{node.member} holds {budget.operations} operations")
            for number, seen in self.seen.items():
                written = node.core.written(number)
                if written is None or seen.damaged or seen.lost_at >= 0 or seen.loose:
                    continue
                history = node.core.history(number)
                stand = seen.positions | self._hidden(number)
                if written and not any(s >= written and past.holds(history, (e, s)) for e, s in stand):
                    self.fail("written", f"{node.member} segment {number}: {written} is not in the topic")

        for number, seen in self.seen.items():
            self._alike(number, seen)

    def _alike(self, number: int, seen: Seen) -> None:
        """Checks what must be the same on all owners, and in Kafka."""
        histories: dict[History, tuple[str, dict[bytes, tuple[bytes, int | None]]]] = {}
        for node in self.world.living():
            segment, core = node.store.segments[number], node.core
            history, last = core.history(number), core.last_sequence(number)
            if segment.role is Role.NONE or not last:
                continue
            start = core.complete_from(number)
            kept = core.operations_after(number, start - 1) or []
            if not seen.loose and [o.sequence for o in kept] != list(range(start, last + 1)):
                self.fail("vouch", f"{node.member} segment {number}: {len(kept)} operations of {start}..{last}")
            held = {e.key: (e.value, e.expires_at) for e in node.entries(number)}
            other, others = histories.setdefault(history, (node.member, held))
            if held != others:
                self.fail("state", f"segment {number}: {node.member} holds {held}, {other} {others}, at {history}")
            if (
                seen.active[1] == node_number(node.member)
                and core.phase(number) == "writing"
                and core.written(number) == last == seen.reader.mark[1]
                and past.holds(history, seen.reader.mark)  # not a phantom whose correction an open transaction hides
                and not (seen.reader.open or seen.damaged)
                and (seen.lost_at < 0 or any(at > seen.lost_at for at, _ in seen.resets))
            ):
                derived = {k: (e.value, e.expires_at) for k, e in seen.reader.entries.items()}
                if content_of(held, self.world.skips) != derived and self.world.skips != BY_VALUE:
                    self.fail("state", f"segment {number}: {node.member} holds {held} at {last}, derived {derived}")
                self._stock(number, seen, held)

    def _stock(self, number: int, seen: Seen, held: dict[bytes, tuple[bytes, int | None]]) -> None:
        content = seen.stock.content
        skips = self.world.skips
        if self.world.strategy.takes_back and content != content_of(held, skips) and skips != BY_VALUE:
            self.fail("stock", f"segment {number}: cached {held}, a consumer that knows of no reset holds {content}")

    def _hidden(self, segment: int) -> set[Position]:
        """Committed positions that an open transaction hides."""
        log = self.world.kafka.logs[CHANGES, self.world.partition_of(segment)]
        hidden = set()
        for slot in log.slots[log.stable - log.first :]:
            if slot.record is not None and slot.transaction is not None and slot.transaction.state == "committed":
                record = decode(*slot.record)
                if record.header.segment == segment:
                    hidden |= positions_of(record)
        return hidden

    # -- at the end -------------------------------------------------------------------------------------------------

    def settled(self) -> str | None:
        """What the run still waits for; None once it is at rest."""
        now = self.world.engine.now
        if now < self._lost_at + LOOKED_SECONDS:
            return "nobody may have looked for what was lost"
        for log in self.world.kafka.logs.values():
            if log.stable < log.end:
                return f"a transaction hides {log.topic} {log.partition} from {log.stable} on"
        for node in self.world.living():
            if running := node.grid.connector.snapshots.running:
                return f"{node.member}: the incremental snapshots {running} are not done"
            if node.core.withheld:
                return f"{node.member}: nobody looks at the partitions {sorted(node.core.withheld)} yet"
            if node.requests:
                return f"{node.member}: {', '.join(node.requests.values())} has not ended"
            if node.grid.connector.started and (problem := node.grid.connector.observed.kafka_problem(now)):
                return f"{node.member}: {problem}"
        for number, seen in self.seen.items():
            primary = self.world.primary_of(number)
            if primary is None:
                return f"segment {number} has no primary"
            if primary.core.phase(number) != "writing":
                return f"segment {number} on {primary.member} is {primary.core.phase(number)}"
            if primary.core.written(number) != primary.core.last_sequence(number) or seen.reader.open:
                return (
                    f"segment {number}: {primary.core.written(number)} of {primary.core.last_sequence(number)} written"
                )
            segment = primary.store.segments[number]
            if segment.acked < segment.last or len(segment.in_sync) < min(self.world.copies, self.world.node_count):
                return f"segment {number}: acked {segment.acked} of {segment.last}, in sync {segment.in_sync}"
            if self._views is not None and self._views.rows[number].must_reset:
                return f"segment {number}: the view still asks for a reset"
            if any(node.core.written(number) != segment.last for node in self.world.holders(number)):
                return f"segment {number}: a backup has not pruned"
        return None

    def final(self) -> None:
        """Checks what must hold once the run is at rest."""
        for node in self.world.living():
            self.status(node)
            self._well(node)
        for number, seen in self.seen.items():
            derived = {k: (e.value, e.expires_at) for k, e in seen.reader.entries.items()}
            for node in self.world.holders(number):
                held = {e.key: (e.value, e.expires_at) for e in node.entries(number)}
                if content_of(held, self.world.skips) != derived and self.world.skips != BY_VALUE:
                    self.fail("equal", f"segment {number}: {node.member} holds {held}, derived {derived}")
                self._stock(number, seen, held)
            self._repaired(number, seen)
            self._vouched(number, seen)
        for problem in base_offset_problems(
            self.world, self.causes.cut, {n: seen.reader for n, seen in self.seen.items()}
        ):
            self.fail("base", problem)
        failed = {w.value for w in self.writes if w.status == "failed" and w.value is not None}
        for number, seen in self.seen.items():
            if bad := {captured(e.value) for e in seen.reader.entries.values()} & failed:
                self.fail("phantom", f"segment {number}: {bad} is of a write that failed")
            # Parts of it may be lost on purpose, or left out where their values are filtered.
            resent = seen.resent if seen.whole and not seen.damaged and self.world.skips != BY_VALUE else None
            if resent is not None and resent != seen.reader.entries:
                self.fail("row", f"segment {number}: a snapshot sent {resent}, not {seen.reader.entries}")
        for write in self.writes:
            if write.status == "acked" and write.position != (0, 0):
                self._kept(write)

    def _repaired(self, number: int, seen: Seen) -> None:
        primary = self.world.primary_of(number)
        assert primary is not None
        history, last = primary.core.history(number), max((at for at, _ in seen.resets), default=-1.0)
        for at, position in seen.lost:
            # A lost phantom needs no repair: it is corrected, or was never read. What is written again is there.
            if at >= last and position not in seen.positions and (position == (0, 0) or past.holds(history, position)):
                self.fail("repaired", f"segment {number}: no reset after the loss at {at:.4f}")
        for at, active in seen.rows_lost:
            # Where a filter may drop rows, their owner does not count them.
            if at >= last and active == seen.active and not self.world.skips:
                self.fail("repaired", f"segment {number}: no reset after the loss of a snapshot's row at {at:.4f}")

    def _vouched(self, number: int, seen: Seen) -> None:
        """Where values are filtered: each derived value is of an operation that survived."""
        primary = self.world.primary_of(number)
        assert primary is not None
        history = primary.core.history(number)
        if self.world.skips == BY_VALUE and len(history) < past.MAX_EPOCHS:
            for key in seen.reader.entries:
                if not past.holds(history, seen.value_at[key]):
                    self.fail(
                        "phantom",
                        f"segment {number}: {key!r} is of {seen.value_at[key]}, which no owner holds",
                    )

    def _kept(self, write: Write) -> None:
        seen, primary = self.seen[write.segment], self.world.primary_of(write.segment)
        assert primary is not None
        if past.holds(primary.core.history(write.segment), write.position):
            covered = any(s >= write.position[1] for _, s in seen.positions)
            if write.position not in seen.positions and not seen.loose and not covered and seen.lost_at < 0:
                self.fail("lost", f"segment {write.segment}: {write} is in the cache and not in the topic")
        elif self.world.acks_all and not any(at >= write.acked_at for at in seen.owners_lost):
            self.fail("lost", f"segment {write.segment}: {write} is gone, and no loss of owners covers it")
