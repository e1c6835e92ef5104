"""Which settings of the topics are told, and when."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from deelog_connector import topic_audit as module
from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable
from deelog_connector.kafka_port import COMPACTED
from deelog_connector.topic_audit import TopicAudit, of_changes, of_kept
from deelog_schemas.config import ConfigError
from tests.connector.cache import config_of, run

SAFE = {
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "cleanup.policy": "delete",
    "max.message.bytes": "100000",
}
KEPT = {**SAFE, **COMPACTED}
LAG = {"min.compaction.lag.ms": "1000", "delete.retention.ms": "1000"}
REPLICAS = "an acknowledged record may be on one broker only"
UNCLEAN = "a broker may throw committed records away"
LATE = "what is not compacted yet is read at every start"


def changes(settings: Mapping[str, str]) -> list[str]:
    return of_changes(settings, config_of("h:1", "p", reader_max_lag_ms=1000, max_entry_bytes=100_000))


def test_safe_topics_have_no_finding() -> None:
    assert changes(SAFE) == []
    assert changes({**SAFE, "cleanup.policy": "compact,delete", **LAG}) == []
    assert of_kept("t", KEPT) == []


@pytest.mark.parametrize(
    ("name", "value", "finding"),
    [
        ("min.insync.replicas", "1", f"min.insync.replicas is 1: {REPLICAS}"),
        ("unclean.leader.election.enable", "true", f"unclean.leader.election.enable is true: {UNCLEAN}"),
        (
            "min.compaction.lag.ms",
            "999",
            "min.compaction.lag.ms is below reader.max.lag.ms=1000: a slow reader may miss deletes",
        ),
        (
            "delete.retention.ms",
            "999",
            "delete.retention.ms is below reader.max.lag.ms=1000: a slow reader may miss deletes",
        ),
        (
            "max.message.bytes",
            "99999",
            "max.message.bytes=99999 is below max.entry.bytes=100000: a large entry would stop its segment",
        ),
    ],
)
def test_each_finding_about_changes(name: str, value: str, finding: str) -> None:
    assert changes({**SAFE, "cleanup.policy": "compact", **LAG, name: value}) == [f"topic p.c: {finding}"]


@pytest.mark.parametrize(
    ("name", "value", "finding"),
    [
        ("min.insync.replicas", "1", f"min.insync.replicas is 1: {REPLICAS}"),
        ("unclean.leader.election.enable", "true", f"unclean.leader.election.enable is true: {UNCLEAN}"),
        ("segment.bytes", "16777217", f"segment.bytes is above 16777216: {LATE}"),
        ("segment.ms", "600001", f"segment.ms is above 600000: {LATE}"),
        (
            "cleanup.policy",
            "compact,delete",
            "cleanup.policy is compact,delete: what was written long ago will be forgotten; set it to compact",
        ),
    ],
)
def test_each_finding_about_a_topic_that_is_read_from_its_beginning(name: str, value: str, finding: str) -> None:
    assert of_kept("t", {**KEPT, name: value}) == [f"topic t: {finding}"]


def audit_of(looks: list[Any], **fields: str) -> TopicAudit:
    """Each look gives the next of them, or raises it."""

    async def look() -> list[str]:
        found = looks.pop(0)
        if isinstance(found, Exception):
            raise found
        return list(found)

    return TopicAudit(look, config_of("h:1", "p", **fields))


def test_at_the_start_it_warns_or_refuses(caplog: pytest.LogCaptureFixture) -> None:
    audit_of([]).begin(["a", "b"])
    assert caplog.messages == ["a", "b"]
    audit_of([], topic_audit="strict").begin([])
    with pytest.raises(KafkaUnusable, match=r"^unsafe, and topic\.audit=strict: a; b$"):
        audit_of([], topic_audit="strict").begin(["a", "b"])


@pytest.mark.parametrize("mode", ["warn", "strict"])
def test_while_a_node_runs_what_changes_is_logged_once(
    mode: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AUDIT_SECONDS", 0.0)
    away, denied, secret = KafkaUnavailable("no answer"), KafkaUnauthorized("denied"), ConfigError([])
    looks: list[Any] = [[], ["a"], ["a"], away, secret, ["a", "b"], ["b"], denied, denied, ["b"], [], ["a"]]
    audit = audit_of(looks, topic_audit=mode)

    async def work() -> None:
        audit.begin([])
        with caplog.at_level(logging.INFO), pytest.raises(IndexError):
            await audit.run()

    run(work(), 20)
    assert caplog.messages == [
        *("a", "b", "no longer so: a"),
        *("denied", "no longer so: denied"),
        *("no longer so: b", "a"),
    ]


def test_it_looks_until_it_is_cancelled() -> None:
    audit = audit_of([])

    async def work() -> None:
        running = asyncio.ensure_future(audit.run())
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()

    run(work(), 20)
