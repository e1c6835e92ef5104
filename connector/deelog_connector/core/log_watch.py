"""What Kafka is known to hold: positions that are read back, the ends of the log, and the identity of the topic."""

from __future__ import annotations

from deelog_connector.core import history as past
from deelog_connector.core.segment import POSITIONS_LOST, Phase, Segment
from deelog_connector.core.state import NodeState
from deelog_schemas.positions import PositionState


class LogWatch:
    """See the module."""

    def __init__(self, node: NodeState) -> None:
        self._node = node

    def position_read(self, segment: Segment, state: PositionState) -> None:
        """A position of this segment was read on the positions topic."""
        # CHECK prune-in-history: a position that this node never had says nothing of its own operations.
        if not past.holds(segment.history, state.position):
            return
        segment.written = max(segment.written or 0, state.sequence)
        self._node.counts.pruned += segment.log.prune(state.sequence)
        # In a takeover the ledger's ends are of an earlier look, perhaps at another leader's log.
        if segment.phase is Phase.WRITING and not segment.wrong and segment.written >= segment.corrected_at:
            epoch = self._node.changes.leader_epoch(segment.partition)
            segment.ledger.advance(segment.written, segment.replicated, segment.atomic_to, epoch)

    def end_of(self, partition: int) -> tuple[int, int]:
        """The end of all records that was seen, and the leader epoch then; (-1, -1) before the first."""
        return self._node.changes.end(partition), self._node.changes.leader_epoch(partition)

    def doubts(self, partition: int, offset: int, leader_epoch: int) -> bool:
        """Whether the log itself must be asked if it is intact.

        It ends below an offset that was seen, or it has another leader, under whom it may have been cut and have grown
        past that offset again.
        """
        seen, epoch = self.end_of(partition)
        return seen > 0 and (offset < seen or leader_epoch != epoch)

    def end_read(
        self, partition: int, offset: int, leader_epoch: int, intact: bool | None = None, stable: int | None = None
    ) -> list[int]:
        """The end of a partition's records as the broker gave it just now; the segments that lost records, if any.

        What is committed behind an open transaction of somebody else may be cut away as well, and is verified only
        with it: so the end is that of all records, and `stable` the last stable offset, where that is another one.
        `intact` is the log's answer where `doubts` asked for it: whether it still holds all up to the offset seen last,
        under the leader epoch of then. If it was not asked, an end below that offset is a truncation: the segments owe
        a reset. An intact log that ends below is that of a broker that has just started: its high watermark trails.
        Under another leader, or the first one that is known, the segments read again what Kafka holds, and look for
        what was committed since.
        """
        changes = self._node.changes
        seen, epoch = self.end_of(partition)
        if intact and offset < seen:
            return []
        changes.leader_epochs[partition] = leader_epoch
        changes.ends[partition] = offset
        changes.stable[partition] = offset if stable is None else min(stable, offset)
        if intact is False or offset < seen:
            self._node.counts.truncations += 1
            changes.cut_in[partition] = leader_epoch
            lost = []
            for segment in self._node.primaries_of(partition):
                # Under a leader that is new here, an owner before this one may have seen or reset it all already.
                if epoch < leader_epoch <= segment.ledger.leader_epoch:
                    segment.look_again()
                else:
                    lost.append(segment)
            return self._lost(lost, "truncated")
        for segment in self._node.primaries.values():
            if segment.partition != partition:
                continue
            if epoch != leader_epoch and (epoch >= 0 or segment.ledger.unverified):
                segment.look_again()
            if segment.phase is Phase.WRITING:  # else what was committed is looked for first
                segment.ledger.looked(offset, max(segment.in_flight, segment.sent), segment.written or 0)
        return []

    def topic_is(self, topic_id: str) -> bool:
        """The change topic's id; whether it is another one than before: the topic was deleted and created again."""
        changes = self._node.changes
        if not changes.is_another(topic_id):
            return False
        changes.cut_in.clear()
        changes.leader_epochs.clear()  # the new one's begin at 0
        for partition in range(self._node.settings.partitions):
            changes.ends[partition] = changes.stable[partition] = 0
            self._lost(self._node.primaries_of(partition), "topic_recreated")
        return True

    def _lost(self, concerned: list[Segment], reason: str) -> list[int]:
        for segment in concerned:
            segment.owed, segment.written = reason if segment.owed != POSITIONS_LOST else segment.owed, None
            segment.ledger.lose()
            segment.look_again()  # what it waits for may be gone as well
        return [segment.number for segment in concerned]
