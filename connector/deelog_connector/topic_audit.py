"""Says which settings of the topics may lose records: at the start, and while a node runs once they change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

from deelog_connector.errors import KafkaUnauthorized, KafkaUnusable
from deelog_connector.kafka_port import COMPACTED
from deelog_schemas.config import Config, ConfigError

log = logging.getLogger(__name__)

AUDIT_SECONDS: Final = 60.0
"""Interval at which a running node looks."""
_LARGEST_SEGMENT: Final = 16 << 20
"""A start that reads so much of each partition takes some seconds: earlier versions made the topics so."""


def of_changes(settings: Mapping[str, str], config: Config) -> list[str]:
    """What is unsafe in the settings of the change topic."""
    return [f"topic {config.topics.changes}: {finding}" for finding in _of_changes(settings, config)]


def of_kept(topic: str, settings: Mapping[str, str]) -> list[str]:
    """What is unsafe in the settings of a topic that whoever starts reads from its beginning."""
    return [f"topic {topic}: {finding}" for finding in _of_kept(settings)]


class TopicAudit:
    """Logs each finding of `look` once, and again where it comes back.

    Call `begin` with what was found at the start.
    """

    def __init__(self, look: Callable[[], Awaitable[list[str]]], config: Config) -> None:
        self._look, self._strict = look, config["topic.audit"] == "strict"
        self._told: list[str] = []

    def begin(self, findings: list[str]) -> None:
        """Raises `KafkaUnusable` where there are findings, with `topic.audit=strict`."""
        if findings and self._strict:
            raise KafkaUnusable("unsafe, and topic.audit=strict: " + "; ".join(findings))
        self._tell(findings)

    async def run(self) -> None:
        """Looks until it is cancelled. A running node holds entries: it goes on, whatever is found."""
        while True:
            await asyncio.sleep(AUDIT_SECONDS)
            try:
                self._tell(await self._look())
            except KafkaUnauthorized as error:
                if str(error) not in self._told:
                    self._tell([*self._told, str(error)])
            except (KafkaUnusable, ConfigError) as error:  # whoever watches the topic itself says that it is away
                log.debug("%s", error)

    def _tell(self, findings: list[str]) -> None:
        for finding in findings:
            if finding not in self._told:
                log.warning("%s", finding)
        for finding in self._told:
            if finding not in findings:
                log.info("no longer so: %s", finding)
        self._told = findings


def _of_any(settings: Mapping[str, str]) -> Iterator[str]:
    if int(settings["min.insync.replicas"]) < 2:
        yield "min.insync.replicas is 1: an acknowledged record may be on one broker only"
    if settings["unclean.leader.election.enable"] == "true":
        yield "unclean.leader.election.enable is true: a broker may throw committed records away"


def _of_changes(settings: Mapping[str, str], config: Config) -> Iterator[str]:
    yield from _of_any(settings)
    lag, largest, limit = config["reader.max.lag.ms"], config["max.entry.bytes"], settings["max.message.bytes"]
    if "compact" in settings["cleanup.policy"]:
        for name in ("min.compaction.lag.ms", "delete.retention.ms"):
            if int(settings[name]) < lag:
                yield f"{name} is below reader.max.lag.ms={lag}: a slow reader may miss deletes"
    if int(limit) < largest:
        yield f"max.message.bytes={limit} is below max.entry.bytes={largest}: a large entry would stop its segment"


def _of_kept(settings: Mapping[str, str]) -> Iterator[str]:
    policy = settings["cleanup.policy"]
    if policy != "compact":
        yield f"cleanup.policy is {policy}: what was written long ago will be forgotten; set it to compact"
    yield from _of_any(settings)
    for name, most in (("segment.bytes", _LARGEST_SEGMENT), ("segment.ms", int(COMPACTED["segment.ms"]))):
        if int(settings[name]) > most:
            yield f"{name} is above {most}: what is not compacted yet is read at every start"
