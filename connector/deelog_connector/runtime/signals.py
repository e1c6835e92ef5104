"""Signals from the topic `<topic.prefix>-signal`, in Debezium's format: key `topic.prefix`, `{id, type, data}`.

`reset-segment` is acted upon: data `{cache, segments, reason}`, answered by whoever owns the segment. Anything else,
and anything malformed, is logged and counted, never fatal: anybody may write there.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from deelog_connector.core import ConnectorCore
from deelog_connector.kafka.client import InRecord, KafkaUnusable, Tail
from deelog_schemas import canonical
from deelog_schemas.config import Config
from deelog_schemas.errors import RecordError

log = logging.getLogger(__name__)


class Signals:
    """Reads signals and hands them to the core. `counts` by outcome."""

    def __init__(self, config: Config, core: ConnectorCore) -> None:
        self._config, self._core = config, core
        self._key = str(config["topic.prefix"]).encode()
        self.counts: Counter[str] = Counter()

    async def follow(
        self, blocking: Callable[..., Awaitable[Any]], stopping: threading.Event, wake: Callable[[], None]
    ) -> None:
        """Follows the topic from its end on; signals from before this process are not acted upon."""
        tail = await blocking(Tail, self._config, self._config.topics.signal, 1, True)
        try:
            while not stopping.is_set():
                try:
                    records = await blocking(tail.read, 0.5)
                except KafkaUnusable as error:
                    log.warning("signals: %s", error)
                    await asyncio.sleep(1.0)
                    continue
                for record in records:
                    self.take(record)
                    wake()
        finally:
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, tail.close))

    def take(self, record: InRecord) -> None:
        """Acts on one record of the signal topic."""
        if record.key != self._key:
            self.counts["other"] += 1
            return
        try:
            signal = canonical.loads(record.value or b"", "the signal")
            kind, data = signal["type"], signal["data"]
            if kind != "reset-segment":
                self.counts["unknown"] += 1
                log.warning("signal %s of type %r is unknown and ignored", signal.get("id"), kind)
                return
            if data["cache"] != self._config.topics.cache:
                self.counts["other"] += 1
                return
            segments, reason = [int(s) for s in data["segments"]], str(data.get("reason", "signal"))
        except (RecordError, KeyError, TypeError, ValueError) as error:
            self.counts["malformed"] += 1
            log.warning("a signal is malformed and ignored: %r", error)
            return
        self.counts["reset-segment"] += 1
        mine = {s.number for s in self._core.primaries()}
        for segment in segments:
            if segment in mine:
                log.info("segment %d: reset asked for by signal %s: %s", segment, signal.get("id"), reason)
                self._core.request_reset(segment, "signal")
