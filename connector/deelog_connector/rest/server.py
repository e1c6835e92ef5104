"""Serves the API on the connector's own loop, with limits on connections and on time. The one module with uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version as version_of
from typing import Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from deelog_connector.errors import KafkaUnusable
from deelog_connector.kafka.admin import KafkaAdmin
from deelog_connector.rest.access import Access
from deelog_connector.rest.app import application
from deelog_connector.rest.routes import routes
from deelog_connector.runtime.lifecycle import Lifecycle
from deelog_connector.tls import server_context
from deelog_schemas.config import Config
from deelog_schemas.errors import ConfigError, FieldError

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 128
HEAD_SECONDS: Final = 5.0
"""A connection that has sent no whole head of a request for so long is closed."""
_MAX_HEAD_BYTES: Final = 65_536
_STOP_SECONDS: Final = 3
_ASK_AGAIN_SECONDS: Final = 5.0


class RestServer:
    """See the package. `metrics`: the page of `/metrics` and its content type, where there is one."""

    def __init__(
        self, config: Config, lifecycle: Lifecycle, metrics: Callable[[], tuple[bytes, str]] | None = None
    ) -> None:
        self._config, self._lifecycle, self._metrics = config, lifecycle, metrics
        self._cluster_id = ""
        self._asking = asyncio.Lock()
        self._ask_again = 0.0
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self.address = ""

    async def start(self) -> None:
        """Listens. Raises `ConfigError`."""
        config = self._config
        access, tls = Access(config), server_context(config, "rest.ssl")
        host, port = config["rest.host.name"], config["rest.port"]
        listener = _listen(host, port)
        port = listener.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        table = routes(self._lifecycle, self.address, self._cluster, self._metrics)
        settings = uvicorn.Config(
            application(table, access, version_of("deelog")),
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=_STOP_SECONDS,
            h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
            backlog=MAX_CONNECTIONS,
        )
        settings.load()
        settings.ssl = tls
        self._server = _Server(settings)
        self._serving = asyncio.get_running_loop().create_task(self._server.serve([listener]), name="rest")
        log.info("REST API at %s://%s", "https" if tls else "http", self.address)

    async def stop(self) -> None:
        """Ends; what is under way has a few seconds. A second call does nothing more."""
        if self._server is None or self._serving is None:
            return
        self._server.should_exit = True
        await self._serving

    async def _cluster(self) -> str:
        """The id of the Kafka cluster, asked for once at a time, until it is known; empty while nobody answers."""
        async with self._asking:
            if not self._cluster_id and time.monotonic() >= self._ask_again:
                try:
                    self._cluster_id = await asyncio.to_thread(KafkaAdmin(self._config).cluster_id)
                except (KafkaUnusable, ConfigError) as error:
                    log.warning("GET /: %s", error)
                    self._ask_again = time.monotonic() + _ASK_AGAIN_SECONDS
        return self._cluster_id


class _Server(uvicorn.Server):
    """Without uvicorn's own signal handlers: the process has its own, and may not be ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(H11Protocol):
    """uvicorn's, with a limit on connections and on the time that a head may take.

    What it raises stays here: the loop is the connector's, whose owner takes an error that nobody caught for the end.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except Exception as error:  # noqa: BLE001 - see above
            log.warning("a request that cannot be read: %s", type(error).__name__)
            self.transport.abort()
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._head_is_there()
        else:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()

    def _wait_for_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _head_is_there(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        problem = f"cannot be listened on at rest.host.name={host} ({error.strerror}): name another port or host, or 0"
        raise ConfigError([FieldError("rest.port", problem, str(port))]) from error
