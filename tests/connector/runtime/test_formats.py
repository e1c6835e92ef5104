"""The connector in Avro with a real registry, read by Confluent's deserializer and by fastavro.

Bad input: no registry, one that stops after the start, a subject that already has an incompatible schema, a subject
without a registered schema, an address without its path.
"""

from __future__ import annotations

import json
import subprocess
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import javaproperties
import pytest
from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from deelog_connector.devkafka.ports import HOST, free_port
from deelog_proof.harness.child import deelog_command
from deelog_schemas import formats
from deelog_schemas.avro import pinned
from deelog_schemas.config import Config
from deelog_schemas.errors import RegistryAwayError, RegistryError
from deelog_schemas.header import CONTROL_KINDS, Kind
from deelog_schemas.records import Record
from tests.connector.cache import Cache, cache, config_of, started
from tests.support.memory import Memory
from tests.support.registry import Apicurio
from tests.support.topics import derived


def avro(url: str, **more: str) -> dict[str, str]:
    """Avro with a registry, keys and values."""
    fields: dict[str, str] = {}
    for part in formats.PARTS:
        fields |= {f"{part}.converter": "avro", f"{part}.converter.schema.registry.url": url}
    return {**fields, "errors.max.retries": "1", **more}


async def written(memory: Memory, config: Config) -> dict[bytes, bytes]:
    """Writes c, u, d with its tombstone, and a reset. Returns the cache's entries."""
    async with cache(config, release=True, port=memory.port()) as found:
        await started(found)
        for number in range(20):
            await found.put(b"k%d" % number, b"v%d" % number)
        await found.put(b"k1", "wörd".encode())
        await found.put(b"k2", None)
        await found.drained()
        for segment in range(8):
            found.core.request_reset(segment, "signal")
        await found.until(lambda: any(found.core.phase(s) != "writing" for s in range(8)))
        await found.drained()
        return dict(found.entries_of)


def told(records: list[Record], values: list[dict[str, Any] | None]) -> dict[str, str]:
    """The entries of a consumer that knows only the envelope."""
    content: dict[str, str] = {}
    for record, value in zip(records, values, strict=True):
        if record.header.kind in CONTROL_KINDS or value is None:
            assert value is None
        elif value["op"] == "d":
            del content[value["before"]["key"]]
        else:
            content[value["after"]["key"]] = value["after"]["value"]
    return content


def as_text(content: dict[bytes, bytes]) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in content.items()}


def test_avro_with_a_registry_is_what_confluents_deserializer_reads(
    memory: Memory, prefix: str, registry: Apicurio
) -> None:
    config = config_of(memory.bootstrap, prefix, **avro(registry.url))
    content: dict[bytes, bytes] = {}

    async def work() -> None:
        content.update(await written(memory, config))

    memory.run(work())
    topic = config.topics.changes
    records = memory.records(topic)
    kinds = {record.header.kind for record in records}
    assert kinds >= {Kind.CHANGE, Kind.TOMBSTONE, Kind.READ, Kind.CLAIM, Kind.RESET_BEGIN, Kind.RESET_END}
    with registry.client() as client:
        read = AvroDeserializer(client)
        values = [read(r.value, SerializationContext(topic, MessageField.VALUE)) for r in records]
        keys = [read(r.key, SerializationContext(topic, MessageField.KEY)) for r in records]
        latest = {part: client.get_latest_version(f"{topic}-{part}") for part in formats.PARTS}
    assert told(records, values) == as_text(content)
    assert {value["op"] for value in values if value} == {"c", "u", "d", "r"}
    for record, key in zip(records, keys, strict=True):
        assert key["key"].startswith("\0deelog/") == (record.header.kind in CONTROL_KINDS)
    # fastavro, by the schema that each record names.
    for record, value in zip(records, values, strict=True):
        for part, raw, expected in (("key", record.key, None), ("value", record.value, value)):
            if raw is None:
                continue
            assert raw[:5] == b"\0" + latest[part].schema_id.to_bytes(4, "big")
            schema = fastavro.parse_schema(json.loads(str(latest[part].schema.schema_str)))
            found: Any = fastavro.schemaless_reader(BytesIO(raw[5:]), schema, None)
            assert part == "key" or found == expected
    schema = json.loads(str(latest["value"].schema.schema_str))
    assert (schema["namespace"], schema["name"], schema["connect.name"]) == (topic, "Envelope", f"{topic}.Envelope")
    # By the reading rule, too.
    codec = formats.codec_of(formats.connected(config, "test"), "test")
    assert derived(records, codec)[0] == content


def test_avro_by_pinned_schemas(memory: Memory, prefix: str) -> None:
    fields = {"key.converter": "avro", "value.converter": "avro"}
    config = config_of(memory.bootstrap, prefix, **fields)
    content: dict[bytes, bytes] = {}

    async def work() -> None:
        content.update(await written(memory, config))
        # It scans the first one's records, and knows control records by key.
        async with cache(config, 2, port=memory.port()) as again:
            await started(again)

    memory.run(work())
    records = memory.records(config.topics.changes)
    schema = fastavro.parse_schema(json.loads(pinned.released()["0.1.0"]["change.string.string.avsc"]))
    rows = [r for r in records if r.value is not None]
    assert rows
    assert {r.value[:10] for r in rows if r.value} == {pinned.written_value("string", "string", False).prefix}
    read: list[Any] = [fastavro.schemaless_reader(BytesIO((r.value or b"")[10:]), schema, None) for r in rows]
    assert {value["op"] for value in read} == {"c", "u", "d", "r"}
    assert derived(records, formats.codec_of(config, "test"))[0] == {}, "the second cache came back empty"


@pytest.mark.parametrize("key", ["json", "avro"])
def test_cloud_events(memory: Memory, prefix: str, key: str) -> None:
    config = config_of(memory.bootstrap, prefix, **{"key.converter": key, "value.converter": "cloudevents"})
    content: dict[bytes, bytes] = {}

    async def work() -> None:
        content.update(await written(memory, config))

    memory.run(work())
    records = memory.records(config.topics.changes)
    values = []
    for record in records:
        event = None if record.value is None else json.loads(record.value)
        values.append(event and {**event["data"], "op": event["iodebeziumop"]})
    assert told(records, values) == as_text(content)
    events = [json.loads(record.value) for record in records if record.value]
    assert len({event["id"] for event in events}) == len(events), "an id comes once"
    assert derived(records, formats.codec_of(config, "test"))[0] == content


@pytest.mark.slow
def test_a_registry_that_goes_away_later_does_not_matter(memory: Memory, prefix: str, own_registry: Apicurio) -> None:
    """Writing, a reset, and a takeover that scans the records work without it."""
    config = config_of(memory.bootstrap, prefix, **avro(own_registry.url))
    other = config_of(memory.bootstrap, prefix, **avro(own_registry.url), **{"node.id": "n2"})

    async def work() -> None:
        async with cache(config, port=memory.port()) as first, cache(other, port=memory.port()) as second:
            own_registry.stop()
            await started(first)
            for number in range(50):
                await first.put(b"k%d" % number, b"v")
            await first.drained()
            for segment in range(8):
                first.core.request_reset(segment, "signal")
            await first.put(b"k0", None)
            await first.drained()
            await started(second)
            await second.put(b"k1", b"second")
            await second.drained()
            await first.until(lambda: len(first.stepped) == 8)

    memory.run(work())
    assert {r.header.kind for r in memory.records(config.topics.changes)} >= {Kind.CHANGE, Kind.RESET_END}


def refused(memory: Memory, config: Config) -> tuple[RegistryError, float]:
    """The error of a start, and after how many seconds. Fails if anything was created on Kafka."""
    found: list[RegistryError] = []
    begin = time.monotonic()

    async def work() -> None:
        held = Cache(config, 1, port=memory.port())
        with pytest.raises(RegistryError) as caught:
            await held.connector.start()
        found.append(caught.value)
        await held.connector.stop(release=False)

    memory.run(work())
    assert memory.kafka.topics == {}
    return found[0], time.monotonic() - begin


def test_no_registry_at_the_start(memory: Memory, prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    url = f"http://{HOST}:{free_port()}"
    fields = avro(url, **{"errors.max.retries": "3", "retriable.restart.connector.wait.ms": "200"})
    error, seconds = refused(memory, config_of(memory.bootstrap, prefix, **fields))
    assert isinstance(error, RegistryAwayError)
    assert error.exit_code == 10
    assert f"{url} does not answer about subject {prefix}.c-key" in str(error)
    assert "key.converter.schema.registry.url" in str(error)
    said = [record for record in caplog.records if "does not answer" in record.message]
    assert len(said) == 3, "it is asked three more times, after waits at random"
    assert seconds < 30


def test_an_incompatible_subject_is_said_before_the_first_record(
    memory: Memory, prefix: str, registry: Apicurio
) -> None:
    config = config_of(memory.bootstrap, prefix, **avro(registry.url))
    subject, other = f"{prefix}.c-value", '{"type":"record","name":"Other","fields":[]}'
    with registry.client() as client:
        client.register_schema(subject, Schema(other, "AVRO"))
        client.set_compatibility(subject, "FULL")
    error, _ = refused(memory, config)
    assert f"refuses the schema of subject {subject} as incompatible" in str(error)
    assert "topic.prefix" in str(error)


def test_schemas_that_must_be_there_already(memory: Memory, prefix: str, registry: Apicurio) -> None:
    off = {"value.converter.auto.register.schemas": "false"}
    config = config_of(memory.bootstrap, prefix, **avro(registry.url, **off))
    error, _ = refused(memory, config)
    assert f"does not have our schema under subject {prefix}.c-key: register it, or set value.converter.auto" in str(
        error
    )
    formats.connected(config_of(memory.bootstrap, prefix, **avro(registry.url)), "test")
    formats.connected(config, "test")


def test_an_address_without_its_path(memory: Memory, prefix: str, registry: Apicurio) -> None:
    url = registry.url.removesuffix("/apis/ccompat/v7")
    error, _ = refused(memory, config_of(memory.bootstrap, prefix, **avro(url)))
    assert "Apicurio: /apis/ccompat/v7" in str(error)


def test_a_node_without_its_registry_ends_with_its_code(prefix: str, tmp_path: Path) -> None:
    fields = {**avro(f"http://{HOST}:{free_port()}", **{"errors.max.retries": "0"}), "cache.listen": f"{HOST}:0"}
    config = config_of("127.0.0.1:1", prefix, **fields, **{"cache.peer.listen": f"{HOST}:0"})
    path = tmp_path / "node.properties"
    path.write_text(javaproperties.dumps(dict(config.raw), timestamp=False))
    command = deelog_command("node", "--config", str(path))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 10, done.stderr
    assert f"does not answer about subject {prefix}.c-key" in done.stderr.splitlines()[-1]
