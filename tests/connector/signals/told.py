"""Notifications that are kept instead of being sent."""

from __future__ import annotations

from typing import Any

from deelog_connector.kafka.librdkafka import Librdkafka
from deelog_connector.signals.notifications import Notifications
from tests.connector.cache import config_of
from tests.connector.world import SEGMENTS

ALL = list(range(SEGMENTS))


class RecordedNotifications(Notifications):
    """Keeps the notifications instead of sending them."""

    def __init__(self) -> None:
        config = config_of("127.0.0.1:1", "p", notification_sink_topic_name="notes")
        super().__init__(config, "c", lambda *record: None, Librdkafka())
        self.sent: list[tuple[str, str, str | None, dict[str, Any]]] = []

    def notify(self, aggregate: str, kind: str, identity: str | None = None, **more: object) -> None:
        super().notify(aggregate, kind, identity, **more)
        self.sent.append((aggregate, kind, identity, more))

    def kinds(self, identity: str) -> list[str]:
        """The kinds of the notifications, without those that come several times a second."""
        return [kind for _, kind, one, _ in self.sent if one == identity and kind != "IN_PROGRESS"]
