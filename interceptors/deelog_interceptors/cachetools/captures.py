"""Several caches of one connector: one configuration, one thread, one place to pause, monitor and end them.

Caches may be added and released at any time. Each has its own topics, op log and positions, so that none waits for
another; they share the loop.

Weighed in docs/decisions.md, "A connector for each cache".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypedDict, Unpack

from deelog_interceptors.cachetools.capture import Capture, capture
from deelog_interceptors.cachetools.errors import CaptureFailed
from deelog_interceptors.cachetools.serialize import Serializer
from deelog_interceptors.cachetools.telling import AnyCache
from deelog_interceptors.hosting.connector_thread import JOIN_SECONDS, ConnectorThread
from deelog_schemas.config import Config, ConfigError, FieldError, Role, config_of, parse


class Options(TypedDict, total=False):
    """The keyword arguments of `capture()`."""

    lock: AbstractContextManager[Any] | None
    key_serializer: Literal["json"] | Serializer | None
    value_serializer: Literal["json"] | Serializer | None
    expiry_interval: float | None
    unix_time: Any
    on_failure: Literal["continue", "raise"]
    on_uncapturable: Literal["raise", "skip"]


class Captures(Mapping[str, Capture]):
    """The captured caches of one connector, by name. Also a context manager. For one thread at a time.

    `config` is a file, a map or a `Config` without `cache.name`: every cache brings its own. Raises `ConfigError`.
    """

    def __init__(self, config: str | Path | Mapping[str, Any] | Config) -> None:
        settings = config_of(config, Role.CONNECTOR)
        self._config = settings if settings.role is Role.CONNECTOR else parse(settings.raw, Role.CONNECTOR)
        if self._config["cache.name"] is not None:
            problem = "must not be set for several caches: each is given its name with capture()"
            raise ConfigError([FieldError("cache.name", problem, repr(self._config["cache.name"]))])
        self._host = ConnectorThread(self._config)
        self._open: dict[str, Capture] = {}
        self._closed = self._in_close = False

    def capture(self, name: str, cache: AnyCache, **options: Unpack[Options]) -> Capture:
        """Captures `cache` under `name` from now on, with the options of `deelog.capture()`, of the module.

        Raises what `deelog.capture()` raises, and `CaptureFailed` for the name of another cache of this object.
        """
        if self._closed:
            raise CaptureFailed("this connector is closed")
        if self._host.forked:
            raise CaptureFailed(
                "this connector was made before this process was forked: make Captures in the child, with a node.id of "
                "its own"
            )
        config = self._config.of_cache(name)
        if name in self._open:
            raise CaptureFailed(
                f"a cache named {name} is captured already: release() it first, or give this one another name"
            )
        made = self._open[name] = capture(cache, config, host=self._host, **options)
        return made

    def release(self, name: str, timeout: float = 30.0) -> None:
        """Ends the capture of one cache, as `Capture.close()`; the others go on. `KeyError` for an unknown name."""
        self._open.pop(name).close(timeout)

    def close(self, timeout: float = 30.0) -> None:
        """Ends all captures, within `timeout` seconds for all. A second call does nothing; see `Capture.close()`.

        Raises the first `CaptureFailed` once all are ended.
        """
        self._closed = True
        if self._in_close or self._host.forked:
            return
        self._in_close = True
        failed: CaptureFailed | None = None
        try:
            for one in self._open.values():
                one.ask_to_close(timeout)
            for name in list(self._open):
                try:
                    self.release(name, timeout)
                except CaptureFailed as error:
                    failed = failed or error
            self._host.close(JOIN_SECONDS)
        finally:
            self._in_close = False
        if failed is not None:
            raise failed

    def __getitem__(self, name: str) -> Capture:
        return self._open[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def __enter__(self) -> Captures:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def aclose(self) -> None:
        """`close()`, while the event loop goes on."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> Captures:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
