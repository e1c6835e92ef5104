"""Requests as curl sends them, over a plain connection: nothing is added, followed or retried."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any

from tests.interceptors.grid.cluster import Grid, GridNode
from tests.support.waiting import waiting

SECONDS = 100.0


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Api:
    """The API of one process. `token` is sent with every request."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self.port, self.token = port, token

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        """Sends a request. A body that is not text is sent as JSON."""
        given = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        if body is not None:
            given["Content-Type"] = "application/json"
        content = body if isinstance(body, str | bytes | None) else json.dumps(body)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.request(method, path, content, given | (headers or {}))
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        reply = self.ask("GET", path)
        assert reply.status == 200, reply
        return reply.json

    def do(self, method: str, path: str, body: Any = None) -> Reply:
        """Sends a request that must succeed."""
        reply = self.ask(method, path, body)
        assert reply.status < 300, reply
        return reply

    def state(self, name: str = "deelog") -> str:
        found: str = self.get(f"/connectors/{name}/status")["connector"]["state"]
        return found

    def is_healthy(self) -> bool:
        try:
            return self.ask("GET", "/health").status == 200
        except OSError:
            return False


def api_of(node: GridNode) -> Api:
    return Api(int(node.config["rest.port"]), node.config.get("rest.token"))


def start_with_rest(grid: Grid, ports: list[int], **config: str) -> list[Api]:
    """Like `Grid.start`, each node with an API."""
    for number, port in enumerate(ports, 1):
        node = grid.nodes[f"n{number}"] = grid.node(f"n{number}", rest_port=str(port), **config)
        node.start()
    for node in grid.nodes.values():
        node.wait()
    grid.complete(len(ports))
    waiting(lambda: all(node.stats()["unwritten"] == 0 for node in grid.live()), 60, "everything written")
    return [api_of(node) for node in grid.nodes.values()]
