"""Spark's errors in one line."""

from __future__ import annotations

import pytest

from deelog_schemas.errors import RecordError
from deelog_spark.errors import DiffError
from deelog_spark.session import spark_error

TRACEBACK = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "columns.py", line 170, in _plain
    raise error.at(topic, partition, offset) from error
deelog_schemas.errors.RecordError: t[0]@7: the record key is not a key of ours
"""
RAISED = "[USER_RAISED_EXCEPTION] t[0]@7: the record key is not a key of ours SQLSTATE: P0001"


@pytest.mark.parametrize(
    "text",
    [
        RAISED,
        f"org.apache.spark.SparkRuntimeException: {RAISED}\n\tat org.apache.spark.sql.Some.java(7)",
        TRACEBACK,
    ],
    ids=["of the JVM", "with a class and a stack", "of a Python task"],
)
def test_a_record_that_ended_a_query_is_an_error_of_the_record(text: str) -> None:
    error = spark_error(RuntimeError(text))
    assert type(error) is RecordError
    assert str(error) == "t[0]@7: the record key is not a key of ours"


def test_any_other_error_is_its_first_line_with_a_remedy() -> None:
    error = spark_error(RuntimeError("Index 7 out of bounds\n\tat java.util.ArrayList.get(7)"))
    assert type(error) is DiffError
    assert str(error).startswith("Spark: Index 7 out of bounds; ")
