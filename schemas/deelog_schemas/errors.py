"""The base errors, by their cause.

DeelogError
├── ConfigError      the configuration: each field error names field, value and the allowed values
├── RecordError      a record on a topic is corrupt or not ours: names topic, partition and offset
└── RegistryError    the schema registry refuses, or its answer is not one of a registry: names address and subject
    └── RegistryAwayError   it does not answer, or cannot do so now
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class DeelogError(Exception):
    """The base of all errors of deelog. `exit_code` is the exit code of a command."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class FieldError:
    """What is wrong with one configuration field.

    `value` is safe to print: it is masked where the field has a secret, a reference is not resolved, and it is None
    where showing it does not help. `problem` says what is allowed.
    """

    field: str
    problem: str
    value: str | None = None
    nearest: str | None = None

    def __str__(self) -> str:
        given = "" if self.value is None else f" = {self.value}"
        hint = "" if self.nearest is None else f"; did you mean {self.nearest}?"
        return f"{self.field}{given}: {self.problem}{hint}"


class ConfigError(DeelogError):
    """Everything that is wrong with a configuration, at once: one line per field error. Fix the file, start again."""

    exit_code = 2

    def __init__(self, errors: Sequence[FieldError], source: str | None = None) -> None:
        self.errors = list(errors)
        self.source = source
        where = "configuration" if source is None else source
        if len(self.errors) == 1:
            text = f"{where}: {self.errors[0]}"
        else:
            text = "\n  ".join([f"{where}: {len(self.errors)} errors", *map(str, self.errors)])
        super().__init__(text)

    def __reduce__(self) -> tuple[type[ConfigError], tuple[list[FieldError], str | None]]:
        return type(self), (self.errors, self.source)


class RecordError(DeelogError):
    """A record that this version cannot have written, or that is damaged. Never skipped: the reader stops."""

    exit_code = 4

    def at(self, topic: str, partition: int, offset: int) -> RecordError:
        """The same error, with the record's topic, partition and offset."""
        return RecordError(f"{topic}[{partition}]@{offset}: {self}")


class RegistryError(DeelogError):
    """The schema registry refuses, or is none. Nothing was written: repair what the message names, start again."""

    exit_code = 10


class RegistryAwayError(RegistryError):
    """The schema registry does not answer, and all retries are used up: try again later."""


def shown(value: object) -> str:
    """A value as an error shows it; of what has others in it only the kind: they may be nested too deep to be shown."""
    return f"a {type(value).__name__}" if isinstance(value, list | dict) else repr(str(value)[:80])
