"""The threads in which the calls of librdkafka wait, and in which the work of others runs."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Final, Protocol, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

READERS: Final = 8
"""Calls at the same time, those of the writer not counted."""


class Run(Protocol):
    """Runs a blocking call in a thread."""

    async def __call__(self, call: Callable[..., T], *args: Any) -> T: ...


def begun(name: str, call: Callable[..., T], *args: Any) -> Future[T]:
    """Begins a call that may never end, in a daemon thread of its own: the interpreter's end does not wait for it."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # whoever waits for it may be cancelled, and it goes on

    def run() -> None:
        try:
            future.set_result(call(*args))
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class Threads:
    """A pool for calls in any order, one thread for the calls of producers, in theirs, and one for each `work`.

    `seconds` is how long `close` waits for work: it may be others' code, and hang.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        pool = ThreadPoolExecutor(READERS, thread_name_prefix="deelog")
        writer = ThreadPoolExecutor(1, thread_name_prefix="deelog-writer")
        self._executors = pool, writer
        self._under_way: set[Future[Any]] = set()
        self._work: set[Future[Any]] = set()
        self._closed = False
        self.run: Run = partial(self._run, pool)
        self.write: Run = partial(self._run, writer)

    def in_turn(self) -> Run:
        """`run` for one object: its calls run one after the other, in the order in which they were begun.

        A lock would not do: of two calls that have begun, a cancelled one too, either may get it first.
        """
        last: Future[Any] | None = None

        async def run(call: Callable[..., T], *args: Any) -> T:
            nonlocal last
            last = future = self._submitted(self._executors[0], _behind, last, call, *args)
            return await asyncio.wrap_future(future)

        return run

    async def work(self, call: Callable[..., T], *args: Any) -> T:
        """Runs it in a thread of its own, so that work that hangs takes no thread from the calls of clients."""
        if self._closed:
            raise RuntimeError("the port is closed")
        future = begun("deelog-work", call, *args)
        self._work.add(future)
        future.add_done_callback(self._work.discard)
        return await asyncio.wrap_future(future)

    async def _run(self, executor: Executor, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.wrap_future(self._submitted(executor, call, *args))

    def _submitted(self, executor: Executor, call: Callable[..., T], *args: Any) -> Future[T]:
        future = executor.submit(call, *args)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future

    async def close(self) -> None:
        """Waits for the calls under way, and not as long for work that hangs. What has not begun is cancelled."""
        self._closed = True
        for executor in self._executors:
            executor.shutdown(wait=False, cancel_futures=True)
        calls = _ended(self._under_way)
        try:
            async with asyncio.timeout(self._seconds):
                await _ended(self._work)
        except TimeoutError:
            log.warning("%d calls have not ended within %g s: they are left alone", len(self._work), self._seconds)
        await calls


def _ended(calls: Iterable[Future[Any]]) -> asyncio.Future[list[Any]]:
    """Done once they are; with what they raise, since those who asked may not be there to retrieve it."""
    return asyncio.gather(*map(asyncio.wrap_future, list(calls)), return_exceptions=True)


def _behind(before: Future[Any] | None, call: Callable[..., T], *args: Any) -> T:
    """Waits in the thread: the pool begins calls in their order, so the one before has begun, or is cancelled."""
    if before is not None:
        wait([before])
    return call(*args)
