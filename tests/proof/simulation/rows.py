"""Which scenario tells of which rule and of which fault; which test does where the simulation cannot.

A name in backquotes is a scenario, a path is a test's.
"""

from __future__ import annotations

from typing import Final

RULES: Final[dict[str, str]] = {
    "answers-carry-epochs": "`answers_carry_epochs`",
    "catch-up-by-ops": "`catch_up_by_ops`",
    "claim-before-fence": "`claim_before_fence`",
    "claim-key-per-member": "`claim_key_per_member`",
    "claim-then-look": "`claim_then_look`",
    "claims-outlive-compaction": "`claims_outlive_compaction`",
    "coalesce-acked": "`coalesce_acked`, `coalesced_and_lost` and `coalesced_run_at_once`",
    "continuity": "`continuity`",
    "correct-phantoms": "`correct_phantoms` and `write_before_correction`",
    "end-beyond-again": "`end_beyond_again`",
    "fence-once": "`fence_once`",
    "fencing": "`fencing`",
    "in-sync-order": "`in_sync_order`, `stale_backup`, `newcomer_is_waited_for`, `admission_and_a_broken_stream` and "
    "`report_of_an_older_view`",
    "incarnation": "`incarnation` and `twin`",
    "nothing-over-a-hole": "`nothing_over_a_hole`",
    "open-reset-again": "`open_reset_again`",
    "position-is-not-claim": "`position_is_not_claim`",
    "primary-decides-eviction": "`primary_decides_eviction`",
    "prune-in-history": "`prune_in_history`",
    "read-from-trails": "`read_from_trails`",
    "read-to-own-record": "`read_to_own_record`, `pause_is_noticed` and `controller_reads_on`",
    "recheck-after-fence": "`recheck_after_fence`",
    "recheck-keeps-place": "`recheck_keeps_place`",
    "release-is-final": "`release_is_final`",
    "release-keeps-rank": "`release_keeps_rank`",
    "reset-acked-only": "`reset_acked_only`",
    "transfer-is-not-ops": "`transfer_is_not_ops`",
    "truncation-noticed": "`truncation_since_the_last_look`, `truncation`, `lost_beyond_the_new_owner`, "
    "`rows_of_a_reset_lost`, `asked_for_and_cut_away`, `begin_cut_away`, `cut_before_it_came_back`, "
    "`cut_into_while_open`, `reset_rows_cut_away`, `reset_found_and_cut_away` and `last_of_an_idle_segment`",
}
"""Each rule marked CHECK in the sources."""

_READER: Final = "the simulation's reader keeps nothing between two runs: "

FAULTS: Final[dict[int, str]] = {
    1: "owner crash at each point: `owner_dies_before_it_sends`, `owner_dies_in_a_transaction`, "
    "`owner_dies_before_the_answer`",
    2: "owner crash in a takeover: `successor_dies_before_active`, `successor_dies_before_it_writes`",
    3: "takeovers in a row, and a zombie: `successor_dies_before_it_writes`, `zombie_of_two_takeovers`",
    4: "a zombie appends: `fencing`, `position_is_not_claim`, `claims_outlive_compaction`, `zombie_of_two_takeovers`",
    5: "a long pause: `long_pause`",
    6: "loss of all owners: `owners_lost_at_once`, `owners_lost_one_by_one`",
    7: "crash of the resetter: `open_reset_again`, `resetter_dies_before_its_first_row`",
    8: "a replica joins and leaves in a takeover and in a reset: `replica_joins_in_takeover`",
    9: "a stale replica: `stale_backup`, `continuity`, `older_report`, `report_of_an_older_view`",
    10: "split brain: `split_brain`, `acked_by_who_lost_the_segment`, `controller_answers_itself`",
    11: "clean stop and start: `clean_stop`, `rolling_restart`; another tool's change in between needs a cache that "
    "outlives its process, which the grid is not: tests/connector/runtime/test_connector.py",
    12: "operations behind a release: `release_is_final`",
    13: "Kafka away, op logs full: `kafka_away_for_a_second`, `kafka_away_for_long`, `op_log_full`",
    14: "no gap after a timeout or an error: `answer_lost`, `record_refused`",
    15: "an answer lost; a report's offset is never used, so it has none here: `answer_lost`",
    16: "reported and absent: to those who trust a report it is what this is: `truncation_since_the_last_look`",
    17: "truncation: `truncation`, `truncation_since_the_last_look`, `lost_beyond_the_new_owner`, `cut_and_not_reset`; "
    "of a claim: `lost_claim`; of rows: `rows_of_a_reset_lost`",
    18: "topic made again: `topic_recreated`, `topic_recreated_in_a_takeover`; with other partitions it is refused "
    "at the start: tests/connector/runtime/test_connector.py; the grid's topic of views: `view_known_by_one`",
    19: "more partitions are refused at the start, by an audit that is not simulated: "
    "tests/connector/runtime/test_connector.py",
    20: "compaction: `claims_outlive_compaction`; retention concerns readers alone: tests/spark/test_diff_loss.py",
    21: "fenced, or the session expired: `fenced_for_no_reason`, `own_transaction_hangs`",
    22: "too large: `record_refused`; a transaction for its time: `quota`",
    23: "hanging and aborted transactions: `hanging_transaction`, `own_transaction_hangs`",
    24: "the network: `one_way_partition`, `swizzle`, `answers_carry_epochs`; a frame never comes twice, since a "
    "connection that breaks takes all with it: tests/interceptors/grid/replication/test_backup.py",
    25: "clocks: `clocks_jump`, `clock_beyond_what_brokers_take`",
    26: _READER + "tests/spark/test_diff_job.py and tests/spark/test_diff_process.py kill the job at each point",
    27: _READER + "tests/spark/test_diff_job.py starts it anywhere",
    28: "no writer of ours damages a record: tests/schemas/test_records.py, tests/spark/test_diff_job.py",
    29: "expiry and eviction in a takeover: `expiry_races_takeover`, `primary_decides_eviction`",
    30: "epochs: a controller that is behind, `controller_reads_on`; the same epoch twice, which no controller of the "
    "simulation gives out: tests/connector/core/test_takeover.py",
    31: "there is one record version so far, and another is refused: tests/schemas/test_golden.py",
    32: "a full disk of the Spark job: tests/system/chaos/faults.py",
    33: "one position twice is dropped and counted: tests/schemas/test_fold.py",
    34: "operations of a connector: `restart_under_writes`, `restart_in_a_takeover`, `two_restarts_at_once`, "
    "`configure_in_a_handover`, `pause_overflow_resume`, `stop_cut_from_kafka`; signals: `paused_by_signal`",
}
"""Each row of the fault list, by its number."""
