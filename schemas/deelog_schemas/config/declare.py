"""The names for declaring fields: types, importance, the programs that need a field, and its group.

Types and importance are Kafka Connect's own. `PASSWORD` is a secret. `REQUIRED` is a field without a default; `roles`
names the programs that require it. The table in `fields.py` is laid out by hand: two to four lines per field.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from deelog_schemas.config.field import Field, Importance, Role, Type

BOOLEAN, CLASS, ENUM, INT, LIST = Type.BOOLEAN, Type.CLASS, Type.ENUM, Type.INT, Type.LIST
LONG, PASSWORD, STRING = Type.LONG, Type.PASSWORD, Type.STRING
HIGH, LOW = Importance.HIGH, Importance.LOW
IN_PROCESS: Final = (Role.CACHE, Role.CONNECTOR)
NODE: Final = frozenset({Role.NODE, *IN_PROCESS})
DIFF_ONLY: Final = frozenset({Role.DIFF})
WITH_CACHE: Final = frozenset({Role.NODE, Role.CACHE, Role.DIFF})


class Group(NamedTuple):
    """Fields that the documentation lists together."""

    name: str
    title: str
    fields: tuple[Field, ...]


def group(name: str, title: str, *fields: Field) -> Group:
    """A group. Sets its name in each of the fields."""
    return Group(name, title, tuple(replace(field, group=name) for field in fields))
