"""The coroutines and threads of one connector, and its retries of Kafka requests."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tenacity import (
    AsyncRetrying,
    before_sleep_log,
    retry_all,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_delay,
    stop_never,
    wait_exponential_jitter,
)
from tenacity.stop import StopBaseT

from deelog_connector.core.effects import Cause
from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable, RetriesExhausted
from deelog_connector.kafka.client import REQUEST_SECONDS
from deelog_connector.kafka.records import WriteFailed
from deelog_schemas.config import Config, ConfigError

log = logging.getLogger(__name__)

T = TypeVar("T")


class Tasks:
    """Runs coroutines on the loop and blocking calls in threads. The first error of a coroutine becomes `failure`.

    Make it on the loop; end it with `cancel`, then `shutdown`.
    """

    def __init__(self, threads: int) -> None:
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stopping = threading.Event()
        """Set at the end, for loops on any thread."""
        self._running: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="deelog")
        self._writer_thread = ThreadPoolExecutor(1, thread_name_prefix="deelog-writer")

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs a coroutine as a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def blocking(self, call: Callable[..., Any], *args: Any) -> Any:
        """Runs a blocking call in a thread of the pool."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    async def writing(self, call: Callable[..., Any], *args: Any) -> Any:
        """Runs a blocking call in the one thread that uses the producer."""
        return await asyncio.get_running_loop().run_in_executor(self._writer_thread, call, *args)

    async def cancel(self) -> None:
        """Cancels the tasks on the loop, and waits for them."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def shutdown(self) -> None:
        """Waits for the threads. It blocks: call it from another thread."""
        self._writer_thread.shutdown(wait=True, cancel_futures=True)
        self._threads.shutdown(wait=True, cancel_futures=True)

    def fail(self, error: BaseException) -> None:
        """Fails the connector, unless it has failed already or is being stopped."""
        if not self.failure.done() and not self.stopping.is_set():
            log.error("the connector cannot go on: %s", error)
            self.failure.set_exception(error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(error)


class Retries:
    """Retries Kafka requests, after waits that grow up to `retriable.restart.connector.wait.ms`.

    `config_of` returns the present configuration: a restart may change the waits.
    """

    def __init__(self, config_of: Callable[[], Config]) -> None:
        self._config_of = config_of
        self.started = False
        """During the start, a timeout or a refusal is fatal; afterwards it is not."""
        self._errors = 0
        """Errors of the producer since the last committed transaction."""

    def committed(self) -> None:
        """A transaction was committed: resets the count of errors."""
        self._errors = 0

    def count(self, error: WriteFailed) -> None:
        """Raises `RetriesExhausted` after one error too many. Fencing does not count: takeovers fence nodes."""
        most = self._config_of()["errors.max.retries"]
        if error.cause is not Cause.LOST:
            return
        self._errors += 1
        if 0 <= most < self._errors:
            raise RetriesExhausted(
                f"{self._errors} errors in a row, errors.max.retries={most} allows no more: {error}; mend what it "
                "names and start again, or allow more"
            ) from error

    async def writing(self, run: Callable[..., Awaitable[Any]], *args: Any, stop: StopBaseT = stop_never) -> None:
        """Runs it until it does not raise `WriteFailed`, or until `stop`. Each error counts."""

        async def once() -> None:
            try:
                await run(*args)
            except WriteFailed as error:
                self.count(error)
                raise

        await self._again_on(WriteFailed, stop, once)

    async def reading(self, run: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Runs it until Kafka answers; during the start for at most the time of one request."""
        # Partitions of a new topic, or of a broker that has just restarted, have no leader for a moment. In a later
        # restart, retry for ever: Kafka may be unavailable for long.
        stop = stop_never if self.started else stop_after_delay(REQUEST_SECONDS)
        error = (KafkaUnusable, ConfigError) if self.started else KafkaUnavailable
        return await self._again_on(error, stop, run, *args)

    async def _again_on(
        self,
        error: type[Exception] | tuple[type[Exception], ...],
        stop: StopBaseT,
        run: Callable[..., Awaitable[T]],
        *args: Any,
    ) -> T:
        # A missing ACL ends a start; a running connector retries until it is granted.
        ends = () if self.started else KafkaUnauthorized
        retry = retry_all(retry_if_exception_type(error), retry_if_not_exception_type(ends))
        longest = self._config_of()["retriable.restart.connector.wait.ms"] / 1000
        wait = wait_exponential_jitter(multiplier=0.1, max=longest)
        before_sleep = before_sleep_log(log, logging.WARNING)
        return await AsyncRetrying(retry=retry, stop=stop, wait=wait, before_sleep=before_sleep, reraise=True)(
            run, *args
        )


__all__ = ["Retries", "Tasks"]
