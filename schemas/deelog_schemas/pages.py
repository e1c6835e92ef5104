"""A few pages over HTTP, on threads of their own: `/metrics` and `/health`.

Weighed in docs/decisions.md, "The HTTP server for `/metrics` and `/health`".
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

log = logging.getLogger(__name__)

MAX_REQUESTS: Final = 16
"""Concurrent requests; the connection of one more is closed."""
REQUEST_SECONDS: Final = 10
"""A client that takes longer to send its request or read the response is disconnected."""
_SHUTDOWN_SECONDS: Final = 5.0
FINE: Final = "200 OK"
UNAVAILABLE: Final = "503 Service Unavailable"


class Page(NamedTuple):
    """A response."""

    body: bytes
    content_type: str = "text/plain"
    status: str = FINE


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: scrapes are frequent."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._slots = threading.BoundedSemaphore(MAX_REQUESTS)
        self._open: dict[Any, float] = {}
        """Since when, by connection."""
        super().__init__(*args, **kwargs)

    def server_bind(self) -> None:
        """Binds without the DNS lookup of `http.server`."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._open[request] = time.monotonic()
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._open[request]
            self._slots.release()

    def service_actions(self) -> None:
        """Called twice a second: ends what a client drags out byte by byte, which no timeout of the socket sees."""
        before = time.monotonic() - REQUEST_SECONDS
        for request in [one for one, since in list(self._open.items()) if since < before]:
            with contextlib.suppress(OSError):  # it has just ended
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client disconnected early; any other error would have been answered with 500."""
        log.debug("a request from %s ended early", client_address, exc_info=True)


class PageServer:
    """Serves `pages` until `close()`: by path, what makes the page. It gets the request's `Accept`, on any thread."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[str], Page]]) -> None:
        """Raises `OSError` where it cannot listen on the port."""
        self._pages = pages
        # As `http.server`: the family of the address, so that `::1` can be bound too.
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        server_class = type("Server", (_Server,), {"address_family": family})
        self._server: WSGIServer = make_server(str(address[0]), port, self._answer, server_class, _Handler)
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="deelog-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_SHUTDOWN_SECONDS)

    def forget(self) -> None:
        """In a forked child: closes the copy of the socket."""
        self._server.server_close()

    def _answer(self, request: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        body, content_type, status = self._page(request)
        headers = [("Content-Type", content_type), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")]
        start(status, headers)
        return [] if request["REQUEST_METHOD"] == "HEAD" else [body]

    def _page(self, request: dict[str, Any]) -> Page:
        made = self._pages.get(request["PATH_INFO"].rstrip("/"))
        if made is None:
            return Page(f"here are {', '.join(self._pages)}\n".encode(), status="404 Not Found")
        if request["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return Page(b"only GET\n", status="405 Method Not Allowed")
        return made(request.get("HTTP_ACCEPT", ""))
