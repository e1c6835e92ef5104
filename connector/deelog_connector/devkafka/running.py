"""Which broker runs on a data directory, by a lock that the broker's process holds as long as it lives.

A file with only a process id would be wrong after a crash, and after the id was reused.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from deelog_connector.devkafka.errors import AlreadyRunning, BrokerFailed
from deelog_connector.devkafka.ports import until

STOP_SECONDS = 30.0
_KILL_SECONDS = 5.0
_FILE = "broker.json"


# prctl 1 is PR_SET_PDEATHSIG; SIGKILL, since only that ends a stopped process. A parent that ended before the call is
# detected by its process id.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys;"
    "failed = ctypes.CDLL(None, use_errno=True).prctl(1, 9, 0, 0, 0);"
    "sys.exit('prctl failed') if failed or os.getppid() != int(sys.argv[1]) else os.execv(sys.argv[2], sys.argv[2:])"
)


def dying_with_parent(command: list[str]) -> list[str]:
    """The command, for a process that Linux kills with the thread that starts it; elsewhere as it is."""
    if not sys.platform.startswith("linux"):
        return command
    return [sys.executable, "-ISc", _DIE_WITH_PARENT, str(os.getpid()), *command]


@dataclass(frozen=True, slots=True)
class Running:
    """A broker that runs on a data directory: its process id and address."""

    pid: int
    bootstrap: str

    def write(self, claimed: IO[str]) -> None:
        """Writes it to the file that `claim` returned, for other processes."""
        claimed.write(json.dumps(asdict(self)))
        claimed.flush()


def claim(data_dir: Path) -> IO[str]:
    """The data directory's file, empty and locked exclusively; AlreadyRunning where a broker holds it.

    Let the broker inherit it with the lock, then close it.
    """
    file = (data_dir / _FILE).open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        other = running(data_dir)
        address = f"at {other.bootstrap} " if other else ""
        raise AlreadyRunning(
            f"a broker runs {address}on {data_dir} already: stop it (`deelog kafka stop --data-dir {data_dir}`) or "
            "name another folder (`--data-dir`)"
        ) from error
    file.truncate(0)
    return file


def running(data_dir: Path) -> Running | None:
    """The broker that runs on a data directory, whichever process started it; None without one."""
    try:
        lock = (data_dir / _FILE).open("r+", encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            content = lock.read()
            return Running(**json.loads(content)) if content else None  # empty: it is being started
    return None


def stop_running(data_dir: Path) -> bool:
    """Stops the broker of a data directory, whichever process started it; False where none runs.

    SIGTERM, then SIGKILL after `STOP_SECONDS`; BrokerFailed if it still runs after that.
    """
    broker = running(data_dir)
    if broker is None:
        return False
    for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
        try:
            os.kill(broker.pid, number)
            os.kill(broker.pid, signal.SIGCONT)
        except ProcessLookupError:
            return True
        if until(lambda: running(data_dir) is None, time.monotonic() + seconds):
            return True
    raise BrokerFailed(f"process {broker.pid} on {data_dir} does not end: look at it with `ps -p {broker.pid}`")
