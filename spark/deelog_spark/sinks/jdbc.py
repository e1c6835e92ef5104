"""The jdbc sink: a table with the cache's content, a row per key, exactly once under replay.

Spark's JDBC writer inserts the last row of each key into a staging table. Then one transaction, on a connection of the
driver, sets the cache's batch marker (checkpoint id, batch) in `deelog_batches`, upserts and deletes, each guarded by
position, and empties the staging table. A batch that the marker has reached is not written again, and none is written
unless the marker is at the one before: a database that failed over may have lost commits that it had answered. Rows in
the staging table have the id of their attempt: those of a killed attempt are never applied.

At the start the table is filled from the diff topic unless it holds all up to the checkpoint's state. It does not if it
is new, of another checkpoint, emptied, restored from a backup, or if the sink was switched on later: a start without
state writes differences from the diff topic only, which are not enough for a table.

Both databases take the same SQL (`ON CONFLICT`, row values); only the names of types differ.
Alternatives: docs/decisions.md, "The jdbc sink".
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import tenacity
from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError

from deelog_schemas.config import Config
from deelog_spark.errors import BusyError, DiffError, SinkError
from deelog_spark.session import JARS_VARIABLE
from deelog_spark.tables import collapse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_T = TypeVar("_T")

RETRY_SECONDS: Final = 90.0
_RETRY_EVERY: Final = 2.0
_SHOWN: Final = 300
_MARKERS: Final = "deelog_batches"


@dataclass(frozen=True, slots=True)
class Dialect:
    """A database: its names of types, as its driver reports them, and its limits."""

    text: str
    binary: str
    integer: str
    bigint: str
    isolation: str
    """The weakest isolation level that it has: Spark warns of a weaker one at every batch."""
    writers: int | None = None
    """How many connections may write at once, None for any number."""
    passing: frozenset[int] = frozenset()
    """Error codes, by their last byte, after which to try again."""


DIALECTS: Final = {
    "PostgreSQL": Dialect("text", "bytea", "int4", "int8", "READ_COMMITTED"),
    "SQLite": Dialect("TEXT", "BLOB", "INTEGER", "BIGINT", "SERIALIZABLE", 1, frozenset({5, 6})),  # locked
}
"""By the product's name that the driver reports; an address does not tell the product."""

_PASSING: Final = frozenset({"57P01", "57P02", "57P03", "53300", "40001", "40P01", "55P03", "25006", "23505", "42P07"})
"""SQLSTATEs after which to try again, beside class 08: the database stops, starts or fails over, has no connection left
or a deadlock, or two jobs create the same table."""

_KEY: Final = ("topic_prefix", "cache", "key")
_VALUES: Final = ("segment", "value", "expires_at", "epoch", "sequence", "ts_us")
_COLUMNS: Final = ("topic_prefix", "cache", "segment", "key", "value", "expires_at", "epoch", "sequence", "ts_us")
_STAGED: Final = ("attempt", "op")


_ADD_A_DRIVER: Final = (
    f"add its jar to {JARS_VARIABLE} (`deelog kafka jars jdbc` fetches those of PostgreSQL and SQLite), or start the "
    "job by spark-submit --jars or --packages"
)


class TableMarker(NamedTuple):
    """How far the table is."""

    checkpoint: str
    batch: int


class JdbcSink:
    """Keeps `diff.jdbc.table` as the diff topic says. Call `open()` first.

    Every method opens a connection of its own. While the database is away it tries again for RETRY_SECONDS, or until
    `stopping`, and then raises `DiffError`. `SinkError` needs people.
    """

    def __init__(self, config: Config, spark: Callable[[], SparkSession], stopping: Callable[[], bool]) -> None:
        self._config, self._spark = config, spark
        self._url = config["diff.jdbc.url"]
        self._class: str | None = None
        self._mine = (config["topic.prefix"], config["cache.name"])
        self._table = config["diff.jdbc.table"]
        schema = self._table.rpartition(".")[0]
        self._markers = _quoted(f"{schema}.{_MARKERS}" if schema else _MARKERS)
        self._target, self._staging = _quoted(self._table), _quoted(f"{self._table}_staging")
        self._dialect = DIALECTS["PostgreSQL"]
        enough = tenacity.stop_after_delay(RETRY_SECONDS)
        self._retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._passing),
            wait=tenacity.wait_exponential(0.1, max=_RETRY_EVERY),
            stop=lambda state: stopping() or enough(state),
            reraise=True,
        )

    def open(self) -> None:
        """Creates missing tables; `SinkError` where one has other columns than the sink needs."""
        self._tried(self._open)

    def start(
        self, rows: Callable[[], DataFrame] | None, latest: Callable[[], DataFrame], checkpoint: str, batch: int
    ) -> None:
        """Fills the table from the diff topic unless it holds this batch.

        The diff topic may be a batch ahead of the state. The table then has that batch's rows before it is written.
        """
        if not self.holds(checkpoint, batch):
            self.fill(latest(), checkpoint, batch)

    def holds(self, checkpoint: str, batch: int) -> bool:
        """Whether this batch of the checkpoint is the table's last one.

        Not where a later one is: that may have been planned by a checkpoint of which an older copy goes on.
        """

        def look() -> bool:
            with self._connected() as db:
                marker = self._marker(db)
                rows = db.row(f"SELECT 1 FROM {self._target} WHERE topic_prefix = ? AND cache = ? LIMIT 1", *self._mine)
            # Without a row of ours the table was dropped or emptied. To fill it for an empty cache costs nothing.
            return rows is not None and marker == TableMarker(checkpoint, batch)

        return self._tried(look)

    def fill(self, rows: DataFrame, checkpoint: str, batch: int) -> None:
        """Replaces the cache's rows in the table by `rows`, which have the columns of `latest`, as of this batch."""
        from pyspark.sql import functions as F

        self._tried(self._fill, rows.withColumn("op", F.lit("c")), checkpoint, batch)

    def write(self, rows: DataFrame | None, checkpoint: str, batch: int) -> None:
        """Writes a batch, None for one without rows, unless the table has it.

        BusyError where another job writes the table; DiffError where the table lacks an earlier batch.
        """
        from pyspark.sql import functions as F

        staged = None
        if rows is not None:
            entry = {name: F.col(f"after.{name}") for name in ("value", "expires_at")}
            staged = collapse(rows).withColumns(entry)
        self._tried(self._write, staged, checkpoint, batch)

    # -- attempts --------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        with self._connected() as db:
            if db.product not in DIALECTS:
                raise SinkError(
                    f"diff.jdbc.url: {db.product} is not supported, {' and '.join(DIALECTS)} are: name one of them, or "
                    "leave it out and write your own with changes() and collapse()"
                )
            self._dialect = DIALECTS[db.product]
            types = self._types()
            staged = dict.fromkeys(_STAGED, self._dialect.text) | types
            text = self._dialect.text
            markers = dict.fromkeys(("topic_prefix", "cache", "target", "checkpoint"), text)
            markers["batch"] = self._dialect.bigint
            db.ensure(self._markers, markers, ("topic_prefix", "cache", "target"))
            db.ensure(self._target, types, _KEY)
            db.ensure(self._staging, staged, ("attempt", *_KEY))
            db.commit()
            # No row is staged under this name: this only checks that the database takes the statements.
            self._move(db, TableMarker("", -1))
            self._apply(db, "")

    def _fill(self, rows: DataFrame, checkpoint: str, batch: int) -> None:
        with self._connected() as db:
            attempt = self._stage(db, rows)
            db.run(
                f"INSERT INTO {self._markers} (topic_prefix, cache, target, checkpoint, batch) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (topic_prefix, cache, target) DO UPDATE SET checkpoint = excluded.checkpoint, "
                "batch = excluded.batch",
                *self._mine,
                self._table,
                checkpoint,
                batch,
            )
            db.run(f"DELETE FROM {self._target} WHERE topic_prefix = ? AND cache = ?", *self._mine)
            self._land(db, attempt)

    def _write(self, rows: DataFrame | None, checkpoint: str, batch: int) -> None:
        with self._connected() as db:
            if self._has(db, checkpoint, batch):
                return
            attempt = None if rows is None else self._stage(db, rows)
            # First in the transaction: the row's lock keeps out any other writer of this batch.
            if not self._move(db, TableMarker(checkpoint, batch)):
                self._has(db, checkpoint, batch)  # another writer was faster; BusyError if with another checkpoint
                return
            self._land(db, attempt)

    def _land(self, db: _Database, attempt: str | None) -> None:
        """Applies what was staged, if anything was, and commits it with the marker."""
        if attempt is not None:
            self._apply(db, attempt)
        db.commit()

    def _marker(self, db: _Database) -> TableMarker | None:
        row = db.row(
            f"SELECT checkpoint, batch FROM {self._markers} WHERE topic_prefix = ? AND cache = ? AND target = ?",
            *self._mine,
            self._table,
        )
        return None if row is None else TableMarker(str(row[0]), int(row[1]))

    def _has(self, db: _Database, checkpoint: str, batch: int) -> bool:
        """Whether the table has the batch; DiffError where it lacks an earlier one, BusyError where it is not ours."""
        marker = self._marker(db)
        db.commit()  # SQLite refuses to write in a transaction that has read an older commit
        if marker is None or marker.checkpoint != checkpoint:
            raise BusyError(
                f"diff.jdbc.table: {self._table} was last filled by another checkpoint "
                f"({'none' if marker is None else marker.checkpoint}): stop the other job, or name another table, and "
                "start this one again: it then fills the table anew"
            )
        if marker.batch < batch - 1:
            raise DiffError(
                f"diff.jdbc.table: {self._table} has batch {marker.batch} as its last one, and lacks later ones that "
                "were written (the database failed over or was restored): start the job again: it fills the table anew"
            )
        return marker.batch >= batch

    def _move(self, db: _Database, marker: TableMarker) -> bool:
        """Moves the marker by one batch; whether it was at the one before."""
        moved = db.run(
            f"UPDATE {self._markers} SET batch = ? "
            "WHERE topic_prefix = ? AND cache = ? AND target = ? AND checkpoint = ? AND batch = ?",
            marker.batch,
            *self._mine,
            self._table,
            marker.checkpoint,
            marker.batch - 1,
        )
        return moved == 1

    def _stage(self, db: _Database, rows: DataFrame) -> str:
        """Inserts rows into the staging table; returns the id of the attempt."""
        from pyspark.sql import functions as F

        db.run(f"DELETE FROM {self._staging} WHERE topic_prefix = ? AND cache = ?", *self._mine)
        db.commit()
        attempt = uuid.uuid4().hex
        given = {
            "attempt": F.lit(attempt),
            "topic_prefix": F.lit(self._mine[0]),
            "ts_us": F.unix_micros("ts"),
        }
        writing = rows.withColumns(given).select(*_STAGED, *_COLUMNS).write.format("jdbc").mode("append")
        writing = writing.options(**self._properties()).option("dbtable", self._staging)
        writing = writing.option("isolationLevel", self._dialect.isolation)
        if self._dialect.writers is not None:
            writing = writing.option("numPartitions", self._dialect.writers)
        writing.save()
        return attempt

    def _apply(self, db: _Database, attempt: str) -> None:
        """Applies an attempt's staged rows to the table, but never over a row of a higher position."""
        columns = ", ".join(map(_quoted, _COLUMNS))
        target = f"{self._target}.epoch, {self._target}.sequence"
        db.run(
            f"INSERT INTO {self._target} ({columns}) "
            f"SELECT {columns} FROM {self._staging} WHERE attempt = ? AND op <> 'd' "
            f"ON CONFLICT ({', '.join(map(_quoted, _KEY))}) "
            f"DO UPDATE SET {', '.join(f'{_quoted(n)} = excluded.{_quoted(n)}' for n in _VALUES)} "
            f"WHERE ({target}) <= (excluded.epoch, excluded.sequence)",
            attempt,
        )
        # IN and a subquery: both databases answer them from the primary keys, whatever the table's size.
        db.run(
            f'DELETE FROM {self._target} WHERE topic_prefix = ? AND cache = ? AND "key" IN '
            f"(SELECT s.\"key\" FROM {self._staging} s WHERE s.attempt = ? AND s.op = 'd') "
            f"AND (epoch, sequence) <= (SELECT s.epoch, s.sequence FROM {self._staging} s WHERE s.attempt = ? "
            f'AND s.topic_prefix = ? AND s.cache = ? AND s."key" = {self._target}."key")',
            *self._mine,
            attempt,
            attempt,
            *self._mine,
        )
        db.run(f"DELETE FROM {self._staging} WHERE attempt = ?", attempt)

    def _types(self) -> dict[str, str]:
        names = self._dialect

        def format_of(name: str) -> str:
            return names.binary if self._config[name] == "bytes" else names.text

        known = {
            "topic_prefix": names.text,
            "cache": names.text,
            "segment": names.integer,
            "key": format_of("cache.key.format"),
            "value": format_of("cache.value.format"),
        }
        return {name: known.get(name, names.bigint) for name in _COLUMNS}

    # -- connections -----------------------------------------------------------------------------------------------

    def _properties(self) -> dict[str, str]:
        given = {
            "url": self._url,
            "user": self._config["diff.jdbc.user"],
            "password": self._config.secret("diff.jdbc.password"),
            "driver": self._driver(),
        }
        return {name: value for name, value in given.items() if value is not None}

    def _driver(self) -> str:
        """The driver's class. DriverManager does not find those of spark.jars, which it has not seen at its start."""
        if self._class is None:
            java: Any = self._spark().sparkContext._jvm.java  # type: ignore[union-attr]
            loader = java.lang.Thread.currentThread().getContextClassLoader()
            drivers = java.util.ServiceLoader.load(java.lang.Class.forName("java.sql.Driver"), loader).iterator()
            while self._class is None and drivers.hasNext():
                driver = drivers.next()
                if driver.acceptsURL(self._url):
                    self._class = str(driver.getClass().getName())
            if self._class is None:
                raise SinkError(f"diff.jdbc.url: no JDBC driver takes this address: {_ADD_A_DRIVER}")
        return self._class

    @contextmanager
    def _connected(self) -> Iterator[_Database]:
        """A connection by Spark's provider, which finds drivers of spark.jars. It is closed without a commit."""
        jvm: Any = self._spark().sparkContext._jvm
        given = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(self._properties())
        options = jvm.org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions(self._url, self._target, given)
        connection = (
            jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(self._url).createConnectionFactory(options).apply(-1)
        )
        try:
            connection.setAutoCommit(False)
            yield _Database(connection)
        finally:
            connection.close()

    def _tried(self, call: Callable[..., _T], *args: Any) -> _T:
        try:
            return self._retrying(call, *args)
        except Py4JJavaError as error:
            if self._of_a_task(error):
                raise
            raise self._explained(error) from error

    def _of_a_task(self, error: Py4JJavaError) -> bool:
        """Whether Spark failed, not the database: a lost worker, for example."""
        gateway: Any = self._spark().sparkContext._gateway
        spark = "org.apache.spark.SparkException"
        return is_instance_of(gateway, error.java_exception, spark) and not self._causes(error)

    def _explained(self, error: Py4JJavaError) -> DiffError:
        causes = self._causes(error)
        text = str(causes[-1].getMessage() or causes[-1].toString()) if causes else str(error.java_exception)
        text = text.replace(self._url, "diff.jdbc.url").strip().partition("\n")[0][:_SHOWN]
        if self._passing(error):
            return DiffError(
                f"diff.jdbc.url: the database did not answer for {RETRY_SECONDS:.0f} s ({text}): look at it and start "
                "the job again: it goes on where it was"
            )
        return SinkError(
            f"diff.jdbc.table: {self._table} cannot be written ({text}): mend that, check diff.jdbc.url, "
            "diff.jdbc.user and diff.jdbc.password, or leave diff.jdbc.url out, and start the job again: it goes "
            "on where it was"
        )

    def _causes(self, error: Py4JJavaError) -> list[Any]:
        """The database's exceptions in an error of the driver or of a task; the innermost last."""
        gateway: Any = self._spark().sparkContext._gateway
        causes: list[Any] = []
        due = [error.java_exception]
        while due:
            cause = due.pop()
            due.append(cause.getCause())
            if is_instance_of(gateway, cause, "java.sql.SQLException"):
                causes.append(cause)
                due.append(cause.getNextException())
            due = [one for one in due if one is not None]
        return causes

    def _passing(self, error: BaseException) -> bool:
        """Whether to try again."""
        if not isinstance(error, Py4JJavaError):
            return False
        for cause in self._causes(error):
            state, code = str(cause.getSQLState()), cause.getErrorCode() & 0xFF
            if state.startswith("08") or state in _PASSING or code in self._dialect.passing:
                return True
        return False


class _Database:
    """One connection, without automatic commits."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.product = str(connection.getMetaData().getDatabaseProductName())

    def run(self, sql: str, *values: str | int) -> int:
        """Executes a statement; returns how many rows it changed."""
        statement = self._prepared(sql, values)
        try:
            return int(statement.executeUpdate())
        finally:
            statement.close()

    def row(self, sql: str, *values: str | int) -> tuple[Any, ...] | None:
        """The first row of a query's result, None without one."""
        statement = self._prepared(sql, values)
        try:
            result = statement.executeQuery()
            if not result.next():
                return None
            return tuple(result.getObject(n + 1) for n in range(result.getMetaData().getColumnCount()))
        finally:
            statement.close()

    def commit(self) -> None:
        self._connection.commit()

    def ensure(self, table: str, types: dict[str, str], key: tuple[str, ...]) -> None:
        """Creates a table; SinkError where it exists and does not have exactly these columns."""
        if not self._exists(table):
            columns = ", ".join(f"{_quoted(n)} {t}{' NOT NULL' if n in key else ''}" for n, t in types.items())
            self.run(f"CREATE TABLE {table} ({columns}, PRIMARY KEY ({', '.join(map(_quoted, key))}))")
            return
        statement = self._prepared(f"SELECT * FROM {table} WHERE 1 = 0", ())
        try:
            metadata = statement.executeQuery().getMetaData()
            numbers = range(1, metadata.getColumnCount() + 1)
            actual = {str(metadata.getColumnName(n)): str(metadata.getColumnTypeName(n)) for n in numbers}
        finally:
            statement.close()
        if actual != types:
            raise SinkError(
                f"diff.jdbc.table: {table} has other columns ({_listed(actual)}) than the jdbc sink needs "
                f"({_listed(types)}): name another table, or rename or drop this one; the job then creates it and "
                "fills it from the diff topic"
            )

    def _exists(self, table: str) -> bool:
        schema, _, name = table.replace('"', "").rpartition(".")
        # The name is a pattern, in which an underscore matches any character.
        tables = self._connection.getMetaData().getTables(None, schema or self._connection.getSchema(), name, None)
        try:
            while tables.next():
                if tables.getString("TABLE_NAME") == name:
                    return True
            return False
        finally:
            tables.close()

    def _prepared(self, sql: str, values: tuple[str | int, ...]) -> Any:
        statement = self._connection.prepareStatement(sql)
        for number, value in enumerate(values, 1):
            statement.setObject(number, value)
        return statement


def _quoted(name: str) -> str:
    return ".".join(f'"{part}"' for part in name.split("."))


def _listed(types: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in types.items())
