"""The diff job with a secured Kafka: its rows of docs/howto/acls.md, passwords, certificates on both sides.

librdkafka reads and writes, and Spark's source is the Java client: both must log in by the same `*.override.*`.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from deelog_schemas.config import Config
from deelog_schemas.operation import Entry
from deelog_spark import DiffJob, latest
from deelog_spark.errors import DiffError, RightsError
from deelog_spark.kafka import Cluster
from tests.spark.reference import in_topic
from tests.spark.test_diff_job import run
from tests.support.changes import Cache, config_of
from tests.support.rights import CACHE, PREFIX, creating, rights_of
from tests.support.secure import PASSWORD, PLAIN_PASSWORD, PLAIN_USER, Right, SecureKafka, overrides

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def configured(
    secure: SecureKafka, tmp_path: Path, listener: str, settings: dict[str, str], prefix: str = PREFIX
) -> tuple[Config, Config]:
    """The job's configuration at a listener, and one of whoever may do all."""
    fields: dict[str, Any] = {"cache.name": CACHE, "topic.prefix": prefix}
    checkpoint = str(tmp_path / "cp")
    mine = config_of(secure.bootstrap(listener), prefix, checkpoint, **fields, **overrides(settings))
    return mine, config_of(secure.bootstrap(), prefix, checkpoint, **fields)


def told(config: Config, cache: Cache) -> dict[bytes, Entry]:
    """What the diff topic adds up to."""
    entries = {t.key: t.after for rows in in_topic(config, cache.partitions).values() for t in rows}
    return {key: entry for key, entry in entries.items() if entry is not None}


@pytest.fixture(scope="module")
def cache(secure: SecureKafka, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Cache:
    """The page's cache, written by somebody who may; the job's first start, which makes the diff topic."""
    config, free = configured(secure, tmp_path_factory.mktemp("cache"), "sasl", secure.user("diff"))
    found = Cache(free)
    found.put(found.key(0, 0), b"v")
    secure.grant(rights_of("diff"))
    create = creating("diff")
    with pytest.raises(RightsError, match=rf"refuses Create on topic {config.topics.diff}"):
        run(config, spark)
    secure.grant(create)
    run(config, spark)
    secure.revoke(create)
    return found


def test_the_least_set_is_enough(secure: SecureKafka, cache: Cache, tmp_path: Path, spark: SparkSession) -> None:
    config, free = configured(secure, tmp_path, "sasl", secure.user("diff"))
    run(config, spark)
    cache.put(cache.key(0, 0), b"w")
    cache.put(cache.key(5, 0), b"x")
    cache.put(cache.key(5, 0), None)
    run(config, spark)
    assert told(free, cache) == cache.entries()
    assert {row.key.encode(): row.value.encode() for row in latest(spark, config).collect()} == {
        key: entry.value for key, entry in cache.entries().items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "right", rights_of("diff"), ids=lambda right: f"{right.operation} {right.resource} {right.name}"
)
def test_without_a_right_it_says_which(
    secure: SecureKafka, cache: Cache, tmp_path: Path, spark: SparkSession, right: Right
) -> None:
    """Each at a start without state that has something to write. `Read` of a topic shows by `Describe`, its least."""
    config, free = configured(secure, tmp_path, "sasl", secure.user("diff"))
    cache.put(cache.key(1, 0), right.operation.encode() + right.name.encode())
    secure.revoke([right])
    kind = {"TransactionalId": "transactional id"}.get(right.resource, right.resource.lower())
    try:
        with pytest.raises(RightsError) as refused:
            run(config, spark)
    finally:
        secure.grant([right])
    operation = "(Read|Describe)" if right.operation == "Read" else right.operation
    assert re.match(rf"Kafka refuses {operation} on {kind} {re.escape(right.name)}", str(refused.value))
    assert "override.*: grant it" in str(refused.value)
    run(config, spark)
    assert told(free, cache) == cache.entries()


def ways_in(secure: SecureKafka) -> dict[str, tuple[str, dict[str, str]]]:
    """Listener and settings, by name."""
    files = secure.certificates
    trust = {"ssl.ca.location": str(files.authority)}
    mine = {"ssl.certificate.location": str(files.client_chain), "ssl.key.location": str(files.client_key)}
    scram = secure.user("scram", "SCRAM-SHA-512")
    plain = {"sasl.mechanism": "PLAIN", "sasl.username": PLAIN_USER, "sasl.password": PLAIN_PASSWORD}
    return {
        "certificates on both sides": ("mtls", {"security.protocol": "SSL", **trust, **mine}),
        "SCRAM-SHA-512 over TLS": ("sasl_tls", scram | {"security.protocol": "SASL_SSL", **trust}),
        "PLAIN over TLS": ("sasl_tls", plain | {"security.protocol": "SASL_SSL", **trust}),
    }


@pytest.mark.parametrize("way", ["certificates on both sides", "SCRAM-SHA-512 over TLS", "PLAIN over TLS"])
def test_ways_in(
    secure: SecureKafka, prefix: str, tmp_path: Path, spark: SparkSession, way: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """By each the job runs, and no secret shows in its output or its files."""
    listener, settings = ways_in(secure)[way]
    everybody = [Right("*", kind, "*", False, "All") for kind in ("Topic", "Group", "TransactionalId")]
    secure.grant(everybody)
    try:
        config, free = configured(secure, tmp_path, listener, settings, prefix)
        cache = Cache(free)
        cache.put(cache.key(0, 0), b"v")
        run(config, spark)
        assert told(free, cache) == cache.entries()
        assert latest(spark, config).count() == 1
    finally:
        secure.revoke(everybody)
    said = "".join(capfd.readouterr())
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (PASSWORD, PLAIN_PASSWORD, secure.certificates.client_key.read_text().splitlines()[1]):
        assert secret not in said
        assert secret.encode() not in written


@pytest.mark.parametrize(
    ("listener", "wrong", "said"),
    [
        ("sasl", {"sasl.password": "wrong"}, "uthentication.*correct sasl.mechanism, sasl.username and sasl.password"),
        ("tls", {"security.protocol": "PLAINTEXT"}, "SSL listener.*set admin.override.security.protocol"),
    ],
)
def test_a_wrong_way_in_is_told_at_once(
    secure: SecureKafka, tmp_path: Path, spark: SparkSession, listener: str, wrong: dict[str, str], said: str
) -> None:
    config, _ = configured(secure, tmp_path, listener, {**secure.user("diff"), **wrong})
    with pytest.raises(DiffError, match=said):
        Cluster(config, math.inf)  # it does not wait as for a broker that is away
    job = DiffJob(config, spark)
    try:
        with pytest.raises(DiffError, match=said):
            job.start()
    finally:
        job.stop()
