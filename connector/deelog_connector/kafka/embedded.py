"""A real Apache Kafka (KRaft, one node, transactions on) as a child process, for development and tests.

Weighed: testcontainers (needs Docker), a Kafka written for tests (is not Kafka), Kafka's own start scripts
(another download, and no hold on the process). This starts the broker's main class from its published jars.

    with EmbeddedKafka(Path("data")) as kafka:
        produce_to(kafka.bootstrap)

The broker runs in a session of its own, so a Ctrl-C of the terminal reaches the caller, who stops it in order. Unless
`detached`, the kernel kills it when the *thread* that called `start()` ends: call it from one that outlives the broker
(the main thread), and nothing is left behind even after `kill -9` of the caller. That request to the kernel is made
by a Python line that then becomes Java, not in a fork of the caller, which may have threads that hold locks.

An exclusive lock on `<data_dir>/broker.json` is inherited by the broker and held as long as it lives: that is what
tells a running broker from a stale file, safe from reused process ids.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import javaproperties
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from deelog_connector.kafka import jars
from deelog_connector.kafka.prerequisites import AlreadyRunning, BrokerFailed, PortTaken, find_java

__all__ = ["HOST", "EmbeddedKafka", "Running", "free_port", "running", "stop_running", "wait_until_it_serves"]

HOST = "127.0.0.1"
START_SECONDS = 60.0
STOP_SECONDS = 30.0
_FORMAT_SECONDS = 60.0
_PORT_ATTEMPTS = 3
_LOG_TAIL_LINES = 15
_LOG_LIMIT_BYTES = 64 << 20
_POLL_SECONDS = 0.05

# Becomes Java after asking the kernel to kill it with its parent (prctl 1 is PR_SET_PDEATHSIG; SIGKILL, since only that
# ends a stopped process); a parent that died before the request was made is noticed by its process id.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys;"
    "failed = ctypes.CDLL(None, use_errno=True).prctl(1, 9, 0, 0, 0);"
    "sys.exit('prctl failed') if failed or os.getppid() != int(sys.argv[1]) else os.execv(sys.argv[2], sys.argv[2:])"
)


@dataclass(frozen=True, slots=True)
class Running:
    """A broker that runs on a data directory: its process id and address."""

    pid: int
    bootstrap: str


class EmbeddedKafka:
    """One broker with its data directory; start, stop and kill it as often as you like, port and data stay.

    `port=0` takes a free one at the first start and keeps it. `heap` is the JVM's -Xmx. `overrides` are broker
    settings that win over the defaults of `settings()`. `detached` brokers outlive the caller. You must call
    `stop()` or `kill()` (or use `with`). Not safe to use from several threads at once.
    """

    def __init__(
        self,
        data_dir: Path,
        port: int = 0,
        heap: str = "512m",
        overrides: Mapping[str, str] | None = None,
        *,
        detached: bool = False,
    ) -> None:
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
        """The broker's log, of all starts; begun anew at a start that finds it above 64 MB."""
        return self.data_dir / "broker.log"

    @property
    def pid(self) -> int | None:
        """The broker's process id, None where it does not run."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self, timeout: float = START_SECONDS) -> None:
        """Format the data directory where it is new, start the broker, return once it serves requests.

        SetupError (JavaError, DownloadError, PortTaken, AlreadyRunning, BrokerFailed) says what is in the way; no
        process is left then.
        """
        if self.pid is not None:
            raise AlreadyRunning(f"this broker runs already at {self.bootstrap}: stop() it first")
        java, classpath = find_java(), os.pathsep.join(map(str, jars.fetch("kafka")))
        self.data_dir.mkdir(parents=True, exist_ok=True)
        for attempt in range(_PORT_ATTEMPTS):
            try:
                self._start_once(java, classpath, timeout)
            except PortTaken:
                # A free port can be lost between choosing and binding it; one that was asked for can only be reported.
                if self._fixed_port or attempt + 1 == _PORT_ATTEMPTS:
                    raise
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
        """Block until the broker ends by itself or by somebody's signal; its exit code. RuntimeError if not started."""
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

    def settings(self, port: int, controller_port: int) -> dict[str, str]:
        """server.properties: what one node for development needs beyond Kafka's defaults."""
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{HOST}:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
            "log.dirs": str(self.data_dir / "logs"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            # Few partitions: each is a directory to create at the first group and the first transaction.
            "offsets.topic.num.partitions": "8",
            "transaction.state.log.num.partitions": "8",
            # Members may leave and join quickly here: a node's death is to be noticed within a second.
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "600",
            # After a `kill -9` the same broker may register anew only when its former session has ended (9 s else).
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            **self._overrides,
        }

    def _start_once(self, java: Path, classpath: str, timeout: float) -> None:
        with self._locked() as lock:
            port = self._port or free_port()
            if not _can_bind(port):
                raise PortTaken(
                    f"port {port} of {HOST} is taken: stop what listens there or choose another port "
                    "(`deelog kafka start --port N`)"
                )
            self._port = port
            properties = self.data_dir / "server.properties"
            properties.write_text(javaproperties.dumps(self.settings(port, free_port()), timestamp=False))
            if not (self.data_dir / "logs" / "meta.properties").exists():
                self._format(java, classpath, properties)
            if self.log.exists() and self.log.stat().st_size > _LOG_LIMIT_BYTES:
                self.log.unlink()
            begin = self.log.stat().st_size if self.log.exists() else 0
            self._process = self._spawn(self._command(java, classpath, properties), lock)
            lock.seek(0)
            lock.truncate()
            lock.write(json.dumps({"pid": self._process.pid, "bootstrap": self.bootstrap}))
            lock.flush()
        try:
            try:
                wait_until_it_serves(self.bootstrap, timeout, lambda: self._alive_or_failed(begin))
            except TimeoutError as error:
                raise self._failed(str(error), begin) from error
        except BaseException:
            self.kill()
            raise

    def _locked(self) -> IO[str]:
        """broker.json, locked exclusively; the broker inherits the open file, and with it the lock."""
        lock = (self.data_dir / "broker.json").open("a+", encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            other = running(self.data_dir)
            address = f"at {other.bootstrap} " if other else ""
            raise AlreadyRunning(
                f"a broker runs {address}on {self.data_dir} already: stop it (`deelog kafka stop`) or name another "
                "folder (`--data-dir`)"
            ) from error
        return lock

    def _format(self, java: Path, classpath: str, properties: Path) -> None:
        # Kafka's own form of a cluster id; the leading letter keeps it from looking like an option.
        cluster = "k" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        command = [str(java), "-Xmx128m", *_JVM, "-cp", classpath, "kafka.tools.StorageTool", "format"]
        done = subprocess.run(
            [*command, "--cluster-id", cluster, "--config", str(properties)],
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
        options = [f"-Xmx{self.heap}", "-XX:+ExitOnOutOfMemoryError", *_JVM, "-cp", classpath]
        command = [str(java), *options, "kafka.Kafka", str(properties)]
        if self.detached or not sys.platform.startswith("linux"):
            return command
        return [sys.executable, "-ISc", _DIE_WITH_PARENT, str(os.getpid()), *command]

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
            process.send_signal(signal.SIGCONT)  # a paused broker would not hear SIGTERM
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout)


def running(data_dir: Path) -> Running | None:
    """The broker that runs on a data directory, whoever started it; None where there is none."""
    try:
        lock = (data_dir / "broker.json").open("r+", encoding="utf-8")
    except FileNotFoundError:
        return None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told = lock.read()
            return Running(**json.loads(told)) if told else None  # empty: it is being started right now
    return None


def stop_running(data_dir: Path, timeout: float = STOP_SECONDS) -> bool:
    """Stop the broker of a data directory, whoever started it; False where none runs.

    SIGTERM, then SIGKILL after `timeout` seconds; BrokerFailed where it lives on after that.
    """
    broker = running(data_dir)
    if broker is None:
        return False
    for number, seconds in ((signal.SIGTERM, timeout), (signal.SIGKILL, 5.0)):
        try:
            os.kill(broker.pid, number)
            os.kill(broker.pid, signal.SIGCONT)
        except ProcessLookupError:
            return True
        if _until(lambda: running(data_dir) is None, time.monotonic() + seconds):
            return True
    raise BrokerFailed(f"process {broker.pid} on {data_dir} does not end: look at it with `ps -p {broker.pid}`")


def wait_until_it_serves(bootstrap: str, timeout: float, check: Callable[[], None] = lambda: None) -> None:
    """Return once a broker at `bootstrap` takes requests; TimeoutError after `timeout` seconds.

    That is when metadata names a broker: the port opens a moment before topics can be created. `check` is called at
    every turn and may raise to end the wait.
    """
    deadline = time.monotonic() + timeout
    host, port = bootstrap.rsplit(":", 1)

    def connects() -> bool:
        check()
        return _connects(host, int(port))

    # The client comes second: it would log every refused connection.
    if not _until(connects, deadline):
        raise TimeoutError(f"did not open its port within {timeout:.0f} s")
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    if not _until(lambda: connects() and _names_a_broker(admin), deadline):
        raise TimeoutError(f"did not answer within {timeout:.0f} s")


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


# A quiet log (slf4j-simple writes to stderr) and no second one by log4j, which only carries the level settings.
_JVM = (
    "-XX:+UseSerialGC",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dlog4j2.level=OFF",
    "-Dlog4j2.StatusLogger.level=OFF",
)


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        # As Java does: connections of a former broker that linger in TIME_WAIT are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def _names_a_broker(admin: AdminClient) -> bool:
    try:
        return bool(admin.list_topics(timeout=2).brokers)
    except KafkaException:
        return False


def _until(condition: Callable[[], bool], deadline: float) -> bool:
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _tail(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-_LOG_TAIL_LINES:])
