"""The mutants, as data. Each is a bug that could have been written, or was; `why` says what it would cause.

The texts are short, so that changes around them do not break them. `test_mutants.py` fails for each that does not fit.
"""

from __future__ import annotations

from typing import Final

from tests.mutants.tool import Edit, Mutant

CORE: Final = "connector/deelog_connector/core/connector_core.py"
BATCH: Final = "connector/deelog_connector/core/batch.py"
BUILDER: Final = "connector/deelog_connector/core/batch_builder.py"
TAKEOVERS: Final = "connector/deelog_connector/core/takeover.py"
SNAPSHOTS: Final = "connector/deelog_connector/core/snapshots.py"
RESET: Final = "connector/deelog_connector/core/resets.py"
TRANSACTIONS: Final = "connector/deelog_connector/core/transactions.py"
FENCING: Final = "connector/deelog_connector/core/fencing.py"
HANGING: Final = "connector/deelog_connector/core/hanging.py"
LEDGER: Final = "connector/deelog_connector/core/ledger.py"
LOG_WATCH: Final = "connector/deelog_connector/core/log_watch.py"
REPLICA: Final = "connector/deelog_connector/core/replica.py"
ROOM: Final = "connector/deelog_connector/core/room.py"
SCANS: Final = "connector/deelog_connector/core/scans.py"
SCAN: Final = "connector/deelog_connector/core/scan.py"
DECIDE: Final = "connector/deelog_connector/core/rules.py"
SEGMENT: Final = "connector/deelog_connector/core/segment.py"
HISTORY: Final = "connector/deelog_connector/core/history.py"
OPLOG: Final = "connector/deelog_connector/core/oplog.py"
HELD: Final = "connector/deelog_connector/core/reset_strategy.py"
ENCODE: Final = "connector/deelog_connector/runtime/encode.py"
CLIENTS: Final = "connector/deelog_connector/runtime/clients.py"
EXECUTOR: Final = "connector/deelog_connector/runtime/executor.py"
PRODUCERS: Final = "connector/deelog_connector/runtime/producers.py"
READERS: Final = "connector/deelog_connector/runtime/readers.py"
TOPOLOGY_TOPIC: Final = "interceptors/deelog_interceptors/grid/topology/topic.py"
TASKS: Final = "connector/deelog_connector/runtime/tasks.py"
CONNECTOR: Final = "connector/deelog_connector/runtime/connector.py"
SHELL_FILE: Final = "connector/deelog_connector/runtime/shell.py"
LIFECYCLE: Final = "connector/deelog_connector/runtime/lifecycle.py"
RUN_STATE: Final = "connector/deelog_connector/runtime/run_state.py"
PROCESSOR: Final = "connector/deelog_connector/signals/processor.py"
INCREMENTAL: Final = "connector/deelog_connector/signals/incremental_snapshots.py"
PROGRESS: Final = "connector/deelog_connector/signals/segment_progress.py"
KEPT_TOPIC: Final = "connector/deelog_connector/kept_topic.py"
KAFKA_ADMIN: Final = "connector/deelog_connector/kafka/admin.py"
KAFKA_CLIENT: Final = "connector/deelog_connector/kafka/client.py"
KAFKA_ELECTION: Final = "connector/deelog_connector/kafka/election.py"
KAFKA_PROGRESS: Final = "schemas/deelog_schemas/kafka/progress.py"
KAFKA_SESSION: Final = "connector/deelog_connector/kafka/session.py"
KAFKA_READER: Final = "connector/deelog_connector/kafka/reader.py"
STATE: Final = "connector/deelog_connector/core/state.py"
TABLE: Final = "connector/deelog_connector/core/positions_table.py"
PRIMARY: Final = "interceptors/deelog_interceptors/grid/replication/primary.py"
BACKUP: Final = "interceptors/deelog_interceptors/grid/replication/backup.py"
COMMANDS: Final = "interceptors/deelog_interceptors/redis/commands.py"
CAPTURE: Final = "interceptors/deelog_interceptors/redis/capture.py"
ADDRESS: Final = "interceptors/deelog_interceptors/redis/address.py"
REDIS_NODE: Final = "interceptors/deelog_interceptors/redis/node.py"
REDIS_LINK: Final = "interceptors/deelog_interceptors/redis/link.py"
REDIS_SHARD: Final = "interceptors/deelog_interceptors/redis/shard.py"
REDIS_READING: Final = "interceptors/deelog_interceptors/redis/reading.py"
SEGMENT_TAPE: Final = "interceptors/deelog_interceptors/redis/segment_tape.py"
STREAM_VIEW: Final = "interceptors/deelog_interceptors/redis/view.py"
SENTINELS: Final = "interceptors/deelog_interceptors/redis/sentinels.py"
TAPE: Final = "interceptors/deelog_interceptors/redis/tape.py"
CONTROLLER: Final = "interceptors/deelog_interceptors/grid/topology/controller.py"
GRID_NODE: Final = "interceptors/deelog_interceptors/grid/node.py"
STORE: Final = "interceptors/deelog_interceptors/grid/data/store.py"
LIVENESS: Final = "interceptors/deelog_interceptors/grid/topology/liveness.py"
CONTROLLER_SERVICE: Final = "interceptors/deelog_interceptors/grid/topology/controller_service.py"
LEASE: Final = "interceptors/deelog_interceptors/grid/topology/lease.py"
INTERCEPT: Final = "interceptors/deelog_interceptors/cachetools/intercept.py"
TELLING: Final = "interceptors/deelog_interceptors/cachetools/telling.py"
REGISTRY: Final = "interceptors/deelog_interceptors/grid/topology/registry.py"
PROCESS: Final = "interceptors/deelog_interceptors/hosting/process.py"
DIFF_JOB: Final = "spark/deelog_spark/diff_job.py"
CONNECTION: Final = "interceptors/deelog_interceptors/grid/resp/connection.py"
FRAMES: Final = "interceptors/deelog_interceptors/grid/replication/frames.py"
ROLES: Final = "interceptors/deelog_interceptors/grid/replication/roles.py"

RARE: Final = "several nodes must meet at moments that seeds rarely bring together"
NO_CAPTURE: Final = "the simulation captures no cache of its own process"
NO_PROGRAM: Final = "the simulation's nodes are started by it, not by the command"
QUOTAS: Final = "what costs time, and loses nothing, is none of the checker's, and a quota of the simulation ends"
ONE_CASE: Final = "it takes one case that seeds rarely bring together; a test of the part does at once"

TAKEOVER: Final = (
    Mutant(
        "no-fence",
        "fencing",
        "the claimants before are not fenced: an old primary writes behind the new one's ACTIVE",
        (
            Edit(
                TAKEOVERS,
                "segment.go(Phase.FENCE if segment.unfenced else Phase.ACTIVE)",
                "segment.go(Phase.ACTIVE)",
            ),
        ),
        faults=("pause",),
    ),
    Mutant(
        "fence-of-another-takeover",
        "claim-before-fence",
        "the answer to an earlier takeover's fence lets a later one go on, whose claimants nobody has fenced",
        (Edit(FENCING, " or segment.epoch != epoch:", ":"),),
        detector="pytest tests/connector/core/test_fencing.py -k of_another_takeover",
        because=RARE,
    ),
    Mutant(
        "base-offset-as-of-the-claim",
        "",
        "a reset that the old owner ends behind the claim is forgotten: readers that begin at the one before keep keys",
        (Edit(TAKEOVERS, "max(ledger.base_offset, *scan.complete_resets.values(), -1)", "ledger.base_offset"),),
        detector="pytest tests/connector/core/test_takeover.py -k base_offset_is_that_of",
        because=RARE,
    ),
    Mutant(
        "higher-claim-is-no-news",
        "claim-then-look",
        "an owner that nobody has fenced writes on beside one with a higher claim that it has read",
        (
            Edit(
                TAKEOVERS, "            segment.look_again()  # who claims this", "            pass  # who claims this"
            ),
        ),
        detector="pytest tests/connector/core/test_takeover.py -k though_nobody_was_fenced",
        because="every session of ours is fenced",
    ),
    Mutant(
        "transaction-without-answer",
        "truncation-noticed",
        "a transaction was cut into while it was open, and nobody waited for its answer: nobody misses what is gone",
        (Edit(TAKEOVERS, " or position.sequence > segment.sent:", ":"),),
        detector="pytest tests/connector/core/test_takeover.py -k cut_into_while_it_is_open",
        because=RARE,
    ),
    Mutant(
        "cut-rows-excused",
        "truncation-noticed",
        "rows of a reset that were cut away are taken for compacted once as many other keys have changed",
        (Edit(SCAN, "if self.begin >= self.unverified_from:", "if False:"),),
        detector="scenario reset_rows_cut_away",
        because=RARE,
    ),
    Mutant(
        "row-not-ahead",
        "",
        "operations are written below the rows of an incremental snapshot that an owner in between has sent",
        (Edit(SCAN, "if record.sequence > end_of(self.history, record.epoch):", "if False:"),),
        detector="pytest tests/connector/core/test_takeover.py",
        because=RARE,
    ),
    Mutant(
        "room-for-what-is-gone",
        "",
        "a write that waited for room while its segment was given away ends the node",
        (Edit(ROOM, "or number not in self._node.segments:", ":"),),
        detector="pytest tests/connector/core/test_room.py",
        because=RARE,
    ),
    Mutant(
        "bad-request-behind-others",
        "",
        "what is no request ends the node where it stands behind a command that waits, or behind 10,000 others",
        (Edit(CONNECTION, "except RequestError as problem:", "except ZeroDivisionError as problem:"),),
        detector="pytest tests/interceptors/grid/resp/test_connection.py",
        because=ONE_CASE,
    ),
    Mutant(
        "row-no-phantom",
        "correct-phantoms",
        "behind a filter a row shows what no survivor has, and nobody corrects it",
        (Edit(SCAN, "self.shown.add(record.key)", "pass"),),
        detector="pytest tests/connector/core/test_takeover.py",
        because=RARE,
    ),
    Mutant(
        "found-reset-not-missed",
        "truncation-noticed",
        "a reset that a new owner has found is missed by nobody when it is cut away before its next look",
        (Edit(SCAN, "if reset.offset >= 0 and reset not in again:", "if False:"),),
        detector="pytest tests/connector/core/test_log_watch.py",
        because=RARE,
    ),
    Mutant(
        "found-behind-the-claim-not-missed",
        "truncation-noticed",
        "what an old owner writes between a claim and its fence is found and not looked for again",
        (Edit(SCAN, "if sequences:  # also", "if sequences and not self.inherited_runs():  # also"),),
        detector="pytest tests/connector/core/test_scan.py -k another_owner_committed",
        because=RARE,
    ),
    Mutant(
        "coalesced-for-ever",
        "truncation-noticed",
        "what was coalesced before readers begin excuses what is cut away behind it",
        (Edit(LEDGER, "if run[0] > self.read_from_sequence]", "if run]"),),
        detector="pytest tests/connector/core/test_log_watch.py",
        because=RARE,
    ),
    Mutant(
        "coalesced-before-a-reset",
        "truncation-noticed",
        "what was coalesced before a reset excuses what is cut away behind it",
        (Edit(LEDGER, "self.coalesced_runs.clear()", "pass"),),
        detector="pytest tests/connector/core/test_ledger.py",
        because=RARE,
    ),
    Mutant(
        "clear-not-waited-for",
        "",
        "a snapshot is complete while the clear that took its keys is not written",
        (Edit(SNAPSHOTS, "if len(rows) < upto - snapshot.cursor:", "if again:"),),
        detector="pytest tests/connector/core/test_snapshots.py",
        because=RARE,
    ),
    Mutant(
        "lost-positions-are-a-first-start",
        "",
        "without a first snapshot a cache whose positions were lost comes back without a reset",
        (Edit(TAKEOVERS, " or not scan.is_empty", ""),),
        detector="pytest tests/connector/core/test_takeover.py",
        because=ONE_CASE,
    ),
    Mutant(
        "too-slow-run-for-ever",
        "",
        "a run that Kafka does not take in time as one transaction comes again for ever",
        (Edit(TRANSACTIONS, "self._give_up(batch)", "pass"),),
        detector="pytest tests/connector/core/test_transactions.py",
        because=QUOTAS,
    ),
    Mutant(
        "numbers-unchecked",
        "",
        "the number of a segment that there is not, in a frame of another member, ends the node",
        (Edit(FRAMES, "if not 0 <= number < segments:", "if False:"),),
        detector="pytest tests/interceptors/grid/replication/test_frames.py",
        because=ONE_CASE,
    ),
    Mutant(
        "frames-of-any-size",
        "",
        "operations go in frames that the other side refuses, for ever",
        (Edit(FRAMES, "if size >= CHUNK_BYTES:", "if False:"),),
        detector="pytest tests/interceptors/grid/replication/test_frames.py",
        because=ONE_CASE,
    ),
    Mutant(
        "release-that-nobody-writes",
        "",
        "a segment to be handed over takes no writes while its partition has no leader",
        (
            Edit(
                ROLES,
                "if row.target is not None and not held_up and not self._core.withholds(segment.number):",
                "if row.target is not None and not held_up:",
            ),
        ),
        detector="pytest tests/interceptors/grid/replication/test_roles.py",
        because=ONE_CASE,
    ),
    Mutant(
        "release-to-nobody",
        "",
        "a segment takes no writes for ever, since who should have it is gone while the connector is held up",
        (
            Edit(
                ROLES,
                "if segment.role is not Role.PRIMARY or segment.released:",
                "if segment.role is not Role.PRIMARY or row.target is None or segment.released:",
            ),
        ),
        detector="pytest tests/interceptors/grid/replication/test_roles.py",
        because=ONE_CASE,
    ),
    Mutant(
        "partition-not-withheld",
        "",
        "one partition without a leader holds up the segments of all others",
        (Edit(STATE, "if self.withheld else list(segments)", "if False else list(segments)"),),
        detector="pytest tests/connector/runtime/test_one_partition.py",
        because=ONE_CASE,
    ),
    Mutant(
        "spare-claim-unsaid",
        "claim-before-fence",
        "who is paused with its spare producer is fenced by the other one, and writes on when it resumes",
        (Edit(BATCH, ", segment.awaited, spare, above)", ", segment.awaited, False, above)"),),
        detector="pytest tests/connector/core/test_transactions.py -k spare_producer_say_so",
        because=ONE_CASE,
    ),
    Mutant(
        "held-up-for-good",
        "",
        "a partition with too few replicas ends all writing, since the last transaction of the id does not end",
        (Edit(PRODUCERS, "                self.spare = not self.spare\n", ""),),
        detector="pytest tests/connector/runtime/test_one_partition.py",
        because=ONE_CASE,
    ),
    Mutant(
        "spare-before-it-is-known-why",
        "",
        "the second producer writes to the partition that holds up the first one, and is held up as well",
        (Edit(PRODUCERS, "error.held_up and self.unwritable", "error.held_up"),),
        detector="pytest tests/connector/runtime/test_producers.py -k goes_on_where",
        because=ONE_CASE,
    ),
    Mutant(
        "spare-where-held-up-alone",
        "",
        "a node whose coordinator is out of reach writes nothing, though its second producer has another one",
        (Edit(PRODUCERS, "or error.uncoordinated", ""),),
        detector="pytest tests/connector/runtime/test_one_partition.py -k coordinator",
        because=ONE_CASE,
    ),
    Mutant(
        "waits-for-the-coordinator",
        "",
        "a transaction waits for the end that its coordinator, which is out of reach, does not answer",
        (Edit(KAFKA_SESSION, "self._connections.hopeless or late)", "self._connections.hopeless)"),),
        detector="pytest tests/connector/kafka/test_session.py -k coordinator",
        because="no simulated broker has librdkafka's client",
    ),
    Mutant(
        "leader-out-of-reach-unnoticed",
        "",
        "a leader that this machine does not reach is in no metadata, and holds up the segments of all others",
        (Edit(KAFKA_ADMIN, "unwritable | self._silent(topic, led)", "unwritable"),),
        detector="pytest tests/connector/kafka/test_admin.py -k leader_that_does_not_answer",
        because="no simulated broker has librdkafka's client",
    ),
    Mutant(
        "one-broker-asked",
        "",
        "requests that any broker answers go to the one that is out of reach, and Kafka counts as away",
        (Edit(KAFKA_ADMIN, "if first < self._seconds and any(", "if first > self._seconds and any("),),
        detector="pytest tests/connector/kafka/test_admin.py -k another_broker",
        because="no simulated broker has librdkafka's client",
    ),
    Mutant(
        "epoch-of-the-first-owner",
        "",
        "an owner finds its log whole under a new leader, and its successor takes it for one that was cut",
        (Edit(TAKEOVERS, "max(position.leader_epoch, known) if position", "position.leader_epoch if position"),),
        detector="scenario verified_under_a_new_leader",
        because="costs a reset that the checker allows in a partition that was cut",
    ),
    Mutant(
        "withheld-for-its-coordinator",
        "",
        "a partition that is back waits for the coordinator of a producer that has left nothing open there",
        (
            Edit(
                PRODUCERS,
                "                        continue\n",
                "                        continue\n                    continue\n",
            ),
        ),
        detector="pytest tests/connector/runtime/test_producers.py -k nothing_open",
        because=ONE_CASE,
    ),
    Mutant(
        "position-of-the-last-look",
        "truncation-noticed",
        "an offset of one leader is named with the epoch of another: a log that is whole counts as cut",
        (Edit(BATCH, "            ledger.leader_epoch,\n", "            changes.leader_epoch(segment.partition),\n"),),
        detector="pytest tests/connector/core/test_takeover.py -k leader_under_whom",
        because=ONE_CASE,
    ),
    Mutant(
        "goes-before-it-is-known-why",
        "",
        "a key that expired is told as removed, though the server says why it went",
        (Edit(CAPTURE, "upto = min(upto, self._heard_upto)", "pass"),),
        detector="pytest tests/interceptors/redis/test_capture.py -k once_it_is_known_why",
        because=ONE_CASE,
    ),
    Mutant(
        "a-reason-of-another-time",
        "",
        "a key that was removed by hand is told as expired, since its expiry is not on the tape any more",
        (Edit(SEGMENT_TAPE, "if low < gone:", "if False:"),),
        detector="pytest tests/interceptors/redis/test_capture.py -k not_here_any_more",
        because=ONE_CASE,
    ),
    Mutant(
        "reset-again-by-who-hears-later",
        "",
        "a cut that an owner has reset is reset once more by its successor, which hears of the new leader later",
        (Edit(LOG_WATCH, "if epoch < leader_epoch <= segment.ledger.leader_epoch", "if False"),),
        detector="pytest tests/connector/core/test_takeover.py -k not_reset_again",
        because=ONE_CASE,
    ),
    Mutant(
        "leader-of-the-topic-before",
        "truncation-noticed",
        "a cut in the first reset of a topic that was made again counts as seen under a leader of the topic before",
        (
            Edit(
                LEDGER,
                "        self.leader_epoch = -1\n        self._forget_ends()\n",
                "        self._forget_ends()\n",
            ),
        ),
        detector="scenario cut_in_reset_of_topic_made_again",
        because="takes three faults within the seconds of one reset",
    ),
    Mutant(
        "cut-under-the-same-leader",
        "truncation-noticed",
        "a log that lost records without a new leader counts as seen under that leader, and is not reset",
        (Edit(LOG_WATCH, "if epoch < leader_epoch <= s", "if leader_epoch <= s"),),
        detector="pytest tests/connector/core/test_log_watch.py -k truncation_is_noticed",
        because=ONE_CASE,
    ),
    Mutant(
        "failed-before-it-is-known-why",
        "",
        "a transaction fails before Kafka says that a partition has no leader, and the next of its id commits it there",
        (
            Edit(PRODUCERS, "        left_open.update(partitions)\n        try:", "        try:"),
            Edit(PRODUCERS, "            left_open.update(partitions)  # again", "            pass  # again"),
        ),
        detector="pytest tests/connector/runtime/test_one_partition.py -k before_kafka_knew",
        because=ONE_CASE,
    ),
    Mutant(
        "lost-while-it-aborts",
        "",
        "an abort counts whose marker was lost with the leader, and the next commit commits what was to be aborted",
        (Edit(PRODUCERS, "those -= found - hidden", "those -= found"),),
        detector="scenario lost_while_it_aborts",
        because=RARE,
    ),
    Mutant(
        "failed-behind-an-abort",
        "",
        "a transaction that waits for an abort and fails counts as aborted, too, and the next of its id commits it",
        (Edit(PRODUCERS, "            left_open.update(partitions)  # again", "            pass  # again"),),
        detector="pytest tests/connector/runtime/test_producers.py -k fails_behind_an_abort",
        because=ONE_CASE,
    ),
    Mutant(
        "view-hidden-for-good",
        "",
        "a view whose transaction's end is lost with a leader is read by nobody, nor is what registers behind it",
        (
            Edit(
                CONTROLLER_SERVICE, "        return unread and late and", "        return False and unread and late and"
            ),
        ),
        detector="scenario view_hidden_for_good",
        because=RARE,
    ),
    Mutant(
        "own-record-hidden-for-good",
        "",
        "the record that begins a term is hidden with its end, and the group's controller waits for it for ever",
        (
            Edit(
                CONTROLLER_SERVICE,
                "self._lost_at >= asked or await self._group() is not None",
                "self._lost_at >= asked",
            ),
        ),
        detector="pytest tests/interceptors/grid/topology/test_controller_service.py -k kafka_hides",
        because=ONE_CASE,
    ),
    Mutant(
        "registration-hidden-for-good",
        "",
        "nodes that start wait for their registrations, which the topology topic hides until one of them is controller",
        (
            Edit(
                GRID_NODE,
                "        self.controller_service.start()\n        await self._or_failure(reading)\n",
                "        await self._or_failure(reading)\n        self.controller_service.start()\n",
            ),
        ),
        detector="scenario hidden_from_all_that_start",
        because=RARE,
    ),
    Mutant(
        "idle-and-hidden",
        "",
        "the last transaction of an owner that nobody writes to hides others' positions for good",
        (Edit(TRANSACTIONS, "        self._hanging.committed(batch.items)\n", ""),),
        detector="scenario hidden_by_who_is_idle",
        because=RARE,
    ),
    Mutant(
        "left-open-for-good",
        "",
        "what a dead node's transaction has left open on a partition without leader hides all that follows",
        (Edit(CLIENTS, "await self.fence(producer, self.places(partition))", "await self.fence(producer)"),),
        detector="pytest tests/connector/runtime/test_one_partition.py",
        because=ONE_CASE,
    ),
    Mutant(
        "hidden-claimant-unknown",
        "",
        "a claim that its own transaction hides keeps back whoever claims next: it is not known whom to fence",
        (Edit(HANGING, "member = found.member or ", "member = "),),
        detector="pytest tests/connector/runtime/test_one_partition.py -k its_own_transaction_hides",
        because=ONE_CASE,
    ),
    Mutant(
        "claim-without-the-highest-epoch",
        "",
        "the highest epoch is forgotten with a topic of positions, and what is written below it is dropped by readers",
        (Edit(BATCH, "above, spare = self.node.positions.above(segment.epoch),", "above, spare = 0,"),),
        detector="pytest tests/connector/core/test_batch.py -k highest_epoch",
        because=RARE,
    ),
    Mutant(
        "release-without-the-highest-epoch",
        "",
        "the highest epoch that a claim has told of is forgotten with its release",
        (Edit(TAKEOVERS, ", highest=node.positions.above(segment.epoch))", ")"),),
        detector="pytest tests/connector/core/test_takeover.py -k highest_epoch",
        because=RARE,
    ),
    Mutant(
        "stepped-down-and-forgotten",
        "",
        "a node steps down before a claim that only the change topic has, and as controller gives out epochs below it",
        (Edit(TAKEOVERS, "        node.positions.claimed(epoch)  # the positions topic may have lost it\n", ""),),
        detector="scenario claim_on_the_change_topic_alone",
        because=RARE,
    ),
    Mutant(
        "writer-forgotten-with-positions",
        "",
        "who started since positions were lost does not know whose transaction is left open, and waits for good",
        (Edit(ROLES, "        self._core.met(row.in_sync)\n", ""),),
        detector="scenario left_open_and_positions_lost",
        because=RARE,
    ),
    Mutant(
        "hanging-ended-by-its-superior",
        "",
        "whoever is superseded fences the owner that has superseded it, for as long as that one's record hides its own",
        (Edit(HANGING, "max(epochs, default=segment.epoch) < segment.epoch", "epochs"),),
        detector="pytest tests/connector/core/test_hanging.py",
        because=ONE_CASE,
    ),
    Mutant(
        "claim-of-another-cache",
        "",
        "two caches whose names give one topic write it for ever, and readers drop half of it",
        (Edit(READERS, "if (claim.prefix, claim.cache) != names:", "if False:"),),
        detector="pytest tests/connector/runtime/test_readers.py -k claim_of_another_cache",
        because="the simulation has one cache",
    ),
    Mutant(
        "fence-before-claim",
        "claim-before-fence",
        "who is fenced before the claim stands re-reads the claims and does not find it",
        (
            Edit(
                CORE,
                "        self._node.own(seg)\n",
                "        self._node.own(seg)\n"
                "        from deelog_connector.core.effects import Fence\n"
                "        known = self._node.producers_of(self.table.claimants(segment), ())\n"
                "        self._node.outbox += [Fence(one, ()) for one in sorted(known)]\n",
            ),
            Edit(
                TAKEOVERS,
                "segment.go(Phase.FENCE if segment.unfenced else Phase.ACTIVE)",
                "segment.go(Phase.ACTIVE)",
            ),
        ),
        detector="scenario claim_before_fence",
        because=RARE,
    ),
    Mutant(
        "look-passed-over",
        "claim-then-look",
        "a node whose claim is outranked goes on to fence and write",
        (
            Edit(
                TAKEOVERS,
                "if self._step_down(segment, known.ranked | scan.claims) or self._is_superseded(segment, scan):",
                "if False:",
            ),
        ),
        detector="pytest tests/connector/core/test_takeover.py -k lower_claim_that_comes_late",
        because=ONE_CASE,
    ),
    Mutant(
        "end-is-the-end",
        "read-to-own-record",
        "the last stable offset counts as the end, though somebody's open transaction hides what stands behind it",
        (
            Edit(SCANS, "            elif segment.marker_offset >= 0:\n", "            else:\n"),
            Edit(
                EXECUTOR,
                "                if not wanted:\n                    break",
                "                if not wanted or reader.caught_up:\n                    break",
            ),
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
        "claims-in-changes-only",
        "claims-outlive-compaction",
        "the positions topic's claims are not looked at: what is below read_from or compacted away is not fenced",
        (
            Edit(TAKEOVERS, "if self._step_down(segment, known.ranked | scan", "if self._step_down(segment, scan"),
            Edit(TAKEOVERS, "to_fence(known.claims | scan.claims, member)", "to_fence(scan.claims, member)"),
        ),
        detector="pytest tests/connector/core/test_takeover.py -k test_release_keeps_rank",
        because=RARE,
    ),
    Mutant(
        "one-claim-key",
        "claim-key-per-member",
        "one claim per segment: each overwrites the one before",
        (Edit(TABLE, "self.claims[segment][record.member] = state", "self.claims[segment] = {record.member: state}"),),
        detector="pytest tests/connector/core/test_takeover.py -k higher_claim_seen",
        because=ONE_CASE,
    ),
    Mutant(
        "no-recheck",
        "recheck-after-fence",
        "a fenced primary opens a new session and writes on",
        (
            Edit(
                TRANSACTIONS,
                "            # CHECK recheck-after-fence\n            segment.look_again()\n",
                "            pass\n",
            ),
        ),
    ),
    Mutant(
        "recheck-looks-at-nothing",
        "recheck-after-fence",
        "behind its fresh ACTIVE a fenced primary does not ask for higher claims",
        (Edit(TAKEOVERS, "if segment.recheck and self._step_down(segment, known.ranked | scan.claims):", "if False:"),),
        detector="pytest tests/connector/core/test_takeover.py -k higher_claim_seen",
        because=ONE_CASE,
    ),
    Mutant(
        "recheck-skips-fence",
        "recheck-keeps-place",
        "fenced before its own FENCE, a node goes straight to ACTIVE",
        (
            Edit(SEGMENT, "Phase.LOOK: Phase.CLAIM,", "Phase.LOOK: Phase.ACTIVE,"),
            Edit(SEGMENT, "Phase.FENCE: Phase.FENCE,", "Phase.FENCE: Phase.ACTIVE,"),
        ),
        detector="scenario recheck_keeps_place",
        because=RARE,
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
        detector="scenario fenced_for_no_reason",
        because="it costs takeovers and loses nothing, and the checker allows it while it ends",
    ),
    Mutant(
        "writes-after-release",
        "release-is-final",
        "a node goes on writing after its release, whom the next owner does not fence",
        (Edit(TAKEOVERS, "        segment.go(Phase.RELEASED)\n", "        segment.phase = Phase.WRITING\n"),),
        faults=("leave",),
    ),
    Mutant(
        "release-forgets-rank",
        "release-keeps-rank",
        "of who has released nothing is left: whom it superseded, and who slept since, finds no claim above its own",
        (Edit(SEGMENT, "self.claims if self.released is None else self.claims | {self.released}", "self.claims"),),
        detector="pytest tests/connector/core/test_positions_table.py -k view_of_a_segment",
        because="records of the next owner, which a look reads, tell the same",
    ),
    Mutant(
        "released-claim-stays",
        "",
        "a claim outlives its release: whoever takes the segment from the heir fences a node that goes on with others",
        (Edit(TAKEOVERS, "claim_key(segment.number, node.member), None", 'claim_key(segment.number, "n@0"), None'),),
        detector="scenario rolling_restart",
        because="it costs a fence, after which the fenced one looks again and loses nothing",
    ),
    Mutant(
        "claim-ends-before-release",
        "",
        "who reads up to a record that stands amid a release finds neither the claim nor the release",
        (
            Edit(
                TAKEOVERS,
                "        state = ReleaseState(*position,",
                "        own = claim_key(segment.number, node.member)\n"
                "        batch.state(Kind.CLAIM_STATE, segment, position, own, None)\n"
                "        state = ReleaseState(*position,",
            ),
        ),
        detector="pytest tests/connector/core/test_takeover.py -k no_offset",
        because=RARE,
    ),
    Mutant(
        "snapshot-over-too-early",
        "",
        "a snapshot is complete while a delete is not written: where that is lost with its owner, the key had no row",
        (Edit(SNAPSHOTS, "and segment.sent >= snapshot.complete_at:", "and True:"),),
        detector="pytest tests/connector/core/test_snapshots.py -k stand_for_rows",
        because="one seed in 7,000",
    ),
    Mutant(
        "released-with-rows-unseen",
        "",
        "a segment is given away while nobody has looked whether rows of a snapshot still stand: the heir cannot know",
        (Edit(BUILDER, "drained and not segment.ledger.has_unverified_rows:", "drained:"),),
        detector="pytest tests/connector/core/test_snapshots.py -k released_once_its_rows",
        because="one seed in 7,000",
    ),
    Mutant(
        "snapshot-rows-uncounted",
        "",
        "rows of an incremental snapshot that are cut away are not missed, and it is said to be complete",
        (Edit(SNAPSHOTS, "if chunk.rows and not self._node.settings.may_skip:", "if False:"),),
        detector="scenario snapshot_rows_lost",
        because="a cut must fall between a chunk and the next look at the log's end: one seed in 300",
    ),
    Mutant(
        "empty-snapshot-by-anybody",
        "",
        "a node that has lost a segment, empty when it had it, says that its snapshot is complete",
        (Edit(SNAPSHOTS, "elif upto == len(snapshot.keys) and", "elif False and"),),
        detector="pytest tests/connector/core/test_transactions.py -k chunk_without_rows",
        because=RARE,
    ),
    Mutant(
        "take-backs-uncounted",
        "",
        "deletes of a reset that are cut away are not missed: consumers that know of no resets hold the keys for ever",
        (Edit(RESET, "if reset.gone:", "if False:"),),
        detector="scenario take_backs_lost",
        because="a cut must fall between two transactions of a reset that takes back: one seed in 1,500",
    ),
    Mutant(
        "torn-reset-vouches",
        "",
        "a reset of which some deletes were cut away vouches for what lies below it: those keys are not looked for",
        (Edit(HELD, "taken > len(self._deleted) or", ""),),
        detector="scenario take_backs_lost",
        because="a cut must fall between two transactions of a reset that takes back: one seed in 1,500",
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
        detector="scenario continuity",
        because="exactly one operation must be missing",
    ),
    Mutant(
        "read-behind-read-from",
        "",
        "READ begins a few records behind read_from: phantoms and positions there are not seen",
        (
            Edit(
                TAKEOVERS,
                "segment.scan_next = min(start.offset, segment.scan_next)",
                "segment.scan_next = min(start.offset, segment.scan_next) + 3",
            ),
        ),
    ),
    Mutant(
        "read-from-beyond",
        "",
        "READ trusts the read_from of a position that its own history does not hold",
        (Edit(SCAN, "if position.sequence <= end_of(history, position.epoch):", "if True:"),),
        detector="scenario read_from_trails",
        because=RARE,
    ),
    Mutant(
        "read-from-at-once",
        "read-from-trails",
        "read_from moves before every in-sync owner holds what lies below it",
        (
            Edit(
                LEDGER,
                "if candidate is None or candidate[1] > min(written, replicated) or written < atomic_to:",
                "if candidate is None:",
            ),
        ),
        detector="model N=3 KEYS=2 OPS=2 CRASH=2 ACKS=1 corrections_in_one_transaction=0",
        because="two takeovers, one right after the other, must fall between two reads of a partition's end",
    ),
    Mutant(
        "view-reset-forgotten",
        "",
        "the reset that the view asks for, because all owners were lost, is not owed",
        (Edit(SEGMENT, "self.owed = must_reset or self.owed", "self.owed = self.owed"),),
        detector="scenario owners_lost_at_once",
        because="a node that knows nothing resets anyway, for another reason",
    ),
)

WRITING: Final = (
    Mutant(
        "snapshot-row-before-its-change",
        "",
        "a row of an incremental snapshot says what is not written yet, and may never be",
        (Edit(SNAPSHOTS, "            if key in pending:", "            if not key:"),),
    ),
    Mutant(
        "snapshot-row-beyond-what-is-written",
        "",
        "a row stands under a position beyond operations that are still to come: readers drop them as repeats",
        (
            Edit(
                BATCH,
                "return segment.history[-1] if segment.sent == segment.last_sequence else None",
                "return segment.history[-1]",
            ),
        ),
    ),
    Mutant(
        "snapshot-noted-before-it-is-vouched-for",
        "",
        "rows of a snapshot that are lost together with their owner are missed by nobody: it is complete already",
        (Edit(INCREMENTAL, "elif whole and now", "elif now"),),
        detector="pytest tests/connector/signals/test_incremental_snapshots.py -k lost_together_with_their_owner",
        because=RARE,
    ),
    Mutant(
        "snapshot-of-a-segment-forgets-a-key",
        "",
        "an incremental snapshot that is told as whole lacks an entry",
        (Edit(SNAPSHOTS, "snapshot.keys[snapshot.cursor : ", "snapshot.keys[snapshot.cursor + 1 : "),),
    ),
    Mutant(
        "overtaken-by-a-phantom",
        "correct-phantoms",
        "a new owner writes below a phantom, and readers take that for repeats",
        (Edit(TAKEOVERS, "if reason is None and is_overtaken(", "if False and is_overtaken("),),
        detector="pytest tests/connector/core/test_takeover.py -k below_a_phantom",
        because=RARE,
    ),
    Mutant(
        "written-off-by-one",
        "",
        "a node believes one position more written than Kafka holds",
        (
            Edit(
                LOG_WATCH,
                "segment.written = max(segment.written or 0, state.sequence)",
                "segment.written = max(segment.written or 0, state.sequence + 1)",
            ),
        ),
    ),
    Mutant(
        "prune-one-more",
        "",
        "the op log drops one operation more than is committed",
        (Edit(OPLOG, "self._upto(sequence)\n        if count:", "self._upto(sequence + 1)\n        if count:"),),
    ),
    Mutant(
        "prune-at-commit-request",
        "",
        "operations are dropped once they are put into a transaction, not once it is read back",
        (
            Edit(
                BUILDER,
                "        last = operations[-1]\n",
                "        last = operations[-1]\n        segment.log.prune(last.sequence)\n",
            ),
        ),
        detector="scenario own_transaction_hangs",
        because=RARE,
    ),
    Mutant(
        "prune-any-position",
        "prune-in-history",
        "a position of a history that this node never had prunes its op log",
        (Edit(LOG_WATCH, "if not past.holds(segment.history, state.position):", "if False:"),),
    ),
    Mutant(
        "unacked-written",
        "",
        "operations are written before they are acknowledged",
        (
            Edit(
                BUILDER,
                "max_batch_size - batch.entries, segment.acked, False",
                "max_batch_size - batch.entries, segment.last_sequence, False",
            ),
        ),
        detector="pytest tests/connector/core/test_batch_builder.py -k where_the_segment_is_then",
        because="phantoms are corrected, so that it costs records and loses nothing",
    ),
    Mutant(
        "log-drained-backwards",
        "",
        "an op log is drained newest first",
        (Edit(OPLOG, "end, key=_sequence)]", "end, key=_sequence)][::-1]"),),
    ),
    Mutant(
        "log-begins-one-late",
        "",
        "the first operation that was not sent yet is left out",
        (Edit(OPLOG, "first = self._upto(sequence)", "first = self._upto(sequence + 1)"),),
    ),
    Mutant(
        "lost-answer-sent-again",
        "",
        "a commit of unknown outcome is repeated without looking",
        (
            Edit(
                TRANSACTIONS,
                "        if cause is Cause.REFUSED:\n",
                "        if cause is Cause.LOST:\n            return\n        if cause is Cause.REFUSED:\n",
            ),
        ),
        faults=("kafka",),
    ),
    Mutant(
        "clear-as-change",
        "",
        "a clear is written as a change of an empty key, not as begin and end",
        (Edit(BUILDER, "if operation.reason == Reason.CLEAR:", "if False:"),),
    ),
    Mutant(
        "clear-keeps-what-follows",
        "",
        "what follows a clear in a batch is written before it",
        (Edit(BUILDER, "                del operations[index:]\n", "                del operations[index]\n"),),
    ),
    Mutant(
        "overflow-owes-nothing",
        "nothing-over-a-hole",
        "a dropped op log owes no reset, and what follows is written over the hole",
        (
            Edit(
                ROOM,
                'self._resets.request(number, "overflow")',
                "segment.sent = max(segment.sent, segment.last_sequence)",
            ),
        ),
    ),
    Mutant(
        "writes-over-a-hole",
        "nothing-over-a-hole",
        "a segment that owes a reset writes on until it has nothing left",
        (
            Edit(
                RESET,
                "        if at_once or instead:\n",
                "        if segment.phase is Phase.WRITING and segment.last_sequence > segment.sent:\n"
                "            segment.owed = reason\n"
                "        elif at_once or instead:\n",
            ),
        ),
    ),
    Mutant(
        "coalesce-unacked",
        "coalesce-acked",
        "an operation that is not acknowledged replaces one that is",
        (
            Edit(
                ROOM,
                "segment.log.fitting(low, segment.replicated,",
                "segment.log.fitting(low, segment.last_sequence,",
            ),
        ),
        detector="scenario coalesce_acked",
        because=RARE,
    ),
    Mutant(
        "run-cut-by-a-takeover",
        "coalesce-acked",
        "a run that was coalesced before a second takeover of one node comes in several transactions",
        (Edit(TAKEOVERS, "segment.atomic_to = max(segment.atomic_to, gaps[-1][0], ", "max(0, "),),
        detector="pytest tests/connector/core/test_takeover.py -k another_takeover",
        because=ONE_CASE,
    ),
    Mutant(
        "run-cut-before-its-end",
        "coalesce-acked",
        "after a second takeover an operation comes without the one behind it, to which others before it gave way",
        (Edit(TAKEOVERS, "gaps[-1][0], segment.log.run_behind(written))", "gaps[-1][0])"),),
        detector="pytest tests/connector/core/test_two_faults.py -k comes_with_it",
        because=RARE,
    ),
    Mutant(
        "coalesced-across-a-clear",
        "",
        "a create behind a clear is told as an update, with an image from before the clear",
        (Edit(OPLOG, "within = dropped[cleared:]", "within = dropped"),),
        detector="pytest tests/connector/core/test_oplog.py -k a_clear_replaces_all",
        because=ONE_CASE,
    ),
    Mutant(
        "run-cut-behind-a-clear",
        "coalesce-acked",
        "a coalesced run behind a clear comes in several transactions",
        (
            Edit(
                RESET,
                "segment.reset, segment.sent = None, sequence",
                "segment.reset, segment.sent, segment.atomic_to = None, sequence, 0",
            ),
        ),
        detector="pytest tests/connector/core/test_batch_builder.py -k behind_a_clear",
        because=ONE_CASE,
    ),
    Mutant(
        "coalesce-unreplicated",
        "coalesce-acked",
        "below acks=all an operation that the next owner may lack replaces one that it holds",
        (Edit(ROOM, "segment.log.fitting(low, segment.replicated,", "segment.log.fitting(low, segment.acked,"),),
        detector="scenario coalesced_and_lost",
        because=RARE,
    ),
    Mutant(
        "wall-clock-commits",
        "",
        "commits go by the wall clock: one that is put back ends all writing until it has caught up",
        (
            Edit(
                CORE,
                "        node.now, node.wall_us = now, wall_us\n",
                "        now = wall_us / 1e6\n        node.now, node.wall_us = now, wall_us\n",
            ),
        ),
        faults=("clock",),
    ),
    Mutant(
        "recreated-topic-overlooked",
        "",
        "a change topic that was deleted and made again is taken for the old one",
        (Edit(LOG_WATCH, "if not changes.is_another(topic_id):", "if True:"),),
        faults=("log",),
    ),
    Mutant(
        "cut-in-a-takeover",
        "truncation-noticed",
        "a new owner resumes though the change topic lost what the positions topic tells of",
        (Edit(SCAN, "if scan.is_truncated:", "if False:"),),
        ("truncation",),
    ),
    Mutant(
        "truncation-overlooked",
        "truncation-noticed",
        "a log that was cut is taken for whole",
        (Edit(LOG_WATCH, "if intact is False or offset < seen:", "if False:"),),
        detector="pytest tests/connector/core/test_log_watch.py",
        because="who looks at the ends finds most of it by the leader's epoch",
    ),
)

RESETS: Final = (
    Mutant(
        "own-records-not-missed",
        "truncation-noticed",
        "who regains a segment does not look for what it wrote when it last had it",
        (
            Edit(
                TAKEOVERS,
                "        if position.leader_epoch != self._node.changes.leader_epoch(segment.partition):",
                "        if position.leader_epoch != self._node.changes.leader_epoch(segment.partition) "
                "and position.member != self._node.member:",
            ),
        ),
        detector="scenario cut_before_it_came_back",
        because=RARE,
    ),
    Mutant(
        "found-is-forgotten",
        "truncation-noticed",
        "an owner that looked again at what it had written does not miss it when it is cut off behind that",
        (Edit(TAKEOVERS, "scan.to_find_again(offset, ledger.read_from_sequence)", "scan.inherited_runs()"),),
        detector="scenario cut_after_it_was_found",
        because=RARE,
    ),
    Mutant(
        "in-flight-is-below",
        "truncation-noticed",
        "what was in flight at a look counts as below its end: cut off there, the last of a segment is not missed",
        (Edit(LEDGER, "in_flight <= self.written_at_last_look)", "True)"),),
        detector="pytest tests/connector/core/test_ledger.py -k in_flight",
        because=RARE,
    ),
    Mutant(
        "ends-outlive-a-promotion",
        "",
        "an offset that was seen before a demotion, perhaps of another topic, is where the next owner begins",
        (
            Edit(
                LEDGER,
                "        self.is_complete = False\n        self._forget_ends()\n",
                "        self.is_complete = False\n",
            ),
        ),
        detector="pytest tests/connector/core/test_ledger.py",
        because=ONE_CASE,
    ),
    Mutant(
        "waits-for-who-is-suspected",
        "",
        "after a refusal a suspect that waits for somebody's open transaction holds up all other segments",
        (Edit(TRANSACTIONS, "self._suspects.insert(0, group)", "return self._suspects.append(group) or batch"),),
        detector="pytest tests/connector/core/test_transactions.py",
        because=ONE_CASE,
    ),
    Mutant(
        "waits-for-keys-that-are-hidden",
        "",
        "a reset whose keys somebody's open transaction hides holds up those of all other partitions",
        (Edit(BUILDER, "        collecting -= self._node.hidden\n", ""),),
        detector="pytest tests/connector/core/test_batch_builder.py",
        because=ONE_CASE,
    ),
    Mutant(
        "hidden-claim-of-the-same-epoch",
        "",
        "a claim that stays open hides the next one's, which is of the same epoch: it waits for ever",
        (Edit(HANGING, "epochs.append(found.epoch - 1)", "epochs.append(found.epoch)"),),
        detector="scenario claimed_and_hung",
        because=RARE,
    ),
    Mutant(
        "gaps-of-a-position-beyond",
        "truncation-noticed",
        "where the old owner wrote beyond what is known, what gave way counts as of the claim: a loss is excused",
        (Edit(TAKEOVERS, "not ledger.is_complete and (is_beyond or ", "not ledger.is_complete and ("),),
        detector="pytest tests/connector/core/test_two_faults.py",
        because=RARE,
    ),
    Mutant(
        "lost-claim-is-waited-for",
        "",
        "a claim that is cut off the positions before anybody has read it is waited for, for ever",
        (Edit(HANGING, "            if state is None and segment.awaited == awaited:\n", "            if False:\n"),),
        detector="pytest tests/connector/core/test_two_faults.py",
        because=RARE,
    ),
    Mutant(
        "lost-position-is-waited-for",
        "",
        "a position that is cut off before anybody has read it holds up the release of its segment for ever",
        (Edit(HANGING, "                segment.is_unread = True\n", "                pass\n"),),
        detector="pytest tests/connector/core/test_two_faults.py",
        because=RARE,
    ),
    Mutant(
        "end-of-another-reset",
        "",
        "the end of a reset whose begin was cut away counts as that of the one before, in which readers stay",
        (Edit(SCAN, 'elif record.control["id"] != self.reset_id:', "elif False:"),),
        detector="pytest tests/connector/core/test_two_faults.py",
        because=RARE,
    ),
    Mutant(
        "first-look-under-an-unknown-leader",
        "",
        "what was written before the first look, and is cut away before it, is missed by nobody",
        (Edit(LOG_WATCH, "(epoch >= 0 or segment.ledger.unverified)", "epoch >= 0"),),
        detector="pytest tests/connector/core/test_log_watch.py",
        because=RARE,
    ),
    Mutant(
        "gaps-of-a-complete-ledger-go",
        "",
        "an owner that looks again goes back to its last position, not to what gave way: a reset for nothing",
        (Edit(SEGMENT, "ledger.coalesced_runs = runs + [run", "ledger.coalesced_runs = [run"),),
        detector="pytest tests/connector/core/test_two_faults.py",
        because=RARE,
    ),
    Mutant(
        "active-excuses-what-was-captured",
        "truncation-noticed",
        "an owner that looked again excuses by its ACTIVE what it wrote only then, and what is cut away of it",
        (
            Edit(
                TAKEOVERS,
                'fields["opened"] = past.opened_at(segment.history, segment.epoch)',
                'fields["opened"] = segment.last_sequence',
            ),
        ),
        detector="pytest tests/connector/core/test_two_faults.py",
        because=RARE,
    ),
    Mutant(
        "count-before-the-new-stream",
        "",
        "where the stream forks a count is answered before it was read so far: a reset for nothing",
        (
            Edit(
                CAPTURE,
                "self._counting += [question for _, question in self._asked]  # of the new one\n"
                "            self._asked.clear()",
                "self._asked = [(tape.offset, question) for _, question in self._asked]",
            ),
        ),
        detector="pytest tests/interceptors/redis/test_capture.py -k how_far_the_new_one",
        because=RARE,
    ),
    Mutant(
        "asked-in-a-view-long-ago",
        "in-sync-order",
        "a backup that has dropped all in a view that its primary did not read is let in with nothing",
        (Edit(PRIMARY, "- set(segment.in_sync) if skipped else ():", "- set(segment.in_sync) if False else ():"),),
        detector="scenario skipped_view",
        because=RARE,
    ),
    Mutant(
        "dropped-question",
        "",
        "a backup that was some views behind drops a question, which nobody repeats: it is never in sync again",
        (Edit(BACKUP, "                self._refuse(connection, each.items)\n", "                pass\n"),),
        detector="pytest tests/interceptors/grid/replication/test_backup.py",
        because=ONE_CASE,
    ),
    Mutant(
        "gaps-as-of-the-claim",
        "truncation-noticed",
        "what gave way is counted as before the claim: what the old owner wrote until its fence is excused, or missed",
        (
            Edit(
                TAKEOVERS,
                "            segment.gaps_known(position)\n        if position.sequence <=",
                "        if position.sequence <=",
            ),
        ),
        detector="pytest tests/connector/core/test_two_faults.py",
        because=RARE,
    ),
    Mutant(
        "cut-away-has-given-way",
        "truncation-noticed",
        "what was cut away counts as given way, and the owner after next does not miss it either",
        (
            Edit(SCAN, "if most:", "if True:"),
            Edit(SCAN, "more = min(sequence - 1 - end, most)", "more = sequence - 1 - end"),
        ),
        detector="pytest tests/connector/core/test_two_faults.py",
        because=RARE,
    ),
    Mutant(
        "vouched-for-by-the-last-look",
        "truncation-noticed",
        "what was in flight at a look is cut away behind the next one, at the very offset where reading begins",
        (Edit(LEDGER, "self.observed_end.vouched(before)", "self.observed_end.vouched(written)"),),
        detector="pytest tests/connector/core/test_ledger.py -k found_the_log_whole",
        because=RARE,
    ),
    Mutant(
        "cut-within-a-run",
        "coalesce-acked",
        "an op log is cut below what others gave way to, and counts as complete",
        (Edit(OPLOG, "            self.restart(sequence + 1)\n", "            pass\n"),),
        detector="pytest tests/connector/core/test_two_faults.py -k gave_way_to_an_operation",
        because=RARE,
    ),
    Mutant(
        "hidden-once-for-ever",
        "",
        "a lost position is not asked for again where a transaction was open when it was: no release, no renewal",
        (Edit(SCANS, "            self._hanging.something_hides(partition)\n", ""),),
        detector="pytest tests/connector/core/test_hanging.py -k hidden_is_looked_for",
        because=RARE,
    ),
    Mutant(
        "lost-end-of-a-reset",
        "",
        "what a reset has removed of the positions topic is lost there: the next owner does it again",
        (Edit(BUILDER, "if segment.number in node.positions.resets:", "if False:"),),
        detector="pytest tests/connector/core/test_two_faults.py -k cut_off_the_positions_alone",
        because=RARE,
    ),
    Mutant(
        "sequences-of-another-epoch",
        "truncation-noticed",
        "records of an epoch that an owner never heard of are cut away: older ones of the same numbers stand for them",
        (Edit(SCAN, "short |= self.actives.get(epoch, -1) < sequence", "pass"),),
        detector="pytest tests/connector/core/test_two_faults.py",
        because=RARE,
    ),
    Mutant(
        "reset-for-an-idle-epoch",
        "",
        "an owner that has written nothing in its epoch is taken for one whose records are gone: a reset for nothing",
        (Edit(SCAN, "short |= self.actives.get(epoch, -1) < sequence", "short = True"),),
        detector="pytest tests/connector/core/test_two_faults.py",
        because=ONE_CASE,
    ),
    Mutant(
        "part-of-a-run",
        "",
        "an update is told as a create, since what it tells of was before a create that another owner has written",
        (
            Edit(
                TAKEOVERS,
                "reason_to_reset(scan, log.complete_behind(written),",
                "reason_to_reset(scan, log.complete_from,",
            ),
        ),
        detector="pytest tests/connector/core/test_two_faults.py",
        because=ONE_CASE,
    ),
    Mutant(
        "found-where-it-is-not-read",
        "",
        "what was found below where the next look begins is missed there: a reset for nothing",
        (Edit(SCAN, "if sequence > max(self.reset_at, above)]", "if sequence > self.reset_at]"),),
        detector="scenario found_below_where_it_reads",
        because=RARE,
    ),
    Mutant(
        "promoted-member-trusts-its-runs",
        "truncation-noticed",
        "a member that was promoted again, and fenced before it has decided, does not miss what it wrote before",
        (
            Edit(
                TAKEOVERS,
                "position.member != self._node.member or not ledger.is_complete or",
                "position.member != self._node.member or not segment.recheck or",
            ),
        ),
        detector="pytest tests/connector/core/test_takeover.py -k before_its_promotion",
        because=RARE,
    ),
    Mutant(
        "own-history-not-missed",
        "truncation-noticed",
        "where the position is beyond its history, an owner misses nothing within it",
        (
            Edit(
                LEDGER,
                "parts = [(above, min(self.shared, self.upto), True), (max(above, self.shared), self.upto, False)]",
                "parts = [(max(above, self.shared), self.upto, False)]",
            ),
        ),
        detector="pytest tests/connector/core/test_takeover.py -k within_ones_own_history",
        because=RARE,
    ),
    Mutant(
        "nothing-missed-below-coalesced",
        "truncation-noticed",
        "an owner misses nothing below a sequence that was coalesced",
        (Edit(LEDGER, "above = max(self.above, reset_at)", "above = max(self.above, reset_at, self.coalesced_to)"),),
        detector="pytest tests/connector/core/test_takeover.py -k below_what_was_coalesced",
        because=RARE,
    ),
    Mutant(
        "late-heartbeats-are-news",
        "",
        "heartbeats that a cut held back count as heard now: a controller that is none any more answers its own",
        (Edit(LIVENESS, "        if self._was_silent(member, now):\n", "        if False:\n"),),
        detector="scenario late_heartbeats",
        because=RARE,
    ),
    Mutant(
        "answers-with-a-node-gone",
        "",
        "without Kafka and with a node gone, a controller goes on answering",
        (
            Edit(
                LIVENESS,
                "        if self._misses_a_node and now - self._confirmed > self._timeout:\n            return False\n",
                "",
            ),
        ),
        detector="scenario cut_off_with_nobody_to_ask",
        because=RARE,
    ),
    Mutant(
        "end-without-begin",
        "truncation-noticed",
        "the end of a reset that lost its begin passes for a reset",
        (Edit(SCAN, "self.missing = _ALL if self.from_base else 0", "self.missing = 0"),),
        detector="scenario begin_cut_away",
        because=RARE,
    ),
    Mutant(
        "reset-holds-up-suspects",
        "",
        "a reset that may not write its rows after a refusal keeps suspects from beginning theirs: all stands still",
        (Edit(BUILDER, "self._begins(batch, group)", "self._begins(batch, primaries)"),),
        detector="pytest tests/connector/core/test_batch_builder.py -k holds_up_no_suspect",
        because=RARE,
    ),
    Mutant(
        "older-reset-will-do",
        "truncation-noticed",
        "a reset that was cut away is found in an older one at the same position",
        (
            Edit(
                SCAN,
                "self.complete_resets.get(run.first, -1) < run.offset",
                "run.first not in self.complete_resets",
            ),
        ),
        detector="pytest tests/connector/core/test_scan.py -k committed_must_be_found",
        because=RARE,
    ),
    Mutant(
        "rows-before-acked",
        "reset-acked-only",
        "rows are written whose position may never be acknowledged",
        (Edit(RESET, "if segment.acked < position[1] and reset.reason != Reason.CLEAR:", "if False:"),),
        detector="pytest tests/proof/simulation/test_scenarios.py -k [reset_acked_only]",
        because="end-beyond-again covers for it: the next owner begins another reset, which the checker allows",
    ),
    Mutant(
        "transaction-without-bound",
        "",
        "a transaction too large for its time is tried again for ever",
        (Edit(BATCH, "            if self.size >= limit:\n", "            if False:\n"),),
        detector="pytest tests/proof/simulation/test_scenarios.py -k [quota]",
        because=QUOTAS,
    ),
    Mutant(
        "too-slow-once-and-again",
        "",
        "a transaction that was too slow is tried again as it was",
        (
            Edit(
                TRANSACTIONS,
                "self._node.took(self._node.now - self._committed_at, batch.size, committed=False)",
                "False",
            ),
        ),
        detector="pytest tests/proof/simulation/test_scenarios.py -k [quota]",
        because=QUOTAS,
    ),
    Mutant(
        "half-of-what-it-might-have",
        "",
        "a transaction that was too slow is tried again as it was, until half of what it might have is less",
        (Edit(STATE, "min(self.max_batch_bytes, size) // 2", "self.max_batch_bytes // 2"),),
        detector="pytest tests/proof/simulation/test_scenarios.py -k [quota]",
        because=QUOTAS,
    ),
    Mutant(
        "all-entries-in-one-poll",
        "",
        "a node that resets all of its segments reads them all at once, and hears nobody meanwhile",
        (Edit(RESET, "batch.read >= self._node.settings.max_batch_size", "False"),),
        detector="pytest tests/connector/core/test_batch_builder.py -k few_segments_in_one_poll",
        because="nodes of the simulation have too few entries to be declared dead over it",
    ),
    Mutant(
        "open-reset-resumed",
        "open-reset-again",
        "a reset found open is no reason for another: readers hold the segment back for ever",
        (Edit(SCAN, "if scan.open_reset:", "if False:"), Edit(DECIDE, "if reset is not None:", "if False:")),
        faults=("oplog", "crash"),
    ),
    Mutant(
        "end-beyond-counts",
        "end-beyond-again",
        "a reset whose end lies beyond this node's history is taken for its truth",
        (Edit(SCAN, "if scan.end_beyond:", "if False:"),),
        detector="scenario end_beyond_again",
        because=RARE,
    ),
    Mutant(
        "reset-without-end",
        "",
        "the rows of a reset are written, its end is not",
        (Edit(RESET, "            self._end(batch, segment, reset, position)\n", "            pass\n"),),
    ),
    Mutant(
        "chunks-of-several-moments",
        "",
        "each chunk of a reset reads the cache anew, so that no single position holds for all",
        (
            Edit(
                RESET,
                "rows = reset.entries[start : ",
                "rows = self._node.cache.entries(segment.number)[start : ",
            ),
        ),
    ),
    Mutant(
        "sends-again-after-reset",
        "",
        "operations that the rows contain are written behind them again",
        (Edit(RESET, "segment.reset, segment.sent = None, sequence", "segment.reset = None"),),
    ),
    Mutant(
        "takes-nothing-back",
        "",
        "what consumers hold is not looked at: keys that are gone stay theirs",
        (Edit(RESET, "keys_in_kafka.keys, reset.entries)", "set(), reset.entries)"),),
    ),
    Mutant(
        "deletes-are-changes",
        "",
        "the deletes of a reset are of kind change: to a reader they come again and again",
        (Edit(ENCODE, "self._header(Kind.TOMBSTONE, item)", "self._header(Kind.CHANGE, item)"),),
    ),
    Mutant(
        "any-base-vouches",
        "",
        "what lies below the base offset is passed over though its reset took nothing back",
        (Edit(HELD, "return self.start < 0 or self._ended", "return True"),),
        detector="pytest tests/connector/core/test_resets.py -k left_behind",
        because="all nodes of a run have one strategy",
    ),
    Mutant(
        "base-of-another-log",
        "",
        "a base offset beyond the end is read from: one's own begin is passed over",
        (Edit(SEGMENT, "self.scan_next = min(keys.start, self.scan_next)", "self.scan_next = keys.start"),),
        faults=("log",),
    ),
)

BACKUPS: Final = (
    Mutant(
        "release-waits-for-kafka",
        "",
        "while Kafka is away a segment that is to be released takes no writes",
        (Edit(ROLES, " or self._core.waits(self._store.settings.failure_timeout)", ""),),
        detector="scenario release_taken_back",
        because="refused writes, which the checker allows",
    ),
    Mutant(
        "taken-back-and-released",
        "release-is-final",
        "a release that was taken back on its way ends the segment: nothing of it is written any more",
        (Edit(TAKEOVERS, "if not segment.release_wanted or segment.sent != segment.last_sequence:", "if False:"),),
        detector="scenario release_taken_back",
        because=RARE,
    ),
    Mutant(
        "report-of-any-view",
        "in-sync-order",
        "what a backup held some views ago is taken for what it holds now",
        (Edit(PRIMARY, " or (topology_id is not None and topology_id < session.asked_in)\n", "\n"),),
        detector="pytest tests/interceptors/grid/replication/test_primary.py -k answer_to_an_older_question",
        because=RARE,
    ),
    Mutant(
        "state-counts-as-ops",
        "transfer-is-not-ops",
        "a node that got a state vouches for operations that it never had",
        (Edit(REPLICA, "seg.log.restart(sequence + 1)", "seg.log.restart(1)"),),
    ),
    Mutant(
        "coalesced-log-is-whole",
        "",
        "a coalesced op log is taken for one that has every operation: no backup can apply what follows the hole",
        (
            Edit(
                REPLICA,
                "return operations if len(operations) == self.last_sequence(segment) - sequence else None",
                "return operations",
            ),
        ),
        detector="pytest tests/connector/core/test_replica.py -k coalesced",
        because=RARE,
    ),
    Mutant(
        "always-by-state",
        "catch-up-by-ops",
        "backups catch up by state alone: two failovers in a row need a reset",
        (Edit(DECIDE, "return complete_from <= sequence + 1\n\n\ndef knows", "return False\n\n\ndef knows"),),
        detector="model N=3 CRASH=2",
        because="a needless reset costs work and loses nothing, and the checker allows it",
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
        detector="pytest tests/interceptors/grid/replication/test_backup.py",
        because="operations of an epoch that cannot follow are refused as well, and seeds see no difference",
    ),
    Mutant(
        "shrinks-at-once",
        "in-sync-order",
        "the primary stops waiting for a backup before the view without it is there",
        (
            Edit(
                PRIMARY,
                "segment.sessions[member].shrinking = True\n",
                "segment.sessions[member].shrinking = True\n                    segment.waiting.discard(member)\n",
            ),
        ),
        faults=("network", "crash"),
    ),
    Mutant(
        "grows-before-waiting",
        "in-sync-order",
        "a newcomer is let in before the primary waits for it",
        (
            Edit(PRIMARY, "self._wait_for(segment, segment.waiting | {member})", "pass"),
            Edit(PRIMARY, '- {me or ""}) | streaming | segment.admitting)', '- {me or ""}))'),
        ),
        detector="scenario newcomer_is_waited_for",
        because=RARE,
    ),
    Mutant(
        "acked-before-replicated",
        "",
        "an operation is acknowledged before the backups hold it",
        (Edit(PRIMARY, "reached = min(reached, session.answered)", "reached = max(reached, session.answered)"),),
    ),
    Mutant(
        "unreachable-is-not-waited-for",
        "",
        "who has no connection at the moment is not waited for",
        (
            Edit(
                PRIMARY,
                "            if session is None:\n                return\n            reached",
                "            if session is None:\n                continue\n            reached",
            ),
        ),
        detector="scenario admission_and_a_broken_stream",
        because=RARE,
    ),
    Mutant(
        "unclean-election",
        "",
        "an owner that is not in sync is elected as if it were",
        (Edit(CONTROLLER, "for m in row.in_sync if m in self.live or", "for m in row.owners if m in self.live or"),),
    ),
    Mutant(
        "history-not-extended",
        "",
        "an applied operation is not in the backup's history",
        (
            Edit(
                REPLICA,
                "        seg.history = past.extended(seg.history, operation.position)\n        if self",
                "        if self",
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
        faults=("network",),
    ),
    Mutant(
        "backup-drops-in-silence",
        "",
        "a backup without room drops an operation and goes on vouching for it",
        (Edit(REPLICA, "            seg.log.restart(operation.sequence + 1)\n", "            pass\n"),),
    ),
)


def _of_a_restart(name: str, why: str, edit: Edit) -> Mutant:
    """A bug of the hand-over from one shell to the next."""
    detector = "pytest tests/connector/runtime/test_shell.py"
    return Mutant(name, "", why, (edit,), detector=detector, because=ONE_CASE)


SHELL: Final = (
    Mutant(
        "audit-at-the-start-alone",
        "",
        "the positions topic is made to forget while nodes run, and nobody is told",
        (Edit(SHELL_FILE, "        self.tasks.spawn(self.clients.audit.run())\n", ""),),
        detector="pytest tests/connector/runtime/test_lost_topics.py -k not_compacted_any_more",
        because=ONE_CASE,
    ),
    Mutant(
        "lost-positions-go-unnoticed",
        "",
        "a positions topic that was made again holds no claims and no positions, and nobody writes them",
        (Edit(KEPT_TOPIC, "return self._seen.is_another(state.topic_id)", "return False"),),
        detector="pytest tests/connector/test_kept_topic.py -k another_id",
        because=ONE_CASE,
    ),
    Mutant(
        "epochs-begin-anew-without-positions",
        "",
        "a cache that comes back after its positions were lost writes in epoch 1, and readers drop all of it",
        (Edit(TAKEOVERS, "        if not segment.known.is_certain:\n", "        if False:\n"),),
        detector="scenario recreated_while_unread",
        because=ONE_CASE,
    ),
    Mutant(
        "lost-producer-is-kept",
        "",
        "a producer that its library has lost is asked for the same commit for ever",
        (Edit(KAFKA_PROGRESS, "            self.check(producer)\n", ""),),
        detector="pytest tests/schemas/kafka/test_progress.py -k stands_while_brokers_answer",
        because="the simulation has no client library",
    ),
    Mutant(
        "stop-overlooks-what-starts",
        "",
        "a cache that starts while another one is drained is stopped in the middle of a transaction",
        (Edit(LIFECYCLE, "                    connector.apply(Event.SUSPEND)\n", "                    pass\n"),),
        detector="pytest tests/connector/runtime/test_lifecycle.py -k drained_writes_nothing",
        because="the simulation has one cache",
    ),
    Mutant(
        "restart-overlooks-what-starts",
        "",
        "a cache that starts while the others are configured keeps the former configuration",
        (Edit(LIFECYCLE, "            await self._until_started()\n", ""),),
        detector="pytest tests/connector/runtime/test_lifecycle.py -k configured_as_the_others",
        because="the simulation has one cache",
    ),
    Mutant(
        "epochs-given-out-again",
        "",
        "a controller that writes the view it knows goes on from there, though later ones may be lost",
        (Edit(CONTROLLER_SERVICE, "            self._least = liveness.view.topology_id + _LOST_VIEWS\n", ""),),
        detector="pytest tests/interceptors/grid/topology/test_controller_service.py -k written_anew_once",
        because="positions and topology must both be lost, and all who knew of the last views",
    ),
    Mutant(
        "known-view-at-once",
        "",
        "a controller goes on from the view that it knows, though the one who knows of a later one has not been heard",
        (
            Edit(
                CONTROLLER_SERVICE,
                "view_stands or liveness.has_heard_all(since):",
                "view_stands or True:",
            ),
        ),
        detector="pytest tests/interceptors/grid/topology/test_controller_service.py -k all_have_told",
        because="one must stand still from before the last view until the topology was lost",
    ),
    Mutant(
        "late-active-removes-claims",
        "",
        "who was fenced before its ACTIVE removes the claim of the one that it had fenced, and that has claimed again",
        (Edit(TAKEOVERS, " if not segment.recheck else ()", ""),),
        detector="pytest tests/connector/core/test_takeover.py -k removes_the_claims",
        because="the log must be cut, and have grown again, between two transactions of a node that stood still",
    ),
    Mutant(
        "superseded-and-positions-lost",
        "",
        "an old owner that stood still resets its segment in its old epoch once the positions topic is made again",
        (Edit(TAKEOVERS, "        if self._is_superseded(segment, scan):", "        if False:"),),
        detector="pytest tests/connector/core/test_two_faults.py -k superseded",
        because=ONE_CASE,
    ),
    Mutant(
        "read-on-though-positions-are-lost",
        "",
        "the same: it reads on from the end that it knows, behind its successor's records",
        (Edit(CORE, "        self.table.certain.clear()\n", ""),),
        detector="pytest tests/proof/simulation/test_scenarios.py -k positions_and_topology_lost",
        because="a node must stand still from before a takeover to the moment when the positions are lost",
    ),
    Mutant(
        "start-reads-a-former-topic",
        "",
        "a node ends whose positions topic is made again while it starts",
        (
            Edit(
                READERS,
                "                    if not self._seen.lost:\n                        raise\n",
                "                    raise\n",
            ),
        ),
        detector="pytest tests/connector/runtime/test_readers.py -k made_again_during_a_start",
        because=ONE_CASE,
    ),
    Mutant(
        "what-gave-way-before-is-forgotten",
        "",
        "an owner that reads from the base says that nothing gave way, and the next one misses it: a needless reset",
        (
            Edit(
                TAKEOVERS,
                "            ledger.coalesced_runs = scan.gaps(written, ledger.read_from_sequence, last)\n",
                "",
            ),
        ),
        detector="pytest tests/connector/core/test_takeover.py -k counted_anew_by_an_owner",
        because=ONE_CASE,
    ),
    Mutant(
        "second-loss-taken-for-the-first",
        "",
        "claims that were written between two losses of the positions topic are gone, and are waited for",
        (
            Edit(
                READERS,
                "            await self._retries.reading(self.look_at_positions)\n            if lost:\n",
                "            if lost:\n                self._core.positions_lost()\n"
                "                self._context.wake()\n"
                "            await self._retries.reading(self.look_at_positions)\n            if lost:\n",
            ),
            Edit(
                READERS, "                self._core.positions_lost()\n                self._context.wake()\n\n", "\n"
            ),
        ),
        detector="pytest tests/proof/simulation/test_scenarios.py -k positions_recreated_twice",
        because="the topic must be made again within three milliseconds",
    ),
    Mutant(
        "topology-lost-twice",
        "",
        "members that were written anew between two losses of the topology are gone",
        (
            Edit(
                TOPOLOGY_TOPIC,
                '        """Returns why the reader cannot go on."""\n',
                '        """Returns why the reader cannot go on."""\n        self._recreated = False\n',
            ),
        ),
        detector="pytest tests/interceptors/grid/topology/test_topic.py -k while_its_loss_is_noticed",
        because="a reader must take longer to open than the topology to be made again",
    ),
    Mutant(
        "topic-unheard-of",
        "",
        "a node does not start where a topic was just created and the broker that it asks has not heard of it yet",
        (
            Edit(
                KAFKA_ADMIN,
                "        return self._awaited(topic)",
                "        self._awaited(topic)\n        return self.partitions(topic)",
            ),
        ),
        detector="pytest tests/connector/kafka/test_admin.py -k created_meanwhile",
        because="brokers of the simulation all hear of a topic at once",
    ),
    Mutant(
        "twin-unnoticed",
        "",
        "two processes that start in the same millisecond take each other's claims for their own, and fence each other",
        (Edit(STATE, "        return segment not in self.claimed\n", "        return False\n"),),
        detector="pytest tests/connector/runtime/test_connector.py -k millisecond",
        because=ONE_CASE,
    ),
    Mutant(
        "view-of-the-last-term",
        "read-to-own-record",
        "a commit that was cancelled with its term is written by the producer of the next one",
        (
            Edit(KAFKA_ELECTION, "self._producer is not producer or metadata", "metadata"),
            Edit(
                KAFKA_ELECTION,
                "                self._commit_once(producer,",
                "                self._commit_once(self._producer,",
            ),
        ),
        detector="pytest tests/connector/kafka/test_election.py -k what_a_term_began",
        because="the simulation has no client library",
    ),
    Mutant(
        "hanging-view-is-waited-for",
        "",
        "a controller whose client never hears of the group's coordinator holds up all moves for 20 s",
        (
            Edit(
                KAFKA_ELECTION,
                "                if coordinator_answers(",
                "                if False and coordinator_answers(",
            ),
        ),
        detector="pytest tests/connector/kafka/test_election.py -k never_comes",
        because="the simulation has no client library",
    ),
    Mutant(
        "group-asked-for-a-second",
        "",
        "librdkafka aborts a node whose group's coordinator is found when the time of a request has just passed",
        (Edit(KAFKA_CLIENT, "request_timeout=3600)", "request_timeout=seconds)"),),
        detector="pytest tests/connector/kafka/test_slow_coordinator.py",
        because="the simulation has no client library",
    ),
    Mutant(
        "reader-that-tells-no-ends",
        "",
        "a consumer that asks with a leader's epoch that is over, again and again, stands for ever, and nobody is told",
        (Edit(KAFKA_READER, "            if self._untold == self._next and", "            if False and"),),
        detector="pytest tests/connector/kafka/test_reader.py -k never_tells_the_ends",
        because="the simulation has no client library",
    ),
    Mutant(
        "error-of-the-binding",
        "",
        "a node ends that is fenced while the client reports records which were not delivered",
        (
            Edit(
                KAFKA_SESSION, "        except PRODUCER_ERRORS as error:\n", "        except KafkaException as error:\n"
            ),
        ),
        detector="pytest tests/connector/kafka/test_session.py -k comes_with_delivery_reports",
        because="the simulation has no client library",
    ),
    Mutant(
        "lost-reader-is-kept",
        "",
        "a consumer that its library has lost reads no further, and nobody asks",
        (Edit(KAFKA_READER, "if self._drained and self._behind.get(p) == offset", "if False"),),
        detector="pytest tests/connector/kafka/test_reader.py -k does_not_move",
        because="the simulation has no client library",
    ),
    Mutant(
        "scan-begins-late",
        "",
        "a scan leaves out the first records",
        (Edit(EXECUTOR, "_Unread(effect.from_offset)", "_Unread(effect.from_offset + 3)"),),
    ),
    Mutant(
        "scan-loses-a-record",
        "",
        "the core does not see the first record of each read",
        (
            Edit(
                EXECUTOR,
                "self._core.scanned(partition, records)",
                "self._core.scanned(partition, records[1:])",
            ),
        ),
    ),
    Mutant(
        "no-node-is-fenced",
        "",
        "the core is told that nodes are fenced, and none is",
        (Edit(EXECUTOR, "        await self._retries.writing(self._clients.fence, effect.producer)\n", ""),),
    ),
    Mutant(
        "commit-not-awaited",
        "",
        "a transaction counts as committed as soon as it is begun",
        (
            Edit(
                EXECUTOR,
                "await self._permitted(session.commit, encoder.records(items), partitions)",
                "self._tasks.spawn(self._permitted(session.commit, list(encoder.records(items)), ()))",
            ),
        ),
    ),
    Mutant(
        "states-lost",
        "",
        "the first state of each read of the positions topic is dropped",
        (
            Edit(
                READERS,
                "for record in records if caught_up.is_set() else _latest(records):",
                "for record in records[1:] if caught_up.is_set() else _latest(records[1:]):",
            ),
        ),
    ),
    Mutant(
        "suspend-while-writing",
        "",
        "a stop does not wait for the transaction under way",
        (Edit(CONNECTOR, "lambda: core.idle and (", "lambda: ("),),
        detector="scenario pause_overflow_resume",
        because="a paused connector must be stopped while a transaction is under way",
    ),
    Mutant(
        "stop-looks-twice",
        "",
        "a stop looks first whether nothing is under way, and later whether all is read back: a scan begins meanwhile",
        (
            Edit(
                CONNECTOR,
                "await self._wait_for(lambda: core.idle and (not drains or self._has_read_back()), until)",
                "await self._wait_for(lambda: core.idle, until)\n"
                "            await self._wait_for(lambda: not drains or self._has_read_back(), until)",
            ),
        ),
        detector="pytest tests/connector/runtime/test_connector.py -k closes_the_producer",
        because=ONE_CASE,
    ),
    Mutant(
        "closed-not-told",
        "",
        "the core opens a session of a stopped connector",
        (
            Edit(
                CONNECTOR,
                "self.core.paused, self.core.closed = self.state.paused, self.state.closed",
                "self.core.paused = self.state.paused",
            ),
        ),
        faults=("connector",),
    ),
    Mutant(
        "paused-not-told",
        "",
        "the core begins transactions of a paused connector",
        (
            Edit(
                CONNECTOR,
                "self.core.paused, self.core.closed = self.state.paused, self.state.closed",
                "self.core.closed = self.state.closed",
            ),
        ),
        faults=("connector",),
    ),
    Mutant(
        "effects-lost",
        "",
        "only the first effect of a poll is carried out",
        (
            Edit(
                EXECUTOR,
                "            self.carry_out(effect)\n",
                "            self.carry_out(effect)\n            break\n",
            ),
        ),
    ),
    Mutant(
        "restart-never-ends",
        "",
        "after a restart nothing is written any more",
        (
            Edit(
                CONNECTOR,
                "\n            raise\n        self._serve()\n\n    def _is_written",
                "\n            raise\n\n    def _is_written",
            ),
        ),
        faults=("connector",),
    ),
    Mutant(
        "suspend-holds-nothing",
        "",
        "a connector that is being stopped goes on writing",
        (Edit(RUN_STATE, "(Event.SUSPEND, {_D}, {_R})", "(Event.SUSPEND, {_D}, ())"),),
        detector="pytest tests/connector/runtime/test_run_state.py",
        because=ONE_CASE,
    ),
    _of_a_restart(
        "restart-keeps-the-transaction",
        "the new shell's core waits for a transaction of the old one",
        Edit(CORE, "        self._transactions.forget()\n", ""),
    ),
    _of_a_restart(
        "restart-keeps-the-scan",
        "the new shell's core waits for a scan of the old one",
        Edit(CORE, "        self._scans.forget()\n", ""),
    ),
    _of_a_restart(
        "restart-keeps-the-fence",
        "the new shell's core waits for a fence of the old one",
        Edit(CORE, "        self._fencing.forget()\n", ""),
    ),
    Mutant(
        "restart-looks-not-again",
        "",
        "after a restart it is assumed that what was under way is not in Kafka",
        (Edit(TRANSACTIONS, "ProducerState.NONE\n        self.reopen()", "ProducerState.NONE"),),
        detector="pytest tests/connector/core/test_transactions.py -k forgotten",
        because=ONE_CASE,
    ),
    Mutant(
        "restart-waits-for-kafka",
        "",
        "the old shell ends once Kafka has answered it",
        (Edit(SHELL_FILE, "        self.clients.give_up()\n", ""),),
        detector="pytest tests/connector/runtime/test_lifecycle.py -k overlooks_a_cache",
        because=ONE_CASE,
    ),
    _of_a_restart(
        "restart-leaves-the-old-tasks",
        "the coroutines of the old shell go on",
        Edit(SHELL_FILE, "        await self.tasks.cancel()\n", ""),
    ),
    Mutant(
        "resume-of-part",
        "",
        "a connector that was stopped is not resumed",
        (Edit(RUN_STATE, "(Event.RESUME, {_P, _S, _H}, ())", "(Event.RESUME, {_P, _H}, ())"),),
        faults=("connector",),
    ),
    Mutant(
        "deletes-not-scanned",
        "",
        "a scan passes on no record without a value, control records neither",
        (
            Edit(
                ENCODE,
                "if kind is Kind.TOMBSTONE and record.value is None and not wanted:",
                "if record.value is None and not wanted:",
            ),
        ),
    ),
    Mutant(
        "scan-not-sought",
        "",
        "a reader that has read to its end goes on there, wherever the next scan begins",
        (
            Edit(
                EXECUTOR,
                "        await reader.seek({partition: rest.offset})\n",
                "        if not reader.caught_up:\n            await reader.seek({partition: rest.offset})\n",
            ),
        ),
    ),
    Mutant(
        "scan-lies-about-its-end",
        "",
        "a scan that did not reach the node's own record says that it did",
        (
            Edit(
                EXECUTOR,
                "self._core.scan_ended(effect.partition, early or not wanted, at_end)",
                "self._core.scan_ended(effect.partition, True, at_end)",
            ),
        ),
        detector="pytest tests/connector/runtime/test_executor.py -k waits_in_vain",
        because=ONE_CASE,
    ),
    Mutant(
        "scan-keeps-its-reader",
        "",
        "four partitions on which a stranger's transaction stays open keep every takeover waiting",
        (
            Edit(
                EXECUTOR, "if reader.caught_up and now - moved > TURN_SECONDS and", "if now - moved > SCAN_SECONDS and"
            ),
        ),
        detector="pytest tests/connector/runtime/test_shell.py -k keeps_no_reader",
        because=ONE_CASE,
    ),
    Mutant(
        "scan-gives-up",
        "",
        "a scan that Kafka does not answer ends, and nobody is told",
        (
            Edit(
                EXECUTOR,
                'trying again", error)\n                await asyncio.sleep(RETRY_SECONDS)\n',
                'trying again", error)\n                return\n',
            ),
        ),
        detector="pytest tests/connector/runtime/test_executor.py -k tried_again_with_a_new_consumer",
        because=ONE_CASE,
    ),
    Mutant(
        "fence-not-awaited",
        "",
        "the core hears of a fence before it has happened",
        (
            Edit(
                EXECUTOR,
                "await self._retries.writing(self._clients.fence, effect.producer)",
                "self._tasks.spawn(self._retries.writing(self._clients.brokers.fence, name, left_open))",
            ),
        ),
        detector="pytest tests/connector/runtime/test_executor.py -k a_node_is_fenced",
        because=RARE,
    ),
    Mutant(
        "opening-given-up-unsaid",
        "",
        "a session that is not opened any more is waited for by the core",
        (Edit(EXECUTOR, "            self._core.opening_given_up()\n", "            pass\n"),),
        detector="pytest tests/connector/runtime/test_executor.py -k nobody_waits_for",
        because=ONE_CASE,
    ),
    Mutant(
        "failed-commit-counts",
        "",
        "a transaction that failed counts as committed",
        (Edit(EXECUTOR, "self._core.commit_failed(effect.token, cause)", "self._core.committed(effect.token)"),),
    ),
    Mutant(
        "corrections-cut-short",
        "",
        "of several corrections the cache hears of the first alone",
        (
            Edit(
                EXECUTOR,
                "self._context.cache_side.corrected(effect.segment, list(effect.operations))",
                "self._context.cache_side.corrected(effect.segment, list(effect.operations)[:1])",
            ),
        ),
    ),
    Mutant(
        "release-not-passed-on",
        "",
        "a release is written and the cache is not told: nobody is elected",
        (Edit(EXECUTOR, "self._context.cache_side.released(effect.segment)", "pass"),),
    ),
    Mutant(
        "step-down-not-passed-on",
        "",
        "a node that has found a higher claim serves on",
        (Edit(EXECUTOR, "self._context.cache_side.stepped_down(effect.segment, effect.reason)", "pass"),),
        detector="pytest tests/connector/runtime/test_executor.py -k hear_what_is_theirs",
        because="the view that made the higher claim possible comes soon",
    ),
    Mutant(
        "started-before-read",
        "",
        "a connector starts before it has read the positions topic",
        (Edit(READERS, "            if reader.caught_up:\n", "            if True:\n"),),
        detector="pytest tests/connector/runtime/test_readers.py -k caught_up_only",
        because="a node that starts gets its first segments long after that",
    ),
    Mutant(
        "small-records-too-large",
        "",
        "a topic whose max.message.bytes is lowered stops segments that have small entries alone",
        (Edit(EXECUTOR, "cause is Cause.REFUSED and await self._clients.batches_are_too_large()", "False"),),
        detector="pytest tests/connector/runtime/test_largest_message.py",
        because="no seed changes a topic's settings",
    ),
    Mutant(
        "written-to-while-short",
        "",
        "what nodes write hides that a partition of positions has come back without its last records",
        (
            Edit(READERS, "self._left_open, self._away)", "self._left_open)"),
            Edit(READERS, "self._left_open - self._told - self._away", "self._left_open - self._told"),
        ),
        detector="scenario positions_cut_while_away",
        because="the claims on the change topic cover what was lost",
    ),
    Mutant(
        "read-before-a-restart-forgotten",
        "",
        "positions that are cut while a connector restarts are not missed",
        (Edit(READERS, "self._away = frozenset(self._seen.read)", "self._away = frozenset[int]()"),),
        detector="pytest tests/connector/runtime/test_lost_topics.py -k just_before_a_restart",
        because="the claims on the change topic cover what was lost",
    ),
    Mutant(
        "topic-id-read-once",
        "",
        "a topic made again is taken for a truncated one",
        (Edit(READERS, "                await self.look_at_changes()  # first", "                pass  # first"),),
        detector="scenario topic_recreated",
        because="a reset for another reason, which the checker allows",
    ),
    Mutant(
        "log-said-intact",
        "",
        "a log that was cut and has grown again is not asked whether it is whole",
        (
            Edit(
                READERS,
                "intact = await brokers.still_holds(topic, PartitionEnd(end.partition, offset, epoch))",
                "intact = True",
            ),
        ),
        detector="scenario truncation",
        because="the other ways to notice a loss find most of them",
    ),
    Mutant(
        "owed-overwritten",
        "",
        "that the positions were lost is forgotten where a reset is owed for another reason",
        (
            Edit(
                SEGMENT,
                "        if self.owed != POSITIONS_LOST:\n            self.owed = reason\n",
                "        self.owed = reason\n",
            ),
        ),
        detector="pytest tests/connector/core/test_segment.py -k stays_owed",
        because=ONE_CASE,
    ),
    Mutant(
        "epoch-used-twice",
        "",
        "who takes an epoch in which another has written, and whose claim is lost, goes on",
        (Edit(DECIDE, "    return 0 if is_own else epoch\n", "    return 0\n"),),
        detector="pytest tests/connector/core/test_takeover.py -k another_has_written_in",
        because=ONE_CASE,
    ),
    Mutant(
        "superseded-by-records-alone",
        "",
        "an owner writes below a higher epoch of which a position alone tells",
        (Edit(DECIDE, "    if position is not None and not found.get(position.epoch):", "    if False:"),),
        detector="pytest tests/connector/core/test_two_faults.py -k position_alone",
        because=ONE_CASE,
    ),
    Mutant(
        "clear-coalesced",
        "",
        "a clear gives way to an operation on the empty key",
        (
            Edit(
                OPLOG,
                "        kept = within[:1] if within and within[0].reason == Reason.CLEAR else []\n",
                "        kept = within[:0]\n",
            ),
        ),
        detector="pytest tests/connector/core/test_two_faults.py -k empty_key",
        because=ONE_CASE,
    ),
    Mutant(
        "correction-coalesced",
        "",
        "a correction gives way to a write that a filter drops",
        (Edit(OPLOG, " | {o.key: o.reason for o in within if o.reason == Reason.CORRECT}\n", "\n"),),
        detector="pytest tests/connector/core/test_two_faults.py -k gives_way",
        because=ONE_CASE,
    ),
    Mutant(
        "runs-outlive-their-reset",
        "",
        "what a reset has replaced is missed again",
        (
            Edit(
                LEDGER,
                "        self.before_last_look, self.since_last_look = [], [reset]\n",
                "        self.committed(reset)\n",
            ),
        ),
        detector="pytest tests/connector/core/test_two_faults.py -k replaced",
        because=ONE_CASE,
    ),
    Mutant(
        "rows-hide-rows",
        "",
        "rows of a snapshot that nobody counted stand for those that are lost",
        (
            Edit(
                SCAN,
                "        again = [*(run for run in self.runs if not run.number), *self.inherited_runs()]\n"
                "        if self.snapshot_rows:\n"
                "            again.append(CommittedRun.of_rows(len(self.snapshot_rows), self.snapshot_rows[0]))\n",
                "        again = [*(r for r in self.runs if not r.number or r.is_snapshot), *self.inherited_runs()]\n",
            ),
        ),
        detector="scenario rows_hidden_by_others",
        because=ONE_CASE,
    ),
    Mutant(
        "positions-not-verified",
        "",
        "a log that was cut before the first look passes for whole",
        (Edit(SCANS, "markers, keys, _places(segments)))", "markers, keys))"),),
        detector="scenario starts_without_a_leader",
        because=ONE_CASE,
    ),
    Mutant(
        "one-place-for-all-leaders",
        "",
        "of all segments of a partition only the highest offset is asked for, under its leader",
        (
            Edit(
                SCANS, "    return tuple(sorted(places.values()))\n", "    return tuple(sorted(places.values())[-1:])\n"
            ),
        ),
        detector="scenario asked_for_each_leader",
        because=ONE_CASE,
    ),
    Mutant(
        "cut-for-all-leaders",
        "",
        "a segment that was reset after the log was cut is reset once more",
        (Edit(TAKEOVERS, " and scan.place.leader_epoch == place.leader_epoch:", ":"),),
        detector="pytest tests/connector/core/test_takeover.py -k costs_those_who",
        because=ONE_CASE,
    ),
    Mutant(
        "looks-up-to-open-transactions",
        "",
        "what is committed behind somebody's open transaction is verified by looks that did not see it",
        (Edit(READERS, "await brokers.ends(topic, writable, False)", "await brokers.ends(topic, writable)"),),
        detector="scenario cut_behind_an_open_transaction",
        because=RARE,
    ),
    Mutant(
        "nothing-more-is-expected",
        "",
        "what an old owner wrote between the next one's claim and its fence is missed by nobody",
        (Edit(TAKEOVERS, "                self._expect_more(segment, scan)\n", "                pass\n"),),
        detector="pytest tests/connector/core/test_log_watch.py -k between_the_claim_and_the_fence",
        because=ONE_CASE,
    ),
    Mutant(
        "waits-for-what-was-deleted",
        "",
        "a takeover waits for ever for a claim that was deleted from the log before it was read",
        (Edit(SCANS, "if segment.marker in missed and segment.marker_offset < 0:", "if False:"),),
        detector="pytest tests/connector/core/test_scans.py -k nothing_hides",
        because=ONE_CASE,
    ),
    Mutant(
        "coalesced-and-not-written",
        "",
        "a position counts what gave way in a run that is not written yet",
        (
            Edit(
                LEDGER,
                "        runs = [run for run in self.coalesced_runs if run[0] <= written]\n",
                "        runs = self.coalesced_runs\n",
            ),
        ),
        detector="pytest tests/connector/core/test_two_faults.py -k no_excuse",
        because=ONE_CASE,
    ),
    Mutant(
        "ends-of-another-partition",
        "",
        "every partition's end is taken for that of the first",
        (Edit(READERS, "self._core.end_read(end.partition, end.offset", "self._core.end_read(0, end.offset"),),
    ),
    Mutant(
        "signals-of-the-first-shell",
        "",
        "after a restart no signal is read any more",
        (
            Edit(
                READERS,
                "        if self._clients.config.topics.signal:\n",
                "        if self._clients.config.topics.signal and not self._retries.proven:\n",
            ),
        ),
        faults=("connector",),
    ),
    Mutant(
        "signals-of-the-first-log",
        "",
        "after their topic was lost no signal is read any more",
        (
            Edit(
                PROCESSOR,
                "                    if not isinstance(error, KafkaUnavailable):\n                        return\n",
                "",
            ),
        ),
        detector="pytest tests/interceptors/grid/test_lost_topics.py -k heard",
        because=ONE_CASE,
    ),
    Mutant(
        "retry-gives-up",
        "",
        "what Kafka does not take is not tried again, and counts as done",
        (
            Edit(
                TASKS,
                '                log.warning("%s; trying again", error)\n            longest',
                "                return None\n            longest",
            ),
        ),
        detector="pytest tests/connector/runtime/test_tasks.py -k tried_again",
        because=ONE_CASE,
    ),
    Mutant(
        "pause-holds-nothing",
        "",
        "a paused connector writes on",
        (Edit(RUN_STATE, "(Event.PAUSE, (), {_P})", "(Event.PAUSE, (), ())"),),
        faults=("connector",),
    ),
    Mutant(
        "restart-ends-a-pause",
        "",
        "a paused connector writes after a restart",
        (Edit(RUN_STATE, "(Event.RENEW, {_H}, ())", "(Event.RENEW, {_H, _P}, ())"),),
        faults=("connector",),
    ),
    Mutant(
        "stop-keeps-its-hold",
        "",
        "after a stop a connector is never resumed",
        (Edit(RUN_STATE, "(Event.STOP, _SUSPENSION, {_S})", "(Event.STOP, {_D}, {_S})"),),
        faults=("connector",),
    ),
    Mutant(
        "stop-does-not-write-out",
        "",
        "a stop writes nothing, and waits for what it was to write",
        (
            Edit(
                RUN_STATE,
                "return bool(holds - {Hold.DRAINING, Hold.PAUSED} if Hold.DRAINING in holds else holds)",
                "return bool(holds)",
            ),
        ),
        detector="scenario stop_cut_from_kafka",
        because="the stop fails, and a request that fails is no violation unless a script says so",
    ),
    Mutant(
        "signals-taken-again",
        "",
        "a restart acts on the signals since the start once more",
        (Edit(PROCESSOR, "                        self._next = record.offset + 1\n", ""),),
        detector="pytest tests/connector/signals/test_processor.py -k not_taken_again",
        because="a snapshot that is made twice does no harm",
    ),
    Mutant(
        "signal-skipped-at-start",
        "",
        "the first signal after a start is passed over",
        (Edit(PROCESSOR, "self._next = reader.next_offset(0)", "self._next = reader.next_offset(0) + 1"),),
    ),
    Mutant(
        "pause-in-force-forgotten",
        "",
        "a node that starts while pause-writing is in force writes",
        (Edit(PROCESSOR, "            self._target.pause()\n", "            pass\n"),),
        detector="scenario paused_by_signal",
        because="nobody but the operator knows that nothing should be written",
    ),
    Mutant(
        "signal-resumes-a-stop",
        "",
        "resume-writing goes over a stop by REST",
        (Edit(PROCESSOR, "    if target.state.stopped:\n", "    if False:\n"),),
        detector="scenario paused_by_signal",
        because=ONE_CASE,
    ),
    Mutant(
        "dropped-pass-kept",
        "",
        "a snapshot's segment that a takeover dropped is never begun again",
        (
            Edit(
                INCREMENTAL,
                "                del self._passes[segment]  # a takeover",
                "                pass  # a takeover",
            ),
        ),
    ),
    Mutant(
        "round-over-too-early",
        "",
        "a round of resets is said to be complete with its first segment",
        (Edit(PROGRESS, "            if not round_.open:\n", "            if round_.done:\n"),),
        detector="pytest tests/connector/signals/test_segment_progress.py -k told_together",
        because="nodes of the simulation send no notifications",
    ),
)

TOPOLOGY: Final = (
    Mutant(
        "lease-for-ever",
        "",
        "a lease never runs out: who is cut off with all who are in sync acknowledges on",
        (
            Edit(
                LEASE, "now - self._since < self.seconds and wall - self._since_wall < self.seconds", "self._since > 0"
            ),
        ),
        detector="scenario acked_by_who_lost_the_segment",
        because=RARE,
    ),
    Mutant(
        "lease-of-an-older-view",
        "",
        "an answer under a view that is not followed yet extends the lease",
        (Edit(LEASE, "if answer.topology_id > topology_id:", "if False:"),),
        detector="pytest tests/interceptors/grid/topology/test_lease.py -k not_known_here",
        because=RARE,
    ),
    Mutant(
        "given-away-under-a-lease",
        "",
        "a segment is given away while a lease of its lost owners holds",
        (Edit(LIVENESS, "> self._lease_expiry)", "> self._timeout)"),),
        detector="pytest tests/interceptors/grid/topology/test_liveness.py -k leases_run_out",
        because=RARE,
    ),
    Mutant(
        "known-view-overtaken",
        "",
        "a controller that finds no view begins anew, and the only member that knows the last one forgets its entries",
        (Edit(CONTROLLER_SERVICE, "if self._may_be_known(liveness):", "if False:"),),
        detector="scenario view_known_by_one",
        because=RARE,
    ),
    Mutant(
        "cut-off-and-keeps-the-seat",
        "",
        "a controller that is cut off declares all others dead, and resets what only they have",
        (Edit(CONTROLLER_SERVICE, "if not dead or not liveness.hears_too_few(self._clock.monotonic()):", "if True:"),),
        detector="scenario cut_off_controller",
        because="needless elections and resets, which the checker allows",
    ),
    Mutant(
        "seat-passed-to-and-fro",
        "",
        "nodes that are cut off together pass the seat to each other for ever",
        (Edit(CONTROLLER_SERVICE, "_TERMS_ASIDE: Final = 4", "_TERMS_ASIDE: Final = 0"),),
        detector="scenario seat_leaves_the_minority",
        because="segments without a primary, which the checker allows for a while",
    ),
    Mutant(
        "decides-while-cut-off",
        "",
        "a controller that may be cut off leaves its own segments without backups: nobody can take them over",
        (Edit(CONTROLLER_SERVICE, "await self._dead(liveness)\n", "await self._dead(liveness) or frozenset()\n"),),
        detector="scenario cut_off_controller",
        because="segments without a primary, which the checker allows for a while",
    ),
    Mutant(
        "given-away-though-alive",
        "",
        "a segment is reset though the one member that has it lives, and is only not heard by the controller",
        (Edit(CONTROLLER_SERVICE, "return lapsed - unreachable", "return lapsed"),),
        detector="pytest tests/interceptors/grid/topology/test_controller_service.py -k not_given_away",
        because="needless resets, which the checker allows",
    ),
    Mutant(
        "one-refusal-is-death",
        "",
        "one refused connection ends a member that is well",
        (Edit(LIVENESS, "REFUSALS: Final = 2", "REFUSALS: Final = 1"),),
        detector="pytest tests/interceptors/grid/topology/test_liveness.py -k alone_is_no_death",
        because="needless elections, which the checker allows",
    ),
    Mutant(
        "interrupted-and-not-told",
        "",
        "a timeout between a write of a captured cache and its record: the topic lacks what the cache holds",
        (
            Edit(
                INTERCEPT,
                """            changes.doubt = (key, value, UNSEEN, raw_key, raw_value, serial), changes.doubt
            teller.settle(self)
            raise
""",
                "            raise\n",
            ),
        ),
        detector="pytest tests/interceptors/cachetools/test_telling.py -k any_instant",
        because=NO_CAPTURE,
    ),
    Mutant(
        "handler-told-before-its-time",
        "",
        "a signal handler writes the key between a write and its record: the older value is told last",
        (
            Edit(
                INTERCEPT,
                "if changes.serial == serial:\n                changes.taken += size\n                append((_PUT",
                "if True:\n                changes.taken += size\n                append((_PUT",
            ),
        ),
        detector="pytest tests/interceptors/cachetools/test_telling.py -k handler_writes",
        because=NO_CAPTURE,
    ),
    Mutant(
        "settled-before-it-is-told",
        "",
        "a call is interrupted while it tells what an interrupted one has changed: that is forgotten",
        (
            Edit(
                TELLING,
                """            if told and changes.doubt is doubt:
                changes.doubt = rest
""",
                "",
            ),
            Edit(
                TELLING,
                "            serial = changes.serial\n            if key is ALL:",
                "            serial, changes.doubt = changes.serial, rest\n            if key is ALL:",
            ),
        ),
        detector="pytest tests/interceptors/cachetools/test_telling.py -k any_instant",
        because=NO_CAPTURE,
    ),
    Mutant(
        "lease-that-holds-again",
        "",
        "a clock is put forward and back between two heartbeats: what waited for the lease is never acknowledged",
        (
            Edit(
                GRID_NODE,
                "        self._lease.heard(",
                "        self._lapsed = not self.leased()\n        self._lease.heard(",
            ),
            Edit(GRID_NODE, "            self._lapsed = True\n", "            pass\n"),
        ),
        detector="pytest tests/proof/simulation/test_scenarios.py -k clock_forth_and_back",
        because="a clock must be put back within some hundredths of a second",
    ),
    Mutant(
        "lease-by-one-clock",
        "",
        "a virtual machine that was paused acknowledges under a lease that ran out meanwhile",
        (Edit(LEASE, " and wall - self._since_wall < self.seconds", ""),),
        detector="pytest tests/interceptors/grid/topology/test_lease.py -k by_either_clock",
        because="the clocks of the simulation go on while a process is stopped",
    ),
    Mutant(
        "view-told-once",
        "",
        "a member that registers again writes over the view that the topic has nowhere else: a later controller waits",
        (Edit(REGISTRY, "if self.view.topology_id > self._recorded:", "if self.view.topology_id > self._told:"),),
        detector="pytest tests/interceptors/grid/topology/test_registry.py -k registration_alone",
        because="three processes must be started anew within seconds of the loss of the topology topic",
    ),
    Mutant(
        "view-of-another-kept",
        "",
        "a member knows a view of another one's registration alone, and does not tell it: a later controller waits",
        (Edit(REGISTRY, " or self.view.topology_id > max(self._recorded, self._told)", ""),),
        detector="pytest tests/interceptors/grid/topology/test_registry.py -k registration_alone",
        because="three processes must be started anew within seconds of the loss of the topology topic",
    ),
    Mutant(
        "lost-view-stays-lost",
        "",
        "the view of a topology topic that was made again is nowhere: who starts later makes one of its own",
        (
            Edit(
                REGISTRY,
                "self.view_stands, self._recorded, self._told = False, 0, 0",
                "self.view_stands, self._recorded, self._told = True, 0, 0",
            ),
        ),
        detector="pytest tests/interceptors/grid/topology/test_controller_service.py -k written_anew_once",
        because=RARE,
    ),
    Mutant(
        "decides-behind-a-member",
        "",
        "a controller that missed views which are lost decides from an older one: what was written since is lost",
        (Edit(CONTROLLER_SERVICE, "if liveness.is_behind(self._clock.monotonic()):", "if False:"),),
        detector="pytest tests/interceptors/grid/topology/test_controller_service.py -k older_view_than_a_member",
        because=RARE,
    ),
    Mutant(
        "pause-of-its-own-counts",
        "",
        "a controller that was stopped takes the silence meanwhile for that of the others",
        (
            Edit(
                LIVENESS,
                "            self._heard = {member: at + gap for member, at in self._heard.items()}\n",
                "            pass\n",
            ),
        ),
        detector="pytest tests/interceptors/grid/topology/test_liveness.py -k stopped_itself",
        because="needless elections, which the checker allows",
    ),
    Mutant(
        "requests-of-any-view",
        "answers-carry-epochs",
        "a request counts in another view than the one that it was made in",
        (
            Edit(
                LIVENESS,
                "            if m in members and beat.topology_id == self.view.topology_id\n",
                "            if m in members\n",
            ),
        ),
        detector="pytest tests/interceptors/grid/topology/test_liveness.py -k made_in_and_of_the_living",
        because=RARE,
    ),
    Mutant(
        "fenced-after-it-left",
        "",
        "a node that has handed all over is fenced: the process that replaces it is met",
        (Edit(LIVENESS, "if not self._replaced(m) and not self._has_left(m)]", "if not self._replaced(m)]"),),
        detector="pytest tests/interceptors/grid/topology/test_liveness.py -k has_left_and_holds_nothing",
        because="it costs a session, which is opened again",
    ),
    Mutant(
        "replaced-and-back-again",
        "incarnation",
        "a node that was cut off starts anew behind the one that has replaced it, and ends that",
        (Edit(PROCESS, "if running.serves:", "if False:"),),
        detector="pytest tests/interceptors/grid/test_cli.py -k process_of_the_future",
        because=NO_PROGRAM,
    ),
    Mutant(
        "slow-start-wins",
        "incarnation",
        "of two processes with one node id the earlier one stays, if its start took longer",
        (Edit(PROCESS, "if not is_of_the_future(error.by, unix_ns):", "if False:"),),
        detector="pytest tests/interceptors/grid/test_cli.py -k process_of_the_future",
        because=NO_PROGRAM,
    ),
    Mutant(
        "name-of-a-dead-process",
        "incarnation",
        "a process that starts behind one of the future takes the name of another that is dead, and with it its copies",
        (Edit(REGISTRY, " - (not self._has_registered)", ""),),
        detector="pytest tests/interceptors/grid/topology/test_registry.py -k newer_process_of_its_id",
        because=NO_PROGRAM,
    ),
)
SPARK: Final = (
    Mutant(
        "attempt-behind-an-open-transaction",
        "",
        "a batch that is done again waits for a marker that the lost producer's transaction hides, and the job ends",
        (
            Edit(
                DIFF_JOB,
                "                if earlier:\n                    # The",
                "                if not earlier:\n                    # The",
            ),
        ),
        detector="pytest tests/spark/test_lost_producer.py -k fences_first",
        because="the simulation has no Spark",
    ),
)

NO_STREAM: Final = "no seed of the grid has a cache in another process, and those of Redis seldom come so far"
STREAMS: Final = (
    Mutant(
        "renewed-before-the-stream-has-heard",
        "",
        "a position says of an offset of the stream what is true of another one",
        (Edit(SEGMENT, "self.last_sequence and not self.undecided", "self.last_sequence"),),
        detector="pytest tests/connector/core/test_streams.py -k renewed_or_released",
        because=NO_STREAM,
    ),
    Mutant(
        "unwritten-in-an-old-epoch",
        "",
        "operations that are not in Kafka are written in an epoch whose end others count otherwise",
        (Edit(TAKEOVERS, "past.opened(past.cut(segment.history, written), segment.epoch)", "segment.history"),),
        detector="pytest tests/connector/core/test_streams.py -k takes_the_new_epoch",
        because=NO_STREAM,
    ),
    Mutant(
        "phantom-below-what-is-read",
        "read-from-trails",
        "the next owner reads from behind a phantom that nobody has corrected",
        (Edit(LOG_WATCH, " and not segment.wrong and segment.written >= segment.corrected_at:", ":"),),
        detector="pytest tests/connector/core/test_streams.py -k is_corrected",
        because=NO_STREAM,
    ),
    Mutant(
        "counted-before-the-fence",
        "",
        "what the old owner's stream had behind the count is missed, or told twice",
        (Edit(TAKEOVERS, "if segment.recheck or segment.uncounted:", "if segment.recheck:"),),
        detector="pytest tests/connector/core/test_streams.py -k takes_the_new_epoch",
        because=NO_STREAM,
    ),
    Mutant(
        "label-beyond-the-fork",
        "",
        "what a lost primary wrote behind the fork passes for this stream's",
        (Edit(TAPE, "known, tape = min(self.lineage.end_of(source.id), self.offset)", "known, tape = self.offset"),),
        cache="redis",
    ),
    Mutant(
        "low-above-an-unwritten-change",
        "",
        "a connector that is killed goes on behind changes that are not in Kafka",
        (Edit(TAPE, "return tape.mark is None or entry.offset", "return tape.mark is not None and entry.offset"),),
        detector="pytest tests/interceptors/redis/test_capture.py -k others_write_gives_way",
        because=NO_STREAM,
    ),
    Mutant(
        "image-before-its-place",
        "",
        "a value stands at a change that it is younger than: a failover between the two keeps it for ever",
        (Edit(SEGMENT_TAPE, "at, clears = touched[count - 1].offset", "at, clears = touched[0].offset"),),
        cache="redis",
    ),
    Mutant(
        "given-way-and-not-named",
        "",
        "a change gives way to one that is lost with its owner: nobody tells the key",
        (Edit(SEGMENT_TAPE, "        self.later[change.key] = at\n", ""),),
        detector="pytest tests/interceptors/redis/test_segment_tape.py -k stands_at_the_last",
        because=NO_STREAM,
    ),
    Mutant(
        "absence-not-acknowledged",
        "reset-acked-only",
        "a reset says that keys are gone that a failover brings back",
        (Edit(CAPTURE, "max([self.listed, *(image.offset for", "max([0, *(image.offset for"),),
        detector="pytest tests/interceptors/redis/test_capture.py -k not_listed_must",
        because=NO_STREAM,
    ),
    Mutant(
        "gap-forgotten-while-closed",
        "",
        "databases are swapped while a segment is taken over: it stays as it was before",
        (Edit(TAPE, "if not max(tape.begin, self.gap, mark", "if not max(tape.begin, mark"),),
        detector="pytest tests/interceptors/redis/test_tape.py -k not_known_nothing",
        because=NO_STREAM,
    ),
    Mutant(
        "another-owner-prunes",
        "prune-in-history",
        "what is written here is dropped by a position of somebody else's",
        (Edit(CAPTURE, "elif state.member == self._member:", "else:"),),
        detector="pytest tests/interceptors/redis/test_capture.py -k do_not_prune",
        because=NO_STREAM,
    ),
    Mutant(
        "moving-slot-is-written",
        "",
        "a key that goes to another node of the cluster is told as deleted",
        (Edit(TAPE, "kept = view.writes | view.follows", "kept = view.writes | view.follows | view.moving"),),
        cache="redis",
    ),
    Mutant(
        "answer-of-before-the-link",
        "",
        "an answer that is late makes a replica of a primary, and its connector acknowledges as one",
        (Edit(REDIS_NODE, "if self._link is None or self._link is not link:", "if self._link is None:"),),
        detector="scenario answer_of_before_the_link",
        because=ONE_CASE,
    ),
    Mutant(
        "promoted-between-two-questions",
        "",
        "the connector of a new primary takes the former one's for a later one, and stays standby for ever",
        (
            Edit(REDIS_NODE, "            if not link.continues:", "            if False:"),
            Edit(
                REDIS_NODE,
                "            self._claims_at = None\n            return frozenset()\n        if sentinels",
                "            return frozenset()\n        if sentinels",
            ),
        ),
        detector="scenario promoted_between_two_questions",
        because=ONE_CASE,
    ),
    Mutant(
        "large-without-a-look",
        "",
        "an entry that was too large, and is another one by the time it is told, is told as too large",
        (Edit(REDIS_READING, "if content != kind or (kind in READS and not", "if False and (kind in READS and not"),),
        detector="pytest tests/interceptors/redis/test_reading.py -k only_if_it_still_is",
        because=NO_STREAM,
    ),
    Mutant(
        "store-by-its-name",
        "",
        "what a SORT stores under a key that is named like an option is never read",
        (Edit(COMMANDS, "                at += 1\n            at += 1 + skipped", "            at += 1 + skipped"),),
        detector="pytest tests/interceptors/redis/test_commands.py -k forms",
        because=NO_STREAM,
    ),
    Mutant(
        "deleted-without-a-look",
        "",
        "the same, before the view says that its slot moves",
        (Edit(REDIS_NODE, "return min(acked, read) if self._cluster else acked", "return acked"),),
        detector="pytest tests/interceptors/redis/test_node.py -k before_the_view",
        because=NO_STREAM,
    ),
    Mutant(
        "primary-without-sentinels",
        "",
        "a primary that lives on when Sentinels have promoted another one is written by a connector that starts there",
        (Edit(STREAM_VIEW, "if primary and named else", "if primary else"),),
        detector="pytest tests/interceptors/redis/test_view.py -k sentinels_watch",
        because=NO_STREAM,
    ),
    Mutant(
        "named-long-ago",
        "",
        "a connector that has no majority of Sentinels begins to write on what they said once",
        (Edit(SENTINELS, "and (writes or self.agreeing > 0)", "and (writes or self.agreeing >= 0)"),),
        detector="pytest tests/interceptors/redis/test_sentinels.py -k only_what_is_written",
        because=NO_STREAM,
    ),
    Mutant(
        "half-of-the-sentinels",
        "",
        "two halves of the Sentinels, which do not hear one another, name two primaries",
        (Edit(SENTINELS, "2 * most > count", "2 * most >= count"),),
        detector="pytest tests/interceptors/redis/test_sentinels.py -k more_than_half",
        because=NO_STREAM,
    ),
    Mutant(
        "listed-by-sentinels",
        "",
        "a connector's link is a replica for Sentinels, of port 0 and down for ever",
        (Edit(REDIS_LINK, 'await ask("REPLCONF", "ip-address", "")', "pass"),),
        detector="pytest tests/interceptors/redis/test_sentinels.py -k cannot_be_promoted",
        because=NO_STREAM,
    ),
    Mutant(
        "rows-before-changes",
        "",
        "values of changes wait for all rows of the resets that were asked for with one another",
        (Edit(REDIS_NODE, "await self._may_read(len(some))", "await asyncio.sleep(0.6)"),),
        detector="pytest tests/interceptors/redis/test_node.py -k changes_do_not_wait",
        because=NO_STREAM,
    ),
    Mutant(
        "all-read-at-once",
        "",
        "128 entries of 32 MB each are one answer",
        (Edit(REDIS_READING, "if groups and total > _MOST_BYTES:", "if False:"),),
        detector="pytest tests/interceptors/redis/test_reading.py -k too_much_for_one",
        because=NO_STREAM,
    ),
    Mutant(
        "moved-keys-read-for-ever",
        "",
        "a slot that moves while rows are read holds up the resets of all others that were listed with it",
        (Edit(REDIS_NODE, "part.changed if capture.wants_rows(keys[key], resets[keys[key]])]", "part.changed]"),),
        detector="pytest tests/interceptors/redis/test_cluster.py -k holds_up_no_other",
        because=NO_STREAM,
    ),
    Mutant(
        "unknown-command-is-of-its-own-database",
        "",
        "what a command that is not known writes to the captured database from another one is missed",
        (Edit(COMMANDS, "[Touched(key, database=_number(given[1])) for", "[Touched(key) for"),),
        detector="pytest tests/interceptors/redis/test_node.py -k may_write_to_another_database",
        because=NO_STREAM,
    ),
    Mutant(
        "low-above-a-moving-slot",
        "",
        "a slot that stays after all lacks what came while it moved",
        (Edit(TAPE, "return min([self._first(), *((floor", "return min([self._first()] or [*((floor"),),
        detector="pytest tests/interceptors/redis/test_tape.py -k began_to_move",
        because=NO_STREAM,
    ),
    Mutant(
        "low-of-another-rank",
        "",
        "a slot that was away and came back lacks what was written there",
        (Edit(CAPTURE, "source, low if source.rank == rank else source.low)", "source, low)"),),
        detector="pytest tests/interceptors/redis/test_capture.py -k same_rank",
        because=NO_STREAM,
    ),
    Mutant(
        "dropped-and-not-held-back",
        "",
        "a replica's connector that had to drop changes, and is promoted, goes on behind them",
        (Edit(TAPE, "                self._give_up(entry.segment, entry)\n", ""),),
        detector="pytest tests/interceptors/redis/test_tape.py -k oldest_segments_are_dropped",
        because=NO_STREAM,
    ),
    Mutant(
        "came-back-as-deleted",
        "",
        "the keys of a move that is taken back at once are told as deleted",
        (Edit(TAPE, "change.arrived and tape.came_back(key)", "False"),),
        detector="pytest tests/interceptors/redis/test_tape.py -k comes_back",
        because=NO_STREAM,
    ),
    Mutant(
        "rank-ignored",
        "",
        "two connectors take a slot from each other as long as their servers disagree whose it is",
        (Edit(CAPTURE, "if source.rank > self.view.rank:", "if source.rank < 0:"),),
        detector="scenario outranked",
        because=NO_STREAM,
    ),
    Mutant(
        "takes-for-later-what-it-had-not-read",
        "",
        "a connector that claims while positions cannot be read gives way for ever to what was there before",
        (Edit(CAPTURE, "self._epochs[segment] = position.epoch", "pass"),),
        detector="scenario claimed_unread",
        because=NO_STREAM,
    ),
    Mutant(
        "one-database-for-all",
        "",
        "each cache of a process has the changes of database 0",
        (Edit(ADDRESS, 'databases.get(config["cache.name"], database)', "database"),),
        detector="pytest tests/interceptors/redis/test_databases.py -k each_has",
        because=NO_STREAM,
    ),
    Mutant(
        "row-shows-what-is-lost",
        "",
        "changes give way to one that a failover has replaced by another",
        (Edit(CAPTURE, "shown if shown <= end else 0", "shown"),),
        detector="pytest tests/interceptors/redis/test_capture.py -k stream_that_is_lost",
        because=NO_STREAM,
    ),
    Mutant(
        "numbers-from-its-own-start",
        "",
        "a connector counts changes from where it began to read, not from a position in Kafka",
        (
            Edit(
                CAPTURE,
                "            anchor, last = found\n",
                "            anchor, last = Anchor(self.tape.segments[segment].begin, 0), 0\n",
            ),
        ),
        cache="redis",
    ),
    Mutant(
        "link-loss-bridged",
        "",
        "a stream that does not go on is taken for the one that was read: what came in between is missed",
        (Edit(REDIS_NODE, "goes_on = link.continues and is_known", "goes_on = is_known"),),
        cache="redis",
    ),
    Mutant(
        "swap-passed-over",
        "",
        "two databases change places, and the topic keeps the entries of the other one",
        (Edit(TAPE, 'self._unknown("SWAPDB", offset)', "pass"),),
        cache="redis",
    ),
    Mutant(
        "source-of-a-rename-stays",
        "",
        "a key that was renamed is there under both names",
        (
            Edit(
                COMMANDS,
                "        found: list[Change] = [Touched(given[place], created, _database(given))]",
                "        found: list[Change] = []",
            ),
        ),
        cache="redis",
    ),
    Mutant(
        "reset-keeps-what-it-replaces",
        "",
        "changes from before a reset hold up its rows for ever",
        (
            Edit(
                CAPTURE,
                "        self.tape.segments[segment].drop(self.tape.offset)\n        self._reading",
                "        self._reading",
            ),
        ),
        cache="redis",
    ),
    Mutant(
        "claimed-in-an-old-epoch",
        "",
        "a connector claims with the epoch of the one before it",
        (
            Edit(
                CAPTURE,
                "self._epoch = max(self._epoch, self.sink.highest_claim()) + 1",
                "self._epoch = max(self._epoch, self.sink.highest_claim(), 1)",
            ),
        ),
        cache="redis",
    ),
    Mutant(
        "low-is-forgotten",
        "",
        "a segment is written before another one is counted, and that one, which was idle, is reset for nothing",
        (Edit(CAPTURE, "low = max(low, self._low[1] if self._low[0] == rank else -1)", "pass"),),
        detector="pytest tests/interceptors/redis/test_capture.py -k stays_low",
        because=RARE,
    ),
    Mutant(
        "low-outlives-a-fork",
        "",
        "what was low in a stream that is lost is low in the one that took its place: its changes count as written",
        (
            Edit(
                CAPTURE,
                "            self._low = self._low[0], min(self._low[1], lineage.shared(tape.lineage))\n",
                "",
            ),
        ),
        detector="pytest tests/interceptors/redis/test_capture.py -k behind_a_fork",
        because=RARE,
    ),
    Mutant(
        "true-ack-on-a-primary",
        "",
        "a connector counts as a replica: WAIT counts it, and a failover may choose it",
        (Edit(REDIS_NODE, "shows = (ends or not view.is_primary) and not self._link.is_bounded", "shows = True"),),
        cache="redis",
    ),
    Mutant(
        "image-before-the-stream",
        "",
        "an image is told before the stream was read to its place: changes before it that tell more come behind it",
        (Edit(CAPTURE, "while self._images and self._images[0][1].offset <= tape.offset:", "while self._images:"),),
        detector="scenario image_before_the_stream",
        because=RARE,
    ),
    Mutant(
        "corrects-nothing",
        "",
        "what a lost stream has left in Kafka is not taken back",
        (
            Edit(
                CAPTURE,
                "            tape.correct(keys)\n            self.tape.busy.add(segment)\n",
                "            self.tape.busy.add(segment)\n",
            ),
        ),
        cache="redis",
    ),
    Mutant(
        "reads-beyond-the-fork",
        "",
        "what another server has behind the fork passes for the own server's, which has forgotten it",
        (Edit(REDIS_SHARD, "own.offset, its.offset, own.lineage.shared(its.lineage)", "own.offset, its.offset"),),
        detector="pytest tests/interceptors/redis/test_shard.py",
        because=ONE_CASE,
    ),
    Mutant(
        "database-forgotten",
        "",
        "a connector does not see that the stream goes on in another database",
        (
            Edit(
                TAPE,
                "                self.database = int(arguments[1])  # type: ignore[arg-type]",
                "                pass",
            ),
        ),
        cache="redis",
    ),
    Mutant(
        "image-later-than-it-is",
        "",
        "an image waits for an offset that the stream may never reach",
        (
            Edit(
                REDIS_READING,
                "        found.id, offset = id_of(info), offset_of(role)\n",
                "        found.id, offset = id_of(info), offset_of(role) + 1000\n",
            ),
        ),
        cache="redis",
    ),
    Mutant(
        "low-of-some-segments",
        "",
        "all is low up to where one partition's segments were taken over: what the others lack is never sent",
        (Edit(TAPE, "if self.segments[number].lacks_what_was_before():", "if False:"),),
        detector="scenario low_water",
        because=NO_STREAM,
    ),
    Mutant(
        "full-tape-looks-at-nothing",
        "",
        "a server comes back with another stream while the tape is full, and capture stands for ever",
        (Edit(REDIS_NODE, "if self.capture.is_full() or (link", "if (link"),),
        detector="scenario full_of_another_stream",
        because=NO_STREAM,
    ),
    Mutant(
        "cleared-within-rows",
        "",
        "keys that are flushed while rows are read are neither rows nor told: a failover brings them back unseen",
        (Edit(CAPTURE, "tape.is_cleared(reset.offset)", "tape.is_cleared(reset.listed)"),),
        detector="scenario cleared_within_rows",
        because=NO_STREAM,
    ),
    Mutant(
        "counted-from-before-what-was-pruned",
        "",
        "changes that were given up as written, and then replaced by a server that lacked them, are never told again",
        (Edit(TAPE, "max(tape.begin, self.gap, mark.offset) <= anchor", "max(tape.begin, self.gap) <= anchor"),),
        detector="scenario older_stream_between",
        because=NO_STREAM,
    ),
    Mutant(
        "waits-and-is-not-named",
        "",
        "a change that is to tell what a lost stream left in Kafka is lost as well: nobody tells the key",
        (Edit(SEGMENT_TAPE, "            self.later.setdefault(key, pending[key])\n", "            pass\n"),),
        detector="pytest tests/interceptors/redis/test_segment_tape.py -k tells_what_is_wrong",
        because=NO_STREAM,
    ),
)

MUTANTS: Final = (*TAKEOVER, *WRITING, *RESETS, *BACKUPS, *SHELL, *TOPOLOGY, *SPARK, *STREAMS)
"""All mutants, by the part of the protocol that they break."""
