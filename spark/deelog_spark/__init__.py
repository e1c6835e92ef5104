"""The Spark job that turns a change topic into its differences, and the DataFrames everybody else starts from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deelog_spark.diff_job import DiffJob
    from deelog_spark.report import BatchReport
    from deelog_spark.tables import changes, collapse, latest, real_time

__all__ = ["BatchReport", "DiffJob", "changes", "collapse", "latest", "real_time"]


def __getattr__(name: str) -> Any:
    # Late, so that `deelog --help` and executors do not load what they do not need.
    if name == "DiffJob":
        from deelog_spark.diff_job import DiffJob

        return DiffJob
    if name == "BatchReport":
        from deelog_spark.report import BatchReport

        return BatchReport
    if name in ("changes", "collapse", "latest", "real_time"):
        from deelog_spark import tables

        return getattr(tables, name)
    raise AttributeError(name)
