"""The threads in which the calls of librdkafka wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

READERS: Final = 8
"""Calls at the same time, those of the writer not counted."""


class Run(Protocol):
    """Runs a blocking call in a thread."""

    async def __call__(self, call: Callable[..., T], *args: Any) -> T: ...


class Threads:
    """A pool for calls in any order, and one thread for the calls of producers, in theirs."""

    def __init__(self) -> None:
        pool = ThreadPoolExecutor(READERS, thread_name_prefix="deelog")
        writer = ThreadPoolExecutor(1, thread_name_prefix="deelog-writer")
        self._executors = pool, writer
        self._under_way: set[Future[Any]] = set()
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

    async def _run(self, executor: Executor, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.wrap_future(self._submitted(executor, call, *args))

    def _submitted(self, executor: Executor, call: Callable[..., T], *args: Any) -> Future[T]:
        future = executor.submit(call, *args)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future

    async def close(self) -> None:
        """Waits for the calls under way; those that have not begun are cancelled."""
        for executor in self._executors:
            executor.shutdown(wait=False, cancel_futures=True)
        if left := [asyncio.wrap_future(future) for future in list(self._under_way)]:
            await asyncio.wait(left)


def _behind(before: Future[Any] | None, call: Callable[..., T], *args: Any) -> T:
    """Waits in the thread: the pool begins calls in their order, so the one before has begun, or is cancelled."""
    if before is not None:
        wait([before])
    return call(*args)
