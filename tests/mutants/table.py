"""The mutants, as data. Each is a bug that somebody could have written, or did; `why` says what it would cost.

Texts are kept short, so that they outlive changes around them; `test_mutants.py` fails for each that does not.
"""

from __future__ import annotations

from typing import Final

from tests.mutants.tool import Edit, Mutant

CORE: Final = "connector/deelog_connector/core/core.py"
BATCH: Final = "connector/deelog_connector/core/batch.py"
SCAN: Final = "connector/deelog_connector/core/scan.py"
DECIDE: Final = "connector/deelog_connector/core/decide.py"
SEGMENT: Final = "connector/deelog_connector/core/segment.py"
HISTORY: Final = "connector/deelog_connector/core/history.py"
OPLOG: Final = "connector/deelog_connector/core/oplog.py"
TABLE: Final = "connector/deelog_connector/core/table.py"
REPLICATOR: Final = "interceptors/deelog_interceptors/grid/replicator.py"
BACKUP: Final = "interceptors/deelog_interceptors/grid/backup.py"
CONTROLLER: Final = "interceptors/deelog_interceptors/grid/controller.py"
ROLES: Final = "interceptors/deelog_interceptors/grid/roles.py"
STORE: Final = "interceptors/deelog_interceptors/grid/store.py"
OFFICE: Final = "interceptors/deelog_interceptors/grid/office.py"
REGISTRY: Final = "interceptors/deelog_interceptors/grid/registry.py"
SIM_OFFICE: Final = "interceptors/deelog_interceptors/simulation/office.py"
SIM_NODE: Final = "interceptors/deelog_interceptors/simulation/node.py"

TAKEOVER: Final = (
    Mutant(
        "no-fence",
        "fencing",
        "the claimants before are not fenced: an old primary writes behind the new one's ACTIVE",
        (
            Edit(
                CORE,
                "seg.go(Phase.FENCE if foreign(seg.victims, self.member) else Phase.ACTIVE)",
                "seg.go(Phase.ACTIVE)",
            ),
        ),
    ),
    Mutant(
        "fence-before-claim",
        "claim-before-fence",
        "who is fenced before the claim stands re-reads the claims and does not find it",
        (
            Edit(
                CORE,
                "        self._primaries[segment] = seg\n",
                "        self._primaries[segment] = seg\n"
                "        known = foreign(self.table.claimants(segment), self.member)\n"
                "        self._outbox.append(Fence(frozenset(map(node_of, known)), ()))\n",
            ),
            Edit(
                CORE,
                "seg.go(Phase.FENCE if foreign(seg.victims, self.member) else Phase.ACTIVE)",
                "seg.go(Phase.ACTIVE)",
            ),
        ),
    ),
    Mutant(
        "look-passed-over",
        "claim-then-look",
        "a node whose claim is outranked goes on to fence and write",
        (Edit(CORE, "if self._step_down(seg, seen):", "if False:"),),
    ),
    Mutant(
        "same-epoch-wins",
        "claim-then-look",
        "two members that claim the same epoch both go on",
        (
            Edit(
                DECIDE,
                "if claimant[0] > epoch or (claimant[0] == epoch and claimant[1] != member):",
                "if claimant[0] > epoch + 1:",
            ),
        ),
    ),
    Mutant(
        "any-own-record",
        "read-to-own-record",
        "any earlier claim record of this member ends the wait: what stands between it and this one is not known",
        (Edit(CORE, "and state.number == seg.awaited:", "and seg.awaited:"),),
    ),
    Mutant(
        "end-is-the-end",
        "read-to-own-record",
        "the last stable offset counts as the end, though somebody's open transaction hides what stands behind it",
        (
            Edit(CORE, "            if seg.marker_offset >= 0:\n", "            if True:\n"),
            Edit(SIM_NODE, "if not wanted or self.engine.now > until:", "if not wanted or following >= log.stable:"),
        ),
    ),
    Mutant(
        "position-wipes-claims",
        "position-is-not-claim",
        "one key for both: a position wipes out the claims of its segment",
        (
            Edit(
                TABLE,
                '        elif record.what == "position":\n',
                '        elif record.what == "position":\n            self.claims[segment].clear()\n',
            ),
        ),
    ),
    Mutant(
        "active-ends-all-claims",
        "claims-outlive-compaction",
        "an ACTIVE removes claims of members that it has not fenced",
        (
            Edit(
                BATCH,
                "for _, member in sorted(segment.victims):",
                "for _, member in sorted(c for c in segment.known.claims if c[1] != self.member):",
            ),
        ),
    ),
    Mutant(
        "claims-in-changes-only",
        "claims-outlive-compaction",
        "the positions topic's claims are not looked at: what is below read_from or compacted away is not fenced",
        (Edit(CORE, "seen = seg.known.claims | seg.scan.claims", "seen = seg.scan.claims"),),
    ),
    Mutant(
        "late-active-ends-higher",
        "claims-outlive-compaction",
        "a fenced node's late ACTIVE ends the claim of a higher epoch",
        (Edit(SCAN, "{c for c in self.claims if c[0] > epoch} | {(epoch", "{(epoch"),),
    ),
    Mutant(
        "one-claim-key",
        "claim-key-per-member",
        "one claim per segment: each overwrites the one before",
        (Edit(TABLE, "self.claims[segment][record.member] = state", "self.claims[segment] = {record.member: state}"),),
    ),
    Mutant(
        "no-recheck",
        "recheck-after-fence",
        "a fenced primary opens a new session and writes on",
        (
            Edit(
                CORE, "            # CHECK recheck-after-fence\n            self._recheck(seg)\n", "            pass\n"
            ),
        ),
    ),
    Mutant(
        "recheck-looks-at-nothing",
        "recheck-after-fence",
        "behind its fresh ACTIVE a fenced primary does not ask for higher claims",
        (Edit(CORE, "if seg.recheck and self._step_down(seg, seg.known.claims | scan.claims):", "if False:"),),
    ),
    Mutant(
        "recheck-skips-fence",
        "recheck-keeps-place",
        "fenced before its own FENCE, a node goes straight to ACTIVE",
        (
            Edit(SEGMENT, "Phase.LOOK: Phase.CLAIM,", "Phase.LOOK: Phase.ACTIVE,"),
            Edit(SEGMENT, "Phase.FENCE: Phase.FENCE,", "Phase.FENCE: Phase.ACTIVE,"),
        ),
    ),
    Mutant(
        "fence-again",
        "fence-once",
        "behind its own ACTIVE a node claims and fences anew: two that swap segments fence each other for ever",
        (
            Edit(SEGMENT, "    Phase.ACTIVE: Phase.ACTIVE,\n", "    Phase.ACTIVE: Phase.CLAIM,\n"),
            Edit(SEGMENT, "    Phase.READ: Phase.ACTIVE,\n", "    Phase.READ: Phase.CLAIM,\n"),
            Edit(SEGMENT, "    Phase.OWED: Phase.ACTIVE,\n", "    Phase.OWED: Phase.CLAIM,\n"),
            Edit(SEGMENT, "    Phase.BEGUN: Phase.ACTIVE,\n", "    Phase.BEGUN: Phase.CLAIM,\n"),
            Edit(SEGMENT, "    Phase.ROWS: Phase.ACTIVE,\n", "    Phase.ROWS: Phase.CLAIM,\n"),
            Edit(SEGMENT, "    Phase.WRITING: Phase.ACTIVE,\n", "    Phase.WRITING: Phase.CLAIM,\n"),
        ),
    ),
    Mutant(
        "release-not-final",
        "release-is-final",
        "a release stays the last word though records follow it: the next owner skips the fence",
        (
            Edit(
                SCAN,
                'control["member"] if kind is Kind.RELEASE else None',
                'control["member"] if kind is Kind.RELEASE else self.released_by',
            ),
        ),
    ),
    Mutant(
        "release-then-write",
        "release-is-final",
        "after a release whose commit failed a node writes on behind a fresh ACTIVE, without a claim",
        (Edit(SEGMENT, "Phase.RELEASING: Phase.CLAIM,", "Phase.RELEASING: Phase.ACTIVE,"),),
    ),
    Mutant(
        "node-id-is-member",
        "incarnation",
        "a restarted, empty process takes itself for the primary that its node id was",
        (
            Edit(
                ROLES,
                "if row.state is State.ONLINE and row.primary == self._member:",
                'if row.state is State.ONLINE and (row.primary or "").split("@")[0] == self._member.split("@")[0]:',
            ),
        ),
    ),
    Mutant(
        "epoch-not-minted",
        "incarnation",
        "an election keeps the segment's epoch: two primaries with the same one",
        (Edit(CONTROLLER, "primary=primary, epoch=self.topology_id,", "primary=primary, epoch=row.epoch or 1,"),),
    ),
    Mutant(
        "phantoms-stay",
        "correct-phantoms",
        "what no survivor holds is not corrected",
        (Edit(DECIDE, "return sorted(set(phantoms) - set(pending))", "return []"),),
    ),
    Mutant(
        "corrections-one-by-one",
        "correct-phantoms",
        "corrections need not stand in one transaction with the epoch's first position",
        (Edit(CORE, "            seg.atomic_to = seg.last_sequence\n", ""),),
    ),
    Mutant(
        "hole-is-no-reason",
        "continuity",
        "a promoted node resumes though operations between Kafka and its op log are missing",
        (Edit(SCAN, "if complete_from > scan.written + 1:", "if False:"),),
    ),
    Mutant(
        "continuity-off-by-one",
        "continuity",
        "one missing operation between Kafka and the op log is overlooked",
        (Edit(SCAN, "if complete_from > scan.written + 1:", "if complete_from > scan.written + 2:"),),
    ),
    Mutant(
        "unknown-history-resumes",
        "",
        "a history of which nothing was ever written counts as written to its end",
        (
            Edit(SCAN, "if scan.written is None:", "if False:"),
            Edit(SCAN, "if complete_from > scan.written + 1:", "if complete_from > (scan.written or 0) + 1:"),
            Edit(CORE, "assert scan.written is not None\n", "scan.written = scan.written or 0\n"),
        ),
    ),
    Mutant(
        "read-behind-read-from",
        "",
        "READ begins a few records behind read_from: phantoms and positions there are not seen",
        (
            Edit(
                CORE,
                "seg.scan_next = min(start.offset, seg.scan_next)",
                "seg.scan_next = min(start.offset, seg.scan_next) + 3",
            ),
        ),
    ),
    Mutant(
        "read-from-beyond",
        "",
        "READ trusts the read_from of a position that its own history does not hold",
        (Edit(SCAN, "if inside and reset is None:", "if True:"),),
    ),
    Mutant(
        "read-from-at-once",
        "read-from-trails",
        "read_from moves before every in-sync owner holds what lies below it",
        (
            Edit(
                DECIDE,
                "if candidate is None or candidate[1] > min(written, replicated) or written < atomic_to:",
                "if candidate is None:",
            ),
        ),
    ),
    Mutant(
        "view-reset-forgotten",
        "",
        "the reset that the view asks for, because all owners were lost, is not owed",
        (Edit(CORE, "seg.owed = must_reset or seg.owed", "seg.owed = seg.owed"),),
    ),
)

WRITING: Final = (
    Mutant(
        "written-off-by-one",
        "",
        "a node believes one position more written than Kafka holds",
        (
            Edit(
                CORE,
                "seg.written = max(before or 0, state.sequence)",
                "seg.written = max(before or 0, state.sequence + 1)",
            ),
        ),
    ),
    Mutant(
        "prune-one-more",
        "",
        "the op log drops one operation more than is committed",
        (
            Edit(
                OPLOG,
                "while operations and operations[0].sequence <= sequence:",
                "while operations and operations[0].sequence <= sequence + 1:",
            ),
        ),
    ),
    Mutant(
        "prune-at-commit-request",
        "",
        "operations are dropped once they are put into a transaction, not once it is read back",
        (
            Edit(
                BATCH,
                "        batch.entries += len(operations)\n",
                "        batch.entries += len(operations)\n        segment.log.prune(last.sequence)\n",
            ),
        ),
    ),
    Mutant(
        "prune-any-position",
        "prune-in-history",
        "a position of a history that this node never had prunes its op log",
        (Edit(CORE, "if not past.holds(seg.history, state.position):", "if False:"),),
    ),
    Mutant(
        "unacked-written",
        "",
        "operations are written before they are acknowledged",
        (
            Edit(
                BATCH,
                "segment.log.after(segment.sent, segment.acked, room)",
                "segment.log.after(segment.sent, segment.last_sequence, room)",
            ),
        ),
    ),
    Mutant(
        "log-drained-backwards",
        "",
        "an op log is drained newest first",
        (
            Edit(
                OPLOG,
                "                found.append(operation)\n        return found\n",
                "                found.append(operation)\n        return found[::-1]\n",
            ),
        ),
    ),
    Mutant(
        "log-begins-one-late",
        "",
        "the first operation that was not sent yet is left out",
        (
            Edit(
                OPLOG,
                "            if operation.sequence > sequence:\n                found",
                "            if operation.sequence > sequence + 1:\n                found",
            ),
        ),
    ),
    Mutant(
        "lost-answer-sent-again",
        "",
        "a commit of unknown outcome is repeated without looking",
        (
            Edit(
                CORE,
                "        if cause is Cause.REFUSED:\n",
                "        if cause is Cause.LOST:\n            return\n        if cause is Cause.REFUSED:\n",
            ),
        ),
    ),
    Mutant(
        "old-turn-counts",
        "",
        "the outcome of a transaction from before a recheck or a promotion still counts",
        (Edit(CORE, "if seg is None or seg.turn != advance.turn or seg.phase", "if seg is None or seg.phase"),),
    ),
    Mutant(
        "clear-as-change",
        "",
        "a clear is written as a change of an empty key, not as begin and end",
        (Edit(BATCH, "if operation.reason == Reason.CLEAR:", "if False:"),),
    ),
    Mutant(
        "clear-keeps-what-follows",
        "",
        "what follows a clear in a batch is written before it",
        (Edit(BATCH, "                del operations[index:]\n", "                del operations[index]\n"),),
    ),
    Mutant(
        "overflow-owes-nothing",
        "nothing-over-a-hole",
        "a dropped op log owes no reset, and what follows is written over the hole",
        (Edit(CORE, 'self.request_reset(segment, "overflow")', "seg.sent = max(seg.sent, seg.last_sequence)"),),
    ),
    Mutant(
        "writes-over-a-hole",
        "nothing-over-a-hole",
        "a segment that owes a reset writes on until it has nothing left",
        (
            Edit(
                CORE,
                "        if seg.phase in (Phase.WRITING, Phase.STOPPED):\n",
                "        if seg.phase is Phase.WRITING and seg.last_sequence > seg.sent:\n"
                "            seg.owed = reason\n"
                "        elif seg.phase in (Phase.WRITING, Phase.STOPPED):\n",
            ),
        ),
    ),
    Mutant(
        "coalesce-unacked",
        "coalesce-acked",
        "an operation that is not acknowledged replaces one that is",
        (Edit(CORE, "seg.log.coalesce(low, seg.acked)", "seg.log.coalesce(low, seg.last_sequence)"),),
    ),
    Mutant(
        "coalesced-run-in-parts",
        "coalesce-acked",
        "a coalesced run is written in several transactions",
        (Edit(CORE, "seg.atomic_to = max(seg.atomic_to, seg.acked)", "pass"),),
    ),
    Mutant(
        "coalesce-in-flight",
        "",
        "operations that a transaction under way holds are coalesced as well",
        (Edit(CORE, "low = max(seg.sent, seg.in_flight)", "low = (seg.written or 0)"),),
    ),
    Mutant(
        "wall-clock-commits",
        "",
        "commits go by the wall clock: one that is put back ends all writing until it has caught up",
        (
            Edit(
                CORE, "        self._note_times(now)\n", "        now = wall_us / 1e6\n        self._note_times(now)\n"
            ),
        ),
    ),
    Mutant(
        "cut-keeps-written",
        "",
        "what is written speaks of operations that this node has dropped since",
        (Edit(CORE, "seg.written = min(seg.written, sequence)", "pass"),),
    ),
    Mutant(
        "recreated-topic-overlooked",
        "",
        "a change topic that was deleted and made again is taken for the old one",
        (Edit(CORE, "if before and before != topic_id:", "if False:"),),
    ),
    Mutant(
        "truncation-overlooked",
        "",
        "a log that was cut is taken for whole",
        (Edit(CORE, "if intact is False or offset < seen:", "if False:"),),
        ("truncation",),
    ),
)

RESETS: Final = (
    Mutant(
        "rows-before-acked",
        "reset-acked-only",
        "rows are written whose position may never be acknowledged",
        (
            Edit(BATCH, "if segment.acked < reset.position[1] and reset.reason != Reason.CLEAR:", "if False:"),
            Edit(SCAN, "if scan.end_beyond:", "if False:"),
        ),
    ),
    Mutant(
        "open-reset-resumed",
        "open-reset-again",
        "a reset found open is no reason for another: readers hold the segment back for ever",
        (Edit(SCAN, "if scan.open_reset or open_reset:", "if False:"),),
    ),
    Mutant(
        "end-beyond-counts",
        "end-beyond-again",
        "a reset whose end lies beyond this node's history is taken for its truth",
        (Edit(SCAN, "if scan.end_beyond:", "if False:"),),
    ),
    Mutant(
        "reset-without-end",
        "",
        "the rows of a reset are written, its end is not",
        (Edit(BATCH, "            self._end(batch, segment, reset)\n", "            pass\n"),),
    ),
    Mutant(
        "chunks-of-several-moments",
        "",
        "each chunk of a reset reads the cache anew, so that no single position holds for all",
        (
            Edit(
                BATCH,
                "rows = reset.entries[reset.cursor : upto]",
                "rows = self._state.entries(segment.number)[reset.cursor : upto]",
            ),
        ),
    ),
    Mutant(
        "rows-behind-their-position",
        "",
        "a reset claims a position behind its rows: what follows is written and folded twice",
        (
            Edit(
                BATCH,
                "            reset.position = (segment.epoch, segment.last_sequence)\n",
                "            reset.position = reset.begin\n",
            ),
        ),
    ),
    Mutant(
        "sends-again-after-reset",
        "",
        "operations that the rows contain are written behind them again",
        (Edit(CORE, "seg.reset, seg.sent = None, reset.position[1]", "seg.reset, seg.sent = None, seg.sent"),),
    ),
    Mutant(
        "second-reset-forgotten",
        "",
        "a reset asked for while one is open is forgotten",
        (Edit(CORE, "seg.go(Phase.OWED if seg.owed else Phase.WRITING)", "seg.go(Phase.WRITING)"),),
    ),
    Mutant(
        "begin-not-read-back",
        "",
        "the base offset of a reset is the partition's end of before, not where its begin was read",
        (Edit(CORE, "seg.reset.begin_offset = seg.marker_offset", "seg.reset.begin_offset = seg.marker_offset + 1"),),
    ),
)

BACKUPS: Final = (
    Mutant(
        "state-counts-as-ops",
        "transfer-is-not-ops",
        "a node that got a state vouches for operations that it never had",
        (Edit(CORE, "seg.log.restart(sequence + 1)", "seg.log.restart(1)"),),
    ),
    Mutant(
        "one-op-too-few",
        "catch-up-by-ops",
        "an op log that lacks one operation is taken for whole",
        (
            Edit(
                DECIDE,
                "return complete_from <= sequence + 1\n\n\ndef knows",
                "return complete_from <= sequence + 2\n\n\ndef knows",
            ),
        ),
    ),
    Mutant(
        "always-by-state",
        "catch-up-by-ops",
        "backups catch up by state alone: two failovers in a row need a reset",
        (Edit(DECIDE, "return complete_from <= sequence + 1\n\n\ndef knows", "return False\n\n\ndef knows"),),
        detector="model N=3 CRASH=2",
        because="a needless reset costs work and loses nothing, and the judge allows it",
    ),
    Mutant(
        "eviction-not-captured",
        "primary-decides-eviction",
        "what the primary evicts is no operation: backups and Kafka keep it",
        (Edit(STORE, "self._append(segment, Reason.EVICT, key, None, None, before)", "pass"),),
    ),
    Mutant(
        "backup-expires",
        "primary-decides-eviction",
        "a backup leaves out what its own clock calls expired",
        (
            Edit(
                STORE,
                "        if operation.value is not None:\n            data[operation.key]",
                "        late = (operation.expires_at or 1e18) < self._clock() // 1000\n"
                "        if late:\n            data.pop(operation.key, None)\n"
                "        elif operation.value is not None:\n            data[operation.key]",
            ),
        ),
    ),
    Mutant(
        "answers-of-any-epoch",
        "answers-carry-epochs",
        "an answer to an older epoch's stream acknowledges this one's operations",
        (Edit(REPLICATOR, "                or epoch != segment.epoch\n", ""),),
    ),
    Mutant(
        "frames-of-any-epoch",
        "answers-carry-epochs",
        "a backup takes frames of an older primary",
        (
            Edit(
                BACKUP,
                "if self._is_primary(connection, segment, epoch) and segment.source is connection:",
                "if segment.role is Role.BACKUP and segment.source is connection:",
            ),
        ),
    ),
    Mutant(
        "frames-of-any-stream",
        "answers-carry-epochs",
        "a backup takes frames of a stream that another one has replaced",
        (
            Edit(
                BACKUP,
                "if self._is_primary(connection, segment, epoch) and segment.source is connection:",
                "if segment.role is Role.BACKUP:",
            ),
        ),
    ),
    Mutant(
        "requests-of-any-view",
        "answers-carry-epochs",
        "the controller follows requests made in an older view",
        (
            Edit(OFFICE, "if m in members and beat.topology_id == view.topology_id", "if m in members"),
            Edit(SIM_OFFICE, "if m in members and beat.topology_id == view.topology_id", "if m in members"),
        ),
    ),
    Mutant(
        "requests-of-anybody",
        "answers-carry-epochs",
        "the controller follows requests of an older epoch, or of one who is not primary",
        (Edit(CONTROLLER, "if sender != row.primary or request.epoch != row.epoch:", "if False:"),),
    ),
    Mutant(
        "shrinks-at-once",
        "in-sync-order",
        "the primary stops waiting for a backup before the view without it is there",
        (
            Edit(
                REPLICATOR,
                "segment.sessions[member].shrinking = True\n",
                "segment.sessions[member].shrinking = True\n                    segment.waiting.discard(member)\n",
            ),
        ),
    ),
    Mutant(
        "state-while-in-sync",
        "in-sync-order",
        "a backup takes a state while it is in the in-sync set",
        (
            Edit(
                REPLICATOR,
                "        if member in segment.waiting:\n            # CHECK",
                "        if False:\n            # CHECK",
            ),
        ),
    ),
    Mutant(
        "grows-before-waiting",
        "in-sync-order",
        "a newcomer is let in before the primary waits for it",
        (
            Edit(REPLICATOR, "self._wait_for(segment, segment.waiting | {link.member})", "pass"),
            Edit(REPLICATOR, '- {me or ""}) | streaming)', '- {me or ""}))'),
        ),
    ),
    Mutant(
        "in-sync-from-birth",
        "in-sync-order",
        "the controller lets a new segment's backups in before they hold anything",
        (Edit(CONTROLLER, "in_sync=row.owners[:1])", "in_sync=row.owners)"),),
    ),
    Mutant(
        "level-not-reached",
        "in-sync-order",
        "a backup is let in before it holds what was acknowledged without it",
        (Edit(REPLICATOR, " and session.answered >= session.level_from", ""),),
    ),
    Mutant(
        "acked-before-replicated",
        "",
        "an operation is acknowledged before the backups hold it",
        (Edit(REPLICATOR, "reached = min(reached, session.answered)", "reached = max(reached, session.answered)"),),
    ),
    Mutant(
        "unreachable-is-not-waited-for",
        "",
        "who has no connection at the moment is not waited for",
        (
            Edit(
                REPLICATOR,
                "            if session is None:\n                return\n            reached",
                "            if session is None:\n                continue\n            reached",
            ),
        ),
    ),
    Mutant(
        "unclean-election",
        "",
        "an owner that is not in sync is elected as if it were",
        (Edit(CONTROLLER, "if m in row.in_sync and m in self.live]", "if m in self.live]"),),
    ),
    Mutant(
        "history-of-last-epoch-only",
        "",
        "a backup takes over no epochs in which nothing was written yet",
        (
            Edit(
                BACKUP,
                "if self._apply(segment, frame.operations) == last_of(frame.history):",
                "if self._apply(segment, frame.operations) < 0:",
            ),
        ),
    ),
    Mutant(
        "history-not-extended",
        "",
        "an applied operation is not in the backup's history",
        (
            Edit(
                CORE,
                "        seg.history = past.extended(seg.history, operation.position)\n        if self",
                "        if self",
            ),
        ),
    ),
    Mutant(
        "common-point-too-far",
        "",
        "what a backup holds beyond the primary's end of that epoch counts as shared",
        (
            Edit(
                HISTORY,
                "max((min(last, end_of(primary, epoch)) for epoch, last in backup)",
                "max((last for epoch, last in backup if end_of(primary, epoch) >= 0)",
            ),
        ),
    ),
    Mutant(
        "dropped-keys-kept",
        "",
        "a backup drops operations that the primary does not have and keeps their values",
        (
            Edit(
                BACKUP, "for key, value, expires_at in frame.values:", "for key, value, expires_at in frame.values[:0]:"
            ),
        ),
    ),
    Mutant(
        "backup-drops-in-silence",
        "",
        "a backup without room drops an operation and goes on vouching for it",
        (Edit(CORE, "            seg.log.restart(operation.sequence + 1)\n", "            pass\n"),),
    ),
    Mutant(
        "state-in-parts",
        "",
        "a transferred state is swapped in with its last chunk alone",
        (Edit(BACKUP, "if frame.first:", "if True:"),),
    ),
    Mutant(
        "office-before-own-record",
        "read-to-own-record",
        "a new controller decides before it has read the views that were committed before",
        (
            Edit(OFFICE, "await read.wait()", "pass"),
            Edit(SIM_OFFICE, "elif self._nonce is not None and self._nonce.is_set():", "elif self._nonce is not None:"),
        ),
    ),
    Mutant(
        "pause-overlooked",
        "read-to-own-record",
        "a node that was stopped serves on before it has read what happened meanwhile",
        (Edit(SIM_NODE, "return self.engine.now - self._alive_at > self.world.failure_timeout", "return False"),),
    ),
    Mutant(
        "expired-by-time-alone",
        "",
        "an entry that was written again is expired by the time of the one before",
        (Edit(STORE, "if value is not None and value[1] == at:", "if value is not None:"),),
    ),
    Mutant(
        "older-view-applied",
        "",
        "a view that comes late replaces a newer one",
        (Edit(REGISTRY, "if view.topology_id > self.view.topology_id:", "if True:"),),
    ),
)

MUTANTS: Final = (*TAKEOVER, *WRITING, *RESETS, *BACKUPS)
"""All, by the part of the protocol that they break."""
