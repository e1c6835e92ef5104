"""A share in the server of `metrics.port`, for each connector that names one.

Several captured caches of one process may name the same port: Prometheus scrapes processes. The server, and the client
library with it, is imported only where a port is configured.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from deelog_connector.runtime.connector import Connector
from deelog_schemas.config import Config
from deelog_schemas.errors import ConfigError, FieldError

if TYPE_CHECKING:
    from deelog_connector.metrics.http_server import MetricsServer
    from deelog_connector.metrics.prometheus import Source

_lock = threading.Lock()
_servers: dict[tuple[str, int], MetricsServer] = {}


class MetricsShare:
    """A share in the server of `metrics.port`; `close()` it. Does nothing where the port is 0."""

    def __init__(self, config: Config, connectors: dict[str, Connector], others: Iterable[Source] = ()) -> None:
        """Raises `ConfigError` where it cannot listen on the port."""
        self._connectors, self._others = connectors, list(others)
        self._at = (str(config["metrics.host"]), int(config["metrics.port"]))
        self._server: MetricsServer | None = None
        if self._at[1] == 0:
            return
        with _lock:
            self._server = _servers.get(self._at) or _started(*self._at)
            _servers[self._at] = self._server
            self._server.add(connectors, self._others)

    def close(self) -> None:
        """No longer serves these connectors; the last share closes the server."""
        with _lock:
            server, self._server = self._server, None
            if server is not None and server.remove(self._connectors, self._others):
                del _servers[self._at]
                server.close()


def _started(host: str, port: int) -> MetricsServer:
    from deelog_connector.metrics.http_server import MetricsServer

    try:
        return MetricsServer(host, port)
    except OSError as error:
        problem = f"cannot be listened on at metrics.host={host} ({error.strerror}): name another port or host, or 0"
        raise ConfigError([FieldError("metrics.port", problem, str(port))]) from error


def page(connectors: dict[str, Connector], others: Sequence[Source] = ()) -> Callable[[], tuple[bytes, str]]:
    """The response of the REST API to `GET /metrics`: body and content type."""
    from deelog_connector.metrics.prometheus import PrometheusCollector

    return PrometheusCollector(connectors, others).render


def _forget() -> None:
    """In a forked child: it has no server thread, and the port is the parent's."""
    global _lock
    _lock = threading.Lock()
    for server in _servers.values():
        server.forget()
    _servers.clear()


os.register_at_fork(after_in_child=_forget)
