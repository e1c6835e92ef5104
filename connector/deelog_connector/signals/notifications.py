"""Notifications in Debezium's format, on `notification.sink.topic.name` and in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from deelog_connector.kafka_port import KafkaPort
from deelog_schemas.config import Config
from deelog_schemas.notifications import Notification

log = logging.getLogger(__name__)


class Notifications:
    """Sends the notifications of one cache, by `send(topic, key, value)`."""

    def __init__(self, config: Config, cache: str, send: Callable[[str, bytes, bytes], None], port: KafkaPort) -> None:
        self._topic: str | None
        self._schemas: tuple[bool, bool]
        self._always = {"connector_name": config["topic.prefix"], "data_collections": cache}
        self._send, self._port = send, port
        self.configured(config)

    def configured(self, config: Config) -> None:
        """Another topic or format from now on."""
        self._topic = config["notification.sink.topic.name"]
        self._schemas = config["key.converter.schemas.enable"], config["value.converter.schemas.enable"]

    @property
    def enabled(self) -> bool:
        """Whether there are any."""
        return self._topic is not None

    def notify(self, aggregate: str, kind: str, identity: str | None = None, **more: object) -> None:
        """Sends one notification. `more` becomes text in `additional_data`, without None."""
        if self._topic is None:
            return
        data = {**self._always, **{name: str(value) for name, value in more.items() if value is not None}}
        now_ms = self._port.clock.time_ns() // 1_000_000
        one = Notification(identity or self._port.new_id(), kind, aggregate, data, now_ms)
        log.info("[Notification Service] %s", one.value(False).decode())
        self._send(self._topic, one.key(self._schemas[0]), one.value(self._schemas[1]))


def ranges(segments: Iterable[int]) -> str:
    """Segments as ranges: `0-3,7`."""
    bounds: list[list[int]] = []
    for number in sorted(segments):
        if bounds and bounds[-1][1] == number - 1:
            bounds[-1][1] = number
        else:
            bounds.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in bounds)
