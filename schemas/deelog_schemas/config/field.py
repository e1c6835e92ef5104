"""One configuration field: its name, its allowed values and its documentation.

A field is declared once (`fields.py`). Parsing, errors, `deelog config`, the documentation page and the REST API's
validate answer are derived from the declaration. Types and importance, and their names, are Kafka's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import Any, Final

from deelog_schemas.config.secrets import Secret

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


class Type(Enum):
    """Connect's types, some of them divided further. The values are for people to read."""

    STRING = "string"
    INT = "int"
    LONG = "long"
    BOOLEAN = "boolean"
    LIST = "list"
    ENUM = "enum"
    CLASS = "class"
    PASSWORD = "password"


class Importance(Enum):
    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"


class Role(Enum):
    """The program that reads the file. All share one set of fields; some are required by some programs only."""

    NODE = "node"  # a cache with its connector: a grid node, or a connector beside a server
    CACHE = "cache"  # a program that captures a cache of its own
    CONNECTOR = "connector"  # one that captures several, which bring their names
    DIFF = "diff"  # the Spark job
    CLIENT = "client"  # only reads or writes topics: a signal, a reader of diffs


class _NoDefault(Enum):
    REQUIRED = "required"


REQUIRED: Final = _NoDefault.REQUIRED
EVERY_ROLE: Final = frozenset(Role)


class Refused(Exception):
    """A field does not accept this text; the message says what it accepts. Becomes a `FieldError`."""


@dataclass(frozen=True, slots=True)
class Field:
    """A declaration.

    `default` is the typed value. It is None where the default is computed by `Config` (`derived` describes it, as text
    for people). With `REQUIRED` the field is required for the programs in `roles`; for others the default is None, and
    where the field `instead` of a connector is given. `defaults` has what it is for some programs.
    `low`, `high`: inclusive. `allowed`: values of an enum or class, or of each entry of a list; `refused`: why
    other values, which somebody may know, are not among them. `check` returns a problem or None.
    """

    name: str
    type: Type
    default: Any = REQUIRED
    _: KW_ONLY
    doc: str
    group: str = ""
    importance: Importance = Importance.MEDIUM
    roles: frozenset[Role] = EVERY_ROLE
    defaults: Mapping[Role, Any] = field(default_factory=dict, compare=False)
    derived: str | None = None
    instead: str = ""
    low: int | None = None
    high: int | None = None
    allowed: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict, compare=False)
    pattern: re.Pattern[str] | None = None
    check: Callable[[Any], str | None] | None = field(default=None, compare=False)

    def required_by(self, role: Role, given: Container[str]) -> bool:
        """`given`: the names in the file."""
        replaced = role is Role.NODE and self.instead in given
        return self.default is REQUIRED and role in self.roles and not replaced

    def default_for(self, role: Role) -> Any:
        """The typed value where none is given."""
        return self.defaults.get(role, None if self.default is REQUIRED else self.default)

    @property
    def default_text(self) -> str | None:
        """The default as written in a file; None where there is none."""
        match self.default:
            case None | _NoDefault():
                return None
            case bool():
                return "true" if self.default else "false"
            case tuple():
                return ",".join(self.default)
            case _:
                return str(self.default)

    @property
    def takes(self) -> str:
        """The allowed values, for people: the same text in errors and in the documentation."""
        match self.type:
            case Type.INT | Type.LONG:
                return self._range()
            case Type.BOOLEAN:
                return "true or false"
            case Type.ENUM | Type.CLASS:
                return _one_of(self.allowed)
            case Type.LIST if self.allowed:
                return f"a comma separated list of {', '.join(self.allowed)}"
            case Type.LIST:
                return "a comma separated list"
            case Type.STRING if self.pattern is not None:
                return f"text that matches {self.pattern.pattern}"
            case _:
                return "text"

    def parse(self, text: str) -> Any:
        """The typed value: str, int, bool, tuple of str, or `Secret`. Raises `Refused`."""
        if self.type is Type.PASSWORD:
            return Secret(text)  # not trimmed, as in Kafka: a blank may be part of a password
        text = text.strip()
        value = self._typed(text)
        problem = self.check(value) if self.check is not None else None
        if problem is not None:
            raise Refused(problem)
        return value

    def _typed(self, text: str) -> Any:
        match self.type:
            case Type.INT | Type.LONG:
                return self._number(text)
            case Type.BOOLEAN:
                if text.lower() not in ("true", "false"):
                    raise Refused(f"must be {self.takes}")
                return text.lower() == "true"
            case Type.LIST:
                entries = tuple(split_list(text))
                for entry in entries:
                    self._known(entry)
                return entries
            case Type.ENUM | Type.CLASS:
                self._known(text)
                return text
            case _:
                if not text and (self.pattern is None or not self.pattern.fullmatch("")):
                    raise Refused("must not be empty")
                if self.pattern is not None and not self.pattern.fullmatch(text):
                    raise Refused(f"must be {self.takes}")
                return text

    def _number(self, text: str) -> int:
        # int() alone would accept 1_000 and digits of other scripts, and take long for very long texts.
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
            raise Refused(f"must be {self.takes}")
        number = int(text)
        low, high = self._bounds()
        if not low <= number <= high:
            raise Refused(f"must be {self.takes}")
        return number

    def _known(self, text: str) -> None:
        if self.allowed and text not in self.allowed:
            why = f": {self.refused[text]}" if text in self.refused else ""
            raise Refused(f"must be {self.takes}{why}")

    def _bounds(self) -> tuple[int, int]:
        largest = INT_MAX if self.type is Type.INT else LONG_MAX
        return (-largest - 1 if self.low is None else self.low, largest if self.high is None else self.high)

    def _range(self) -> str:
        low, high = self._bounds()
        if high in (INT_MAX, LONG_MAX):
            return f"a whole number of at least {low}"
        return f"a whole number from {low} to {high}"


def split_list(text: str) -> list[str]:
    r"""The entries of a comma separated list, trimmed, empty ones left out. `\,` is a comma inside an entry."""
    parts = re.split(r"(?<!\\),", text)
    return [part.strip().replace("\\,", ",") for part in parts if part.strip()]


def words(text: str) -> frozenset[str]:
    """The whitespace separated names in a text."""
    return frozenset(text.split())


def _one_of(values: tuple[str, ...]) -> str:
    return values[0] if len(values) == 1 else f"one of {', '.join(values)}"
