"""The same session on a real Kafka Connect 4.3.1 and on a node: the answers are equal, except as the table allows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from deelog_connector.devkafka.ports import free_ports
from tests.connector.rest.client import Api, Reply, start_with_rest
from tests.connector.rest.connect import running_connect
from tests.connector.rest.differences import DIFFERENCES, REASONS
from tests.connector.rest.session import NAME, SESSION, Step, System, flat
from tests.interceptors.grid.cluster import Grid, eventually
from tests.support.kafka import Broker
from tests.support.paths import ROOT

DOCS = ROOT / "docs" / "rest.md"


@pytest.fixture
def connect(kafka: Broker, tmp_path: Path) -> Any:
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    with running_connect(tmp_path / "connect", kafka.bootstrap) as api:
        yield api


def send(api: Api, system: System, step: Step) -> Reply:
    if step.ready is not None:
        eventually(lambda: f'"{step.ready}":[]' not in api.ask("GET", step.path).text, 60, step.label)
    reply = api.ask(step.method, system.text(step.path), system.body(step.body), step.headers)
    if step.until is not None:
        eventually(lambda: _settled(api, step.until), 60, f"{step.label}: {step.until}")
    return reply


def _settled(api: Api, state: str | None) -> bool:
    """Whether connector and tasks have the state: Connect's tasks follow a moment later."""
    status = api.get(f"/connectors/{NAME}/status")
    tasks = {task["state"] for task in status["tasks"]}
    return status["connector"]["state"] == state and tasks <= {state} and (state != "RUNNING" or bool(tasks))


def seen(reply: Reply, api: Api, system: System) -> dict[str, Any]:
    """The parts to compare: status, relevant headers and every leaf of the body, with each system's names replaced."""
    body = reply.text.replace(f"127.0.0.1:{api.port}", "WORKER")
    found: dict[str, Any] = {"status": reply.status}
    for name in ("content-type", "location"):
        if name in reply.headers:
            found[name] = reply.headers[name].replace(f"127.0.0.1:{api.port}", "WORKER")
    if not body:
        return found
    parsed = Reply(reply.status, {}, body).json
    return found | flat(_alike(parsed, system))


def _alike(value: Any, system: System) -> Any:
    own = {**system.config, "name": NAME}
    if isinstance(value, dict):
        if value.keys() >= own.keys() - {system.tuned} and value.items() >= system.config.items():
            more = {("$tuned" if n == system.tuned else n): v for n, v in value.items() if n not in own}
            return {"$config": "its own", **more}
        return {name: _alike(inner, system) for name, inner in value.items()}
    if isinstance(value, list):
        return [_alike(inner, system) for inner in value]
    if isinstance(value, str):
        for word, stands in ((system.plugin, "$plugin"), (system.tuned, "$tuned")):
            value = value.replace(word, stands)
        return re.sub(r"^(4\.3\.1|0\.1\.0)$", "$version", value)
    return "now" if isinstance(value, int) and value > 1_000_000_000_000 else value


@pytest.mark.slow
def test_a_session_gives_what_kafka_connect_gives(grid: Grid, kafka: Broker, connect: Api, tmp_path: Path) -> None:
    (api,) = start_with_rest(
        grid,
        free_ports(1),
        name=NAME,
        topic_creation_default_partitions="1",
        connector_class="deelog.CachetoolsConnector",
    )
    given = {name: value for name, value in grid.nodes["n1"].config.items() if name != "name"}
    ours = System(given, "deelog.CachetoolsConnector", "max.batch.size", {"cache": "c", "segment": 3})
    lines, topic = str(tmp_path / "lines.txt"), f"{grid.config['topic.prefix']}-lines"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()  # Connect would wait for it for ever
    theirs = System(
        {"connector.class": "FileStreamSource", "file": lines, "topic": topic},
        "FileStreamSource",
        "batch.size",
        {"filename": lines},
    )
    found: dict[str, set[str]] = {}
    notes = []
    for step in SESSION:
        one = seen(send(connect, theirs, step), connect, theirs)
        other = seen(send(api, ours, step), api, ours)
        fields = {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
        if fields:
            found[step.label] = fields
            notes += [f"{step.label} {name}: {one.get(name)!r} | {other.get(name)!r}" for name in sorted(fields)]
    (tmp_path / "differences.txt").write_text("\n".join(notes))
    left = {}
    for label, fields in found.items():
        allowed = [pattern for patterns in DIFFERENCES.get(label, {}).values() for pattern in patterns]
        unexpected = [name for name in fields if not any(re.fullmatch(pattern, name) for pattern in allowed)]
        if unexpected:
            left[label] = [note for note in notes if note.startswith(label) and note.split(": ")[0].split(" ")[-1]]
    assert left == {}, "\n".join(notes)
    # A difference that no longer exists must be removed from the table.
    stale = {
        (label, pattern)
        for label, reasons in DIFFERENCES.items()
        for patterns in reasons.values()
        for pattern in patterns
        if not any(re.fullmatch(pattern, name) for name in found.get(label, ()))
    }
    assert stale == set()


def test_every_difference_is_argued_in_the_docs() -> None:
    text = DOCS.read_text("utf-8")
    table = dict(re.findall(r"^\| ([a-z-]+) \| (.+) \|$", text, re.MULTILINE))
    used = {reason for reasons in DIFFERENCES.values() for reason in reasons}
    assert used == REASONS.keys()
    assert {reason: table.get(reason) for reason in REASONS} == REASONS
    assert {step.label for step in SESSION} >= DIFFERENCES.keys()
    assert len({step.label for step in SESSION}) == len(SESSION)
