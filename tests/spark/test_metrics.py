"""`/metrics` of a running job, scraped over HTTP and parsed as Prometheus does."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deelog_connector.devkafka.ports import free_port
from deelog_schemas.config import Config
from deelog_spark import DiffJob
from deelog_spark.errors import DiffError
from tests.spark import scenes
from tests.spark.processes import WAIT
from tests.spark.test_diff_job import run
from tests.support.changes import Cache, config_of
from tests.support.kafka import Broker
from tests.support.waiting import waiting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def scraped(config: Config) -> dict[tuple[str, ...], float]:
    """Values by name and by the labels after `topic`."""
    url = f"http://127.0.0.1:{config['diff.metrics.port']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("topic") == config.topics.changes
            found[(sample.name.removeprefix("deelog_diff_"), *(labels[name] for name in sorted(labels)))] = sample.value
    return found


@pytest.fixture
def config(kafka: Broker, prefix: str, tmp_path: Path) -> Config:
    return config_of(kafka.bootstrap, prefix, str(tmp_path / "cp"), diff_metrics_port=free_port())


@pytest.mark.slow
def test_figures_of_a_job_over_restarts(config: Config, spark: SparkSession) -> None:
    cache = Cache(config)
    run(config, spark)
    scenes.scripted(cache)
    told = run(config, spark)
    job = DiffJob(config, spark).start()
    try:
        cache.put(cache.key(0, 0), b"behind the restart")
        waiting(lambda: scraped(config).get(("records_total",)) == told["records"] + 1, WAIT, "the record")
        found = scraped(config)
        assert found["repeats_total",] == told["repeats"] == 2
        assert {k[1]: v for k, v in found.items() if k[0] == "resets_total"} == told["resets"] != {}
        counted = {(op, "reset"): n for op, n in told["resets_rows"].items()}
        counted |= {(op, "change"): n for op, n in told["changes"].items()}
        counted["u", "change"] += 1
        by_cause = {(op, cause): v for (name, cause, op), v in _of(found, "differences_total")}
        assert by_cause == counted
        assert found["dead_letters_total",] == 0
        assert found["open_resets",] == 1
        assert found["lag_records",] <= 1  # the marker of the transaction
        assert 0 < found["behind_seconds",] < 60
        assert found["batch_seconds_count",] == 1
        assert found["batch",] == told["batch"] + 1
    finally:
        job.stop()
    with pytest.raises(OSError, match="refused"):
        scraped(config)


def _of(found: dict[tuple[str, ...], float], name: str) -> list[tuple[tuple[str, ...], float]]:
    return [(labels, value) for labels, value in found.items() if labels[0] == name]


@pytest.mark.slow
def test_port_in_use_is_refused(config: Config, spark: SparkSession) -> None:
    Cache(config)
    first = DiffJob(config, spark).start()
    second = DiffJob(
        config_of(
            config["bootstrap.servers"][0],
            config["topic.prefix"],
            config["diff.checkpoint.location"] + "2",
            diff_metrics_port=config["diff.metrics.port"],
        ),
        spark,
    )
    try:
        with pytest.raises(
            DiffError, match=r"diff\.metrics\.port \d+ on metrics\.host 127\.0\.0\.1 cannot be listened"
        ):
            second.start()
    finally:
        second.stop()
        first.stop()
