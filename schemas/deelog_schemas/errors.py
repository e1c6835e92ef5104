"""What can go wrong, drawn as a tree, by who is at fault.

DeelogError
├── ConfigError      the configuration: each field error names field, value, what is allowed
└── RecordError      a record on a topic is corrupt or not ours: names topic, partition and offset
"""

from __future__ import annotations


class DeelogError(Exception):
    """The base of all of ours. `exit_code` is what a command ends with."""

    exit_code = 1


class RecordError(DeelogError):
    """A record that this version cannot have written, or that is damaged. Never skipped: the reader stops."""

    exit_code = 4

    def at(self, topic: str, partition: int, offset: int) -> RecordError:
        """The same error, naming where the record stands."""
        return RecordError(f"{topic}[{partition}]@{offset}: {self}")
