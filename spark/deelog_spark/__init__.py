"""The Spark job that turns a change topic into its differences, and the DataFrame everybody else starts from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deelog_spark.frames import changes
    from deelog_spark.job import DiffJob

__all__ = ["DiffJob", "changes"]


def __getattr__(name: str) -> Any:
    # Late, so that `deelog --help` and executors do not load what they do not need.
    if name == "DiffJob":
        from deelog_spark.job import DiffJob

        return DiffJob
    if name == "changes":
        from deelog_spark.frames import changes

        return changes
    raise AttributeError(name)
