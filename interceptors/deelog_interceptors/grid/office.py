"""The controller at work: it hears heartbeats, declares deaths, fences the dead, decides, and commits views.

Every node runs one of these; only the one that Kafka's group protocol seats does anything (`hold`).
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import orjson

from deelog_connector.kafka import group
from deelog_interceptors.grid.controller import Request, Situation, decide
from deelog_interceptors.grid.frames import Heard, Heartbeat
from deelog_interceptors.grid.registry import Registry
from deelog_interceptors.grid.view import Member, View, encode_view, incarnation_of, node_id_of
from deelog_schemas.config import Config

log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 0.01
"""Between two views: what comes meanwhile is decided together."""
_SETTLE_SECONDS: Final = 1.0
_FENCE_AGAIN_SECONDS: Final = 1.0


class Office:
    """`copies`, `unclean`, `timeout` as configured; after `lapse` of silence no lease holds; both in seconds. `floor()`
    is the highest claim that this node knows."""

    def __init__(
        self,
        config: Config,
        member: str,
        registry: Registry,
        *,
        copies: int,
        unclean: bool,
        timeout: float,
        lapse: float,
        floor: Callable[[], int],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self.views = self.deaths = self.terms = 0
        self.detection_ms: deque[float] = deque(maxlen=1000)
        """From the last heartbeat of a member to the decision that it is dead."""
        self._config, self._member, self._registry = config, member, registry
        self._copies, self._unclean, self._floor = copies, unclean, floor
        self._timeout, self._lapse = timeout, lapse
        self._on_error = on_error
        self._seat = group.ControllerSeat(config, asyncio.get_running_loop(), self._seated, member)
        self._task: asyncio.Task[None] | None = None
        self._event = asyncio.Event()
        self._view: View | None = None
        """The last view that this node made or took over; it outlasts a seat lost to Kafka's silence."""
        self._holding = False
        self._since = self._ticked = 0.0
        self._heard: dict[str, float] = {}
        self._silent_since: dict[str, float] = {}
        """Of everybody who was heard, the dead included."""
        self._beats: dict[str, Heartbeat] = {}
        self._refused: set[str] = set()
        self._fenced: dict[str, float] = {}
        self._condemned: frozenset[str] = frozenset()
        """Whom a view that is being made leaves out."""
        self._doubted = False
        """After a pause of this process: somebody else may have the seat."""

    @property
    def holds(self) -> bool:
        """Whether this node is controller and has read the last view."""
        return self._holding

    def start(self) -> None:
        """Stand for the office."""
        self._seat.start()

    async def stop(self) -> None:
        """Give it up; the next one is assigned at once."""
        self._leave()
        self._view = None
        await asyncio.to_thread(self._seat.stop)

    # -- what it hears ------------------------------------------------------------------------------------------------

    def heartbeat(self, member: str, beat: Heartbeat) -> Heard | None:
        """A member lives, and asks for something; the answer, where nobody else can be controller."""
        if self._view is None or self._registry.controller != self._member:
            return None
        before = self._beats.get(member)
        if before is None or beat.requests or before.leaving != beat.leaving:
            self._event.set()
        self._heard[member] = self._silent_since[member] = time.monotonic()
        self._refused.discard(member)
        self._beats[member] = beat
        # The lease: no answer to whom the view in the making takes for dead, nor from a seat that may be lost.
        if self._doubted or member in self._condemned or not self._hears_all(self._view):
            return None
        return Heard(beat.number, self._view.topology_id)

    def _hears_all(self, view: View) -> bool:
        """While Kafka is away the seat cannot be confirmed; but the next controller would be heard no more."""
        now = time.monotonic()
        return all(
            m == self._member or now - self._silent_since.get(m, self._since) <= self._timeout for m in view.members
        )

    def refused(self, member: str) -> None:
        """Nobody listens at the member's address, or somebody else: its process is gone."""
        if self._view is not None and member not in self._refused:
            self._refused.add(member)
            self._event.set()

    def doubt(self) -> None:
        """This process was stopped for a while: nobody is answered until the seat is confirmed."""
        if self._view is not None:
            self._doubted = True
            self._event.set()

    def changed(self) -> None:
        """A registration came."""
        self._event.set()

    # -- the office ---------------------------------------------------------------------------------------------------

    def _seated(self, seated: bool) -> None:
        self._leave()
        if seated:
            self._task = asyncio.create_task(self._hold(), name="controller")
            self._task.add_done_callback(self._ended)

    def _leave(self) -> None:
        self._holding = False
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_error(error)

    async def _hold(self) -> None:
        """Assigned, init, read the views to one's own record, decide."""
        try:
            await asyncio.to_thread(self._seat.take)
            await self._confirm()
            self._begin()
            log.info("%s is controller from view %d on", self._member, self._registry.view.topology_id)
            while True:
                await self._tick()
        except group.SeatLost as lost:
            # On a fence: rejoin the group, never initialise the producer again.
            log.warning("%s is controller no more: %s", self._member, lost)
            self._view, self._holding = None, False
            self._seat.rejoin()

    async def _confirm(self) -> None:
        """Commits a record of its own, which nobody but the last controller can, and reads the topic up to it."""
        nonce = uuid.uuid4().hex
        read = self._registry.expect(nonce)
        record = orjson.dumps({"member": self._member, "nonce": nonce})
        await asyncio.to_thread(self._seat.commit, [("controller", record)])
        # CHECK read-to-own-record: every view that was ever committed stands before one's own record.
        await read.wait()

    def _begin(self) -> None:
        now = time.monotonic()
        self.terms += 1
        self._view, self._holding = self._registry.view, True
        self._since = self._ticked = now
        self._heard = dict.fromkeys(self._view.members, now)
        self._beats, self._refused, self._fenced, self._silent_since = {}, set(), {}, {}
        self._condemned, self._doubted = frozenset(), False

    async def _tick(self) -> None:
        try:
            async with asyncio.timeout(self._timeout / 4):
                await self._event.wait()
        except TimeoutError:
            pass
        await asyncio.sleep(_PAUSE_SECONDS)
        self._event.clear()
        if self._doubted:
            await self._confirm()
            self._doubted = False
        self._forgive_own_pause()
        dead = self._dead()
        self._condemned = frozenset(dead)
        await self._decide(await self._fence(dead))
        self._condemned = frozenset()

    def _forgive_own_pause(self) -> None:
        """A controller that was itself stopped heard nobody meanwhile; that says nothing of the others."""
        now = time.monotonic()
        gap, self._ticked = now - self._ticked, now
        if gap > self._timeout / 2:
            self._heard = {member: at + gap for member, at in self._heard.items()}

    def _dead(self) -> list[str]:
        """Members known dead, of the view and of those that were heard of."""
        assert self._view is not None
        now, found = time.monotonic(), []
        for member in self._view.members.keys() | self._heard.keys():
            silent = now - self._heard.get(member, self._since) > self._timeout
            if member != self._member and (silent or member in self._refused or self._replaced(member)):
                found.append(member)
        return found

    def _replaced(self, member: str) -> bool:
        # CHECK incarnation: a restarted process is another member, and the one before it is dead at once.
        newest = self._registry.members.get(node_id_of(member))
        return newest is not None and incarnation_of(newest.member) > incarnation_of(member)

    async def _fence(self, dead: Sequence[str]) -> frozenset[str]:
        """Fences the producers of the dead; those that could not be fenced do not count as dead yet."""
        assert self._view is not None
        now = time.monotonic()
        new = [m for m in dead if m not in self._fenced and m in self._view.members and not self._replaced(m)]
        # The dead are fenced before a view excludes them: no transaction of theirs holds the readers back then, and
        # "known dead" means that nothing of theirs can reach Kafka any more.
        results = await asyncio.gather(
            *(asyncio.to_thread(group.fence, self._config, node_id_of(m)) for m in new), return_exceptions=True
        )
        failed = set()
        for member, result in zip(new, results, strict=True):
            if isinstance(result, BaseException):
                log.warning("the producer of %s cannot be fenced: %s", member, result)
                failed.add(member)
            else:
                log.warning("%s is dead, its producer is fenced", member)
                self.deaths += 1
                self.detection_ms.append(round((now - self._heard.get(member, self._since)) * 1000, 1))
                self._fenced[member] = now
        if failed:
            await asyncio.sleep(_FENCE_AGAIN_SECONDS)
        return frozenset(dead) - failed

    async def _decide(self, dead: frozenset[str]) -> None:
        view = self._view
        if view is None:
            return
        members = {m: known for m, known in self._alive().items() if m not in dead}
        # CHECK answers-carry-epochs: a request counts only in the very view that it was made in.
        requests: Mapping[str, Sequence[Request]] = {
            m: beat.requests for m, beat in self._beats.items() if m in members and beat.topology_id == view.topology_id
        }
        elapsed = time.monotonic() - self._since
        settled = elapsed > _SETTLE_SECONDS or len(members) > self._copies
        situation = Situation(
            self._member, members, dead, self._lapsed(), requests, self._floor(), self._copies, self._unclean, settled
        )
        following = decide(view, situation)
        for member in dead:
            self._heard.pop(member, None)
            self._beats.pop(member, None)
        if following is None:
            return
        await asyncio.to_thread(self._seat.commit, [("view", encode_view(following))])
        self.views += 1
        for member in following.members:
            self._fenced.pop(member, None)
        if self._view is view:
            self._view = following

    def _lapsed(self) -> frozenset[str]:
        """Who was silent for so long that no lease of theirs holds; a refused connection proves nothing of the kind."""
        assert self._view is not None
        now, holders = time.monotonic(), {member for row in self._view.rows for member in row.in_sync}
        self._silent_since = {
            m: at for m, at in self._silent_since.items() if m in holders or m in self._view.members or m in self._beats
        }
        return frozenset(m for m in holders if now - self._silent_since.get(m, self._since) > self._lapse)

    def _alive(self) -> dict[str, Member]:
        """Members that sent a heartbeat and are registered as what they are."""
        found = {}
        for member, beat in self._beats.items():
            known = self._registry.members.get(node_id_of(member))
            if known is not None and known.member == member and member in self._heard:
                found[member] = known._replace(leaving=beat.leaving)
        return found
