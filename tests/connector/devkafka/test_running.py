"""Which broker runs on a folder, by the lock of its process. The processes are doubles: `sleep` with the lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deelog_connector.devkafka import running as module
from deelog_connector.devkafka.errors import AlreadyRunning, BrokerFailed
from deelog_connector.devkafka.running import Running, claim, dying_with_parent, running, stop_running
from tests.connector.devkafka.test_broker import lives
from tests.support.waiting import waiting

SECONDS = 60.0
_IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
_SLEEPS = "import time; print(flush=True); time.sleep(600)"


class Brokers:
    """Processes that hold the lock of a folder as brokers do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, code: str = _SLEEPS, write: bool = True) -> subprocess.Popen[str]:
        """Starts one; returns once it runs."""
        claimed = claim(self.folder)
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, pass_fds=[claimed.fileno()]
        )
        self._processes.append(process)
        if write:
            Running(process.pid, "127.0.0.1:9092").write(claimed)
        claimed.close()
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait(SECONDS)
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    found = Brokers(tmp_path)
    yield found
    found.end()


def test_a_broker_runs_as_long_as_its_process_lives(brokers: Brokers) -> None:
    assert running(brokers.folder) is None
    assert running(brokers.folder / "none") is None
    process = brokers.start()
    assert running(brokers.folder) == Running(process.pid, "127.0.0.1:9092")
    process.kill()
    process.wait(SECONDS)
    assert running(brokers.folder) is None


def test_a_second_one_is_refused_with_the_address_of_the_first(brokers: Brokers) -> None:
    brokers.start()
    with pytest.raises(AlreadyRunning) as refused:
        claim(brokers.folder)
    assert str(refused.value) == (
        f"a broker runs at 127.0.0.1:9092 on {brokers.folder} already: stop it (`deelog kafka stop --data-dir "
        f"{brokers.folder}`) or name another folder (`--data-dir`)"
    )


def test_one_that_is_being_started_has_no_address_yet(brokers: Brokers) -> None:
    brokers.start(write=False)
    assert running(brokers.folder) is None
    with pytest.raises(AlreadyRunning, match=f"^a broker runs on {brokers.folder} already"):
        claim(brokers.folder)


def test_a_claim_forgets_the_broker_before(brokers: Brokers) -> None:
    process = brokers.start()
    process.kill()
    process.wait(SECONDS)
    with claim(brokers.folder) as file:
        file.seek(0)
        assert file.read() == ""


def test_a_broker_is_stopped_by_a_signal(brokers: Brokers) -> None:
    assert stop_running(brokers.folder) is False
    process = brokers.start()
    process.send_signal(signal.SIGSTOP)
    assert stop_running(brokers.folder) is True
    assert process.wait(SECONDS) == -signal.SIGTERM


def test_one_that_does_not_end_is_killed(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_SECONDS", 0.1)
    process = brokers.start(_IGNORES)
    assert stop_running(brokers.folder) is True
    assert process.wait(SECONDS) == -signal.SIGKILL


def test_one_that_is_gone_already_is_stopped(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    process = brokers.start()
    process.kill()
    process.wait(SECONDS)
    monkeypatch.setattr(module, "running", lambda folder: Running(process.pid, "h:1"))
    assert stop_running(brokers.folder) is True


def test_one_that_cannot_be_killed_is_named(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(module, "STOP_SECONDS", 0.1)
    monkeypatch.setattr(module, "_KILL_SECONDS", 0.1)
    process = brokers.start()
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
        with pytest.raises(BrokerFailed, match=f"process {process.pid} on {brokers.folder} does not end"):
            stop_running(brokers.folder)
    numbers = (signal.SIGTERM, signal.SIGCONT, signal.SIGKILL, signal.SIGCONT)
    assert sent == [(process.pid, number) for number in numbers]


def test_a_process_dies_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "from deelog_connector.devkafka.running import dying_with_parent\n"
        f"child = subprocess.Popen(dying_with_parent([sys.executable, '-c', {_SLEEPS!r}]))\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.stdout.readline()  # the child's line
        assert lives(pid)
        parent.kill()
    waiting(lambda: not lives(pid), SECONDS, "the child's end")


def test_one_whose_parent_is_another_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    command = dying_with_parent([sys.executable, "-c", "print('it runs')"])
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "prctl failed\n")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert dying_with_parent(["java"]) == ["java"]
