"""`kafka_port.Election` in memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from deelog_connector.errors import TopologyError
from deelog_connector.kafka_port import NotController, OutRecord, WriteFailed, beat_seconds, session_seconds
from deelog_proof.memory.broker import BrokerError, Denied, OldGeneration, Unanswered, UnknownMember
from deelog_proof.memory.wire import Turn, Wire, denial, open_session
from deelog_schemas.config import Config

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
POLL_SECONDS: Final = 0.1


class Election:
    """A member takes itself for lost where none of its heartbeats is answered in a session timeout."""

    def __init__(
        self,
        wire: Wire,
        config: Config,
        client_id: str,
        on_elected: Callable[[bool], None],
        on_refused: Callable[[Exception], None],
        new_id: Callable[[], str],
    ) -> None:
        config.overrides("consumer")
        self._wire, self._config, self._client_id = wire, config, client_id
        self._on_elected, self._on_refused, self._new_id = on_elected, on_refused, new_id
        self._group, self._topic = config.topics.controller_group, config.topics.topology
        self._transactional_id = config.topics.transactional_id_controller
        self._timeout = session_seconds(config)
        self._turn = Turn()
        self._running: asyncio.Task[None] | None = None
        self._stops = False
        self._rejoin = asyncio.Event()
        self._joining, self._aside = False, 0.0
        self._membership: tuple[str, int] | None = None
        """The member id, and the generation of the group that it has heard of."""
        self._session: int | None = None
        self._number = 0

    def start(self) -> None:
        self._running = self._wire.loop.create_task(self._run())

    async def stop(self) -> None:
        self._stops = True
        self._rejoin.set()
        if self._running is not None:
            await asyncio.shield(self._running)

    def rejoin(self, aside: float = 0.0) -> None:
        self._session, self._aside = None, aside
        self._rejoin.set()

    async def take(self) -> None:
        await self._wire.run(self._turn, self._take)

    async def commit(self, records: Sequence[tuple[str, bytes]]) -> None:
        await self._wire.run(self._turn, self._commit, records)

    # -- the group ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._stops:
            self._rejoin.clear()
            self._joining = True
            member = self._new_id()
            await self._belong(member)
            self._joining, self._membership = False, None
            with suppress(Unanswered, Denied):
                await self._wire.ask(self._leave, member, until=self._wire.loop.time())
            self._wire.loop.call_soon(self._on_elected, False)

    def _leave(self, member: str) -> None:
        self._wire.kafka.group(self._group).leave(member)

    async def _belong(self, member: str) -> None:
        """Joins, and sends heartbeats until it is to rejoin or is no member any more."""
        kafka, time = self._wire.kafka, self._wire.loop.time
        heard, elected = time(), False
        aside, self._aside = self._aside, 0.0
        stands_at = time() + aside
        call: Callable[[], tuple[int, bool]] = lambda: kafka.join_group(  # noqa: E731
            self._group, member, self._client_id, self._timeout, aside > 0
        )
        while not self._rejoin.is_set():
            wait = beat_seconds(self._config)
            try:
                if aside and time() >= stands_at:
                    await self._wire.ask(kafka.stand, self._group, member, until=time())
                    aside = 0.0
                generation, holds = await self._wire.ask(call, until=time())
            except Unanswered:
                if self._membership is not None and time() - heard > self._timeout:
                    log.warning("controller group: no heartbeat was answered for %g s", time() - heard)
                    return
            except UnknownMember:
                return
            except Denied as error:
                self._refused(denial(error, "consumer"))
                wait = RETRY_SECONDS
            else:
                heard, self._membership = time(), (member, generation)
                call = lambda: kafka.hear(self._group, member)  # noqa: E731
                if holds != elected:
                    elected = holds
                    self._wire.loop.call_soon(self._on_elected, elected)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._rejoin.wait(), wait)

    def _refused(self, why: str) -> None:
        self._wire.loop.call_soon(self._on_refused, TopologyError(why))

    # -- the producer -------------------------------------------------------------------------------------------------

    async def _take(self) -> None:
        if not self._joining:
            raise NotController("not elected")
        try:
            self._session = await open_session(self._wire, self._config, self._transactional_id, self._client_id)
        except WriteFailed as error:
            if error.denied:
                self._refused(error.reason)
            raise NotController(f"cannot become controller: {error.reason}") from error

    async def _commit(self, records: Sequence[tuple[str, bytes]]) -> None:
        loop, why = self._wire.loop, "no time was left"
        deadline = loop.time() + self._wire.way.seconds
        while loop.time() < deadline:
            session, membership = self._session, self._membership
            if session is None or membership is None:
                raise NotController("not elected")
            try:
                await self._commit_once(session, *membership, records)
                return
            except Denied as error:
                self._refused(denial(error, "producer"))
                break
            except (OldGeneration, UnknownMember) as error:
                why = str(error)
                await self._wire.ask(self._wire.kafka.abort, self._transactional_id, session)
                if isinstance(error, UnknownMember):
                    break
            except BrokerError as error:
                why = str(error) or "the brokers do not answer"
                break
            await asyncio.sleep(POLL_SECONDS)  # a rebalance: the next heartbeat tells the group's new generation
        raise NotController(f"a view cannot be committed: {why}")

    async def _commit_once(
        self, session: int, member: str, generation: int, records: Sequence[tuple[str, bytes]]
    ) -> None:
        kafka, transactional_id = self._wire.kafka, self._transactional_id
        self._number += 1
        written = [OutRecord(self._topic, 0, key.encode(), value, []) for key, value in records]
        if await self._wire.ask(kafka.produce, transactional_id, session, self._number, written, self._wire.stamp):
            raise Unanswered
        await self._wire.ask(kafka.join_transaction, transactional_id, session, self._group, member, generation)
        await self._wire.ask(kafka.end_session, transactional_id, session)
