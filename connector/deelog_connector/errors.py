"""What can go wrong in the connector and on its command line, drawn as a tree. A message ends with its remedy.

DeelogError                   1   (schemas)
├── ConfigError               2   (schemas) the configuration: every field that is wrong, at once
├── RecordError               4   (schemas) a record is corrupt or not ours; names topic, partition and offset
├── RegistryError            10   (schemas) the schema registry refuses, does not answer, or is none
├── MissingExtraError         2   a command needs something that is not installed
├── KafkaUnusable             5   brokers or topics are not as they must be
│   └── KafkaUnavailable      9   the brokers do not answer, or not as they should, at the moment
│       └── KafkaUnauthorized 5   they answer, but not to this user
├── TopologyError             3   the grid cannot use its topology topic or its controller group
├── MapError                  5   the topic is another cache's, or has another number of segments or partitions
├── NodeSuperseded            6   a newer process has this `node.id`
├── RetriesExhausted          9   more errors in a row than `errors.max.retries` allows
├── TransformFailed          10   a transform failed, and `event.processing.failure.handling.mode` is `fail`
├── NotStoppedError           1   only a stopped connector can be asked for this
└── KafkaTooSlowError         1   Kafka did not take in time what a stop had to write first

The number is what a command ends with. 0 says that what was promised holds, 2 is also click's for a wrong option,
130 is Ctrl-C. What an interceptor or the Spark job raises beyond this stands in their own `errors.py`.
"""

from __future__ import annotations

from deelog_schemas.errors import DeelogError


class MissingExtraError(DeelogError):
    """A command needs a package that is not installed: install the extra that the message names."""

    exit_code = 2

    def __init__(self, command: str, extra: str, missing: str) -> None:
        super().__init__(f"deelog {command} needs {missing}, which is not installed: pip install 'deelog[{extra}]'")


class KafkaUnusable(DeelogError):
    """Brokers or topics are not as they must be: do what the message names."""

    exit_code = 5


class KafkaUnavailable(KafkaUnusable):
    """The brokers do not answer, or not as they should: try again later, with a new client."""

    exit_code = 9


class KafkaUnauthorized(KafkaUnavailable):
    """The brokers refuse this user. A program that starts ends; a running one retries until the right is granted."""

    exit_code = 5


class TopologyError(DeelogError):
    """The grid cannot use its topology topic or its controller group: do what the message names."""

    exit_code = 3


class MapError(DeelogError):
    """The topic is another cache's, or has another number of segments or partitions: do what the message names."""

    exit_code = 5


class NodeSuperseded(DeelogError):
    """A newer process has this `node.id`, and this one ends: give each node an id of its own."""

    exit_code = 6

    def __init__(self, by: str, member: str, place: str = "") -> None:
        since = "and is newer" if by != member else "and has started in the same millisecond"
        super().__init__(
            f"{by}{place and f' at {place}'} has the node.id of {member} {since}: this process ends. Give each node an "
            "id of its own"
        )
        self.by = by


class RetriesExhausted(DeelogError):
    """Writing to Kafka failed more often in a row than `errors.max.retries` allows."""

    exit_code = 9


class TransformFailed(DeelogError):
    """A transform failed with `event.processing.failure.handling.mode=fail`. Nothing is lost: docs/transforms.md."""

    exit_code = 10


class NotStoppedError(DeelogError):
    """Only a stopped connector can be asked for this: stop it first."""


class KafkaTooSlowError(DeelogError):
    """Kafka did not take in time what had to be written first. The connector goes on as before: try again."""
