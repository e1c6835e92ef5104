"""The table of routes: what each changes, and what the root, the health and the metrics answer."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import version

import msgspec
import pytest

from deelog_connector.rest.entities import Answer
from deelog_connector.rest.routes import REFUSED, Route, routes
from deelog_connector.runtime.lifecycle import State
from tests.connector.rest.fakes import FakeLifecycle, asked


class Table:
    """The routes over a lifecycle that is none."""

    def __init__(self, metrics: bool = False) -> None:
        self.lifecycle = FakeLifecycle()
        page = (lambda: (b"page", "text/x")) if metrics else None
        self.routes = routes(self.lifecycle.real, "h:8083", self._cluster, page)

    async def _cluster(self) -> str:
        return "C"

    def of(self, method: str, path: str) -> Route:
        (route,) = [route for route in self.routes if (route.method, route.path) == (method, path)]
        return route

    def ask(self, path: str) -> Answer:
        return asked(self.of("GET", path).handler)


def test_each_route_is_there_once_and_none_of_those_refused() -> None:
    places = Counter((route.method, route.path) for route in Table().routes)
    assert set(places.values()) == {1}
    assert not places.keys() & REFUSED.keys()
    assert len(places) == 25


def test_only_the_health_is_open() -> None:
    assert [route.path for route in Table(metrics=True).routes if route.open] == ["/health"]


def test_what_is_no_get_changes_something_but_for_validating() -> None:
    table = Table()
    assert {route.method for route in table.routes if not route.changes} == {"GET", "PUT"}
    (validate,) = [route for route in table.routes if route.method != "GET" and not route.changes]
    assert validate.path == "/connector-plugins/{plugin}/config/validate"
    assert table.of("DELETE", "/connectors/{connector}/offsets").changes


def test_a_body_is_asked_for_where_something_is_given() -> None:
    with_body = {(route.method, route.path) for route in Table().routes if route.body is not None}
    assert with_body == {
        ("PUT", "/connectors/{connector}/config"),
        ("PATCH", "/connectors/{connector}/config"),
        ("PATCH", "/connectors/{connector}/offsets"),
        ("PUT", "/connector-plugins/{plugin}/config/validate"),
        ("PUT", "/admin/loggers/{logger}"),
    }


def test_every_answer_of_a_handler_is_one_that_the_route_names() -> None:
    table = Table()
    for path, status in (
        ("/connectors/{connector}/pause", 202),
        ("/connectors/{connector}/stop", 204),
        ("/connectors/{connector}/restart", 204),
    ):
        (route,) = [route for route in table.routes if route.path == path]
        answer = asked(route.handler, connector="shop")
        assert answer.status == status
        assert status in route.answers


def test_what_is_answered_is_200_but_for_actions() -> None:
    answers = {(route.method, route.path): set(route.answers) for route in Table(metrics=True).routes}
    one = "/connectors/{connector}"
    assert {place: statuses for place, statuses in answers.items() if statuses != {200}} == {
        ("GET", "/health"): {200, 503},
        ("PUT", f"{one}/pause"): {202},
        ("PUT", f"{one}/resume"): {202},
        ("PUT", f"{one}/stop"): {204},
        ("POST", f"{one}/restart"): {202, 204},
        ("POST", f"{one}/tasks/{{task}}/restart"): {204},
        ("PUT", "/admin/loggers/{logger}"): {200, 204},
    }


def test_the_root_tells_versions_and_the_cluster() -> None:
    told = msgspec.to_builtins(Table().ask("/").body)
    assert told == {"version": version("deelog"), "commit": "Unknown", "kafka_cluster_id": "C"}


@pytest.mark.parametrize(
    ("state", "started", "status", "word"),
    [
        (State.RUNNING, True, 200, "healthy"),
        (State.PAUSED, True, 200, "healthy"),
        (State.RUNNING, False, 503, "starting"),
        (State.FAILED, True, 503, "unhealthy"),
        (State.FAILED, False, 503, "unhealthy"),
    ],
)
def test_the_health_is_that_of_the_connector(state: State, started: bool, status: int, word: str) -> None:
    table = Table()
    table.lifecycle.state, table.lifecycle.started = state, started
    answer = table.ask("/health")
    assert (answer.status, answer.body.status) == (status, word)


def test_metrics_are_a_page_where_there_are_some() -> None:
    answer = Table(metrics=True).ask("/metrics")
    assert (answer.body, answer.headers) == (b"page", {"Content-Type": "text/x"})
    assert all(route.path != "/metrics" for route in Table().routes)
