"""What can go wrong in the connector and on its command line, drawn as a tree. A message ends with its remedy.

DeelogError              1   (schemas)
├── ConfigError          2   (schemas) the configuration: every field that is wrong, at once
├── RecordError          4   (schemas) a record is corrupt or not ours; names topic, partition and offset
├── RegistryError       10   (schemas) the schema registry refuses, does not answer, or is none
├── MissingExtraError    2   a command needs something that is not installed
└── ConnectorError       1   the connector cannot go on
    ├── TopicError       6   a topic is missing, recreated, unsafe, or not laid out as agreed
    ├── NodeIdTakenError 8   a newer process has this `node.id`
    └── KafkaAwayError   9   no broker answered within the time that the caller could wait

The number is what a command ends with. 0 says that what was promised holds, 2 is also click's for a wrong option,
130 is Ctrl-C. What an interceptor or the Spark job raises beyond this stands in their own `errors.py`.
"""

from __future__ import annotations

from deelog_schemas.errors import ConfigError, DeelogError, FieldError, RecordError

__all__ = [
    "ConfigError",
    "ConnectorError",
    "DeelogError",
    "FieldError",
    "KafkaAwayError",
    "MissingExtraError",
    "NodeIdTakenError",
    "RecordError",
    "TopicError",
]


class MissingExtraError(DeelogError):
    """Install the extra that the message names."""

    exit_code = 2

    def __init__(self, command: str, extra: str, missing: str) -> None:
        super().__init__(f"deelog {command} needs {missing}, which is not installed: pip install 'deelog[{extra}]'")


class ConnectorError(DeelogError):
    """The base of what stops a connector by itself."""


class TopicError(ConnectorError):
    """Repair the topic's settings, or the configuration that disagrees with them."""

    exit_code = 6


class NodeIdTakenError(ConnectorError):
    """Give each node a `node.id` of its own. The older process ends with this, the newer goes on."""

    exit_code = 8


class KafkaAwayError(ConnectorError):
    """Check `bootstrap.servers` and that Kafka runs; nothing was lost by asking."""

    exit_code = 9
