"""The coroutines of one connector, and its retries of Kafka requests."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from deelog_connector.core.effects import Cause
from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable, RetriesExhausted
from deelog_connector.kafka_port import KafkaPort, WriteFailed
from deelog_schemas.config import Config, ConfigError

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_WAIT_SECONDS: Final = 0.1
"""The wait before the first retry, to which up to a second is added by chance."""
START_SECONDS: Final = 60.0
"""How long a first start asks again for what it reads: Kafka has answered by then, since the topics are made first."""


class Tasks:
    """Runs coroutines on the loop. The first error of one becomes `failure`."""

    def __init__(self, failure: asyncio.Future[None]) -> None:
        self.failure = failure
        self.stopping = False
        """Set at the end: errors are no failure any more."""
        self._running: dict[asyncio.Task[None], None] = {}

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs a coroutine as a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    async def cancel(self) -> None:
        """Cancels the tasks on the loop, and waits for them."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def fail(self, error: BaseException) -> None:
        """Fails the connector, unless it has failed already or is being stopped."""
        if not self.failure.done() and not self.stopping:
            log.error("the connector cannot go on: %s", error)
            self.failure.set_exception(error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(error)


class Retries:
    """Retries Kafka requests, after waits that grow up to `retriable.restart.connector.wait.ms`."""

    def __init__(self, config: Config, port: KafkaPort, *, proven: bool = False) -> None:
        self._config, self._port = config, port
        self.proven = proven
        """Whether Kafka has given what a start reads. Before that, a timeout or a refusal is fatal."""
        self._errors = 0
        """Errors of the producer since the last committed transaction."""

    def committed(self) -> None:
        """A transaction was committed: resets the count of errors."""
        self._errors = 0

    def count(self, error: WriteFailed) -> None:
        """Raises `RetriesExhausted` after one error too many. Fencing does not count: takeovers fence nodes."""
        most = self._config["errors.max.retries"]
        if error.cause is not Cause.LOST:
            return
        self._errors += 1
        if 0 <= most < self._errors:
            raise RetriesExhausted(
                f"{self._errors} errors in a row, errors.max.retries={most} allows no more: {error}; mend what it "
                "names and start again, or allow more"
            ) from error

    async def writing(
        self, run: Callable[..., Awaitable[Any]], *args: Any, stop: Callable[[], bool] = lambda: False
    ) -> None:
        """Runs it until it does not raise `WriteFailed`, or until `stop`. Each error counts."""

        async def once() -> None:
            try:
                await run(*args)
            except WriteFailed as error:
                self.count(error)
                raise

        await self._again_on(WriteFailed, stop, once)

    async def reading(self, run: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Runs it until Kafka answers; at the first start for at most `START_SECONDS`."""
        # Partitions of a new topic, or of a broker that has just restarted, have no leader for a moment. In a restart,
        # retry for ever: Kafka may be unavailable for long.
        clock = self._port.clock
        until = math.inf if self.proven else clock.monotonic() + START_SECONDS
        error = (KafkaUnusable, ConfigError) if self.proven else KafkaUnavailable
        return await self._again_on(error, lambda: clock.monotonic() >= until, run, *args)

    async def _again_on(
        self,
        errors: type[Exception] | tuple[type[Exception], ...],
        stop: Callable[[], bool],
        run: Callable[..., Awaitable[T]],
        *args: Any,
    ) -> T:
        # A missing ACL ends a start; a running connector retries until it is granted.
        fatal = () if self.proven else KafkaUnauthorized
        wait = FIRST_WAIT_SECONDS
        while True:
            try:
                return await run(*args)
            except errors as error:
                if isinstance(error, fatal) or stop():
                    raise
                log.warning("%s; trying again", error)
            longest = self._config["retriable.restart.connector.wait.ms"] / 1000
            await asyncio.sleep(min(wait + self._port.random.uniform(0.0, 1.0), longest))
            wait = min(2 * wait, longest)
