"""A process on a loop in memory, as faults see it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, Protocol

from deelog_connector.core import ConnectorCore
from deelog_connector.core.effects import Effect
from deelog_connector.errors import KafkaUnavailable, NodeSuperseded, TopologyError
from deelog_proof.memory.broker import Kafka
from deelog_proof.memory.engine import Engine
from deelog_proof.memory.loop import NodeLoop
from deelog_proof.memory.network import Network
from deelog_proof.memory.port import MemoryPort
from deelog_proof.simulation.context import TOPOLOGY

ENDS: Final = (KafkaUnavailable, NodeSuperseded, TopologyError)
"""What a process may end with by itself: Kafka is away while it starts, or a newer process has its id."""


class Gone(BaseException):
    """The process has ended in the middle of a turn: the rest of it does not happen."""


class Surroundings(Protocol):
    """What a process runs in."""

    engine: Engine
    kafka: Kafka
    network: Network
    counts: Counter[str]
    skews: dict[str, float]
    no_kafka: set[str]
    blind: set[str]
    unreached: dict[str, set[tuple[str, int]]]

    def transaction_comes(self, node: Any, name: str) -> None: ...
    def effect_comes(self, node: Any, effect: Effect) -> None: ...
    def ended(self, node: Any) -> None: ...


class Runs(Protocol):
    """What a process runs, as it ships."""

    failure: asyncio.Future[None]

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def abort(self) -> None: ...


class Hosted:
    """A process with ports to Kafka."""

    member: str
    """Its name in traces."""

    def __init__(self, around: Surroundings, node_id: str) -> None:
        self._around, self.engine = around, around.engine
        self.node_id = node_id
        self.loop = NodeLoop(self.engine, node_id, around.network)
        self._ports: list[MemoryPort] = []
        self.leaving = self.serves = False
        self._left = asyncio.Event()

    def port(self) -> MemoryPort:
        """A new port of the process."""
        name, moment = f"{self.node_id} {len(self._ports)}", partial(self._around.transaction_comes, self)
        port = MemoryPort(self.loop, self._around.kafka, name=name, moment=moment)
        self._ports.append(port)
        return port

    def watch(self, core: ConnectorCore) -> None:
        """Has the core's effects seen one by one, each before it is carried out."""
        poll = core.poll

        def polled(now: float, now_us: int) -> Iterable[Effect]:
            return self.seen(poll(now, now_us))

        vars(core).update(poll=polled)

    def seen(self, effects: Iterable[Effect]) -> Iterator[Effect]:
        """They are about to be carried out."""
        for effect in effects:
            self._around.effect_comes(self, effect)
            yield effect

    async def live(self, runs: Runs) -> None:
        """As `hosting.process.run`, without signals and REST."""
        try:
            await runs.start()
        except ENDS:
            await runs.abort()
            self._around.ended(self)
            return
        self.serves = True
        left = self.loop.create_task(self._left.wait())
        await asyncio.wait([left, runs.failure], return_when=asyncio.FIRST_COMPLETED)
        await runs.stop()
        self._around.ended(self)

    def leave(self) -> None:
        """SIGTERM: hands over its segments, releases the rest, and ends."""
        self.leaving = True
        self.now(self._left.set)

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self.loop.alive

    @property
    def paused(self) -> bool:
        """Whether it is stopped by SIGSTOP."""
        return self.loop.paused

    def pause(self) -> None:
        """SIGSTOP."""
        self.loop.pause()

    def resume(self) -> None:
        """SIGCONT: what was held back happens now."""
        self.loop.resume()

    def now(self, call: Callable[..., object], *args: Any) -> None:
        """Calls in the next turn, or when the pause is over."""
        self.loop.call_soon(call, *args)

    @property
    def skew(self) -> float:
        """The error of its wall clock, in seconds."""
        return self._ports[0].way.skew

    @skew.setter
    def skew(self, seconds: float) -> None:
        for port in self._ports:
            port.way.skew = seconds

    def reach(self) -> None:
        """Reaches the brokers, and sees views, unless the world says otherwise."""
        for port in self._ports:
            port.way.connected = self.node_id not in self._around.no_kafka
            port.way.deaf = {TOPOLOGY} if self.node_id in self._around.blind else set()
            port.way.unreached = self._around.unreached.get(self.node_id, set())
