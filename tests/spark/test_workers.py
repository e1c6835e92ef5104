"""The objects that a Spark worker keeps between the tasks of several jobs; without Kafka and Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from deelog_schemas.config import Config
from deelog_spark.batches import tasks
from deelog_spark.kafka import Reader
from tests.support.changes import config_of

MANY = 5


def reader_of(config: Config) -> Reader:
    with tasks.reader(config) as reader:
        return reader


def test_the_last_jobs_keep_their_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many jobs as one application runs in turn, and no more."""
    monkeypatch.setattr(tasks, "_readers", {})
    monkeypatch.setattr(tasks, "_writers", {})
    closed: list[Reader] = []
    monkeypatch.setattr(Reader, "close", lambda reader: closed.append(reader))
    first, *others = (config_of("127.0.0.1:1", f"p{number}", str(tmp_path)) for number in range(MANY))
    reader, writer = reader_of(first), tasks._writer(first)
    for config in others[:-1]:
        reader_of(config)
        tasks._writer(config)
        assert (reader_of(first), tasks._writer(first)) == (reader, writer)
    assert closed == []
    second = reader_of(others[0])
    third = tasks._readers[next(iter(tasks._readers))]
    reader_of(others[-1])
    tasks._writer(others[-1])
    assert closed == [third]
    assert third is not second
    assert (reader_of(first), reader_of(others[0])) == (reader, second)
    assert len(tasks._readers) == len(tasks._writers) == MANY - 1


def test_a_reader_that_went_wrong_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_readers", {})
    config = config_of("127.0.0.1:1", "p", str(tmp_path))
    with pytest.raises(ValueError, match="wrong"), tasks.reader(config):
        raise ValueError("wrong")
    assert tasks._readers == {}
