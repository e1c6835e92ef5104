"""The SparkSession of the command line and of programs without one of their own, and Spark's errors."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deelog_schemas.errors import RecordError
from deelog_schemas.java import use_java
from deelog_schemas.kafka.progress import ProducerLost
from deelog_spark.errors import DiffError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

JARS_VARIABLE: Final = "DEELOG_SPARK_JARS"
"""Paths of the Kafka source's jars, separated by commas. spark-submit's --packages or --jars do the same."""

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, which has started the JVM."""

_REMOTE: Final = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
"""With either of them set, PySpark makes only sessions of Spark Connect."""

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


_OF_A_RECORD: Final = re.compile(
    rf"(?:\[USER_RAISED_EXCEPTION\]|{re.escape(RecordError.__module__)}\.RecordError:) (.+?)(?: SQLSTATE: \w+)?$", re.M
)
"""What `raise_error` in the JVM and `RecordError` in a Python task look like."""

_STREAMING: Final = "org.apache.spark.sql.execution.streaming.runtime"
_SILENCED: Final = (
    f"{_STREAMING}.MicroBatchExecution",  # a stack trace of an error that the job reports in one line
    f"{_STREAMING}.ResolveWriteToStream",
    f"{_STREAMING}.ProcessingTimeExecutor",  # the log line of each batch gives its seconds and the lag
)
_NETWORK_CLIENT: Final = "org.apache.kafka.clients.NetworkClient"
"""Warns every second while a broker is away; the job's own clients say it once."""


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def refuse_connect(spark: SparkSession | None) -> None:
    """DiffError where `spark`, or the session that would be made without it, is one of Spark Connect."""
    remote = any(name in os.environ for name in _REMOTE)
    if remote if spark is None else is_connect(spark):
        raise DiffError(
            "the diff job does not run through Spark Connect: a batch needs the producers and the checkpoint of the "
            "process that plans it, Connect would run it on the server; start the job by spark-submit or deelog diff "
            f"without {' and '.join(_REMOTE)} in the environment (changes() and latest() work through Connect)"
        )


def uri_of(path: Path) -> str:
    """The URI of a file or directory as Spark takes it: nothing is escaped, not even a space."""
    return f"file://{path}"


def session(name: str = "deelog diff") -> SparkSession:
    """The active session, or a new one: its master is spark-submit's or `local[2]`.

    Values that spark-submit sets, by options or from its files, win over `SETTINGS`. JavaError where no Java is found.
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
        # Only with the JVM does SparkConf have spark-submit's options: without them `SETTINGS` would replace these.
        SparkContext._ensure_initialized()
    else:
        use_java()
    conf = SparkConf()
    for key, value in SETTINGS.items():
        conf.setIfMissing(key, value)
    conf.setIfMissing("spark.master", "local[2]")
    jars = os.environ.get(JARS_VARIABLE)
    if jars:
        conf.set("spark.jars", jars)
    spark = SparkSession.builder.appName(name).config(conf=conf).getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    jvm: Any = spark.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    for name in _SILENCED:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
    log4j.core.config.Configurator.setLevel(_NETWORK_CLIENT, log4j.Level.ERROR)
    return spark


def load_kafka(source: DataStreamReader) -> DataFrame:
    """`source.load()` for Spark's Kafka source; DiffError where its jars are missing."""
    from pyspark.errors import AnalysisException

    try:
        return source.load()
    except AnalysisException as error:
        if "Failed to find data source: kafka" not in str(error):
            raise
        raise DiffError(
            f'Spark\'s source for Kafka is missing: set {JARS_VARIABLE}="$(deelog kafka jars)", or start the job by '
            "spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:<version of Spark>"
        ) from error


def is_spark_error(error: BaseException) -> bool:
    """Whether a task, a worker or the JVM raised it."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return isinstance(error, (Py4JError, PySparkException))


def is_lost(error: BaseException) -> bool:
    """Whether a producer was lost, of the driver or of a task: the batch goes on with a new one."""
    if isinstance(error, ProducerLost):
        return True
    return is_spark_error(error) and ProducerLost.__name__ in str(getattr(error, "java_exception", error))


def spark_error(error: BaseException) -> DiffError | RecordError:
    """An error of Spark in one line: its first, or the last one of a Python task's traceback.

    RecordError, without a remedy, where a query was ended by a record that it could not decode.
    """
    from pyspark.errors import PythonException

    text = str(getattr(error, "java_exception", error))
    if found := _OF_A_RECORD.search(text):
        return RecordError(found[1])
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    line = lines[-1] if isinstance(error, PythonException) else lines[0]
    return DiffError(f"Spark: {line}; look at its log, and start the job again: it goes on where it was")
