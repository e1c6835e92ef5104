"""Runs the controller: takes heartbeats, declares members dead, fences them, decides, and commits views.

Every node has one; only the one that Kafka's group protocol elects is active.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

import orjson

from deelog_connector.errors import KafkaUnusable
from deelog_connector.kafka_port import KafkaPort, NotController, WriteFailed
from deelog_interceptors.grid.replication.frames import Heard, Heartbeat
from deelog_interceptors.grid.settings import Settings
from deelog_interceptors.grid.topology.controller import decide
from deelog_interceptors.grid.topology.liveness import Liveness
from deelog_interceptors.grid.topology.registry import Registry
from deelog_interceptors.grid.topology.view import View, encode_view
from deelog_schemas.config import Config, ConfigError
from deelog_schemas.member import node_id_of

log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 0.01
"""Between two decisions: events of this time are decided together."""
_SETTLE_SECONDS: Final = 1.0
_FENCE_AGAIN_SECONDS: Final = 1.0
_LOST_VIEWS: Final = 10_000
"""How many views a topology topic may have lost that nobody knows: their ids, and so their epochs, are passed over."""
_KNOWN_SECONDS: Final = 5.0
"""Within which whoever runs has noticed that the topology topic was lost, and has registered with the view it knows."""
MAX_FENCES: Final = 4
"""Fences at the same time: they wait in the threads in which the topology topic is read."""


_TERMS_ASIDE: Final = 4
"""Of those that are cut off together, so many may give up the seat one after the other until another node gets it."""


class _CutOff(NotController):
    """This node hears few of the others, and Kafka hears them: one of them may hear more."""


class ControllerService:
    """`floor()` returns the highest claim that this node knows."""

    def __init__(
        self,
        config: Config,
        port: KafkaPort,
        member: str,
        registry: Registry,
        settings: Settings,
        *,
        floor: Callable[[], int],
        on_error: Callable[[BaseException], None],
        on_refused: Callable[[Exception], None],
    ) -> None:
        self.views = self.deaths = self.terms = 0
        self.detection_ms: deque[float] = deque(maxlen=1000)
        """From the last heartbeat of a member to the decision that it is dead."""
        self._config, self._member, self._registry = config, member, registry
        self._settings, self._floor, self._on_error = settings, floor, on_error
        self._port, self._clock, self._brokers = port, port.clock, port.brokers(config)
        self._election = port.election(config, member, self._elected, on_refused)
        self._task: asyncio.Task[None] | None = None
        self._event = asyncio.Event()
        self._liveness: Liveness | None = None
        """Of the last term. It is kept while Kafka does not answer, though the group may have another controller."""
        self._holding = False
        self._lost_at = -1.0
        """When the topology topic was last found lost."""
        self._least = 0
        """What topology ids are above, after a loss."""
        self._began_at = 0.0
        """When the term began."""
        self._written_at = 0.0
        """When the last view was committed."""
        self._fencing = asyncio.Semaphore(MAX_FENCES)
        self._patience = settings.session_timeout + settings.failure_timeout
        """For so long a member that is silent may be dead though the group has it."""
        self._heard_by_kafka: frozenset[str] = frozenset()
        """The members of the group when it was last asked for."""
        self._waits_for: frozenset[str] = frozenset()
        """Members that cannot be reached, and hold the last entries of a segment."""

    @property
    def holds(self) -> bool:
        """Whether this node is controller and has read the last view."""
        return self._holding

    def start(self) -> None:
        """Joins the election."""
        self._election.start()

    async def stop(self) -> None:
        """Resigns; the group elects the next controller at once."""
        self._leave()
        self._liveness = None
        await self._election.stop()

    # -- input --------------------------------------------------------------------------------------------------------

    def heartbeat(self, member: str, beat: Heartbeat) -> Heard | None:
        """Takes a member's heartbeat. Returns the answer, or None where another member may be controller."""
        if self._liveness is None:
            return None
        news, answer = self._liveness.heartbeat(member, beat, self._clock.monotonic())
        if news:
            self._event.set()
        return answer

    def refused(self, member: str) -> None:
        """A connection to the member's address was refused, or another member answered: its process may be gone."""
        if self._liveness is not None and self._liveness.refuse(member):
            self._event.set()

    def doubt(self) -> None:
        """This process was paused: no heartbeat is answered until Kafka confirms that it is controller."""
        if self._liveness is not None:
            self._liveness.doubt(self._clock.monotonic())
            self._event.set()

    def lost(self) -> None:
        """The topology topic was made again, or has lost records: the controller writes its view anew."""
        self._registry.lost()
        self._lost_at = self._clock.monotonic()
        self._event.set()

    def changed(self) -> None:
        """A member registered."""
        self._event.set()

    # -- as controller ---------------------------------------------------------------------------------------------

    def _elected(self, elected: bool) -> None:
        self._leave()
        if elected:
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
        """Initialises the producer, reads the views up to its own record, and decides until it is not controller."""
        try:
            await self._election.take()
            asked = await self._confirm()
            liveness = self._begin(asked)
            log.info("%s is controller from view %d on", self._member, liveness.view.topology_id)
            while True:
                await self._tick(liveness)
        except NotController as lost:
            # When fenced: rejoin the group, never initialise the producer again.
            log.warning("%s is not controller: %s", self._member, lost)
            self._liveness, self._holding = None, False
            self._election.rejoin(_TERMS_ASIDE * self._patience if isinstance(lost, _CutOff) else 0.0)

    async def _confirm(self) -> float:
        """Commits a record of its own, which only the last controller can, and reads the topic up to it.

        Returns when it began to, in seconds of the monotonic clock."""
        asked, nonce = self._clock.monotonic(), self._port.new_id()
        read = self._registry.expect(nonce)
        record = orjson.dumps({"member": self._member, "nonce": nonce})
        await self._election.commit([("controller", record)])
        # CHECK read-to-own-record: every view that was ever committed precedes the own record.
        while not read.is_set():
            try:
                async with asyncio.timeout(self._settings.failure_timeout):
                    await read.wait()
            except TimeoutError:
                if self._lost_at >= asked or await self._group() is not None:
                    # It was lost with the topic, or its end with a leader: the next one of the id ends it.
                    await self._election.commit([("controller", record)])
        return asked

    def _begin(self, asked: float) -> Liveness:
        self.terms += 1
        self._holding, self._began_at = True, self._clock.monotonic()
        self._liveness = Liveness(
            self._member,
            self._registry,
            self._registry.view,
            self._clock.monotonic(),
            asked=asked,
            timeout=self._settings.failure_timeout,
            lease_expiry=self._settings.lease_expiry,
        )
        return self._liveness

    async def _tick(self, liveness: Liveness) -> None:
        try:
            async with asyncio.timeout(self._settings.failure_timeout / 4):
                await self._event.wait()
        except TimeoutError:
            pass
        await asyncio.sleep(_PAUSE_SECONDS)
        self._event.clear()
        liveness.forgive_own_pause(self._clock.monotonic())
        if liveness.to_confirm(self._clock.monotonic()):
            liveness.confirm(await self._confirm())
        if self._registry.view.topology_id > liveness.view.topology_id:
            raise NotController("a member knows a later view: the topology topic was lost")
        if liveness.is_behind(self._clock.monotonic()):
            return
        if self._may_be_known(liveness):
            return
        if liveness.view.topology_id and not self._registry.view_stands:
            try:
                await self._write(liveness.view)
            except BaseException:
                self._registry.view_stands = False
                raise
            self._least = liveness.view.topology_id + _LOST_VIEWS
        elif await self._is_hidden(liveness.view):
            log.warning("view %d is committed and not read: it is committed again", liveness.view.topology_id)
            await self._write(liveness.view)
        liveness.forgive_own_pause(self._clock.monotonic())
        dead = await self._dead(liveness)
        if dead is not None:
            await self._decide(liveness, await self._fence(liveness, dead))
        liveness.clear_dead()

    def _may_be_known(self, liveness: Liveness) -> bool:
        """Whether the last view is lost, or later ones than the one that is known, and a member may still tell it."""
        known, since = liveness.view.topology_id, max(self._began_at, self._lost_at)
        if known:
            if self._registry.view_stands or liveness.has_heard_all(since):
                return False
        elif not self._floor():  # nobody has claimed a segment
            return False
        return self._clock.monotonic() - since < max(self._patience, _KNOWN_SECONDS)

    async def _dead(self, liveness: Liveness) -> frozenset[str] | None:
        """The dead; None while it may be this node that cannot be reached. Raises `_CutOff` where that is so."""
        dead = frozenset(liveness.declare_dead(self._clock.monotonic()))
        if not dead or not liveness.hears_too_few(self._clock.monotonic()):
            return dead
        # Whoever dies is in the group for a session timeout. Whoever is in it for longer lives.
        group = await self._group()
        living = dead if group is None else liveness.unreachable(dead, group)
        if dead - living or not living:
            return dead - living
        silence = self._clock.monotonic() - min(map(liveness.silent_since, living))
        if group is not None and silence > self._patience:
            raise _CutOff(f"Kafka hears {', '.join(sorted(living))}, this node does not, and hears less than half")
        return None

    async def _group(self) -> frozenset[str] | None:
        """The members that Kafka hears, now or when it was last asked; None where it does not say so."""
        try:
            heard = await self._brokers.members(self._config.topics.controller_group)
        except (KafkaUnusable, ConfigError) as error:  # a view cannot be committed now either
            log.warning("%s", error)
            return None
        if self._member not in heard:
            return None
        before, self._heard_by_kafka = self._heard_by_kafka, heard
        return heard | before  # one that joins again is not there for a moment

    async def _fence(self, liveness: Liveness, dead: frozenset[str]) -> frozenset[str]:
        """Fences the producers of the dead. Returns the dead without those that could not be fenced."""
        now, new = self._clock.monotonic(), liveness.to_fence(sorted(dead))
        # The dead are fenced before a view excludes them: their open transactions no longer hold back readers, and
        # "known dead" means that no record of theirs can reach Kafka any more.
        ids = (self._config.topics.transactional_id_node(node_id_of(m)) for m in new)
        results = await asyncio.gather(*(self._fence_one(id_) for id_ in ids), return_exceptions=True)
        failed = set()
        for member, result in zip(new, results, strict=True):
            if isinstance(result, BaseException):
                log.warning("the producer of %s cannot be fenced: %s", member, result)
                failed.add(member)
            else:
                log.warning("%s is dead, its producer is fenced", member)
                self.deaths += 1
                self.detection_ms.append(round((now - liveness.last_heard(member)) * 1000, 1))
                liveness.fenced(member)
        if failed:
            await asyncio.sleep(_FENCE_AGAIN_SECONDS)
        return frozenset(dead) - failed

    async def _fence_one(self, transactional_id: str) -> None:
        async with self._fencing:
            try:
                await self._brokers.fence(transactional_id)
            except WriteFailed as error:
                if not error.held_up:
                    raise
                # Its last transaction is decided. Whoever takes a segment over fences the producer that has claimed it.
                log.warning("%s", error)

    async def _gone(self, liveness: Liveness) -> frozenset[str]:
        """The members that hold nothing any more that could come back. Their leases have run out."""
        lapsed = liveness.lapsed(self._clock.monotonic())
        if not liveness.leaves_nobody(lapsed):
            self._waits_for = frozenset()
            return lapsed
        group = await self._group()
        unreachable = lapsed if group is None else lapsed & group
        if unreachable - self._waits_for:
            log.warning("segments wait for %s: alive, but not heard here", ", ".join(sorted(unreachable)))
        self._waits_for = unreachable
        return lapsed - unreachable

    def _floor_of(self, liveness: Liveness) -> int:
        """What the next topology id is above: also those of views that may be lost, whose epochs readers know."""
        floor = self._floor()
        if floor and not liveness.view.topology_id:
            floor += _LOST_VIEWS
        return max(floor, self._least)

    async def _decide(self, liveness: Liveness, dead: frozenset[str]) -> None:
        situation = liveness.situation(
            dead,
            await self._gone(liveness),
            self._clock.monotonic(),
            floor=self._floor_of(liveness),
            copies=self._settings.copies,
            unclean=self._settings.unclean,
            settle=_SETTLE_SECONDS,
        )
        following = decide(liveness.view, situation)
        if following is None:
            return
        await self._write(following)
        self.views += 1
        liveness.follow(following)

    async def _write(self, view: View) -> None:
        self._registry.view_stands = True  # before: it may be lost meanwhile
        await self._election.commit([("view", encode_view(view))])
        self._written_at = self._clock.monotonic()

    async def _is_hidden(self, view: View) -> bool:
        """Whether the end of its transaction may be lost, though Kafka has said that it is committed.

        A topic whose partition has no leader in that moment shows nothing that comes behind it, until the next
        transaction of the id.
        """
        late = self._clock.monotonic() - self._written_at > self._settings.failure_timeout
        unread = self._registry.view.topology_id < view.topology_id
        return unread and late and await self._group() is not None
