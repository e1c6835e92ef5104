"""A lifecycle that notes what is asked of it, and requests to handlers without HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deelog_connector.rest.entities import Answer, Call, RestError
from deelog_connector.runtime.lifecycle import Lifecycle, Offset, State, Task
from deelog_schemas.config import Config, parse
from tests.connector.cache import run

GIVEN = {
    "name": "shop",
    "connector.class": "deelog.CachetoolsConnector",
    "topic.prefix": "p",
    "bootstrap.servers": "h:1",
    "node.id": "n1",
    "cache.name": "c",
}


class FakeLifecycle:
    """One connector of two tasks, on a node that is primary of segments 1, 2 and 5. Changes raise `fails`."""

    def __init__(self, **fields: str) -> None:
        self.config = parse(GIVEN | {name.replace("_", "."): value for name, value in fields.items()})
        self.file = self.config
        self.name = "shop"
        self.started = True
        self.state = State.RUNNING
        self.trace: str | None = None
        self.calls: list[Any] = []
        self.fails: Exception | None = None
        self.refuses: Exception | None = None
        primaries = [SimpleNamespace(number=number) for number in (1, 2, 5)]
        self.connectors = {"c": SimpleNamespace(core=SimpleNamespace(primaries=lambda: primaries))}

    def tasks(self) -> list[Task]:
        return [
            Task(0, "c", 3, (1, 2), State.RUNNING),
            Task(4, "c", 7, (5,), State.FAILED, "segment 5 is stopped"),
        ]

    def topics(self) -> list[str]:
        return ["p.c", "p.c.positions"]

    def offsets(self) -> list[Offset]:
        return [Offset("c", 1, 3, 17), Offset("c", 2, 4, 1)]

    def restart_task(self, task: Task) -> None:
        self.calls.append(("restart_task", task.number))

    def restart_soon(self) -> None:
        self.calls.append("restart_soon")

    def reset(self, places: Iterable[tuple[str, int]]) -> None:
        self.calls.append(("reset", list(places)))

    def check(self, config: Config) -> None:
        self.calls.append("check")
        if self.refuses is not None:
            raise self.refuses

    async def configure(self, config: Callable[[], Config]) -> None:
        self.calls.append("configure")
        if self.fails is not None:
            raise self.fails
        self.config = config()

    async def _change(self, what: str) -> None:
        self.calls.append(what)
        if self.fails is not None:
            raise self.fails

    async def pause(self) -> None:
        await self._change("pause")

    async def resume(self) -> None:
        await self._change("resume")

    async def stop(self) -> None:
        await self._change("stop")

    async def restart(self) -> None:
        await self._change("restart")

    @property
    def real(self) -> Lifecycle:
        return cast(Lifecycle, self)


def asked(handler: Callable[[Call], Any], body: Any = None, query: str = "", **path: str) -> Answer:
    """The answer of a handler."""
    found: list[Answer] = []
    pairs = [(name, value) for name, _, value in (pair.partition("=") for pair in query.split("&") if pair)]

    async def work() -> None:
        found.append(await handler(Call(path, pairs, body)))

    run(work(), 20)
    return found[0]


def refused(handler: Callable[[Call], Any], body: Any = None, query: str = "", **path: str) -> tuple[int, str]:
    """Status and message of the error that a handler raises."""
    with pytest.raises(RestError) as error:
        asked(handler, body, query, **path)
    return error.value.status, error.value.message
