"""The errors that stop the job. Each message is one line that ends with its remedy.

DeelogError
├── RecordError        (schemas) a record of a topic is corrupt or foreign; names topic, partition and offset
└── DiffError          the job cannot go on
    ├── CheckpointError    the checkpoint is not of this topic, layout or configuration, or lost its counterpart
    ├── TopicError         a topic is missing, or is not laid out as the job needs it
    ├── LossError          records that the job needs are gone from the change topic
    ├── BusyError          another job uses this checkpoint, or writes this diff topic or table
    ├── RightsError        the job's Kafka user lacks a right
    └── SinkError          a sink is not set up as the job needs it, or does not take a row
"""

from __future__ import annotations

from deelog_schemas.errors import DeelogError


class DiffError(DeelogError):
    """The base of the job's own errors."""


class CheckpointError(DiffError):
    """The checkpoint does not fit topic, layout or configuration: name another one, or delete it and start over."""

    exit_code = 5


class TopicError(DiffError):
    """A topic is missing or has the wrong settings: repair these or the configuration."""

    exit_code = 6


class LossError(DiffError):
    """Records are gone from the change topic: reset (`on.data.loss`, `reset-segment`), or delete the checkpoint."""

    exit_code = 7


class BusyError(DiffError):
    """Another job uses this checkpoint, or writes this diff topic or table: stop it."""

    exit_code = 8


class SinkError(DiffError):
    """A sink does not fit or refuses a row: repair it or its configuration, or turn it off."""

    exit_code = 9


class RightsError(DiffError):
    """A right is missing in Kafka: grant the one that the message names."""

    exit_code = 10
