"""The table of sinks."""

from __future__ import annotations

import inspect
import pkgutil
from pathlib import Path
from typing import Any

import pytest

from deelog_schemas.config import FIELDS
from deelog_spark.sinks.parquet import ParquetSink
from deelog_spark.sinks.sink import SINKS, Sink, sinks_of
from tests.support.changes import config_of

METHODS = ("open", "start", "write")


def unused() -> Any:
    raise AssertionError("no sink needs Spark before it is opened")


def test_a_sink_is_turned_on_by_a_field_without_a_default() -> None:
    assert [FIELDS[name].default for name in SINKS] == [None] * len(SINKS)


@pytest.mark.parametrize("place", SINKS.values())
def test_a_sink_has_the_methods_of_the_protocol(place: str) -> None:
    made = pkgutil.resolve_name(place)
    for name in METHODS:
        wanted = inspect.signature(getattr(Sink, name)).parameters
        assert list(inspect.signature(getattr(made, name)).parameters) == list(wanted), name


def test_only_named_sinks_are_made(tmp_path: Path) -> None:
    alone = config_of("127.0.0.1:1", "p", str(tmp_path / "cp"))
    assert sinks_of(alone, unused, unused) == []
    with_parquet = config_of("127.0.0.1:1", "p", str(tmp_path / "cp"), diff_parquet_path=f"file://{tmp_path}/pq")
    (sink,) = sinks_of(with_parquet, unused, unused)
    assert isinstance(sink, ParquetSink)
    assert sink.root == tmp_path / "pq"


def test_a_batch_without_rows_leaves_nothing_in_the_parquet_directory(tmp_path: Path) -> None:
    config = config_of("127.0.0.1:1", "p", str(tmp_path / "cp"), diff_parquet_path=str(tmp_path / "pq"))
    sink = ParquetSink(config, unused, unused)
    sink.open()
    sink.start(None, unused, "checkpoint", -1)
    sink.write(None, "checkpoint", 0)
    assert not (tmp_path / "pq").exists()
