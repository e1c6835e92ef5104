"""Children: started, seen to end, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from deelog_proof.harness.child import Child, ProcessError, ends_in_order, until

# Prints the id of a child of its own, which ignores SIGTERM, as a JVM behind Python might.
_PARENT = """
import signal, subprocess, sys
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
print("grandchild", child.pid, flush=True)
child.wait()
"""
# Starts a child as the demo does and waits to be killed.
_DEMO = """
import sys, time
from pathlib import Path
from deelog_proof.harness.child import Child
child = Child("sleeper", [sys.executable, "-c", "import time; time.sleep(600)"], Path(sys.argv[1]))
child.start()
print(child.pid, flush=True)
time.sleep(600)
"""


def _gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def _child(tmp_path: Path, code: str) -> Child:
    return Child("child", [sys.executable, "-c", code], tmp_path / "child.log")


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_grandchildren_end_with_the_child(tmp_path: Path, how: str) -> None:
    child = _child(tmp_path, _PARENT)
    child.start()
    until(lambda: child.line("grandchild") is not None, 20, "the grandchild")
    grandchild = int(child.line("grandchild") or 0)
    assert not _gone(grandchild)
    getattr(child, how)()
    assert child.pid is None
    until(lambda: _gone(grandchild), 10, "the end of the grandchild")


def test_a_stopped_child_is_ended(tmp_path: Path) -> None:
    child = _child(tmp_path, "import time; print('up', flush=True); time.sleep(600)")
    child.start()
    until(lambda: child.line("up") is not None, 20, "the child")
    child.send(signal.SIGSTOP)
    child.stop()
    assert child.exit_code == -signal.SIGTERM


def test_an_early_end_shows_the_log(tmp_path: Path) -> None:
    child = _child(tmp_path, "raise SystemExit('the port is taken')")
    child.start()
    until(lambda: child.pid is None, 20, "the end of the child")
    with pytest.raises(ProcessError, match=r"exit code 1; its log ends with:\n  the port is taken"):
        child.must_run()
    with pytest.raises(RuntimeError, match="does not run"):
        child.send(signal.SIGTERM)


def test_a_second_start_looks_at_its_own_output(tmp_path: Path) -> None:
    child = _child(tmp_path, "import os; print('up', os.getpid(), flush=True)")
    seen = []
    for _ in range(2):
        child.start()
        until(lambda: child.line("up") is not None and child.pid is None, 20, "a line and the end")
        seen.append(child.line("up"))
    assert len(set(seen)) == 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux kills children with their parent")
def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    demo = subprocess.Popen([sys.executable, "-c", _DEMO, str(tmp_path / "log")], stdout=subprocess.PIPE)
    with demo:
        assert demo.stdout is not None
        pid = int(demo.stdout.readline())
        assert not _gone(pid)
        os.kill(demo.pid, signal.SIGKILL)
    until(lambda: _gone(pid), 60, "the end of the child")


def test_what_was_not_started_has_nothing_to_end(tmp_path: Path) -> None:
    child = _child(tmp_path, "")
    child.kill()
    child.stop()
    assert (child.pid, child.exit_code, child.tail()) == (None, None, "is empty")
    with pytest.raises(RuntimeError, match="child does not run"):
        child.send(signal.SIGTERM)


def test_it_runs_once_at_a_time_and_gets_signals(tmp_path: Path) -> None:
    child = _child(tmp_path, "import time; time.sleep(600)")
    child.start()
    try:
        first = child.pid
        with pytest.raises(RuntimeError, match="child runs already"):
            child.start()
        assert (child.pid, child.exit_code) == (first, None)
        child.send(signal.SIGTERM)
        until(lambda: child.pid is None, 20, "the end of the child")
        assert child.exit_code == -signal.SIGTERM
    finally:
        child.kill()


def test_a_line_counts_once_it_is_complete(tmp_path: Path) -> None:
    child = _child(tmp_path, "print('up  now'); print('up later'); print('half', end='')")
    child.start()
    until(lambda: child.pid is None, 20, "the end of the child")
    assert [child.line(prefix) for prefix in ("up", "half", "now")] == ["now", None, None]
    assert child.tail() == "ends with:\n  up  now\n  up later\n  half"


def test_a_crash_shows_what_each_thread_was_doing(tmp_path: Path) -> None:
    """As one of a library that is not Python's, and behind what was logged before."""
    busy = "import os, threading, time\ndef busy(): time.sleep(600)\n"
    many = "for _ in range(30): threading.Thread(target=busy, daemon=True).start()\n"
    child = _child(tmp_path, busy + many + "for n in range(99): print(n, flush=True)\nos.abort()")
    child.start()
    until(lambda: child.pid is None, 20, "the end of the child")
    tail = child.tail().splitlines()
    assert child.exit_code == -signal.SIGABRT
    assert tail[1 : tail.index("  Fatal Python error: Aborted")] == [f"  {n}" for n in range(79, 99)]
    assert sum(line.endswith("in busy") for line in tail) == 30


def test_until_tells_how_long_it_took() -> None:
    assert 0 <= until(lambda: True, 5, "nothing") < 5


def test_until_names_what_it_waited_for() -> None:
    with pytest.raises(TimeoutError, match="in vain for: a miracle"):
        until(lambda: False, 0.2, "a miracle")


class Finalized:
    """Gets a signal as its finalizer runs."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)
        sum(range(10))  # the handler runs here


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_amid_a_finalizer_is_not_lost(number: int, raised: type[BaseException]) -> None:
    former, hook = signal.getsignal(number), sys.unraisablehook

    def ended() -> None:
        with ends_in_order():
            Finalized(number)
            until(lambda: False, 5, "the signal's exception")

    with pytest.raises(raised) as caught:
        ended()
    assert getattr(caught.value, "code", 0) in (0, 128 + number)
    assert signal.getsignal(number) is former
    assert sys.unraisablehook is hook


def test_a_signal_is_not_lost_while_it_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine on which the thread that sends it starts late."""

    class Late(threading.Timer):
        def start(self) -> None:
            super().start()
            self.join()  # it comes before this returns
            sum(range(10))

    def ended() -> None:
        with ends_in_order():
            Finalized(signal.SIGTERM)
            until(lambda: False, 5, "the signal's exception")

    starts = iter([Late, threading.Timer, threading.Timer])
    monkeypatch.setattr("deelog_proof.harness.child.threading.Timer", lambda *given: next(starts)(*given))
    with pytest.raises(SystemExit):
        ended()


def test_what_else_a_finalizer_raises_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def __del__(self) -> None:
            raise ValueError("as it goes")

    told: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: told.append(str(error.exc_value)))
    with ends_in_order():
        Failing()
    assert told == ["as it goes"]
