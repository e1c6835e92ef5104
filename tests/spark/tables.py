"""The tables of the jdbc sink, as another program sees them: SQLite by Python's module, PostgreSQL by psql."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from deelog_schemas.config import Config
from tests.spark.reference import Stored
from tests.support.postgres import PASSWORD, USER, Postgres


class Database(Protocol):
    """A database with the sink's tables."""

    @property
    def fields(self) -> dict[str, str]:
        """The configuration's fields, with `_` for `.`."""

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """The rows of a query; bytes as PostgreSQL shows them."""

    def run(self, sql: str) -> None:
        """Runs statements in one transaction."""


class Sqlite:
    """A database file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fields = {"diff_jdbc_url": f"jdbc:sqlite:{path}"}

    def rows(self, sql: str) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self.path)) as db:
            db.row_factory = sqlite3.Row
            return [
                {k: f"\\x{v.hex()}" if isinstance(v, bytes) else v for k, v in dict(r).items()} for r in db.execute(sql)
            ]

    def run(self, sql: str) -> None:
        with closing(sqlite3.connect(self.path)) as db:
            db.executescript(sql)


class OnPostgres:
    """A database of a PostgreSQL server."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self.fields = {"diff_jdbc_url": server.url, "diff_jdbc_user": USER, "diff_jdbc_password": PASSWORD}

    def rows(self, sql: str) -> list[dict[str, Any]]:
        return self._server.rows(sql)

    def run(self, sql: str) -> None:
        self._server.run(sql)


def in_table(database: Database, config: Config) -> dict[bytes, Stored]:
    """The table's rows of a cache, by key. Fails unless the staging table is empty, so once no job writes."""
    table = config["diff.jdbc.table"]
    assert database.rows(f"select op, key from {table}_staging {_mine(config)}") == []
    return in_table_now(database, config)


def in_table_now(database: Database, config: Config) -> dict[bytes, Stored]:
    """The same while a job may be writing."""
    rows = database.rows(f"select * from {config['diff.jdbc.table']} {_mine(config)}")
    key_of, value_of = (
        _unhex if config[f"cache.{what}.format"] == "bytes" else str.encode for what in ("key", "value")
    )
    found = {
        key_of(r["key"]): Stored(r["segment"], value_of(r["value"]), r["expires_at"], (r["epoch"], r["sequence"]))
        for r in rows
    }
    assert len(found) == len(rows)
    return found


def _mine(config: Config) -> str:
    return f"where topic_prefix = '{config['topic.prefix']}' and cache = '{config['cache.name']}'"


def _unhex(shown: str) -> bytes:
    return bytes.fromhex(shown.removeprefix("\\x"))
