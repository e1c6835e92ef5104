"""The threads in which the calls of librdkafka wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
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

    async def _run(self, executor: Executor, call: Callable[..., T], *args: Any) -> T:
        future = executor.submit(call, *args)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return await asyncio.wrap_future(future)

    async def close(self) -> None:
        """Waits for the calls under way; those that have not begun are cancelled."""
        for executor in self._executors:
            executor.shutdown(wait=False, cancel_futures=True)
        if left := [asyncio.wrap_future(future) for future in list(self._under_way)]:
            await asyncio.wait(left)
