"""Puts secrets into every field that can have one, and searches all output: REST, command line, DEBUG logs, a crash.

They are given as plain text and by `${env:…}`, `${file:…}` and `${dir:…}`, also within addresses, under misspelt names,
and in refused bodies.
"""

from __future__ import annotations

import asyncio
import json
import os
import traceback
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
from click.testing import CliRunner
from confluent_kafka import Producer
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from deelog_connector.cli.config import validate
from deelog_connector.devkafka.ports import free_port
from deelog_connector.rest.access import Access
from deelog_connector.rest.app import application
from deelog_connector.rest.routes import routes
from deelog_connector.runtime.lifecycle import Lifecycle
from deelog_schemas.config import FIELDS, ConfigError, parse
from deelog_schemas.config.secrets import is_secret
from deelog_schemas.config.validation import judge
from tests.connector.rest.client import Api
from tests.interceptors.grid.cluster import Grid
from tests.support.kafka import Broker

MARKER = "xq7marker9zk"
TOKEN = f"{MARKER}-rest-token"
BASE = {
    "topic.prefix": "p",
    "cache.name": "c",
    "bootstrap.servers": "k:9092",
    "node.id": "n",
    "connector.class": "deelog.CachetoolsConnector",
}
HOLDERS = [
    *(name for name in FIELDS if is_secret(name)),
    *(
        f"{client}.override.{setting}"
        for client in ("producer", "consumer", "admin")
        for setting in ("sasl.username", "sasl.password", "ssl.key.password", "ssl.key.pem", "ssl.keystore.password")
    ),
    "producer.override.sasl.oauthbearer.client.secret",
    "producer.override.sasl.oauthbearer.config",
]
MISSPELT = ["rest.tokn", "diff.jdbc.pasword", "producer.override.sasl.pasword", "secret"]
# Its password is for a registry, and a registry for Avro.
REGISTRY = {
    f"{part}.converter{name}": value
    for part in ("key", "value")
    for name, value in (("", "avro"), (".schema.registry.url", "http://127.0.0.1:1"))
}
ADDRESSES = {"diff.jdbc.url": f"jdbc:postgresql://user:{MARKER}@db/x?password={MARKER}"}


def searched(text: str) -> None:
    assert MARKER not in text, text[max(0, text.find(MARKER) - 200) :][:400]


def served(config: Any, method: str, path: str, body: Any = None) -> str:
    """One request to the application of a connector with this configuration."""

    async def work() -> str:
        lifecycle = Lifecycle(config, {})

        async def cluster() -> str:
            return "id"

        app = application(routes(lifecycle, "worker:1", cluster), Access(parse(BASE)), "0")
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            reply = await client.request(method, path, json=body)
            return f"{reply.status_code} {reply.headers} {reply.text}"

    return asyncio.run(work())


@given(
    names=st.sets(st.sampled_from(HOLDERS), min_size=1),
    form=st.sampled_from(["plain", "env", "file", "dir"]),
    wrong=st.sets(st.sampled_from(MISSPELT)),
    addresses=st.booleans(),
)
@settings(max_examples=8, phases=[Phase.generate])
def test_no_answer_and_no_error_shows_a_secret(
    names: set[str], form: str, wrong: set[str], addresses: bool, tmp_path_factory: Any
) -> None:
    folder = _folder(tmp_path_factory)
    text = {
        "plain": TOKEN,
        "env": "${env:PLANTED}",
        "file": f"${{file:{folder}/s.properties:key}}",
        "dir": f"${{dir:{folder}:key}}",
    }[form]
    good = BASE | REGISTRY | dict.fromkeys(sorted(names | {"rest.token"}), text) | (ADDRESSES if addresses else {})
    bad = good | dict.fromkeys(sorted(wrong), TOKEN)
    with mock.patch.dict(os.environ, {"PLANTED": TOKEN}):
        config = parse(good)
        for given_ in (good, bad):
            searched(json.dumps(judge(given_).body))
            _command_line(folder, given_)
            for method, path, body in (
                ("PUT", "/connector-plugins/deelog.CachetoolsConnector/config/validate", given_),
                ("PUT", "/connectors/deelog/config", given_),
                ("PATCH", "/connectors/deelog/config", given_),
                ("POST", "/connectors", {"name": "deelog", "config": given_}),
                ("PATCH", "/connectors/deelog/offsets", {"offsets": TOKEN}),
                ("PUT", "/admin/loggers/x", {"level": 7, "password": TOKEN}),
            ):
                searched(served(config, method, path, body))
        for path in ("/connectors/deelog", "/connectors/deelog/config", "/connectors?expand=info&expand=status"):
            searched(served(config, "GET", path))
        try:
            parse(bad)
        except ConfigError as error:
            searched("".join(traceback.format_exception(error)))
        searched(repr(config) + str(config.raw) + str(config.overrides("producer")) + str(config.resolved()))


def _folder(tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.getbasetemp() / "planted"
    if not folder.exists():
        folder.mkdir()
        (folder / "s.properties").write_text(f"key={TOKEN}\n")
        (folder / "key").write_text(TOKEN)
    return folder


def _command_line(folder: Path, given_: dict[str, str]) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(given_))
    for options in ([], ["--resolve"], ["--format", "json"], ["--format", "json", "--resolve"]):
        result = CliRunner().invoke(validate, [*options, str(file)])
        searched(result.output + str(result.exception))


def test_a_node_at_debug_shows_no_secret_even_as_it_dies(grid: Grid, kafka: Broker, tmp_path: Path) -> None:
    """Its file is full of secrets, every route is called, and then a foreign record on its topic stops it."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text(TOKEN)
    (tmp_path / "s.properties").write_text(f"key={TOKEN}\n")
    node = grid.nodes["n1"] = grid.node("n1", rest_port=str(free_port()))
    node.config |= ADDRESSES | {
        "rest.token": f"${{file:{tmp_path}/s.properties:key}}",
        "rest.readonly.token": f"{MARKER}-readonly-token",
        "diff.jdbc.password": f"${{dir:{tmp_path}/secrets:key}}",
        "producer.override.sasl.username": MARKER,
        "producer.override.sasl.password": "${env:PLANTED}",
        "consumer.override.sasl.password": TOKEN,
        "admin.override.ssl.key.password": TOKEN,
    }
    with mock.patch.dict(os.environ, {"PLANTED": TOKEN}):
        node.start()
        node.wait()
    api = Api(int(node.config["rest.port"]), TOKEN)
    assert api.ask("PUT", "/admin/loggers/root", {"level": "TRACE"}).status == 200
    output = ""
    document = api.get("/openapi.json")
    for path, methods in document["paths"].items():
        target = path.replace("{connector}", "deelog").replace("{task}", "0").replace("{logger}", "root")
        for method in methods:
            if (method, path) == ("put", "/admin/loggers/{logger}"):
                continue
            body = {"rest.token": TOKEN, "producer.override.sasl.pasword": TOKEN}
            output += str(api.ask(method.upper(), target.replace("{plugin}", "CachetoolsConnector"), body))
    output += str(Api(api.port, f"{TOKEN}x").ask("GET", "/connectors"))
    searched(json.dumps(node.stats()))
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(f"{grid.config['topic.prefix']}.c.positions", b"{}", b"position/1", partition=0)
    assert producer.flush(20) == 0
    assert node.process is not None
    assert node.process.wait(60) != 0
    assert "HTTP connection made" in node.log  # the server logs that only at TRACE
    searched(output)
    searched(node.log)
    assert node.process.stdout is not None
    searched(node.process.stdout.read())
    node.ended()
