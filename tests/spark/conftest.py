"""One SparkSession for all tests of the job. Its Kafka source and the JDBC drivers are the pinned jars."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from deelog_connector.devkafka import jars
from deelog_connector.devkafka.broker import EmbeddedKafka
from deelog_schemas.java import use_java
from deelog_spark import DiffJob
from deelog_spark.batches import ranges
from deelog_spark.session import JARS_VARIABLE, session
from tests.spark.scenes import Carried
from tests.support.two_brokers import two_brokers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark_jars() -> Iterator[str]:
    """The jars' paths, also in the environment variable of the job. Sets JAVA_HOME for Spark's scripts."""
    use_java()
    paths = ",".join(map(str, (*jars.fetch("spark-kafka"), *jars.fetch("jdbc"))))
    before = os.environ.get(JARS_VARIABLE)
    os.environ[JARS_VARIABLE] = paths
    yield paths
    if before is None:
        del os.environ[JARS_VARIABLE]
    else:
        os.environ[JARS_VARIABLE] = before


@pytest.fixture(scope="session")
def spark(spark_jars: str) -> Iterator[SparkSession]:
    """A session like that of the command line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's warnings at import are not ours
        made = session("tests")
    yield made
    gateway: Any = made.sparkContext._gateway
    made.stop()
    # The JVM ends when its stdin is closed, and removes its temporary files then.
    gateway.shutdown()
    gateway.proc.stdin.close()
    assert gateway.proc.wait(60) == 0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedKafka, EmbeddedKafka]]:
    with two_brokers(tmp_path_factory.mktemp("pair")) as both:
        yield both


@pytest.fixture
def carried_by_driver(monkeypatch: pytest.MonkeyPatch) -> Carried:
    """Sets how many records of a batch the driver handles itself, and how many of resets and starts (by default the
    same number). Larger ones go to the executors."""

    def carried(records: int, ranges_records: int | None = None) -> None:
        monkeypatch.setattr(DiffJob, "SMALL_RECORDS", records)
        monkeypatch.setattr(ranges, "SMALL_RECORDS", records if ranges_records is None else ranges_records)

    return carried
