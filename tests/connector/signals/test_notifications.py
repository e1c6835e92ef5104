"""Notifications: whether there are any, what is in one, and how segments are named."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import cast

from deelog_connector.kafka_port import KafkaPort
from deelog_connector.signals.notifications import Notifications, ranges
from tests.connector.cache import config_of


class Sent:
    """Notifications of a cache, at a moment that does not pass."""

    def __init__(self, **fields: str) -> None:
        self.records: list[tuple[str, bytes, bytes]] = []
        port = SimpleNamespace(new_id=lambda: "made", clock=SimpleNamespace(time_ns=lambda: 1_234_567_890))
        send = lambda *record: self.records.append(record)  # noqa: E731
        self.of = Notifications(config_of("h:1", "p", **fields), "c", send, cast(KafkaPort, port))

    def bodies(self) -> list[dict[str, object]]:
        return [json.loads(value) for _, _, value in self.records]


def test_without_a_topic_nothing_is_told() -> None:
    sent = Sent()
    sent.of.notify("Initial Snapshot", "STARTED")
    assert (sent.of.enabled, sent.records) == (False, [])
    sent.of.configured(config_of("h:1", "p", notification_sink_topic_name="later"))
    sent.of.notify("Initial Snapshot", "STARTED")
    assert (sent.of.enabled, [topic for topic, _, _ in sent.records]) == (True, ["later"])


def test_what_is_told_is_text_and_what_is_none_is_left_out() -> None:
    sent = Sent(notification_sink_topic_name="notes")
    sent.of.notify("Initial Snapshot", "STARTED", "i", rows=3, reason=None)
    sent.of.notify("Initial Snapshot", "COMPLETED")
    told = {"connector_name": "p", "data_collections": "c"}
    assert sent.bodies() == [
        {
            "id": "i",
            "type": "STARTED",
            "aggregate_type": "Initial Snapshot",
            "additional_data": {**told, "rows": "3"},
            "timestamp": 1234,
        },
        {
            "id": "made",
            "type": "COMPLETED",
            "aggregate_type": "Initial Snapshot",
            "additional_data": told,
            "timestamp": 1234,
        },
    ]


def test_key_and_value_have_their_schema_where_it_is_wanted() -> None:
    sent = Sent(notification_sink_topic_name="notes", key_converter_schemas_enable="true")
    sent.of.notify("Initial Snapshot", "STARTED", "i")
    sent.of.configured(
        config_of("h:1", "p", notification_sink_topic_name="notes", value_converter_schemas_enable="true")
    )
    sent.of.notify("Initial Snapshot", "STARTED", "i")
    assert [("schema" in json.loads(key), "schema" in json.loads(value)) for _, key, value in sent.records] == [
        (True, False),
        (False, True),
    ]


def test_ranges() -> None:
    assert [ranges(found) for found in ([], [3], [0, 1, 2, 7, 9, 8])] == ["", "3", "0-2,7-9"]
