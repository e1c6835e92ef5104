"""A deterministic asyncio loop: virtual time, one heap for all nodes (`Engine`), and one loop for each of them.

asyncio promises that `call_soon` is first in, first out within a loop; that is kept within a node. How the nodes
interleave follows from how long brokers, links and `work` take, which is drawn from the seed. The same seed gives the
same order in every process: futures and tasks are hashed by number, since asyncio keeps them in sets.

A node is paused, as by SIGSTOP (what it would do waits), or killed, as by SIGKILL (what it would do never happens).
What is on its way to somebody else is an event of the engine, not of the node, and happens all the same.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import zlib
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar, TypeVarTuple

from deelog_proof.memory.engine import Engine

if TYPE_CHECKING:
    from asyncio import BaseEventLoop as _EventLoop
else:
    from asyncio import AbstractEventLoop as _EventLoop  # abstract to mypy; what is not overridden raises

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


MOST_TURNS: Final = 100_000
"""Turns at one moment; more would never end."""


class Forbidden(RuntimeError):
    """A call that would leave the simulation: threads, signals, sockets."""


class _Future(asyncio.Future[Any]):
    """Hashed by its number."""

    def __init__(self, number: int, loop: NodeLoop) -> None:
        super().__init__(loop=loop)
        self._number = number

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[Any]):
    """Hashed by its number."""

    def __init__(self, number: int, work: Coroutine[Any, Any, Any], loop: NodeLoop, name: str, context: Any) -> None:
        self._number = number  # first: asyncio puts the task into a set
        super().__init__(work, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self._number


class Network(Protocol):
    """What `create_server` and `create_connection` of the loops do."""

    async def listen(self, loop: NodeLoop, factory: Any, host: Any, port: Any) -> Any: ...
    async def connect(self, loop: NodeLoop, factory: Any, host: Any, port: Any) -> Any: ...
    def killed(self, loop: NodeLoop) -> None: ...


class NodeLoop(_EventLoop):
    """The loop of one node. `before` is called before each of its turns, and may pause or kill it."""

    def __init__(self, engine: Engine, name: str, network: Network | None = None) -> None:
        self.engine, self.name, self.network = engine, name, network
        self.alive = True
        self.paused = False
        self._busy_until = 0.0
        self.turns = 0
        self.errors: list[dict[str, Any]] = []
        """What nobody heard: exceptions of callbacks, and of tasks that nobody awaited."""
        self.before: Callable[[], None] | None = None
        self._ready: deque[asyncio.Handle] = deque()
        """Turns whose time has come; those of a pause wait."""
        self._comes = False
        """Whether the engine has an event for them."""
        self._turning = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._dead: list[asyncio.Handle] = []
        """Kept, since freeing them could run a coroutine's `finally`."""
        self._numbers = 0
        self._thread = threading.get_ident()
        self._number = zlib.crc32(name.encode())

    def __repr__(self) -> str:
        return f"<NodeLoop {self.name}>"

    # -- for tests and simulations ------------------------------------------------------------------------------------

    def within(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """Calls now, as a turn of this loop."""
        return _with_loop(self, call, *args)

    def outside(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """Calls now, without a running loop: as another thread would."""
        return _with_loop(None, call, *args)

    def pause(self) -> None:
        """Holds all turns back until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Ends a pause. What was held back comes first, in its order."""
        self.paused = False
        if self._ready:
            self._wake()

    def busy(self, seconds: float) -> None:
        """This turn takes so long: the next ones wait."""
        self._busy_until = max(self._busy_until, self.engine.now) + seconds
        self.engine.at(self._busy_until, self._turns)

    def kill(self) -> None:
        """No turn comes any more. Its connections break."""
        if self.alive and self.network is not None:
            self.network.killed(self)
        self.alive = False

    def bury(self) -> None:
        """Kills it and frees its coroutines: what they do in `finally` has no effect. For the end of a run."""
        self.kill()
        while self._tasks:
            task, _ = self._tasks.popitem()
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            try:
                self.within(task.get_coro().close)
            except BaseException as error:  # noqa: BLE001 - a coroutine that goes on, or fails, at its end
                self.errors.append({"message": f"{task.get_name()} did not end", "exception": error})
        self._dead.clear()
        self._ready.clear()

    # -- turns --------------------------------------------------------------------------------------------------------

    def _come(self, handle: asyncio.Handle) -> None:
        """The time of a timer has come."""
        if not handle.cancelled():
            self._ready.append(handle)
            if not self._comes:
                self._turns()

    def _wake(self) -> None:
        if not self._comes and not self._turning and not self.paused:
            self._comes = True
            self.engine.at(self.engine.now, self._turns)

    def _turns(self) -> None:
        """All turns that are ready now, and those that they make ready."""
        self._comes = False
        self._turning = True
        last = self.turns + MOST_TURNS
        before = events._get_running_loop()
        events._set_running_loop(self)
        ready, engine, number = self._ready, self.engine, self._number
        try:
            while ready and not self.paused and self._busy_until <= engine.now:
                if self.before is not None and self.alive:
                    self.before()
                    if self.paused:
                        break
                handle = ready.popleft()
                if not self.alive:
                    self._dead.append(handle)
                elif not handle.cancelled():
                    self.turns += 1
                    engine.order = hash((engine.order, number))
                    handle._run()
                    if self.turns > last:
                        raise RuntimeError(f"{self.name}: {MOST_TURNS} turns without time passing")
                del handle  # the traceback of an earlier turn may keep this frame
        finally:
            self._turning = False
            events._set_running_loop(before)

    # -- asyncio ------------------------------------------------------------------------------------------------------

    def run_until_complete(self, future: Any) -> Any:
        """Runs the engine, so all of its nodes, until this is done. Raises `TimeoutError` as `Engine.run`."""
        task = asyncio.ensure_future(future, loop=self)
        self.engine.run(task.done)
        return task.result()

    def time(self) -> float:
        return self.engine.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self.alive

    def is_closed(self) -> bool:
        return False

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Any = None) -> asyncio.Handle:
        handle = events.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._wake()
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Any = None
    ) -> asyncio.Handle:
        if threading.get_ident() != self._thread:
            raise Forbidden("call_soon_threadsafe from another thread")
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.engine.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = events.TimerHandle(when, callback, args, self, context)
        self.engine.at(when, self._come, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Its turn comes and does nothing."""

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(self._next(), self)

    def create_task(
        self, coro: Any, *, name: object = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        number = self._next()
        task = _Task(number, coro, self, str(name or f"{self.name}-{number}"), context)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    async def shutdown_asyncgens(self) -> None:
        pass

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> NoReturn:
        raise Forbidden(f"a thread for {func}")

    def add_signal_handler(self, sig: int, callback: Callable[[*Ts], object], *args: *Ts) -> NoReturn:
        raise Forbidden("signals")

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        if self.network is None or options.get("ssl"):
            raise Forbidden("a listening socket")
        return await self.network.listen(self, protocol_factory, host, port)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        if self.network is None or options.get("ssl"):
            raise Forbidden("a connection")
        return await self.network.connect(self, protocol_factory, host, port)


def _with_loop(loop: NodeLoop | None, call: Callable[[*Ts], T], *args: *Ts) -> T:
    before = events._get_running_loop()
    events._set_running_loop(loop)
    try:
        return call(*args)
    finally:
        events._set_running_loop(before)
