"""Transactions that nobody ends and that hide this node's records, on either topic: whose they are, and their end.

A transaction that ended when one of its partitions had no leader stays open there, and no reader passes it. Weighed in
docs/decisions.md, "One partition that takes no records".
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import takewhile
from typing import Final

from deelog_connector.core.effects import (
    EndHanging,
    FindHanging,
    Hanging,
    HangingAbort,
    Item,
    Producer,
    StateItem,
)
from deelog_connector.core.scan import Claimant
from deelog_connector.core.segment import Phase, Segment
from deelog_connector.core.state import NodeState
from deelog_schemas.header import node_number
from deelog_schemas.member import node_id_of
from deelog_schemas.positions import State

_MOST_DOUBLED: Final = 4
"""So often the patience with a record of one's own is doubled: who reads four minutes late comes to write."""


class HangingTransactions:
    """See the module. What is asked for again before it was answered, is asked for once."""

    def __init__(self, node: NodeState) -> None:
        self._node = node
        self._looked_for: set[int] = set()
        """Partitions of which `FindHanging` is not answered."""
        self._ending: set[EndHanging] = set()
        self._overdue: dict[int, dict[int, tuple[int, State | None]]] = {}
        """By partition and segment the record on the positions topic that it waits for: the number of a claim, or a
        state."""
        self._unread: dict[int, tuple[int, State, float]] = {}
        """By segment: the partition of the last state that was committed, the state, and when."""

    def committed(self, items: Iterable[Item]) -> None:
        """A transaction is committed, says the client. No reader sees it where its end was lost with a leader."""
        for item in items:
            if isinstance(item, StateItem) and item.state is not None:
                self._unread.pop(item.segment, None)  # the latest come last
                self._unread[item.segment] = item.partition, item.state, self._node.now

    def lose_patience(self, working: Iterable[Segment]) -> None:
        """Looks where records of ours on the positions topic have been hidden for too long."""
        node, waiting = self._node, set[int]()
        overdue = takewhile(lambda unread: node.now - unread[1][2] >= node.settings.patience, self._unread.items())
        for number, (partition, state, _) in list(overdue):
            if partition not in node.withheld:
                del self._unread[number]
                if not node.positions.holds(number, state):
                    self._overdue.setdefault(partition, {})[number] = 0, state
                    waiting.add(partition)
        for segment in node.writable(working):
            asked = segment.awaited and segment.phase in (Phase.LOOK, Phase.READ)
            # A tail may be late as well: a record that was given up may come when the next one is waited for.
            patience = node.settings.patience * 2 ** min(segment.in_vain, _MOST_DOUBLED)
            if asked and node.now - segment.asked_at >= patience:
                segment.asked_at = node.now
                self._overdue.setdefault(segment.partition, {})[segment.number] = segment.awaited, None
                waiting.add(segment.partition)
        for partition in sorted(waiting):
            self.waited_in_vain(partition)

    def waited_in_vain(self, partition: int) -> None:
        """Records of ours have been hidden on this partition for too long."""
        self._node.counts.scans_in_vain += 1
        if partition not in self._looked_for:
            self._looked_for.add(partition)
            self._node.outbox.append(FindHanging(partition))

    def found(self, partition: int, transactions: Iterable[Hanging | HangingAbort]) -> None:
        """The transactions that stay open there, one of each topic at most."""
        self._looked_for.discard(partition)
        node_ids = {self._node_to_fence(partition, each) for each in transactions} - {""}
        # Whoever goes on with one producer has left the other one in a transaction that does not end.
        producers = sorted(Producer(node_id, spare) for node_id in node_ids for spare in (False, True))
        effects = [EndHanging(producer, partition) for producer in producers]
        fresh = [effect for effect in effects if effect not in self._ending]
        self._ending.update(fresh)
        self._node.counts.fenced += len(fresh)
        self._node.outbox += fresh

    def nothing_hides(self, partition: int) -> None:
        """What is waited for on the positions topic since before that was asked is gone: it is written again."""
        for number, (awaited, state) in self._overdue.pop(partition, {}).items():
            segment = self._node.primaries.get(number)
            if segment is None:
                continue
            if state is None and segment.awaited == awaited:
                segment.in_vain += 1
                segment.look_again()
            elif state is not None and not self._node.positions.holds(number, state):
                segment.is_unread = True
                self._node.renewed_from = -math.inf

    def something_hides(self, partition: int) -> None:
        """It is asked for again."""
        for number, (_, state) in self._overdue.pop(partition, {}).items():
            if state is not None:
                self._unread.setdefault(number, (partition, state, self._node.now))

    def ended(self, effect: EndHanging) -> None:
        """It was tried. What is hidden still is looked for again."""
        self._ending.discard(effect)

    def forget(self) -> None:
        """What is under way is not answered."""
        self._looked_for.clear()
        self._overdue.clear()
        self._ending.clear()

    def _node_to_fence(self, partition: int, found: Hanging | HangingAbort) -> str:
        """Whose it is; empty where it is for others to end it, or is nobody's."""
        if isinstance(found, HangingAbort):
            return found.node_id
        member = found.member or self._writer_of(found)
        node_id = node_id_of(member)
        own = node_id == node_id_of(self._node.member)
        return node_id if own or self._is_superseded(member, partition, found) else ""

    def _writer_of(self, found: Hanging) -> str:
        """Most records say only to people who wrote them. Whoever is fenced by mistake begins anew."""
        position = self._node.positions.positions.get(found.segment)
        known = {member for _, member in self._claims(found.segment)} | {self._node.member} | self._node.met
        known |= {position.member} if position is not None else set()
        return next((member for member in sorted(known) if node_number(member) == found.node), "")

    def _is_superseded(self, member: str, partition: int, found: Hanging) -> bool:
        """Whether this node has a segment there that the member claimed before it, or at the same time.

        A claim that nobody has read may be of the epoch that this node has chosen: who comes first is not in sight.
        """
        for segment in self._node.primaries_of(partition):
            epochs = [epoch for epoch, claimant in self._claims(segment.number) if claimant == member]
            if segment.number == found.segment:
                epochs.append(found.epoch - 1)
            if max(epochs, default=segment.epoch) < segment.epoch:
                return True
        return False

    def _claims(self, number: int) -> frozenset[Claimant]:
        """Of a segment, as either topic has them, or had when this node's claim was read: its ACTIVE removes others."""
        claims = self._node.positions.claimants(number)
        segment = self._node.primaries.get(number)
        if segment is None:
            return claims
        return claims | segment.known.ranked | (segment.scan.claims if segment.scan is not None else frozenset())
