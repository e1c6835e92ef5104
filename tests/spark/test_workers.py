"""The objects that a Spark worker keeps between the tasks of several jobs; without Kafka and Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from deelog_schemas.config import Config
from deelog_spark.batches import tasks
from deelog_spark.kafka import Reader
from deelog_spark.sinks.kafka import Writer
from tests.support.changes import config_of

MANY = 5


@pytest.fixture
def configs(prefix: str, tmp_path: Path) -> list[Config]:
    """The configurations of as many jobs as a worker keeps, and of one more."""
    return [config_of("127.0.0.1:1", f"{prefix}-{number}", str(tmp_path)) for number in range(MANY)]


def reader_of(config: Config) -> Reader:
    with tasks.reader(config) as reader:
        return reader


def test_the_last_jobs_keep_their_readers(configs: list[Config], monkeypatch: pytest.MonkeyPatch) -> None:
    """As many jobs as one application runs in turn, and no more."""
    closed: list[Reader] = []
    monkeypatch.setattr(Reader, "close", lambda reader: closed.append(reader))
    readers: list[Reader] = []
    for config in configs[:-1]:
        readers.append(reader_of(config))
        assert reader_of(configs[0]) is readers[0]
    assert reader_of(configs[1]) is readers[1]
    readers.append(reader_of(configs[-1]))
    assert [reader for reader in closed if reader in readers] == [readers[2]]
    assert [reader_of(configs[number]) for number in (0, 1, 3, 4)] == [readers[number] for number in (0, 1, 3, 4)]


def test_the_last_jobs_keep_their_writers(configs: list[Config], monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Writer] = []
    monkeypatch.setattr(Writer, "close", lambda writer: closed.append(writer))
    writers = [tasks.writer(config) for config in configs[:-1]]
    assert tasks.writer(configs[0]) is writers[0]
    writers.append(tasks.writer(configs[-1]))
    assert [writer for writer in closed if writer in writers] == [writers[1]]
    assert [tasks.writer(configs[number]) for number in (0, 2, 3, 4)] == [writers[number] for number in (0, 2, 3, 4)]


def test_a_reader_that_went_wrong_is_not_kept(configs: list[Config]) -> None:
    with pytest.raises(ValueError, match="wrong"), tasks.reader(configs[0]) as wrong:
        raise ValueError("wrong")
    assert reader_of(configs[0]) is not wrong
