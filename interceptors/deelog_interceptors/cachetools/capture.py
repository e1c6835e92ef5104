"""`capture()`: attaches a cache to its topic; `Capture`: its state, its counters and `close()`.

Weighed in docs/decisions.md, "`capture()` returns a handle".
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

import cachetools

from deelog_connector.runtime import Stats
from deelog_interceptors.cachetools.change_queue import ChangeQueue
from deelog_interceptors.cachetools.checking import Checker
from deelog_interceptors.cachetools.errors import CaptureFailed
from deelog_interceptors.cachetools.expiry import Timer, expiry_of, unix_ms_of
from deelog_interceptors.cachetools.intercept import captured_class, keys_for, subclass, timed
from deelog_interceptors.cachetools.mirror import Mirror
from deelog_interceptors.cachetools.runner import Runner
from deelog_interceptors.cachetools.serialize import Raw, Serializer, Values, keys_of, named
from deelog_interceptors.cachetools.subclasses import passes_by
from deelog_interceptors.cachetools.telling import AnyCache, CaptureContext, Skipped, keys_held
from deelog_interceptors.hosting.connector_thread import (
    JOIN_SECONDS,
    ConnectorThread,
    close_all,
    forget_all,
    threads_of_the_program,
)
from deelog_schemas.config import Config, ConfigError, FieldError, Role, config_of, parse
from deelog_schemas.entry_limit import EntryLimit
from deelog_schemas.errors import DeelogError
from deelog_schemas.operation import Trace

_LOG: Final = logging.getLogger("deelog.cachetools")
_live: weakref.WeakSet[Capture] = weakref.WeakSet()
_attaching = threading.Lock()
_EXIT_SECONDS: Final = 30.0
_FORKED: Final = (
    "%s %s: captured in the process that was forked; what this child writes is not captured: call capture() in each "
    "child, with a node.id and a cache.name of its own"
)


def capture(
    cache: AnyCache,
    config: str | Path | Mapping[str, Any] | Config,
    *,
    lock: AbstractContextManager[Any] | None = None,
    key_serializer: Literal["json"] | Serializer | None = None,
    value_serializer: Literal["json"] | Serializer | None = None,
    expiry_interval: float | None = 0.1,
    unix_time: Callable[[Any], float] | None = None,
    on_failure: Literal["continue", "raise"] = "continue",
    on_uncapturable: Literal["raise", "skip"] = "raise",
    host: ConnectorThread | None = None,
) -> Capture:
    """Captures every change of `cache` from now on; its present entries are sent first. For several caches see
    `Captures`, which gives them one `host`; otherwise the capture has a host of its own.

    `cache` is any cache of cachetools or a subclass; it stays the object it is. `config` is a file, a map, or a
    `Config`; `bootstrap.servers`, `topic.prefix`, `cache.name` and `node.id` are required.

    `lock` is the lock under which all threads use the cache, the one given to `@cached(cache, lock=...)`. It must be
    given for caches with expiry, since a timer calls `cache.expire()` under it every `expiry_interval` seconds; with
    `expiry_interval=None` there is no timer, and expiry is noticed at the next write or at your own `expire()`.

    Keys and values are text or bytes by `cache.key.format` and `cache.value.format`; for anything else name a
    serializer, `"json"` or a function that returns str or bytes. `unix_time` turns a moment of the cache's timer into
    Unix seconds. It is needed only where the timer is not a function of `time` and returns no `datetime`.

    `on_failure` says what happens once the connector cannot go on (`Capture.failure`): `continue` leaves the cache
    working without capture, `raise` lets every later write and removal raise `CaptureFailed` before the cache changes.

    `on_uncapturable` says what becomes of an entry that cannot be captured: `raise` lets its write raise
    `NotCapturable` or `EntryTooLarge` before the cache changes; with `skip` it is written to the cache and to no topic,
    where the key is gone then (`Capture.skipped` counts them).

    Does not wait for Kafka: `Capture.wait_until_streaming()` does. While Kafka is away at the start it is tried again
    and again; what the cache holds when it answers is sent then. Raises what is wrong in this process: `ConfigError`,
    `NotCapturable` for an entry that the cache holds already, `CaptureFailed` if it is captured already. Call `close()`
    at the end; a regular exit of the interpreter calls it.
    """
    if not isinstance(cache, cachetools.Cache):
        raise TypeError(f"capture() takes a cache of cachetools, not {type(cache).__name__}")
    if unseen := passes_by(type(cache)):
        raise TypeError(
            f"{unseen}, which deelog would not see: write self[key] = value, del self[key] or self.clear() there"
        )
    if lock is None and expiry_interval is not None and timed(type(cache)):
        raise TypeError(
            f"{type(cache).__name__} expires entries by time, and deelog calls expire() in a thread: pass lock=, the "
            "lock under which every use of this cache happens, or expiry_interval=None and call cache.expire() yourself"
        )
    if expiry_interval is not None and not expiry_interval > 0:
        raise ValueError(f"expiry_interval must be above 0 seconds, or None, not {expiry_interval!r}")
    if on_failure not in ("continue", "raise"):
        raise ValueError(f"on_failure must be continue or raise, not {on_failure!r}")
    if on_uncapturable not in ("raise", "skip"):
        raise ValueError(f"on_uncapturable must be raise or skip, not {on_uncapturable!r}")
    settings = _settings(config)
    values = Values(
        settings["cache.value.format"], named(value_serializer) if value_serializer is not None else None
    )  # fmt: skip
    keys = keys_for(type(cache), keys_of(settings["cache.key.format"], key_serializer))
    unix_ms = unix_ms_of(cache, unix_time)
    mirror = Mirror(
        settings["segment.count"], settings["before.image"] == "full", unix_ms, settings["skip.messages.without.change"]
    )
    traces = _traces() if settings["tracing.headers.enabled"] else None
    made = Capture(cache, settings, mirror, on_failure, host)
    context = CaptureContext(
        made._change_queue,
        keys,
        values,
        EntryLimit.of(settings),
        made.make_room,
        traces,
        made._skipped if on_uncapturable == "skip" else None,
    )
    made.start(context, nullcontext() if lock is None else lock)
    if lock is not None and expiry_interval is not None:
        made.start_timer(lock, expiry_interval)
    return made


def _settings(config: str | Path | Mapping[str, Any] | Config) -> Config:
    settings = config_of(config, Role.CACHE)
    return parse(settings.raw, Role.CACHE) if settings.role is Role.NODE else settings


def _traces() -> Callable[[], Trace | None]:
    try:
        from deelog_interceptors.cachetools.tracing import Traces
    except ModuleNotFoundError as error:
        problem = (
            f"needs OpenTelemetry's API, and {error.name} is not installed: pip install 'deelog[otel]', or set false"
        )
        raise ConfigError([FieldError("tracing.headers.enabled", problem, "true")]) from error
    return Traces()


class Capture:
    """A cache that is being captured. Made by `capture()`; also a context manager, by `with` and by `async with`."""

    def __init__(
        self, cache: AnyCache, config: Config, mirror: Mirror, on_failure: str, host: ConnectorThread | None
    ) -> None:
        self.cache = cache
        self._change_queue = ChangeQueue()
        self._skipped = Skipped()
        self._plain = _refusing_classes.get(type(cache), type(cache))
        self._mine: type[AnyCache] | None = None
        """The class that this capture has given to the cache."""
        self._mirror = mirror
        self._raise = on_failure == "raise"
        self._failure: BaseException | None = None
        self._name: str = config["cache.name"]
        self._segments: int = config["segment.count"]
        self.topic = config.topics.changes
        """Its change topic."""
        self._timer: Timer | None = None
        self._checker: Checker | None = None
        self._host, self._owns_host = host or ConnectorThread(config), host is None
        self._runner = Runner(config, mirror, self._change_queue, self._skipped, self._failed, self._detach, self._host)
        self._closing = threading.RLock()  # a handler of Ctrl-C may close what is being closed
        self._in_close = self._closed = False

    @property
    def failure(self) -> BaseException | None:
        """Why changes no longer reach Kafka, or None. It is also logged, once.

        Where Kafka refuses what some segments hold, those wait and are tried again: it is None once Kafka takes them.
        """
        if self._failure is None and (why := self._runner.refused.why):
            return CaptureFailed(f"cache {self._name}: {why}")
        return self._failure

    @property
    def stats(self) -> Stats:
        """The connector's counters."""
        return self._runner.stats

    @property
    def name(self) -> str:
        """`cache.name`."""
        return self._name

    @property
    def pending(self) -> int:
        """Changes without a position. Changes with one that are not in Kafka yet are in the op log and not counted."""
        return len(self._change_queue.queue)

    @property
    def skipped(self) -> int:
        """Entries that were not captured: of writes with `on_uncapturable="skip"`, and what is larger than the topic
        takes by now.
        """
        return self._skipped.number

    def __repr__(self) -> str:
        if self._failure is not None:
            state = f"failed: {self._failure}"
        else:
            state = "closed" if self._closed else f"{self.pending} changes wait"
        return f"<Capture of {self._name}, to {self.topic}: {state}>"

    def wait_until_streaming(self, timeout: float | None = 60.0) -> None:
        """Waits until Kafka has what the cache held at first, so that what changes from now on comes as changes.

        Raises `TimeoutError` after `timeout` seconds, which ends nothing, and `CaptureFailed` where the capture has
        ended before. `None` waits for as long as it takes.
        """
        if self._failure is not None:  # a forked child has nobody who would tell
            raise _failed(self._name, self._failure)
        streaming, most = self._runner.streaming, threading.TIMEOUT_MAX
        concurrent.futures.wait([streaming], None if timeout is None else min(timeout, most))
        if not streaming.done():
            why = self._runner.why_not_streaming
            raise TimeoutError(f"cache {self._name} does not stream after {timeout:g} s: {why}")
        if (error := streaming.exception()) is not None:
            raise error if isinstance(error, CaptureFailed) else _failed(self._name, error)

    def start(self, context: CaptureContext, lock: AbstractContextManager[Any]) -> None:
        """For `capture()`: begins to start the connector, and captures the cache."""
        made: type[AnyCache] | None = None
        try:
            self._runner.start()
            expiry = expiry_of(self.cache)
            with lock, _attaching:
                if type(self.cache) in _captured_classes:
                    raise CaptureFailed("this cache is captured already: close() that capture first")
                self._load(context, expiry)
                made = captured_class(self._plain, context, expiry)
                _captured_classes.add(made)
                self.cache.__class__ = self._mine = made
            self._checker = Checker(self.cache, context, self._mirror, lock, expiry, self._runner.goes_on)
            self._runner.begin(context)
            _LOG.info("capturing %s -> %s (%d segments)", self._name, self.topic, self._segments)
        except BaseException:
            self._end(0)
            if made is not None:  # at last: until then a failure may set a class
                self._detach()
            raise
        _live.add(self)

    def _load(self, context: CaptureContext, expiry: Callable[[AnyCache, Any], Any] | None) -> None:
        for key in keys_held(self.cache):
            raw_key, raw_value = context.prepare(key, cachetools.Cache.__getitem__(self.cache, key))
            if raw_key is None or raw_value is None:
                continue
            context.keys.stored(key, raw_key)
            self._mirror.load(raw_key, raw_value, None if expiry is None else expiry(self.cache, key))

    def start_timer(self, lock: AbstractContextManager[Any], interval: float) -> None:
        """For `capture()`: starts the timer that calls `cache.expire()`, and `check()` once a minute."""
        expires = timed(self._plain)
        self._timer = Timer(self.cache, lock, interval if expires else None, self._failed, self._check_steps)

    def make_room(self, raw_key: Raw, size: int) -> None:
        """For the write path: see `CaptureContext.make_room`."""
        try:
            self._runner.make_room(raw_key, size)
        except CaptureFailed:
            if self._failure is None:
                raise
        if self._failure is not None and self._raise:
            raise _failed(self._name, self._failure)

    def _check_steps(self) -> Iterator[bool]:
        return iter(()) if self._checker is None or self._failure is not None else self._checker.steps()

    def check(self, timeout: float = 60.0) -> int:
        """Compares the cache with what was captured of it; returns how many entries differed, which are told now.

        Takes the cache's lock for a millisecond at a time: do not hold it. A cache without one must rest meanwhile.
        Where there is a lock it is done once a minute. Some writes pass the capture by: see docs/cachetools.md.
        Raises `CaptureFailed` where nothing is captured, and `TimeoutError`.
        """
        if self._failure is not None:
            raise _failed(self._name, self._failure)
        if self._checker is None or not self._runner.goes_on():
            raise CaptureFailed(f"cache {self._name}: its capture has ended")
        return self._checker.check(timeout)

    @property
    def diverged(self) -> int:
        """How many entries differed from what was captured, in all checks."""
        return self._mirror.diverged

    def close(self, timeout: float = 30.0) -> None:
        """Ends the capture: writes the captured changes and releases the segments. The cache works on, uncaptured.

        Do not hold the cache's lock. Raises `CaptureFailed` where a change could not be written within `timeout`
        seconds, and three more at most: a request to Kafka under way ends by itself, behind it. A second call does
        nothing, nor does one by a signal handler that interrupted this call; where the handler's exception ends this
        call, the next one goes on with it. In a forked child nothing is captured anyway.
        """
        if self._host.forked:
            self._detach()
            return
        timeout = min(timeout, threading.TIMEOUT_MAX / 2)
        if not self._closing.acquire(timeout=timeout):
            raise CaptureFailed(f"cache {self._name}: another thread is closing its capture")
        try:
            if self._in_close or self._closed:
                return
            self._in_close = True
            try:
                self.ask_to_close(timeout)
                self._end(timeout)
                self._detach()  # again: until now a failure may have set a class
                self._closed = True
            finally:
                self._in_close = False
            _live.discard(self)
        finally:
            self._closing.release()
        error = self._runner.stop_error
        if error is not None and self._failure is None:
            self._failure = error
            raise error if isinstance(error, CaptureFailed) else _failed(self._name, error)

    def ask_to_close(self, timeout: float) -> None:
        """Begins what `close()` waits for, so that several captures end within one timeout."""
        if self._timer is not None:
            self._timer.ask_to_stop()
        self._detach()
        self._runner.ask_to_stop(timeout)

    def _end(self, timeout: float) -> None:
        if self._timer is not None:
            self._timer.stop(self._runner.grace())
        self._runner.stop(timeout)
        if self._owns_host:
            self._host.close(JOIN_SECONDS)

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def aclose(self) -> None:
        """`close()`, while the event loop goes on."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> Capture:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _failed(self, error: BaseException) -> None:
        # Called by deelog's thread. A running write ends with the methods it began with; later writes are not captured.
        self._give(_refusing(self._plain, self._name, error) if self._raise else self._plain)
        self._failure = error  # set last: a writer that sees it writes to the refusing or the plain class
        traceback = None if isinstance(error, DeelogError) else error  # those say what to do
        _LOG.error("cache %s: changes no longer reach Kafka: %s", self._name, error, exc_info=traceback)

    def _forked(self) -> None:
        """In a forked child, which does not have the connector's thread."""
        error = CaptureFailed(_FORKED % ("cache", self._name))
        self._give(_refusing(self._plain, self._name, error) if self._raise else self._plain)
        self._failure = error

    def _detach(self) -> None:
        self._give(self._plain)

    def _give(self, other: type[AnyCache]) -> None:
        """Gives the cache another class, unless another capture has given it one since."""
        if type(self.cache) is self._mine:
            self.cache.__class__ = self._mine = other


_captured_classes: Final[weakref.WeakSet[type[AnyCache]]] = weakref.WeakSet()
_refusing_classes: Final[weakref.WeakKeyDictionary[type[AnyCache], type[AnyCache]]] = weakref.WeakKeyDictionary()
"""Those of failed captures, each with the class of a cache that is not captured."""


def _failed(name: str, error: BaseException) -> CaptureFailed:
    made = CaptureFailed(f"cache {name}: changes no longer reach Kafka: {error}")
    made.__cause__ = error
    return made


def _refusing(base: type[AnyCache], name: str, error: BaseException) -> type[AnyCache]:
    def refuse(self: AnyCache, *given: Any) -> Any:
        raise _failed(name, error)

    made = subclass(base, dict.fromkeys(("__setitem__", "__delitem__", "popitem", "clear"), refuse))
    _refusing_classes[made] = base
    return made


def _close_all() -> None:
    # To wait for them could take for ever: until this returns, the main thread lives for those that wait for its end.
    others = threads_of_the_program()
    captures = list(_live)
    for one in captures:
        if others:
            _LOG.warning(
                "cache %s: its capture ends with the main thread, and the thread %s goes on: what it writes is sent "
                "at the next start; join it in the main thread",
                one.name,
                others[0],
            )
        one.ask_to_close(_EXIT_SECONDS)
    for one in captures:
        try:
            one.close()
        except CaptureFailed as error:
            _LOG.error("at exit: %s", error)
    close_all()


def _forget_all() -> None:
    """In a forked child: it has no connector thread. The parent goes on capturing its own cache."""
    global _attaching
    _attaching = threading.Lock()  # a thread of the parent may have held it
    captures = sorted(_live, key=lambda one: one.name)
    for one in captures:
        one._forked()
    if captures:
        _LOG.error(_FORKED, "cache" if len(captures) == 1 else "caches", ", ".join(one.name for one in captures))
    _live.clear()
    forget_all()


# Runs before the interpreter joins its threads and shuts down the executors, which the connector needs for its last
# transaction; `atexit` runs after both.
getattr(threading, "_register_atexit", atexit.register)(_close_all)
os.register_at_fork(after_in_child=_forget_all)
