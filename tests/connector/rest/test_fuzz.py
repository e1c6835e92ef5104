"""schemathesis on a running node, by the node's own OpenAPI document; and the document compared with the table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from deelog_connector.devkafka.ports import free_port
from tests.connector.rest.client import Api, api_of
from tests.interceptors.grid.cluster import Grid, eventually
from tests.support.kafka import Broker

EXAMPLES = 6
"""Examples for each operation."""
CHECKS: Any = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def grid(kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    """One node that may be stopped and configured a hundred times."""
    found = Grid(
        tmp_path_factory.mktemp("fuzzed"),
        kafka.bootstrap,
        f"fuzz{time.time_ns()}",
        segment_count="8",
        cache_failure_timeout_ms="5000",
    )
    node = found.nodes["n1"] = found.node("n1", rest_port=str(free_port()))
    try:
        node.start()
        node.wait()
        found.complete(1)  # tests run in any order: the first one must find every segment owned
        yield found
    finally:
        found.end()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value)
def test_what_openapi_allows_is_answered_as_openapi_says(grid: Grid, mode: GenerationMode) -> None:
    """Negative: requests that the document does not allow are refused. Without schemathesis' own pytest plugin, which
    does not work with pytest 9.2 yet."""
    address = f"http://127.0.0.1:{api_of(grid.nodes['n1']).port}"
    fuzzed = 0
    for result in schemathesis.openapi.from_url(f"{address}/openapi.json").get_all_operations():
        operation: Any = result.ok()  # type: ignore[union-attr]  # a document that is wrong fails here
        if mode is GenerationMode.NEGATIVE and not operation.body:
            continue  # a path has only text, which is always valid
        fuzz(operation, mode, grid)
        fuzzed += 1
    assert fuzzed > 4


def fuzz(operation: Any, mode: GenerationMode, grid: Grid) -> None:
    @given(case=operation.as_strategy(generation_mode=mode), mine=st.booleans())
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def one(case: Any, mine: bool) -> None:
        if mine and "connector" in (case.path_parameters or {}):
            case.path_parameters["connector"] = "deelog"  # else nearly every name is unknown
        case.call_and_validate(checks=CHECKS, timeout=90)
        assert grid.nodes["n1"].alive

    one()


def test_the_node_works_behind_it(grid: Grid) -> None:
    """Runs last in its file, after the others in any order. It depends on none of them."""
    api = api_of(grid.nodes["n1"])
    api.do("PUT", "/connectors/deelog/resume")
    with grid.client() as client:
        for number in range(100):
            client.set(f"k{number}", "v")
    eventually(lambda: api.state() == "RUNNING" and grid.nodes["n1"].stats()["unwritten"] == 0, 30)


def test_the_document_lists_every_route(grid: Grid) -> None:
    api: Api = api_of(grid.nodes["n1"])
    document = api.get("/openapi.json")
    listed = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert {("GET", "/connectors/{connector}/status"), ("PATCH", "/connectors/{connector}/offsets")} <= listed
    for method, path in listed:
        # Every listed method exists: none is answered with 405.
        target = path.replace("{connector}", "nobody").replace("{task}", "0").replace("{plugin}", "x")
        assert api.ask(method, target.replace("{logger}", "deelog.x"), {}).status != 405
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert all(operation["summary"] and operation["responses"] for operation in operations)
