"""A captured cache with the real connector. What ends a whole program has a real Kafka, and one journey."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cachetools
import pytest

import deelog_interceptors.cachetools as deelog
from deelog_connector.errors import NodeSuperseded, TransformFailed
from deelog_proof.simulation.stock_consumer import StockConsumer
from deelog_schemas.config import parse
from deelog_schemas.errors import ConfigError, RecordError
from deelog_schemas.header import Kind
from tests.connector.transforms.transforms_for_tests import BOMB, Bomb
from tests.interceptors.cachetools.reading import Topic, read
from tests.support.kafka import Broker
from tests.support.memory import LiveMemory, Memory
from tests.support.topics import messages
from tests.support.waiting import waiting

SEGMENTS = 16
SECONDS = 60.0
BEATING = {"heartbeat_interval_ms": 200}
"""Who writes nothing else learns soon by a heartbeat that another process has its node id."""


def config(kafka: Broker | Memory, prefix: str, **more: Any) -> dict[str, Any]:
    fields = {
        "bootstrap.servers": kafka.bootstrap,
        "topic.prefix": prefix,
        "cache.name": "sessions",
        "node.id": "n1",
        "segment.count": SEGMENTS,
        "topic.creation.default.partitions": 2,
        "topic.creation.default.replication.factor": 1,
        "cache.max.entries": 1000,
    }
    return fields | {name.replace("_", "."): value for name, value in more.items()}


def told(kafka: Broker | Memory, prefix: str) -> Topic:
    return read(kafka, f"{prefix}.sessions")


def ready(capture: deelog.Capture) -> None:
    """Waits for the first reset, which has the earlier writes. Later writes are changes."""
    waiting(lambda: capture.stats.takeovers == SEGMENTS and capture.stats.unwritten == 0, SECONDS, "the first resets")


def our_threads() -> list[str]:
    """The threads of captures; other tests' threads may still wait for a Kafka that hangs."""
    names = ("deelog-sessions", "deelog-timer", "deelog-topology")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(names)]


def test_the_topic_says_what_the_cache_holds_and_a_restart_says_what_is_gone(kafka: Broker, prefix: str) -> None:
    cache: Any = cachetools.LRUCache(50)
    cache["early"] = "there before"
    with deelog.capture(cache, config(kafka, prefix)) as capture:
        ready(capture)
        for turn in range(400):
            cache[f"k{turn * 7 % 90}"] = f"välue {turn}"
            if turn % 9 == 0:
                cache.pop(f"k{turn % 90}", None)
        assert capture.failure is None
    assert type(cache) is cachetools.LRUCache
    topic = told(kafka, prefix)
    assert topic.entries == dict(cache)
    assert topic.repeats == 0
    assert topic.resets == {"start": SEGMENTS}
    assert topic.reasons["evict"] > 50
    assert topic.reasons["remove"] > 5
    cache["late"] = "after close() nothing is captured"
    assert "late" not in told(kafka, prefix).entries

    # Another process starts with an empty cache, so all earlier entries are lost.
    second: Any = cachetools.LRUCache(50)
    with deelog.capture(second, config(kafka, prefix)) as capture:
        ready(capture)
        second["new"] = "1"
        second.update(a="1", b="2")
        second.clear()
        second["last"] = "2"
    topic = told(kafka, prefix)
    assert topic.entries.keys() == {"last"}
    assert topic.resets["start"] == 2 * SEGMENTS
    assert 2 <= topic.resets["clear"] <= 3
    assert our_threads() == []


def test_a_clock_that_was_set_back_keeps_no_process_out(
    live: LiveMemory, prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = time.time_ns
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: now() + 1800 * 10**9)
        with deelog.capture(cachetools.LRUCache(50), config(live, prefix)) as capture:
            ready(capture)
    for _ in range(2):
        cache: Any = cachetools.LRUCache(50)
        with deelog.capture(cache, config(live, prefix)) as capture:
            ready(capture)
            cache["k"] = "v"
        assert told(live, prefix).entries == {"k": "v"}
    assert sum("by a clock that is ahead of this one" in message for message in caplog.messages) == 2


def test_expiry_reaches_kafka_from_a_cache_that_nobody_touches(live: LiveMemory, prefix: str) -> None:
    cache: Any = cachetools.TTLCache(100, ttl=0.4)
    lock = threading.RLock()
    with deelog.capture(cache, config(live, prefix), lock=lock, expiry_interval=0.02) as capture:
        ready(capture)
        before = time.time()
        with lock:
            cache["a"] = "1"
        after = time.time()
        waiting(lambda: cachetools.Cache.__len__(cache) == 0, SECONDS, "expiry")
        assert time.time() - before > 0.35
        with lock:
            cache["b"] = "2"
    topic = told(live, prefix)
    (created,) = [change.after for change in topic.changes if change.after and change.after.key == b"a"]
    assert created.expires_at is not None
    assert before - 0.01 < created.expires_at / 1000 - 0.4 < after + 0.01
    assert topic.reasons == {"put": 2, "expire": 1}
    assert topic.entries.keys() == {"b"}


def test_a_cached_function_and_threads(live: LiveMemory, prefix: str) -> None:
    cache: Any = cachetools.LFUCache(30)
    lock = threading.Lock()

    @cachetools.cached(cache, key=lambda n: f"n{n}", lock=lock)
    def square(number: int) -> dict[str, int]:
        return {"square": number * number}

    with deelog.capture(cache, config(live, prefix), lock=lock, value_serializer="json"):
        threads = [
            threading.Thread(target=lambda start=start: [square(n % 70) for n in range(start, start + 500)])
            for start in range(0, 200, 50)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert square.cache is cache
    expected = {key: f'{{"square":{int(key[1:]) ** 2}}}' for key in cache}
    assert told(live, prefix).entries == expected


@pytest.mark.parametrize("on_failure", ["continue", "raise"])
def test_a_failure_while_the_entries_are_read_is_raised(
    live: LiveMemory, prefix: str, on_failure: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with deelog.capture(cachetools.LRUCache(10), config(live, prefix)):
        pass  # so the topics are there
    cache: Any = cachetools.LRUCache(10)
    cache["k"] = "v"

    def serializer(value: str) -> str:
        live.produce(f"{prefix}.sessions.positions", b"foreign", b"record")
        waiting(lambda: "no longer reach Kafka" in caplog.text, SECONDS, "the failure")
        return value

    with pytest.raises(RecordError):
        deelog.capture(cache, config(live, prefix), value_serializer=serializer, on_failure=on_failure)
    assert type(cache) is cachetools.LRUCache


@pytest.mark.parametrize("on_failure", ["continue", "raise"])
def test_the_older_of_two_with_one_node_id_fails_and_says_so(live: LiveMemory, prefix: str, on_failure: Any) -> None:
    old: Any = cachetools.LRUCache(10)
    new: Any = cachetools.LRUCache(10)
    with deelog.capture(old, config(live, prefix, **BEATING), on_failure=on_failure) as first:
        old["k"] = "old"
        ready(first)
        with deelog.capture(new, config(live, prefix)) as second:
            new["k"] = "new"
            waiting(lambda: first.failure, SECONDS, "the end of the older one")
            assert isinstance(first.failure, NodeSuperseded)
            if on_failure == "raise":
                with pytest.raises(deelog.CaptureFailed, match="no longer reach Kafka"):
                    old["more"] = "1"
                assert dict(old) == {"k": "old"}
            else:
                old["more"] = "1"
                assert type(old) is cachetools.LRUCache
            assert second.failure is None
    assert type(old) is cachetools.LRUCache
    assert told(live, prefix).entries == {"k": "new"}


def test_a_transform_that_fails_ends_the_capture_and_the_next_start_repairs(
    live: LiveMemory, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bomb, "armed", True)
    fields = config(live, prefix) | {"transforms": "b", "transforms.b.type": f"{Bomb.__module__}.Bomb"}
    cache: Any = cachetools.LRUCache(10)
    with deelog.capture(cache, fields) as capture:
        cache["good"] = "1"
        ready(capture)
        cache["bad"] = BOMB
        waiting(lambda: capture.failure, SECONDS, "the failure")
        assert isinstance(capture.failure, TransformFailed)
        assert "transform b" in str(capture.failure)
        cache["later"] = "1"  # the cache works on without capture
    assert told(live, prefix).entries == {"good": "1"}
    with deelog.capture(cache, fields) as capture:
        waiting(lambda: capture.failure, SECONDS, "the failure")  # a row of the first reset fails, too
    monkeypatch.setattr(Bomb, "armed", False)
    with deelog.capture(cache, fields):
        pass
    assert told(live, prefix).entries == dict(cache) == {"good": "1", "bad": BOMB, "later": "1"}


def ended(script: str, fields: dict[str, Any], folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """A program that captures a cache with these fields, at its end."""
    file = folder / "sessions.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in fields.items()))
    command = [sys.executable, "-c", script, str(file), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_what_is_refused_after_a_failure_changes_nothing(live: LiveMemory, prefix: str) -> None:
    cache: Any = cachetools.TTLCache(10, ttl=1000)
    fields = config(live, prefix, **BEATING)
    with deelog.capture(cache, fields, expiry_interval=None, on_failure="raise") as capture:
        cache.update(a="1", b="2")
        ready(capture)
        with deelog.capture(cachetools.LRUCache(10), config(live, prefix)):
            waiting(lambda: capture.failure, SECONDS, "the end of the older one")
        writes: list[Callable[[], Any]] = [
            lambda: cache.update(a="2"),
            lambda: cache.pop("a"),
            lambda: cache.__delitem__("a"),
            cache.popitem,
            cache.clear,
        ]
        for write in writes:
            with pytest.raises(deelog.CaptureFailed, match="no longer reach Kafka"):
                write()
        assert dict(cache) == {"a": "1", "b": "2"}
        assert cache.expire() == []


def forked(child: Callable[[], Any]) -> None:
    """Runs `child` in a forked process, which must end well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the test forks a process with threads
        process = os.fork()
    if process == 0:
        try:
            child()
            os._exit(0)
        finally:
            os._exit(1)
    try:
        ended = waiting(lambda: [one for one in [os.waitpid(process, os.WNOHANG)] if one[0]], 20, "the child's end")
    except TimeoutError:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        raise
    assert ended == [(process, 0)]


def test_a_close_in_a_forked_child_returns_at_once_and_the_parent_goes_on(live: LiveMemory, prefix: str) -> None:
    cache: Any = cachetools.LRUCache(10)
    with deelog.capture(cache, config(live, prefix)) as capture:
        ready(capture)
        forked(capture.close)
        cache["k"] = "v"
    assert told(live, prefix).entries == {"k": "v"}


def test_what_cannot_be_captured_is_skipped_from_the_start_on(live: LiveMemory, prefix: str) -> None:
    cache: Any = cachetools.LRUCache(10)
    cache.update(a="1", b=["no text"])
    with deelog.capture(cache, config(live, prefix), on_uncapturable="skip") as capture:
        cache["c"] = cache["a"] = 3
        cache["d"] = "4"
        assert capture.skipped == 3
    assert told(live, prefix).entries == {"d": "4"}
    with pytest.raises(deelog.NotCapturable):
        deelog.capture(cache, config(live, prefix))


def test_what_a_capture_says_of_itself(live: LiveMemory, prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "deelog.cachetools")
    cache: Any = cachetools.LRUCache(10)
    with deelog.capture(cache, config(live, prefix)) as capture:
        assert [record.getMessage() for record in caplog.records if record.name == "deelog.cachetools"] == [
            f"capturing sessions -> {prefix}.sessions (16 segments)"
        ]
        ready(capture)
        assert repr(capture) == f"<Capture of sessions, to {prefix}.sessions: 0 changes wait>"
    assert repr(capture) == f"<Capture of sessions, to {prefix}.sessions: closed>"
    capture._failed(RuntimeError("why"))
    assert repr(capture) == f"<Capture of sessions, to {prefix}.sessions: failed: why>"


@pytest.mark.parametrize("on_failure", ["continue", "raise"])
def test_a_forked_child_says_that_nothing_is_captured(
    live: LiveMemory, prefix: str, caplog: pytest.LogCaptureFixture, on_failure: Any
) -> None:
    cache: Any = cachetools.LRUCache(10)

    def child() -> None:
        assert "call capture() in each child" in str(capture.failure)
        errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert errors == [str(capture.failure)]
        if on_failure == "raise":
            for write in (lambda: cache.update(b="2"), lambda: cache.pop("a"), cache.popitem, cache.clear):
                with pytest.raises(deelog.CaptureFailed, match="no longer reach Kafka"):
                    write()
        else:
            cache["b"] = "2"
            assert type(cache) is cachetools.LRUCache
        anew = deelog.Capture(cache, parse(config(live, prefix)), capture._mirror, on_failure, None)
        assert anew._plain is cachetools.LRUCache
        capture.close()
        assert type(cache) is cachetools.LRUCache

    with deelog.capture(cache, config(live, prefix), on_failure=on_failure) as capture:
        cache["a"] = "1"
        ready(capture)
        forked(child)
        assert capture.failure is None
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert told(live, prefix).entries == {"a": "1"}


def test_a_signal_handler_that_closes_during_a_close_ends_the_program(
    kafka: Broker, prefix: str, tmp_path: Path
) -> None:
    done = ended(SIGNALS, config(kafka, prefix), tmp_path, [])
    assert done.returncode == 7, done.stderr
    topic = told(kafka, prefix)
    assert topic.entries == {"k": "v"}
    assert topic.last_kinds == dict.fromkeys(range(SEGMENTS), Kind.RELEASE)


SIGNALS = """
import os, signal, sys, cachetools
import deelog_interceptors.cachetools as deelog
cache = cachetools.LRUCache(10)
capture = deelog.capture(cache, sys.argv[1])
cache["k"] = "v"
def stop(*_):
    capture.close()
    raise SystemExit(7)
signal.signal(signal.SIGTERM, stop)
stop_runner = capture._runner.stop
def interrupted(seconds):
    capture._runner.stop = stop_runner
    os.kill(os.getpid(), signal.SIGTERM)
    stop_runner(seconds)
capture._runner.stop = interrupted
capture.close()
"""


SCRIPT = """
import os, sys, cachetools
import deelog_interceptors.cachetools as deelog
cache = cachetools.LRUCache(10)
capture = deelog.capture(cache, sys.argv[1])
cache["k"] = "v"
child = os.fork()
if child == 0:
    cache["child"] = "v"
    os._exit(0 if type(cache) is cachetools.LRUCache else 9)
assert os.waitpid(child, 0)[1] == 0, "the child's cache is still captured"
if len(sys.argv) > 2:
    raise RuntimeError("an end that nobody caught")
"""


@pytest.mark.parametrize("arguments", [[], ["raise"]])
def test_a_program_that_ends_without_close_has_written_and_released(
    kafka: Broker, prefix: str, tmp_path: Path, arguments: list[str]
) -> None:
    done = ended(SCRIPT, config(kafka, prefix), tmp_path, arguments)
    assert done.returncode == (1 if arguments else 0), done.stderr
    topic = told(kafka, prefix)
    assert topic.entries == {"k": "v"}
    assert topic.last_kinds == dict.fromkeys(range(SEGMENTS), Kind.RELEASE)


KILLED = """
import os, sys, time, cachetools
import deelog_interceptors.cachetools as deelog
cache = cachetools.LRUCache(50)
capture = deelog.capture(cache, sys.argv[1])
cache["early"] = "1"
capture.wait_until_streaming()
for number in range(80):
    cache[f"k{number}"] = "1"
while capture.pending or capture.stats.unwritten:
    time.sleep(0.01)
os.kill(os.getpid(), 9)
"""


def test_a_stock_consumer_holds_what_the_cache_holds_after_kills_restarts_and_clears(
    kafka: Broker, prefix: str, tmp_path: Path
) -> None:
    settings = config(kafka, prefix)

    def held() -> dict[str, str]:
        consumer = StockConsumer()
        for message in messages(kafka.bootstrap, f"{prefix}.sessions"):
            consumer.apply(message.key(), message.value())
        return {key: entry["value"] for key, entry in consumer.entries.items()}

    assert ended(KILLED, settings, tmp_path, []).returncode == -signal.SIGKILL
    assert held() == {f"k{number}": "1" for number in range(30, 80)}
    cache: Any = cachetools.LRUCache(50)
    cache.update(k40="2", k99="2")
    with deelog.capture(cache, settings) as capture:
        capture.wait_until_streaming()
        cache["k98"] = "2"
    assert held() == dict(cache)
    with deelog.capture(cache, settings) as capture:
        capture.wait_until_streaming()
        cache.clear()
        cache["k97"] = "3"
    assert held() == dict(cache) == {"k97": "3"}


THREADS = """
import sys, threading, cachetools
from concurrent.futures import ThreadPoolExecutor
import deelog_interceptors.cachetools as deelog
cache = cachetools.LRUCache(10)
capture = deelog.capture(cache, sys.argv[1])
executor = ThreadPoolExecutor()  # its threads end when the interpreter ends them
executor.submit(cache.__setitem__, "first", "v").result()
if len(sys.argv) > 2:
    threading.Thread(target=threading.main_thread().join, name="writer").start()
"""


@pytest.mark.parametrize("arguments", [[], ["goes on"]])
def test_a_thread_that_outlives_the_main_one_is_told_of(
    kafka: Broker, prefix: str, tmp_path: Path, arguments: list[str]
) -> None:
    done = ended(THREADS, config(kafka, prefix), tmp_path, arguments)
    warned = "cache sessions: its capture ends with the main thread, and the thread writer goes on" in done.stderr
    assert (done.returncode, warned) == (0, bool(arguments)), done.stderr
    assert told(kafka, prefix).entries == {"first": "v"}


@pytest.mark.parametrize("on_failure", ["continue", "raise"])
def test_a_start_that_fails_is_raised_and_leaves_the_cache_as_it_was(
    live: LiveMemory, prefix: str, on_failure: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cache: Any = cachetools.LRUCache(10)
    fields = config(live, prefix) | {"transforms": "t", "transforms.t.type": "nowhere.Such"}
    with pytest.raises(ConfigError, match=r"transforms\.t\.type = 'nowhere\.Such': cannot be imported"):
        deelog.capture(cache, fields, on_failure=on_failure)
    cache["k"] = "v"
    assert (type(cache), dict(cache), caplog.messages) == (cachetools.LRUCache, {"k": "v"}, [])


def test_what_capture_refuses(live: LiveMemory, prefix: str) -> None:
    fields = config(live, prefix)
    timed: Any = cachetools.TTLCache(10, 10)
    with pytest.raises(ValueError, match="on_uncapturable must be raise or skip, not 'ignore'"):
        deelog.capture(cachetools.LRUCache(3), {}, on_uncapturable="ignore")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"TTLCache expires .*lock=.*expiry_interval=None"):
        deelog.capture(timed, fields)
    no_cache: Any = {}
    with pytest.raises(TypeError, match="not dict"):
        deelog.capture(no_cache, fields)
    cache: Any = cachetools.LRUCache(10)
    never: Any = "never"
    with pytest.raises(ValueError, match="on_failure"):
        deelog.capture(cache, fields, on_failure=never)
    for interval in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="expiry_interval must be above 0"):
            deelog.capture(cache, fields, expiry_interval=interval)
    with pytest.raises(ValueError, match="serializer 'never' is unknown"):
        deelog.capture(cache, fields, value_serializer=never)
    cache["k"] = 1
    with pytest.raises(deelog.NotCapturable, match="value_serializer"):
        deelog.capture(cache, fields)
    assert type(cache) is cachetools.LRUCache
    with deelog.capture(cache, fields, value_serializer="json"):
        with pytest.raises(deelog.CaptureFailed, match="captured already"):
            deelog.capture(cache, config(live, prefix + "b"), value_serializer="json")
        cache["k"] = 2
    assert told(live, prefix).entries == {"k": "2"}
    with deelog.capture(timed, config(live, prefix + "c"), expiry_interval=None):
        timed["k"] = "v"
    assert our_threads() == []


@pytest.mark.slow
def test_a_kafka_that_is_not_there(prefix: str) -> None:
    cache: Any = cachetools.LRUCache(10)
    fields = {
        "bootstrap.servers": "127.0.0.1:1",
        "topic.prefix": prefix,
        "cache.name": "sessions",
        "node.id": "n1",
    }
    before = time.monotonic()
    capture = deelog.capture(cache, fields)
    assert time.monotonic() - before < 1.0
    with pytest.raises(TimeoutError, match=r"cache sessions does not stream after 0\.5 s: Kafka has not answered yet"):
        capture.wait_until_streaming(0.5)
    cache["k"] = "v"
    waiting(lambda: capture.pending == 0, SECONDS, "the mirror")
    with pytest.raises(deelog.NotCapturable):
        cache["k"] = object()
    before = time.monotonic()
    with pytest.raises(deelog.CaptureFailed, match="Kafka has nothing of it, the next start sends it whole"):
        capture.close(timeout=3)
    assert 2.9 < time.monotonic() - before < 6
    with pytest.raises(deelog.CaptureFailed, match="Kafka has nothing of it"):
        capture.wait_until_streaming()
    assert type(cache) is cachetools.LRUCache
    waiting(lambda: not our_threads(), SECONDS, "the end of a request")


def test_an_ended_capture_does_not_end_the_next_one_of_its_cache(live: LiveMemory, prefix: str) -> None:
    """The first one has written its snapshot, and the cache was plain again."""
    cache: Any = cachetools.LRUCache(10)
    first = deelog.capture(cache, config(live, prefix, snapshot_mode="initial_only"))
    waiting(lambda: type(cache) is cachetools.LRUCache, SECONDS, "the end of the first capture")
    with deelog.capture(cache, config(live, f"{prefix}2")) as second:
        ready(second)
        first.close()
        cache["k"] = "v"
        assert type(cache) is not cachetools.LRUCache
    assert told(live, f"{prefix}2").entries == {"k": "v"}
    assert type(cache) is cachetools.LRUCache


def test_endless_times_and_a_thread_that_closes_too(live: LiveMemory, prefix: str) -> None:
    cache: Any = cachetools.LRUCache(10)
    capture = deelog.capture(cache, config(live, prefix))
    for endless in (None, 1e10, float("inf")):
        capture.wait_until_streaming(endless)
    live.kafka.up = False
    cache["k"] = "v"
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(capture.close, 4.0)
        waiting(lambda: capture._in_close, SECONDS, "the close")
        with pytest.raises(deelog.CaptureFailed, match="another thread is closing its capture"):
            capture.close(0.2)
        with pytest.raises(deelog.CaptureFailed, match="could not be written"):
            closing.result()
    live.kafka.up = True
    with deelog.capture(cache, config(live, prefix)) as again:
        again.wait_until_streaming()
        forked(lambda: expect_failed(again.wait_until_streaming))
        again.close(float("inf"))
    assert told(live, prefix).entries == {"k": "v"}


def expect_failed(call: Callable[[], object]) -> None:
    with pytest.raises(deelog.CaptureFailed):
        call()


def test_a_close_within_a_close_returns_at_once(live: LiveMemory, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a handler of a second Ctrl-C does it, in the thread that is closing."""
    capture = deelog.capture(cachetools.LRUCache(10), config(live, prefix))
    stop, ends = capture._runner.stop, []

    def interrupted(timeout: float) -> None:
        capture.close()
        ends.append(timeout)
        stop(timeout)

    monkeypatch.setattr(capture._runner, "stop", interrupted)
    capture.close()
    assert len(ends) == 1
