"""The controller at work: it hears heartbeats, declares deaths, fences the dead, decides, and commits views.

Every node runs one of these; only the one that Kafka's group protocol seats does anything (`hold`).
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import orjson

from deelog_connector.kafka.election import Election, NotController
from deelog_connector.kafka.fencing import fence
from deelog_interceptors.grid.replication.frames import Heard, Heartbeat
from deelog_interceptors.grid.topology.controller import decide
from deelog_interceptors.grid.topology.liveness import Liveness
from deelog_interceptors.grid.topology.registry import Registry
from deelog_interceptors.grid.topology.view import encode_view
from deelog_schemas.config import Config
from deelog_schemas.member import node_id_of

log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 0.01
"""Between two views: what comes meanwhile is decided together."""
_SETTLE_SECONDS: Final = 1.0
_FENCE_AGAIN_SECONDS: Final = 1.0


class ControllerService:
    """`copies`, `unclean`, `timeout` as configured; after `lease_expiry` of silence no lease holds; both in seconds.

    `floor()` is the highest claim that this node knows.
    """

    def __init__(
        self,
        config: Config,
        member: str,
        registry: Registry,
        *,
        copies: int,
        unclean: bool,
        timeout: float,
        lease_expiry: float,
        floor: Callable[[], int],
        on_error: Callable[[BaseException], None],
        on_refused: Callable[[Exception], None],
    ) -> None:
        self.views = self.deaths = self.terms = 0
        self.detection_ms: deque[float] = deque(maxlen=1000)
        """From the last heartbeat of a member to the decision that it is dead."""
        self._config, self._member, self._registry = config, member, registry
        self._copies, self._unclean, self._floor = copies, unclean, floor
        self._timeout, self._lease_expiry = timeout, lease_expiry
        self._on_error = on_error
        self._seat = Election(config, asyncio.get_running_loop(), self._seated, on_refused, member)
        self._task: asyncio.Task[None] | None = None
        self._event = asyncio.Event()
        self._book: Liveness | None = None
        """Of the last term; it outlasts a seat lost to Kafka's silence."""
        self._holding = False

    @property
    def holds(self) -> bool:
        """Whether this node is controller and has read the last view."""
        return self._holding

    def start(self) -> None:
        """Stands for election."""
        self._seat.start()

    async def stop(self) -> None:
        """Give it up; the next one is assigned at once."""
        self._leave()
        self._book = None
        await asyncio.to_thread(self._seat.stop)

    # -- what it hears ------------------------------------------------------------------------------------------------

    def heartbeat(self, member: str, beat: Heartbeat) -> Heard | None:
        """A member lives, and asks for something; the answer, where nobody else can be controller."""
        if self._book is None:
            return None
        news, answer = self._book.heartbeat(member, beat, time.monotonic())
        if news:
            self._event.set()
        return answer

    def refused(self, member: str) -> None:
        """Nobody listens at the member's address, or somebody else: its process is gone."""
        if self._book is not None and self._book.refuse(member):
            self._event.set()

    def doubt(self) -> None:
        """This process was stopped for a while: nobody is answered until the seat is confirmed."""
        if self._book is not None:
            self._book.doubt(time.monotonic())
            self._event.set()

    def changed(self) -> None:
        """A registration came."""
        self._event.set()

    # -- as controller ---------------------------------------------------------------------------------------------

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
            asked = await self._confirm()
            book = self._begin(asked)
            log.info("%s is controller from view %d on", self._member, book.view.topology_id)
            while True:
                await self._tick(book)
        except NotController as lost:
            # On a fence: rejoin the group, never initialise the producer again.
            log.warning("%s is controller no more: %s", self._member, lost)
            self._book, self._holding = None, False
            self._seat.rejoin()

    async def _confirm(self) -> float:
        """Commits a record of its own, which nobody but the last controller can, and reads the topic up to it; when
        it asked for that."""
        asked, nonce = time.monotonic(), uuid.uuid4().hex
        read = self._registry.expect(nonce)
        record = orjson.dumps({"member": self._member, "nonce": nonce})
        await asyncio.to_thread(self._seat.commit, [("controller", record)])
        # CHECK read-to-own-record: every view that was ever committed stands before one's own record.
        await read.wait()
        return asked

    def _begin(self, asked: float) -> Liveness:
        self.terms += 1
        self._holding = True
        self._book = Liveness(
            self._member,
            self._registry,
            self._registry.view,
            time.monotonic(),
            asked=asked,
            timeout=self._timeout,
            lease_expiry=self._lease_expiry,
        )
        return self._book

    async def _tick(self, book: Liveness) -> None:
        try:
            async with asyncio.timeout(self._timeout / 4):
                await self._event.wait()
        except TimeoutError:
            pass
        await asyncio.sleep(_PAUSE_SECONDS)
        self._event.clear()
        if book.to_confirm(time.monotonic()):
            book.confirm(await self._confirm())
        book.forgive_own_pause(time.monotonic())
        await self._decide(book, await self._fence(book, book.declare_dead(time.monotonic())))
        book.clear_dead()

    async def _fence(self, book: Liveness, dead: Sequence[str]) -> frozenset[str]:
        """Fences the producers of the dead; those that could not be fenced do not count as dead yet."""
        now, new = time.monotonic(), book.to_fence(dead)
        # The dead are fenced before a view excludes them: no transaction of theirs holds the readers back then, and
        # "known dead" means that nothing of theirs can reach Kafka any more.
        ids = (self._config.topics.transactional_id_node(node_id_of(m)) for m in new)
        results = await asyncio.gather(
            *(asyncio.to_thread(fence, self._config, one) for one in ids), return_exceptions=True
        )
        failed = set()
        for member, result in zip(new, results, strict=True):
            if isinstance(result, BaseException):
                log.warning("the producer of %s cannot be fenced: %s", member, result)
                failed.add(member)
            else:
                log.warning("%s is dead, its producer is fenced", member)
                self.deaths += 1
                self.detection_ms.append(round((now - book.last_heard(member)) * 1000, 1))
                book.fenced(member)
        if failed:
            await asyncio.sleep(_FENCE_AGAIN_SECONDS)
        return frozenset(dead) - failed

    async def _decide(self, book: Liveness, dead: frozenset[str]) -> None:
        situation = book.situation(
            dead,
            time.monotonic(),
            floor=self._floor(),
            copies=self._copies,
            unclean=self._unclean,
            settle=_SETTLE_SECONDS,
        )
        following = decide(book.view, situation)
        if following is None:
            return
        await asyncio.to_thread(self._seat.commit, [("view", encode_view(following))])
        self.views += 1
        book.follow(following)
