"""A real Apache Kafka (KRaft, one node, transactions on) as a child process, for development and tests.

Weighed in docs/decisions.md, "Kafka for development".

    with EmbeddedKafka(Path("data")) as kafka:
        produce_to(kafka.bootstrap)

The broker runs in a session of its own, so a Ctrl-C of the terminal reaches the caller, who stops it in order. Unless
`detached`, the kernel kills it when the *thread* that called `start()` ends: call it from one that outlives the broker
(the main thread), and no process is left even after `kill -9` of the caller. A line of Python asks the kernel for that
and then becomes Java by exec; a fork of the caller, which may have threads that hold locks, could not.

`running.py` knows which broker runs on a data directory, whichever process started it.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import javaproperties

from deelog_connector.devkafka import jars
from deelog_connector.devkafka.errors import AlreadyRunning, BrokerFailed, PortTaken, SetupError
from deelog_connector.devkafka.ports import HOST, can_bind, free_port, wait_until_it_serves
from deelog_connector.devkafka.running import STOP_SECONDS, Running, claim, dying_with_parent
from deelog_connector.devkafka.server_properties import JVM, settings
from deelog_schemas.java import find_java

START_SECONDS = 120.0
_FORMAT_SECONDS = 60.0
_PORT_ATTEMPTS = 3
_LOG_TAIL_LINES = 15
_LOG_LIMIT_BYTES = 64 << 20


class EmbeddedKafka:
    """One broker with its data directory; start, stop and kill it as often as you like, port and data stay.

    `port=0` takes a free one at the first start and keeps it. `heap` is the JVM's -Xmx. `overrides` are broker
    settings that override those of `server_properties.py`. `detached` brokers outlive the caller. `cluster` is the id
    of the cluster that a new data directory belongs to; by default a new one. You must call `stop()` or `kill()` (or
    use `with`). Not safe to use from several threads at once.
    """

    def __init__(
        self,
        data_dir: Path,
        port: int = 0,
        heap: str = "512m",
        overrides: Mapping[str, str] | None = None,
        *,
        detached: bool = False,
        cluster: str = "",
    ) -> None:
        # Kafka's own form of an id; the leading letter keeps it from looking like an option.
        self._cluster = cluster or "k" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        self.data_dir = data_dir.absolute()
        self.heap = heap
        self.detached = detached
        self._fixed_port = port != 0
        self._port = port
        self._overrides = dict(overrides or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """`host:port` for `bootstrap.servers`; RuntimeError before the first start where the port is a free one."""
        if not self._port:
            raise RuntimeError("the broker has no port before its first start()")
        return f"{HOST}:{self._port}"

    @property
    def log(self) -> Path:
        """The broker's log, of all starts; truncated at a start if it is above 64 MB."""
        return self.data_dir / "broker.log"

    @property
    def pid(self) -> int | None:
        """The broker's process id, None where it does not run."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self, timeout: float = START_SECONDS) -> None:
        """Format the data directory where it is new, start the broker, return once it serves requests.

        SetupError (DownloadError, PortTaken, AlreadyRunning, BrokerFailed) or JavaError has the reason; no process
        is left then.
        """
        if self.pid is not None:
            raise AlreadyRunning(f"this broker runs already at {self.bootstrap}: stop() it first")
        java, classpath = find_java(), os.pathsep.join(map(str, jars.fetch("kafka")))
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            remedy = "name another folder (`--data-dir`)"
            raise SetupError(f"{self.data_dir} cannot be made: {error.strerror}; {remedy}") from error
        for attempt in range(_PORT_ATTEMPTS):
            try:
                self._start_once(java, classpath, timeout)
            except PortTaken:
                # A free port, the controller's always is one, can be lost between choosing and binding it; one that
                # was asked for can only be reported.
                if attempt + 1 == _PORT_ATTEMPTS or (self._fixed_port and not can_bind(self._port)):
                    raise
                if not self._fixed_port:
                    self._port = 0
            else:
                self._fixed_port = True
                return

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """SIGTERM, and SIGKILL where that takes longer than `timeout` seconds. No error where it does not run."""
        self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """`kill -9`: the broker gets no chance to write anything."""
        self._end(signal.SIGKILL, STOP_SECONDS)

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, as with a hung or partitioned broker."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT, after `pause()`."""
        self._signal(signal.SIGCONT)

    def wait(self) -> int:
        """Blocks until the broker ends by itself or by a signal; returns its exit code. RuntimeError if not started."""
        if self._process is None:
            raise RuntimeError("the broker does not run: start() it first")
        return self._process.wait()

    def restart(self) -> None:
        """`stop()` and `start()`, same port, same data."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_once(self, java: Path, classpath: str, timeout: float) -> None:
        with claim(self.data_dir) as lock:
            self._port = self._port or free_port()
            if not can_bind(self._port):
                raise PortTaken(
                    f"port {self._port} of {HOST} is taken: stop what listens there or choose another port "
                    "(`deelog kafka start --port N`)"
                )
            controller_port = next(port for port in iter(free_port, None) if port != self._port)
            logs, properties = self.data_dir / "logs", self.data_dir / "server.properties"
            configured = settings(self._port, controller_port, logs) | self._overrides
            properties.write_text(javaproperties.dumps(configured, timestamp=False))
            if not (logs / "meta.properties").exists():
                self._format(java, classpath, properties)
            if self.log.exists() and self.log.stat().st_size > _LOG_LIMIT_BYTES:
                self.log.unlink()
            begin = self.log.stat().st_size if self.log.exists() else 0
            self._process = self._spawn(self._command(java, classpath, properties), lock)
            Running(self._process.pid, self.bootstrap).write(lock)
        try:
            try:
                wait_until_it_serves(self.bootstrap, timeout, lambda: self._alive_or_failed(begin))
            except TimeoutError as error:
                raise self._failed(str(error), begin) from error
        except BaseException:
            self.kill()
            raise

    def _format(self, java: Path, classpath: str, properties: Path) -> None:
        command = [str(java), "-Xmx128m", *JVM, "-cp", classpath, "kafka.tools.StorageTool", "format"]
        done = subprocess.run(
            [*command, "--cluster-id", self._cluster, "--config", str(properties)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_FORMAT_SECONDS,
            check=False,
        )
        if done.returncode:
            raise BrokerFailed(f"{self.data_dir} could not be formatted for Kafka:\n{_tail(done.stdout)}")

    def _command(self, java: Path, classpath: str, properties: Path) -> list[str]:
        # Compression libraries unpack native code there, and a killed JVM does not remove it.
        temporary = self.data_dir / "tmp"
        temporary.mkdir(exist_ok=True)
        memory = [f"-Xmx{self.heap}", "-XX:+ExitOnOutOfMemoryError"]
        options = [*memory, f"-Djava.io.tmpdir={temporary}", *JVM, "-cp", classpath]
        command = [str(java), *options, "kafka.Kafka", str(properties)]
        return command if self.detached else dying_with_parent(command)

    def _spawn(self, command: list[str], lock: IO[str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.data_dir,
                start_new_session=True,
                pass_fds=(lock.fileno(),),
            )

    def _alive_or_failed(self, log_begin: int) -> None:
        if self._process is None or self._process.poll() is not None:
            raise self._failed("ended while it started", log_begin)

    def _failed(self, what: str, log_begin: int) -> BrokerFailed | PortTaken:
        with self.log.open("rb") as log:
            log.seek(log_begin)
            text = log.read().decode(errors="replace")
        if "Address already in use" in text:
            return PortTaken(f"port {self._port} of {HOST} was taken while Kafka started: choose another port")
        return BrokerFailed(f"Kafka {what}; its log {self.log} ends with:\n{_tail(text)}")

    def _signal(self, number: int) -> None:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError("the broker does not run: start() it first")
        self._process.send_signal(number)

    def _end(self, number: int, timeout: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)  # a paused broker does not get SIGTERM
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout)


def _tail(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-_LOG_TAIL_LINES:])
