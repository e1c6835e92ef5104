"""Requests to an ASGI application, without a server."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.connector.cache import run


@dataclass(frozen=True)
class Reply:
    """What was answered."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)


JSON = {"content-type": "application/json"}


class Asgi:
    """`app` as its server would call it."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.took = 0
        """Chunks of the last request's body that were read."""

    def ask(
        self,
        method: str,
        target: str,
        body: bytes | Iterable[bytes | None] = b"",
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """The answer to a request. A chunk of None: the client is gone."""
        path, _, query = target.partition("?")
        chunks = [body] if isinstance(body, bytes) else list(body)
        given = {"host": "localhost"} | (headers or {})
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items()],
        }
        sent: list[dict[str, Any]] = []
        self.took = 0

        async def receive() -> dict[str, Any]:
            chunk = chunks[self.took]
            self.took += 1
            if chunk is None:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": chunk, "more_body": self.took < len(chunks)}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        async def work() -> None:
            try:
                await self._app(scope, receive, send)
            except RuntimeError:
                if not sent:  # Starlette raises what it has answered with 500
                    raise

        run(work(), 20)
        start, *rest = sent
        found = {name.decode().lower(): value.decode() for name, value in start["headers"]}
        return Reply(start["status"], found, b"".join(message.get("body", b"") for message in rest))
