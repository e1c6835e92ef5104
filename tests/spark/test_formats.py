"""The job with topics in Avro and in cloud events: the same differences, dead letters and tables.

Bad input: truncated values, values with extra bytes, of an unregistered schema or of another subject's, JSON, nothing;
the same for keys. Each stops the job, or becomes a dead letter if that is configured.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import javaproperties
import pytest
from click.testing import CliRunner
from confluent_kafka.schema_registry import Schema

from deelog_connector.devkafka.ports import HOST, free_port
from deelog_schemas.config import Config
from deelog_schemas.errors import RecordError
from deelog_schemas.header import Kind
from deelog_spark import DiffJob, changes, latest, real_time
from deelog_spark.cli import diff
from deelog_spark.errors import DiffError
from deelog_spark.folding.diff_record import connected
from tests.spark import scenes
from tests.spark.reference import dead_letters, in_topic, read
from tests.spark.scenes import Carried
from tests.spark.test_dead_letters import change, envelope, tolerant
from tests.spark.test_diff_job import check, configured, run
from tests.spark.test_tables import entries
from tests.support.changes import Cache, config_of
from tests.support.kafka import Broker
from tests.support.registry import Apicurio

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AVRO = {"key_converter": "avro", "value_converter": "avro"}


def by_registry(url: str) -> dict[str, Any]:
    return {**AVRO, "key_converter_schema_registry_url": url, "value_converter_schema_registry_url": url}


@pytest.mark.slow
def test_avro_with_a_registry_that_goes_away(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, carried_by_driver: Carried, own_registry: Apicurio
) -> None:
    """With executors: no task asks the registry, which is down when they start."""
    carried_by_driver(0)
    config = configured(kafka, prefix, tmp_path, **by_registry(own_registry.url))
    cache = Cache(config)
    run(config, spark)
    scenes.scripted(cache)
    scenes.close(cache)
    known = connected(config)
    own_registry.stop()
    run(known, spark)
    check(cache, known)
    keys = {record.key for topic in (config.topics.changes, config.topics.diff) for record in read(known, topic, 2)}
    assert len({key[:5] for key in keys}) == 1, "a key is the same bytes in both topics"
    assert entries(latest(spark, known)) == cache.entries()


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(
            {**AVRO, "cache_key_format": "bytes", "cache_value_format": "bytes", "before_image": "full"},
            marks=pytest.mark.slow,
        ),
        {"value_converter": "cloudevents", "value_converter_schemas_enable": True},
        pytest.param({"key_converter": "avro", "value_converter_schemas_enable": True}, marks=pytest.mark.slow),
    ],
    ids=["avro of bytes", "cloud events", "avro keys"],
)
def test_other_formats(kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, fields: dict[str, Any]) -> None:
    """A reset's difference and captured changes, by the driver, as other readers decode them."""
    if fields.get("before_image"):
        fields = {**fields, "max_entry_bytes": 1000}
    config = configured(kafka, prefix, tmp_path, **fields)
    cache = Cache(config)
    run(config, spark)
    cache.put(cache.key(0, 0), b"v", expires_at=1_800_000_000_000)
    cache.put(cache.key(0, 0), "wörd".encode())
    cache.put(cache.key(0, 1), b"gone")
    cache.put(cache.key(0, 1), None)
    cache.put(cache.key(1, 0), b"kept")
    cache.put(cache.key(1, 1), b"old")
    cache.put(cache.key(1, 1), b"new", lost=True)
    cache.put(cache.key(1, 2), b"new too", lost=True)
    cache.reset(1)
    assert run(config, spark)["resets_rows"] == {"c": 1, "u": 1, "d": 0}
    if "bytes" not in fields.values():
        check(cache, config)
        assert entries(latest(spark, config)) == cache.entries()
    query = changes(spark, config).writeStream.format("memory").queryName(prefix).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    rows = spark.table(prefix).collect()
    wanted = [told for segment in in_topic(config, 2).values() for told in segment]
    assert sorted((r.op, _bytes(r.key), r.cause) for r in rows) == sorted((t.op, t.key, t.cause) for t in wanted)
    by_place = {(r.segment, r.sequence, r.op, _bytes(r.key)): r for r in rows}
    for one in wanted:
        row = by_place[(one.segment, one.position[1], one.op, one.key)]
        after = row.after and (_bytes(row.after.key), _bytes(row.after.value), row.after.expires_at)
        assert after == (one.after and tuple(one.after))
        if one.op == "u" and one.cause == "change" and config["before.image"] == "key":
            assert row.before.value is None, "the key alone, not an empty value"
    with pytest.raises(DiffError, match="only records in JSON"):
        real_time(spark, config)


def _bytes(found: Any) -> bytes:
    return found.encode() if isinstance(found, str) else bytes(found)


@pytest.mark.slow
def test_letters_in_avro(
    kafka: Broker,
    prefix: str,
    tmp_path: Path,
    spark: SparkSession,
    registry: Apicurio,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Keys and values that cannot be decoded become dead letters with offset and reason; the others continue."""
    config = tolerant(kafka, prefix, tmp_path, **by_registry(registry.url))
    cache = Cache(config)
    run(config, spark)
    cache.put(cache.key(0, 0), b"good")
    whole, raw = envelope(cache, 0, 0), cache.codec.key(cache.key(0, 0))
    with registry.client() as client:
        foreign = Schema(f'{{"type":"fixed","name":"N{prefix}","size":3}}', "AVRO")
        other = client.register_schema(f"{prefix}.other-value", foreign)
    nowhere, no_wire = "is not registered under", "is not in Confluent's wire format"
    broken, nobodys = "is not Avro of the schema that it names", b"\0\x7f\xff\xff\xff" + whole[5:]
    wanted = [
        (raw, whole[:-1], "VALUE", broken),
        (raw, whole + b"\0", "VALUE", "has 1 bytes behind what its schema tells"),
        (raw, whole[:5], "VALUE", broken),
        (raw, b"", "VALUE", no_wire),
        (raw, b'{"op":"c"}', "VALUE", no_wire),
        (raw, nobodys, "VALUE", f"schema id 2147483647 {nowhere} {prefix}.c"),
        (raw, b"\0" + other.to_bytes(4, "big") + b"abc", "VALUE", f"schema id {other} {nowhere} {prefix}.c"),
        (raw[:-1], whole, "KEY", broken),
        (whole, whole, "KEY", nowhere),
        (b"no key", None, "KEY", no_wire),
    ]
    offsets = [change(cache, 0, k, v, Kind.CHANGE if v is not None else Kind.TOMBSTONE) for k, v, _, _ in wanted]
    cache.put(cache.key(0, 1), b"behind")
    told = run(config, spark)
    assert told["dead_letters"] == len(wanted)
    assert [t.after and t.after.value for t in in_topic(config, 2)[0]] == [b"good", b"behind"]
    found = dead_letters(config)
    assert [(m.key(), m.value()) for m in found] == [(k, v) for k, v, _, _ in wanted]
    for message, offset, (_, _, stage, reason) in zip(found, offsets, wanted, strict=True):
        headers = dict(message.headers())
        assert headers["__connect.errors.offset"] == b"%d" % offset
        assert headers["__connect.errors.stage"] == f"{stage}_CONVERTER".encode()
        part = b"Keys" if stage == "KEY" else b"Codec"
        assert headers["__connect.errors.class.name"] == b"deelog_schemas.avro.codec.Avro" + part
        assert reason in headers["__connect.errors.exception.message"].decode()


@pytest.mark.parametrize("fields", [AVRO, {"value_converter": "cloudevents"}], ids=["avro", "cloud events"])
def test_without_tolerance_it_stops_with_the_place(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, fields: dict[str, Any]
) -> None:
    config: Config = configured(kafka, prefix, tmp_path, **fields)
    cache = Cache(config)
    run(config, spark)
    offset = change(cache, 0, cache.codec.key(cache.key(0, 0)), envelope(cache, 0, 0)[:-1])
    job = DiffJob(config, spark)
    try:
        job.start(available_now=True)
        with pytest.raises(RecordError, match=rf"{config.topics.changes}\[0\]@{offset}: "):
            job.await_termination(120)
    finally:
        job.stop()


def test_the_command_without_its_registry_ends_with_its_code(tmp_path: Path) -> None:
    url = f"http://{HOST}:{free_port()}"
    config = config_of("b:1", "p", str(tmp_path / "cp"), **by_registry(url), errors_max_retries=0)
    path = tmp_path / "diff.properties"
    path.write_text(javaproperties.dumps(dict(config.raw), timestamp=False))
    found = CliRunner().invoke(diff, ["--config", str(path)])
    assert found.exit_code == 10
    assert f"{url} does not answer about subject p.c.diff-key" in found.output
