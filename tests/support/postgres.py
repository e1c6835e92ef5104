"""A real PostgreSQL for one test, which can be stopped, killed and started again on the same port and data.

The programs are those on PATH or below /usr/lib/postgresql. If there are none and the tests run as root, Debian's
package is installed. PostgreSQL refuses to run as root, so it then runs as `nobody`, who owns the data.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deelog_connector.devkafka.ports import HOST, free_port
from tests.support.waiting import waiting

USER, PASSWORD, DATABASE = "deelog", "sec ret'ö", "postgres"
_SECONDS = 60.0
_ORDERLY = signal.SIGINT  # "fast": ends sessions, unlike SIGTERM, which waits for them
_INSTALL = (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "postgresql"])


def _program(name: str) -> str | None:
    beside = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(beside[-1]) if beside else None)


def program(name: str) -> str:
    """The path of one of PostgreSQL's programs. Installs its package if needed."""
    found = _program(name)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in _INSTALL:
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(command, check=True, capture_output=True, env=environment)
        found = _program(name)
    if found is None:
        pytest.fail(f"{name} of PostgreSQL is missing: install it (Debian, Ubuntu: apt install postgresql)")
    return found


class Postgres:
    """One server. `start()` it, and `stop()` it at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, free_port()
        self._user = "nobody" if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        password = folder / "password"
        password.write_text(PASSWORD)
        if self._user is not None:
            shutil.chown(folder, self._user)
            shutil.chown(password, self._user)
        settings = ["--username", USER, "--pwfile", str(password), "--auth", "scram-sha-256", "--encoding", "UTF8"]
        command = [program("initdb"), "--pgdata", str(self._data), "--locale", "C.UTF-8", "--no-sync", *settings]
        subprocess.run(command, check=True, capture_output=True, user=self._user, cwd=folder)

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://{HOST}:{self._port}/{DATABASE}"

    def start(self) -> None:
        """Returns once it answers."""
        options = ["-c", f"listen_addresses={HOST}", "-c", "unix_socket_directories=", "-c", "fsync=off"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program("postgres"), "-D", str(self._data), "-p", str(self._port), *options],
                stdout=log,
                stderr=log,
                user=self._user,
                cwd=self._folder,
            )
        waiting(self._answers, _SECONDS, "PostgreSQL")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        return self._psql("select 1").returncode == 0

    def stop(self, how: signal.Signals = _ORDERLY) -> None:
        """Stops it; no error if it does not run. SIGQUIT stops it at once, as a crash does."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(_SECONDS)
            self._process = None

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """The rows of a query."""
        found = self._psql(f"select coalesce(json_agg(t), '[]') from ({sql}) t")
        assert found.returncode == 0, found.stderr
        rows: list[dict[str, Any]] = json.loads(found.stdout)
        return rows

    def run(self, sql: str) -> None:
        """Runs statements in one transaction."""
        done = self._psql(sql)
        assert done.returncode == 0, done.stderr

    def _psql(self, sql: str) -> subprocess.CompletedProcess[str]:
        address = ["-h", HOST, "-p", str(self._port), "-U", USER, DATABASE]
        return subprocess.run(
            [program("psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *address, "-1", "-f", "-"],
            input=sql,
            env={**os.environ, "PGPASSWORD": PASSWORD, "PGCLIENTENCODING": "UTF8"},
            capture_output=True,
            text=True,
            check=False,
        )


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A server that runs during the block. Its data are where `nobody` has access, unlike a test's folder."""
    with tempfile.TemporaryDirectory(prefix="deelog-postgres-") as folder:
        server = Postgres(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()
