"""The producers of one node: one writes, and a spare one takes over where Kafka holds that one up, or its coordinator
is out of reach.

A transaction with records for a partition that has lost its minimum of replicas is decided and does not end: until the
partition takes its marker, the id begins no other. What has become of the transaction on the other partitions is read
behind the next ACTIVE, as always. Weighed in docs/decisions.md, "One partition that takes no records".
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from deelog_connector.kafka_port import OutRecord, Session, WriteFailed

log = logging.getLogger(__name__)

Places = Sequence[tuple[str, int]]
"""Partitions, by topic and number."""


class Producers:
    """Two `kafka_port.Session` of different ids. `spare`: whether the second one is in use.

    `fence` is that of `kafka_port.Brokers` for an id that is not in use: False, or True for the spare one. `hidden`
    tells on which partitions transactions that are open now do not end in time.
    """

    def __init__(
        self,
        first: Session,
        second: Session,
        fence: Callable[[bool, Places], Awaitable[None]],
        hidden: Callable[[Places], Awaitable[set[int]]],
    ) -> None:
        self._sessions, self._fence, self._hidden = (first, second), fence, hidden
        self.spare = False
        self.unwritable = frozenset[int]()
        """Partitions that take no records, as far as is known."""
        self._left_open: dict[bool, set[int]] = {False: set(), True: set()}
        """By producer: partitions that its last transaction with records for them may have been left open on.

        Of each failed one, whatever was known: Kafka tells seconds later that a partition has no leader.
        """

    @property
    def _session(self) -> Session:
        return self._sessions[self.spare]

    async def open(self) -> None:
        """As `Session.open`. Where it is held up, has no coordinator, or may not have its id, the next call opens the
        other one.

        Not before the partition that holds it up is known: the other one would write to that, too.
        """
        try:
            await self._session.open()
        except WriteFailed as error:
            held_up = error.held_up and self.unwritable
            if held_up or error.uncoordinated or (error.denied and self.spare):
                self.spare = not self.spare
                log.warning("%s: the %s producer goes on", error, self)
            raise

    def begin(self, partitions: Iterable[int]) -> None:
        """An earlier process may have left a transaction open on any of these, which are all partitions."""
        self._left_open[False].update(partitions)

    def settled(self, partitions: Collection[int]) -> None:
        """What the producer in use has written to these was read: the other one has left nothing open there."""
        self._left_open[not self.spare].difference_update(partitions)

    def left_open_on(self, partitions: Collection[int]) -> set[int]:
        """Those of them on which a transaction may have been left open."""
        return {p for those in self._left_open.values() for p in those if p in partitions}

    async def abort(self, places: Callable[[int], Places], partitions: Collection[int]) -> bool:
        """Aborts what was left open on these partitions, which take records again; whether the session goes on.

        What was not seen to end is still told by `left_open_on`: a partition that loses its leader again loses the
        marker of an abort, too, and the next commit would commit all that is open there.
        """
        for spare, those in self._left_open.items():
            if found := those.intersection(partitions):
                left_open = [place for partition in sorted(found) for place in places(partition)]
                in_use = spare == self.spare
                try:
                    await (self._session.abort(left_open) if in_use else self._fence(spare, left_open))
                except WriteFailed as error:
                    log.warning("partitions %s wait: %s", sorted(found), error)
                    if in_use:
                        return False
                    if error.denied:  # what may not write has left nothing open
                        those -= found
                        continue
                # Also where its coordinator is away: where nothing is open, it has left nothing open.
                hidden = await self._hidden(left_open)
                those -= found - hidden
                if hidden:
                    log.warning("partitions %s wait: what was left open there does not end", sorted(hidden))
        return True

    async def end_hanging(self, spare: bool, places: Callable[[int], Places], partition: int) -> bool:
        """Aborts what a producer of this node was found to have left open on this partition. As `abort`."""
        self._left_open[spare].add(partition)
        return await self.abort(places, {partition})

    async def commit(self, records: Iterable[OutRecord], partitions: Collection[int]) -> None:
        """As `Session.commit`, of records for these partitions."""
        left_open = self._left_open[self.spare]
        left_open.update(partitions)
        try:
            await self._session.commit(records)
        except BaseException:
            left_open.update(partitions)  # again: an abort that was under way has ended meanwhile
            raise
        left_open.difference_update(partitions)

    async def discard(self) -> None:
        await self._session.discard()

    def give_up(self) -> None:
        self._session.give_up()

    def __str__(self) -> str:
        return "spare" if self.spare else "first"
