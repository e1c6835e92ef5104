"""Runs a cache with its connector as a process: until a signal, a failure, or the connector's own end."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from deelog_connector.errors import NodeSuperseded
from deelog_connector.rest import served
from deelog_schemas.config import Config
from deelog_schemas.member import is_of_the_future

if TYPE_CHECKING:
    from deelog_connector.runtime import Lifecycle

log = logging.getLogger(__name__)
_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_TRY_AGAIN: Final = frozenset(
    getattr(errno, name)
    for name in ("EPROTO", "EPERM", "ENETDOWN", "ENETUNREACH", "EHOSTDOWN", "EHOSTUNREACH", "ENOPROTOOPT", "EOPNOTSUPP")
)
"""What accept(2) passes on of the network, and says is to be treated as EAGAIN. asyncio raises it out of a callback."""
_OF_A_CALLBACK: Final = frozenset({"message", "exception", "handle", "source_traceback"})
_QUIET_SECONDS: Final = 10.0
"""Between two lines of the log about connections that are not accepted for the same reason."""
_NEW_OBJECTS: Final = 100_000
"""After so many the garbage collector looks for cycles among them. Python's 700 are those of a script: of a takeover of
thousands of segments half the time was the collector's, which found next to nothing (`bench_slots`)."""
Start = TypeVar("Start", bound="Restartable")
MetricsPage = Callable[[], tuple[bytes, str]]


class Hosted(Protocol):
    """A cache with its connector. The last call is exactly one of `stop()` and `abort()`."""

    lifecycle: Lifecycle
    finished: asyncio.Future[Any]
    """Done once there is nothing more to capture."""
    failure: asyncio.Future[None]
    """Done, with an exception, once it cannot go on."""

    async def start(self) -> None:
        """Returns once it serves. Raises `DeelogError`."""

    async def stop(self) -> None:
        """Hands over its segments where others can take them, then closes everything."""

    async def abort(self) -> None:
        """Closes everything after a failed start."""

    def failed(self, error: BaseException) -> None:
        """Sets `failure`."""


def behind(error: NodeSuperseded, unix_ns: int) -> str:
    """The process behind which the start that ended with `error` is repeated, as its successor; see `Member.starting`.

    Raises `error` where that process has not started after `unix_ns`: then it has taken this one's place.
    """
    if not is_of_the_future(error.by, unix_ns):
        raise error
    log.warning("%s was started by a clock that is ahead of this one: this process starts behind it", error.by)
    return error.by


class Clock(Protocol):
    """What time it is."""

    def time_ns(self) -> int:
        """Unix nanoseconds."""


class Restartable(Protocol):
    """A process's cache that may have to be started again, behind a process whose clock is ahead."""

    serves: bool
    """Whether it has begun to serve: then it has been replaced, and ends."""

    @property
    def clock(self) -> Clock: ...


async def restarting(make: Callable[[str], Start], serve: Callable[[Start], Awaitable[None]]) -> None:
    """Serves what `make` gives, which takes the process behind which it starts: empty at first.

    Raises what `serve` raises, but for the `NodeSuperseded` of a start that is repeated.
    """
    running = make("")
    while True:
        try:
            return await serve(running)
        except NodeSuperseded as error:
            if running.serves:
                raise
            running = make(behind(error, running.clock.time_ns()))


def signalled() -> asyncio.Future[None]:
    """Done at the first SIGTERM or SIGINT from now on."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[None] = loop.create_future()

    def stop() -> None:
        if not stopped.done():
            stopped.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    return stopped


async def run(
    config: Config,
    hosted: Hosted,
    metrics: MetricsPage,
    on_start: Callable[[], None],
    stopped: asyncio.Future[None],
) -> None:
    """Runs until `stopped`, a failure, or the connector's end (`snapshot.mode=initial_only`).

    `metrics` gives the body of `/metrics` and its content type; `on_start` is called once it serves. Raises
    `DeelogError` where it cannot start or go on.
    """
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
    asyncio.get_running_loop().set_exception_handler(partial(_unhandled, hosted, {}))
    rest = await served(config, hosted.lifecycle, metrics)
    try:
        if not await _started(hosted, stopped):
            return
        try:
            on_start()
        except BaseException:
            await hosted.abort()
            raise
        ends: list[asyncio.Future[Any]] = [stopped, hosted.failure, hosted.finished]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if rest is not None:
            await rest.stop()  # no request may pause the connector while it writes its last transactions
        await hosted.stop()
        if hosted.failure.done():
            hosted.failure.result()
    finally:
        if rest is not None:
            await rest.stop()


def _unhandled(
    hosted: Hosted, said: dict[int, float], loop: asyncio.AbstractEventLoop, context: dict[str, Any]
) -> None:
    """What nobody handles ends the process, but for a connection that could not be accepted.

    asyncio tells of thousands of those in a second. `said`: until when each reason is not said again.
    """
    error = context.get("exception") or RuntimeError(context["message"])
    if isinstance(error, OSError) and error.errno in _OUT_OF_RESOURCES:
        # asyncio accepts no more for a second, then tries again.
        if _is_to_be_said(said, error.errno, loop):
            log.warning("no connection can be accepted at the moment: %s (ulimit -n)", error.strerror)
    elif isinstance(error, OSError) and error.errno in _TRY_AGAIN and context.keys() <= _OF_A_CALLBACK:
        if _is_to_be_said(said, error.errno, loop):
            log.warning("a connection was not accepted: %s", error.strerror)
    else:
        hosted.failed(error)


def _is_to_be_said(said: dict[int, float], number: int | None, loop: asyncio.AbstractEventLoop) -> bool:
    now = loop.time()
    if number is None or now < said.get(number, 0.0):
        return False
    said[number] = now + _QUIET_SECONDS
    return True


async def _started(hosted: Hosted, stopped: asyncio.Future[None]) -> bool:
    """False where a signal came first. Raises what the start raised."""
    start: asyncio.Future[Any] = asyncio.ensure_future(hosted.start())
    await asyncio.wait({start, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if start.done() and start.exception() is None:
        return True
    start.cancel()
    await asyncio.wait({start})
    await hosted.abort()
    if not start.cancelled() and not stopped.done():
        start.result()
    return False
