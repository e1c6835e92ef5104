"""The SparkSession of the command line and of programs that bring none."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deelog_spark.errors import DiffError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JARS_VARIABLE: Final = "DEELOG_SPARK_JARS"
"""Paths of the Kafka source's jars, separated by commas; without it spark-submit's --packages or --jars count."""

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, which has started the JVM."""

_REMOTE: Final = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
"""With either of them set, PySpark makes sessions of Spark Connect alone."""

SETTINGS: Final = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.speculation": "false",
}


_STREAMING: Final = "org.apache.spark.sql.execution.streaming.runtime"
_SAID_BY_US: Final = (
    f"{_STREAMING}.MicroBatchExecution",  # a stack trace of what the job reports in one line
    f"{_STREAMING}.ResolveWriteToStream",
    f"{_STREAMING}.ProcessingTimeExecutor",  # the log line of each batch gives its seconds and the lag
)


def is_connect(spark: SparkSession) -> bool:
    """Whether it is a session of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def refuse_connect(spark: SparkSession | None) -> None:
    """DiffError where `spark`, or without one the session that would be made, is one of Spark Connect."""
    remote = any(name in os.environ for name in _REMOTE)
    if remote if spark is None else is_connect(spark):
        raise DiffError(
            "the diff job does not run through Spark Connect: a batch needs the producers and the checkpoint of the "
            "process that plans it, Connect would run it on the server; start the job by spark-submit or deelog diff "
            f"without {' and '.join(_REMOTE)} in the environment (changes() and latest() work through Connect)"
        )


def uri_of(path: Path) -> str:
    """A file or directory as Spark takes it: a URI in which nothing is escaped, a space neither."""
    return f"file://{path}"


def session(name: str = "deelog diff", master: str | None = None) -> SparkSession:
    """The active session, or a new one: `master` or, without one, spark-submit's or `local[2]`.

    Values that spark-submit sets, by options or from its files, win over `SETTINGS`.
    """
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise DiffError("PySpark is missing: install deelog[spark]") from error
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if _SUBMITTED in os.environ:
        # Only a JVM that is known already shows what spark-submit was told: without it `SETTINGS` would replace that.
        SparkContext._ensure_initialized()
    conf = SparkConf()
    for key, value in SETTINGS.items():
        conf.setIfMissing(key, value)
    conf.setIfMissing("spark.master", "local[2]")
    if master is not None:
        conf.setMaster(master)
    jars = os.environ.get(JARS_VARIABLE)
    if jars:
        conf.set("spark.jars", jars)
    spark = SparkSession.builder.appName(name).config(conf=conf).getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    jvm: Any = spark.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    for name in _SAID_BY_US:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
    return spark
