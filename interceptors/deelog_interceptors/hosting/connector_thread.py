"""The thread and event loop in which the connectors of one configuration run, with their REST API and metrics.

Connectors are used from their loop alone. Weighed in docs/decisions.md, "One thread for all caches of a
configuration".
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import concurrent.futures.thread
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from deelog_connector.metrics.shared_server import page
from deelog_connector.rest import served
from deelog_connector.runtime import Connector, Lifecycle
from deelog_schemas.config import Config

if TYPE_CHECKING:
    from deelog_connector.rest.server import RestServer

JOIN_SECONDS: Final = 1.0
"""For a thread whose work has ended, or is late."""
_running: Final[set[ConnectorThread]] = set()


class ConnectorThread:
    """Runs coroutines until `close()`. `config` is that of one cache, or of a connector of several.

    Its thread is no daemon: the interpreter waits for the running transaction. `capture.py` stops it before an exit.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._connectors: dict[str, Connector] = {}
        self._ready: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._end: asyncio.Event | None = None
        self._asked = False
        """Whether the loop was asked to end: a `close()` that a signal interrupted is called again."""
        self._lifecycle: Lifecycle | None = None
        self._rest: RestServer | None = None
        self._opening: asyncio.Lock | None = None
        name = config["cache.name"] or config["name"]
        self._thread = threading.Thread(target=self._run, name=f"deelog-{name}")
        self._process = os.getpid()
        self._spawned: set[concurrent.futures.Future[None]] = set()
        """Work that has not ended."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> concurrent.futures.Future[None]:
        """Runs `work` on the loop; the first call starts the thread. Not to be called after `close()`.

        Raises the error with which the thread or its loop could not begin.
        """
        try:
            if self._thread.ident is None:
                self._thread.start()
                _running.add(self)
            loop = self._ready.result()
        except BaseException:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, loop)
        self._spawned.add(future)
        future.add_done_callback(self._spawned.discard)
        return future

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that made it: a child has no thread of its parent."""
        return os.getpid() != self._process

    def close(self, seconds: float | None = None) -> None:
        """Ends the thread, after all spawned work has ended, and waits for that, for so long at most.

        Not to be called on the loop's thread. Does nothing in a forked child.
        """
        if self._thread.ident is None or self.forked:
            return
        if self._ready.exception() is None and self._thread.is_alive() and not self._asked:
            assert self._end is not None
            self._ready.result().call_soon_threadsafe(self._end.set)
            self._asked = True
        self._thread.join(seconds)
        if not self._thread.is_alive():
            _running.discard(self)

    # -- on the loop ----------------------------------------------------------------------------------------------

    async def join(self, cache: str, make: Callable[[Config], Connector]) -> Connector:
        """Makes and adds a connector, which is not started; it takes over the others' paused or stopped state.

        Raises `ConfigError` where the REST API cannot be served as configured.
        """
        assert self._lifecycle is not None
        assert self._opening is not None
        connector = await self._lifecycle.join(cache, make)
        async with self._opening:
            if self._rest is None:
                self._rest = await served(self._config, self._lifecycle, page(self._connectors))
        return connector

    async def end(self, connector: Connector) -> None:
        """The connector writes what it captured; REST requests no longer change it."""
        assert self._lifecycle is not None
        await self._lifecycle.end(connector)

    async def leave(self, cache: str, connector: Connector | None) -> None:
        """Removes the closed connector of this cache, unless there is another one since."""
        if self._connectors.get(cache) is connector:
            self._connectors.pop(cache, None)

    def _run(self) -> None:
        main = self._main()
        try:
            asyncio.run(main)
        except BaseException as error:
            main.close()
            if self._ready.done():
                raise
            self._ready.set_exception(error)  # `spawn()` raises it

    async def _main(self) -> None:
        self._end, self._opening = asyncio.Event(), asyncio.Lock()
        self._lifecycle = Lifecycle(self._config, self._connectors)
        self._ready.set_result(asyncio.get_running_loop())
        await self._end.wait()
        while self._spawned:
            await asyncio.wait(map(asyncio.wrap_future, list(self._spawned)))
        if self._rest is not None:
            await self._rest.stop()


def threads_of_the_program() -> list[str]:
    """The names of the threads for which the interpreter waits when the main thread has ended. Not of our own, nor of
    those of executors, which it ends itself."""
    executors = {*concurrent.futures.thread._threads_queues, *getattr(_processes(), "_threads_wakeups", ())}
    own = {host._thread for host in _running} | executors | {threading.main_thread()}
    return [one.name for one in threading.enumerate() if not one.daemon and one not in own]


def _processes() -> ModuleType | None:
    return sys.modules.get("concurrent.futures.process")


def close_all() -> None:
    """Ends the threads of all hosts at the program's end: they are not daemons."""
    for host in list(_running):
        host.close()


def forget_all() -> None:
    """In a forked child, which does not have the threads."""
    _running.clear()
