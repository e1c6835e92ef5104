"""What Kafka refuses of a captured cache: the segments that it stops are tried again, without what is too large.

A record is refused where it is larger than the topic's `max.message.bytes`, which others may lower at any time, or by a
policy of the brokers. Its segment then stands. Nobody would mend that in a program that has no operator beside it: so
the segment is reset, again and again, and the reset leaves out the entries that the topic does not take.

Weighed in docs/decisions.md, "What Kafka refuses of a captured cache".
"""

from __future__ import annotations

import logging
import time
from typing import Final

from deelog_connector.runtime import Connector
from deelog_interceptors.cachetools.mirror import Mirror
from deelog_interceptors.cachetools.telling import CaptureContext, Skipped
from deelog_schemas.entry_limit import EntryLimit

_LOG: Final = logging.getLogger("deelog.cachetools")
_LOOK_SECONDS: Final = 1.0
_FIRST_WAIT_SECONDS: Final = 1.0
"""Before what was refused again is tried again; then twice as long, up to:"""
_LONGEST_WAIT_SECONDS: Final = 60.0


class Refused:
    """Of one cache. Used on the loop's thread, but for `why`. Call `look` at every turn of the loop."""

    def __init__(self, cache: str, limit: EntryLimit, mirror: Mirror, skipped: Skipped) -> None:
        self._cache, self._configured, self._limit = cache, limit, limit
        self._mirror, self._skipped = mirror, skipped
        self.context: CaptureContext | None = None
        """Whose writers are to know the limit, once there is one."""
        self._segments: dict[int, str] = {}
        self._next_look = self._next_try = 0.0
        self._wait = _FIRST_WAIT_SECONDS

    @property
    def why(self) -> str:
        """Which segments stand, and why; empty where none does."""
        if not (segments := self._segments):
            return ""
        number, why = next(iter(segments.items()))
        others = f", and {len(segments) - 1} others" if len(segments) > 1 else ""
        return f"segment {number} waits{others}: {why}; tried again within a minute"

    def look(self, connector: Connector) -> None:
        """Takes over what the topic allows, and tries again what was refused."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        if (most := connector.max_message_bytes) is not None:
            self._limit = self._configured.within(most)
        if self.context is not None:
            self.context.limit = self._limit
        stopped = connector.stats.stopped
        waiting = {s: why for s, why in self._segments.items() if connector.sink.phase(s) != "writing"} | stopped
        if self._segments and not waiting:
            _LOG.info("cache %s: Kafka takes all of its segments again", self._cache)
        self._segments = waiting
        if not waiting:
            self._wait = _FIRST_WAIT_SECONDS
        elif stopped and now >= self._next_try:
            self._next_try = now + self._wait
            self._wait = min(2 * self._wait, _LONGEST_WAIT_SECONDS)
            connector.repair(stopped)

    def leave_out(self, segment: int) -> None:
        """Before a reset reads the segment: what the topic does not take is not in it."""
        if self._limit == self._configured:
            return
        keys = self._mirror.leave_out(segment, self._limit)
        if keys:
            self._skipped.number += len(keys)
            _LOG.error(
                "cache %s: %d entries are larger than the topic takes, and are left out until they are written again "
                "or the topic's max.message.bytes is raised: %s",
                self._cache,
                len(keys),
                ascii(keys[0])[:80],
            )
