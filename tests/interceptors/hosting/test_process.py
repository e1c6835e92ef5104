"""A hosted cache as a process: which end it comes to, and what is closed at each."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from deelog_interceptors.hosting import process
from deelog_interceptors.hosting.process import Hosted, _unhandled, run, signalled
from deelog_schemas.errors import DeelogError
from tests.connector import cache
from tests.connector.cache import config_of
from tests.support.paths import ROOT
from tests.support.waiting import awaiting

CONFIG = config_of("h:1", "p")


class Cache:
    """A hosted cache, and the REST API beside it, which note their calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rest: bool = True) -> None:
        self.calls: list[str] = []
        self.lifecycle = object()
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.start_error: Exception | None = None
        self.at_last: Callable[[], object] = lambda: None
        self.mute = False
        self._rest = rest
        monkeypatch.setattr(process, "served", self._served)

    async def run(self, stopped: asyncio.Future[None] | None = None) -> None:
        """Runs it, as a process does."""
        loop = asyncio.get_running_loop()
        self.failure = loop.create_future()
        self.finished = loop.create_future()
        await run(CONFIG, cast(Hosted, self), lambda: (b"", ""), self._says, stopped or signalled())

    def _says(self) -> None:
        if self.mute:
            raise BrokenPipeError
        self.calls.append("serves")

    async def _served(self, config: Any, lifecycle: Any, metrics: Any) -> Any:
        assert (config, lifecycle, metrics()) == (CONFIG, self.lifecycle, (b"", ""))
        self.calls.append("rest")
        return SimpleNamespace(stop=self._rest_stopped) if self._rest else None

    async def _rest_stopped(self) -> None:
        if "rest stopped" not in self.calls:
            self.calls.append("rest stopped")
            self.at_last()

    async def start(self) -> None:
        self.calls.append("start")
        await self.may_start.wait()
        if self.start_error is not None:
            raise self.start_error

    async def stop(self) -> None:
        self.calls.append("stop")

    async def abort(self) -> None:
        self.calls.append("abort")

    def failed(self, error: BaseException) -> None:
        if not self.failure.done():
            self.failure.set_exception(error)


STOPPED = ["rest", "start", "serves", "rest stopped", "stop"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    async def work() -> None:
        hosted = Cache(monkeypatch)
        running = asyncio.ensure_future(hosted.run())
        await awaiting(lambda: "serves" in hosted.calls, 20, "it to serve")
        assert not running.done()
        signal.raise_signal(number)
        await running
        assert hosted.calls == STOPPED

    cache.run(work(), 60)


def test_the_end_of_the_connector_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        hosted = Cache(monkeypatch, rest=False)
        running = asyncio.ensure_future(hosted.run())
        await awaiting(lambda: "serves" in hosted.calls, 20, "it to serve")
        hosted.finished.set_result(None)
        await running
        assert hosted.calls == ["rest", "start", "serves", "stop"]

    cache.run(work(), 60)


def test_the_garbage_collector_waits_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        hosted = Cache(monkeypatch)
        running = asyncio.ensure_future(hosted.run())
        await awaiting(lambda: "serves" in hosted.calls, 20, "it to serve")
        hosted.finished.set_result(None)
        await running

    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    try:
        cache.run(work(), 60)
        assert gc.get_threshold() == (100_000, 10, 10)
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize("by", ["failure", "exception", "message"])
def test_a_failure_stops_it_and_is_raised(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """Also what nobody else has heard on the loop."""
    error = DeelogError("it cannot go on")

    async def work() -> None:
        hosted = Cache(monkeypatch)
        running = asyncio.ensure_future(hosted.run())
        await awaiting(lambda: "serves" in hosted.calls, 20, "it to serve")
        handle = asyncio.get_running_loop().call_exception_handler
        if by == "failure":
            hosted.failed(error)
        elif by == "exception":
            handle({"message": "a task", "exception": error})
        else:
            handle({"message": "it cannot go on"})
        with pytest.raises(RuntimeError if by == "message" else DeelogError, match="it cannot go on"):
            await running
        assert hosted.calls == STOPPED

    cache.run(work(), 60)


def test_a_signal_during_the_start_ends_it_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        hosted = Cache(monkeypatch)
        hosted.may_start.clear()
        running = asyncio.ensure_future(hosted.run())
        await awaiting(lambda: "start" in hosted.calls, 20, "the start")
        signal.raise_signal(signal.SIGTERM)
        await running
        assert hosted.calls == ["rest", "start", "abort", "rest stopped"]

    cache.run(work(), 60)


def test_a_start_that_fails_is_aborted_and_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        hosted = Cache(monkeypatch)
        hosted.start_error = DeelogError("the port is taken")
        before = asyncio.all_tasks()
        with pytest.raises(DeelogError, match="the port is taken"):
            await hosted.run()
        assert hosted.calls == ["rest", "start", "abort", "rest stopped"]
        # What is left pending would be told to whoever runs next on this loop, as an error of theirs.
        assert asyncio.all_tasks() == before

    cache.run(work(), 60)


def test_a_node_that_cannot_say_that_it_serves_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        hosted = Cache(monkeypatch)
        hosted.mute = True
        with pytest.raises(BrokenPipeError):
            await hosted.run()
        assert hosted.calls == ["rest", "start", "abort", "rest stopped"]

    cache.run(work(), 60)


def test_a_signal_behind_a_failed_start_ends_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        stopped, failed = signalled(), Cache(monkeypatch)
        failed.start_error, failed.at_last = (
            DeelogError("another process"),
            partial(signal.raise_signal, signal.SIGTERM),
        )
        with pytest.raises(DeelogError, match="another process"):
            await failed.run(stopped)
        hosted = Cache(monkeypatch)
        hosted.may_start.clear()
        await asyncio.wait_for(hosted.run(stopped), 20)
        assert hosted.calls == ["rest", "start", "abort", "rest stopped"]

    cache.run(work(), 60)


SERVER: Final = """
import asyncio, resource, sys
from deelog_interceptors.hosting.process import run, signalled
from tests.connector.cache import config_of

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(b"served")

class Hosted:
    lifecycle = None
    async def start(self):
        loop = asyncio.get_running_loop()
        self.failure, self.finished = loop.create_future(), loop.create_future()
        self.server = await loop.create_server(Echo, "127.0.0.1", 0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        print(self.server.sockets[0].getsockname()[1], flush=True)
    async def stop(self):
        self.server.close()
    def failed(self, error):
        self.failure.set_exception(error)

async def main():
    await run(config_of("h:1", "p"), Hosted(), lambda: (b"", ""), lambda: None, signalled())

asyncio.run(main())
"""


def test_more_connections_than_open_files_end_nothing() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as child:
        assert child.stdout is not None
        where = "127.0.0.1", int(child.stdout.readline())
        with contextlib.ExitStack() as idle:
            for _ in range(60):
                idle.enter_context(socket.create_connection(where, 20))
        with socket.create_connection(where, 60) as client:
            assert client.recv(6) == b"served"
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=60)
    assert child.returncode == 0
    assert "no connection can be accepted at the moment: Too many open files (ulimit -n)" in said


@pytest.mark.parametrize(("code", "ends"), [(errno.EPROTO, False), (errno.EHOSTUNREACH, False), (errno.EIO, True)])
def test_what_accept_says_is_to_be_tried_again_ends_nothing(code: int, ends: bool) -> None:
    """asyncio lets it out of the callback that accepts. The same of a task is the node's."""
    failures: list[BaseException] = []
    hosted = cast("Hosted", SimpleNamespace(failed=failures.append))
    loop = cast("asyncio.AbstractEventLoop", SimpleNamespace(time=lambda: 1.0))
    of_callback = {"message": "Exception in callback", "exception": OSError(code, "words"), "handle": object()}
    _unhandled(hosted, {}, loop, of_callback)
    assert bool(failures) is ends
    _unhandled(hosted, {}, loop, {"message": "", "exception": OSError(code, "words"), "task": object()})
    assert len(failures) == 1 + ends


def test_connections_that_are_not_accepted_are_told_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio calls its handler for each of the backlog, thousands of times in a second."""
    hosted = cast("Hosted", SimpleNamespace(failed=None))
    clock, said = SimpleNamespace(now=100.0), dict[int, float]()
    loop = cast("asyncio.AbstractEventLoop", SimpleNamespace(time=lambda: clock.now))
    for now, code in [(100.0, errno.EMFILE)] * 50 + [
        (109.0, errno.ENFILE),
        (109.0, errno.EMFILE),
        (110.0, errno.EMFILE),
    ]:
        clock.now = now
        _unhandled(hosted, said, loop, {"message": "", "exception": OSError(code, errno.errorcode[code])})
    _unhandled(hosted, said, loop, {"message": "Exception in callback", "exception": OSError(errno.EPROTO, "EPROTO")})
    assert [message.split(": ")[1] for message in caplog.messages] == [
        *("EMFILE (ulimit -n)", "ENFILE (ulimit -n)", "EMFILE (ulimit -n)", "EPROTO")
    ]
