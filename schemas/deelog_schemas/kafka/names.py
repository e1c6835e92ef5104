"""Every name that deelog uses on a Kafka cluster: topics, transactional ids, consumer groups.

All names are made here. At the start, those that Kafka would refuse later or that would collide are refused. Ids and
groups are named by the change topic: whoever writes one topic has the same ones, whatever its prefix and cache.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from deelog_schemas.errors import ConfigError, FieldError

MAX_TOPIC_LENGTH = 249
RESERVED_SUFFIXES = ("positions", "topology", "diff", "-signal")

_TOPIC = re.compile(r"[A-Za-z0-9._-]+")
_DELIMITER = re.compile(r"[._-]{1,8}")
_NODE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def abort_key(transactional_id: str) -> bytes:
    """The key of a record that is written only to be aborted, with what its id has left open on the partition."""
    return f"abort/{transactional_id}".encode()


@dataclass(frozen=True, slots=True)
class Topics:
    """The names of one cache. `diff_topic` and `signal_topic`, if given, replace the derived ones. An empty
    `signal_topic` is for a cache without signals.

    Raises `ConfigError` naming the field when a name is not valid for Kafka (1 to 249 of `A-Z a-z 0-9 . _ -`),
    when a topic of the cache would have the name of another cache's topic, or when two of the topics would be the
    same.
    """

    prefix: str
    cache: str
    delimiter: str = "."
    diff_topic: str | None = None
    signal_topic: str | None = None

    def __post_init__(self) -> None:
        errors = self._name_errors() or self._topic_errors()
        if errors:
            raise ConfigError(errors)

    @property
    def changes(self) -> str:
        """Changes and control records, per segment in order."""
        return f"{self.prefix}{self.delimiter}{self.cache}"

    @property
    def positions(self) -> str:
        """Claims, positions, resets and releases: they survive the compaction of the change topic."""
        return self._suffixed("positions")

    @property
    def topology(self) -> str:
        """The grid's views and members, one partition."""
        return self._suffixed("topology")

    @property
    def diff(self) -> str:
        """The Spark job's output."""
        return self.diff_topic or self._suffixed("diff")

    @property
    def signal(self) -> str:
        """Signals to the connectors of this prefix; the delimiter is Debezium's, always a hyphen. Empty without."""
        return f"{self.prefix}-signal" if self.signal_topic is None else self.signal_topic

    @property
    def heartbeat(self) -> str:
        """Heartbeats of the connectors of this prefix; prefix and delimiter are Debezium's."""
        return f"__debezium-heartbeat.{self.prefix}"

    @property
    def controller_group(self) -> str:
        """The consumer group that elects the grid's controller: the one member with the partition is it."""
        return f"{self.changes}.controller"

    @property
    def reader_group(self) -> str:
        """The group of the nodes' consumers. They do not join it and commit nothing, but it needs an ACL."""
        return f"{self.controller_group}.reader"

    @property
    def diff_group(self) -> str:
        """The consumer group of the Spark job."""
        return f"{self.changes}.diff"

    @property
    def transactional_id_controller(self) -> str:
        """The id of the producer by which the grid's controller commits its views."""
        return f"{self.changes}/controller"

    def transactional_id_node(self, node_id: str) -> str:
        """The id of a node's producer. Initialising a producer with this id fences it."""
        if not _NODE_ID.fullmatch(node_id):
            raise ConfigError([FieldError("node.id", "must match [A-Za-z0-9_-]{1,64}", repr(node_id[:80]))])
        return f"{self.changes}/node/{node_id}"

    def transactional_id_spare(self, node_id: str) -> str:
        """The id of the producer that takes over where Kafka does not end the last transaction of a node's other one.

        A partition without its minimum of replicas takes no marker.
        """
        return f"{self.transactional_id_node(node_id)}/spare"

    def aborts(self, key: bytes | None) -> str | None:
        """Of which node the producer is that wrote a record with this key; None unless it is an `abort_key`."""
        prefix = abort_key(f"{self.changes}/node/")
        if key is None or not key.startswith(prefix):
            return None
        return key.removeprefix(prefix).decode(errors="replace").removesuffix("/spare")

    def transactional_id_diff(self, partition: int) -> str:
        """The id of the Spark job's producer for one partition of the diff topic."""
        if partition < 0:
            raise ValueError(f"partition {partition} is negative")
        return f"{self.changes}/diff/{partition}"

    def _suffixed(self, suffix: str) -> str:
        return f"{self.changes}{self.delimiter}{suffix}"

    def _name_errors(self) -> list[FieldError]:
        errors = []
        if not _DELIMITER.fullmatch(self.delimiter):
            errors.append(FieldError("topic.delimiter", "must be 1 to 8 of . _ -", repr(self.delimiter)))
        for field, value in (("topic.prefix", self.prefix), ("cache.name", self.cache)):
            if not _TOPIC.fullmatch(value):
                errors.append(FieldError(field, "must be letters, digits, '.', '_' or '-'", repr(value[:80])))
        if self.cache.endswith(RESERVED_SUFFIXES):
            problem = f"must not end with {', '.join(RESERVED_SUFFIXES)}: these end the names of deelog's own topics"
            errors.append(FieldError("cache.name", problem, repr(self.cache[:80])))
        return errors

    def _topic_errors(self) -> list[FieldError]:
        fields = {
            "cache.name": (self.changes, self.positions, self.topology),
            "diff.topic": (self.diff,),
            "signal.kafka.topic": (self.signal,) if self.signal else (),
            "topic.prefix": (self.heartbeat,),
        }
        errors = []
        seen: set[str] = set()
        for field, names in fields.items():
            for name in names:
                problem = topic_problem(name)
                if problem is None and name in seen:
                    problem = "is the name of another topic of the same cache"
                if problem is not None:
                    shown = name if len(name) <= 80 else f"{name[:80]}…"
                    errors.append(FieldError(field, f"gives the topic {shown!r}, which {problem}"))
                seen.add(name)
        return errors


def topic_problem(name: str) -> str | None:
    """Why Kafka would refuse `name` as a topic, or None."""
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        return "must be letters, digits, '.', '_' or '-', and neither '.' nor '..'"
    if len(name) > MAX_TOPIC_LENGTH:
        return f"must be at most {MAX_TOPIC_LENGTH} characters long, and has {len(name)}"
    return None
