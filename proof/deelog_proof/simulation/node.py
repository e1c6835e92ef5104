"""One process: a grid node as it ships, on a loop, a network and a Kafka in memory.

What the checker and the failpoints see of it are the seams below: its effects, its captured operations, its views and
the moments of its transactions. It may end, or stand still, at each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from deelog_connector.core import ConnectorCore
from deelog_connector.core.effects import Effect, SnapshotRead, SnapshotRefused
from deelog_connector.errors import KafkaTooSlowError, KafkaUnavailable, NotStoppedError
from deelog_interceptors.grid import node as grid
from deelog_interceptors.grid.data.segment import Segment
from deelog_interceptors.grid.data.store import Store
from deelog_interceptors.grid.topology.view import View
from deelog_proof.simulation.context import Context
from deelog_proof.simulation.hosted import ENDS, Hosted
from deelog_schemas.config import Config, ConfigError, parse
from deelog_schemas.errors import DeelogError
from deelog_schemas.operation import Entry, Operation

_AWAY: Final[tuple[type[DeelogError], ...]] = (KafkaTooSlowError, KafkaUnavailable)
REFUSED: Final[dict[str, tuple[type[DeelogError], ...]]] = {"rename": (ConfigError,), "reset": (NotStoppedError,)}
"""What a request to its connector may end with; all others, where Kafka is away."""


class Node(Hosted):
    """`member` is `<node.id>@<incarnation>`."""

    def __init__(self, world: Context, node_id: str, config: Config) -> None:
        super().__init__(world, node_id)
        self.world = world
        self.held = ""
        self.requests: dict[asyncio.Task[None], str] = {}
        self._holding: asyncio.Task[None] | None = None
        """The last request to write nothing, or to write again."""
        self.grid: grid.Node = self.loop.within(_Observed, self, config)
        self.member = self.grid.member
        self.core: ConnectorCore = self.grid.connector.core
        self.watch(self.core)
        self.skew = world.skews.get(node_id, 0.0)
        self.reach()
        self.loop.within(self.loop.create_task, self.live(self.grid))

    # -- life -------------------------------------------------------------------------------------------------------

    def failed(self, error: BaseException) -> None:
        """The node cannot go on, as intended or not."""
        if not isinstance(error, ENDS):
            self.world.checker.broken(f"{self.member}: {error!r}", error)

    def ask(self, operation: str) -> None:
        """What REST asks of the connector: an operation of `Lifecycle`. REST ends before the node does."""
        if not self.serves or self.leaving or self.grid.failure.done():
            return
        request = self.loop.create_task(self._ask(operation))
        self.requests[request] = operation
        if operation in ("pause", "stop", "resume"):
            self._holding = request
        if operation == "resume":
            self.held = ""
        elif operation == "pause" and self.held:
            self.held = "paused"

    async def _ask(self, operation: str) -> None:
        lifecycle, config, request = self.grid.lifecycle, self.grid.lifecycle.config, asyncio.current_task()
        assert request is not None
        try:
            if operation == "configure":
                await lifecycle.configure(partial(self._configured, "max.batch.size", ("1", "7")))
            elif operation == "rename":
                await lifecycle.configure(partial(self._configured, "cache.name", ("another",)))
                raise AssertionError("a running cache got another name")
            elif operation == "repair":
                lifecycle.restart_soon()
            elif operation == "reset":
                lifecycle.reset([(config["cache.name"], segment.number) for segment in self.core.primaries()])
            else:
                await getattr(lifecycle, operation)()
        except REFUSED.get(operation, _AWAY):
            self.world.counts[f"refused {operation}"] += 1
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the checker judges it
            if not self.leaving and not self.grid.failure.done():
                self.world.checker.broken(f"{self.member}: {operation}: {error!r}", error)
        else:
            self.world.counts[f"done {operation}"] += 1
            if request is self._holding:
                self.held = {"pause": "paused", "stop": "stopped"}.get(operation, "")
        finally:
            del self.requests[request]
            if self.alive:
                self.world.checker.status(self)

    def _configured(self, name: str, values: Sequence[str]) -> Config:
        config = self.grid.lifecycle.config
        value = next(one for one in values if one != config.raw[name])
        return parse({**config.raw, name: value}, config.role)

    def go_on(self) -> None:
        """Its connector writes again, if it was asked not to, once what was asked before has ended."""
        if self._holding is not None:
            self.loop.create_task(self._go_on())

    async def _go_on(self) -> None:
        while self.requests:
            await asyncio.wait(self.requests)
        self.ask("resume")

    # -- what the simulation looks at ---------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        return self.grid.store

    @property
    def view(self) -> View:
        """The last view that it has read."""
        return self.grid.view

    @property
    def is_controller(self) -> bool:
        """Whether it takes itself for the controller."""
        return self.grid.controller_service.holds

    def entries(self, segment: int) -> list[Entry]:
        """The entries of a segment."""
        return list(self.store.entries(self.store.segments[segment]))

    def wake(self) -> None:
        """Has the core polled soon."""
        self.grid.connector.wake()

    # -- seams --------------------------------------------------------------------------------------------------------

    def watch(self, core: ConnectorCore) -> None:
        """Its snapshots too."""
        super().watch(core)
        snapshot = core.snapshot

        def begun(segment: int) -> Any:
            self.world.checker.snapshot_begun(self, segment)
            return snapshot(segment)

        vars(core).update(snapshot=begun)

    def seen(self, effects: Iterable[Effect]) -> Iterator[Effect]:
        """By the checker too."""
        for effect in effects:
            self.world.checker.effect(self, effect)
            self.world.effect_comes(self, effect)
            yield effect
            if isinstance(effect, SnapshotRead | SnapshotRefused):
                self.world.checker.snapshot_over(self, effect.segment, isinstance(effect, SnapshotRead))


class _Observed(grid.Node):
    """The node that ships, seen by the checker."""

    def __init__(self, process: Node, config: Config) -> None:
        self._process, self._checker = process, process.world.checker
        super().__init__(config, process.port)

    def entries(self, segment: int) -> list[Entry]:
        found = super().entries(segment)
        if self._process.world.cost:
            self._process.loop.busy(len(found) * self._process.world.cost)
        return found

    def captured(self, segment: Segment, operation: Operation) -> None:
        self._checker.captured(self._process, segment, operation)
        super().captured(segment, operation)

    def corrected(self, segment: int, operations: list[Operation]) -> None:
        for operation in operations:
            self._checker.captured(self._process, self.store.segments[segment], operation)
        super().corrected(segment, operations)

    def view_read(self, view: View) -> None:
        self._checker.view_applied(self._process, view)
        super().view_read(view)

    def failed(self, error: BaseException) -> None:
        self._process.failed(error)
        super().failed(error)
