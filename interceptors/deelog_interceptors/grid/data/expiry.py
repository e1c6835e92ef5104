"""The timer that expires entries."""

from __future__ import annotations

import asyncio
from typing import Final

from deelog_interceptors.grid.data.store import Store

_LOOK_SECONDS: Final = 1.0


class ExpiryTimer:
    """One timer for all entries of a store. It runs at the earliest requested time, by the clock of the day, which may
    be put forward: so it looks once a second."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store, self._loop = store, loop
        self._timer: asyncio.TimerHandle | None = None
        self._at = float("inf")

    def run_at(self, at: float) -> None:
        """Expires what is due at `at`, Unix seconds, or before."""
        if at < self._at:
            self.cancel()
            self._at = at
            left = at - self._store.now_ms() / 1000
            self._timer = self._loop.call_later(min(max(0.0, left), _LOOK_SECONDS), self._expire)

    def cancel(self) -> None:
        """Nothing expires until `run_at` is called again."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._at = None, float("inf")

    def _expire(self) -> None:
        self._timer, self._at = None, float("inf")
        left = self._store.expire_due(self._store.now_ms())
        if left is not None:
            self.run_at(self._store.now_ms() / 1000 + left)
