"""A consumer group at its coordinator, as much as an election needs: one of its members is assigned the partition."""

from __future__ import annotations

from deelog_proof.memory.engine import Engine


class Group:
    """The assignment stays with its member until that one leaves or is silent for its session timeout, in seconds.

    `generation` counts the changes of membership. `changes` counts those of the assigned member.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._heard: dict[str, float] = {}
        """When each member was last heard of."""
        self._clients: dict[str, str] = {}
        self._aside: set[str] = set()
        """The members that are not assigned the partition."""
        self.generation = self.changes = 0
        self.holder: str | None = None

    def __contains__(self, member: str) -> bool:
        return member in self._heard

    @property
    def clients(self) -> frozenset[str]:
        """The client ids of the members."""
        return frozenset(self._clients.values())

    def join(self, member: str, client_id: str, timeout: float, aside: bool = False) -> None:
        """Adds a member."""
        self._heard[member], self._clients[member] = self._engine.now, client_id
        if aside:
            self._aside.add(member)
        self._changed()
        self._engine.after(timeout, self._expire, member, timeout)

    def stand(self, member: str) -> None:
        """From now on the member may be assigned the partition."""
        self._aside.discard(member)
        self._changed()

    def hear(self, member: str) -> None:
        """A heartbeat of a member."""
        self._heard[member] = self._engine.now

    def hear_all(self) -> None:
        """Its coordinator was away: the silence of the members was not theirs."""
        self._heard = dict.fromkeys(self._heard, self._engine.now)

    def leave(self, member: str) -> None:
        """Removes a member."""
        if self._heard.pop(member, None) is not None:
            del self._clients[member]
            self._aside.discard(member)
            self._changed()

    def _expire(self, member: str, timeout: float) -> None:
        heard = self._heard.get(member)
        if heard is not None and heard + timeout <= self._engine.now:
            self.leave(member)
        elif heard is not None:
            self._engine.at(heard + timeout, self._expire, member, timeout)

    def _changed(self) -> None:
        self.generation += 1
        if self.holder not in self._heard:
            # librdkafka's assignor takes the member whose id comes first, and that begins with the client's.
            standing = sorted(self._heard.keys() - self._aside, key=lambda member: (self._clients[member], member))
            self.holder = next(iter(standing), None)
            self.changes += self.holder is not None
