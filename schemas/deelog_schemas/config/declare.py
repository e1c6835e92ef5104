"""The words in which fields are declared: types, importance, who needs a field, and the group it belongs to.

Types and importance are Kafka Connect's own. `PASSWORD` is a secret, `REQUIRED` a field without a default: `roles`
says which programs cannot do without it. The table in `fields.py` is laid out by hand: two to four lines per field.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from deelog_schemas.config.field import Field, Importance, Role, Type

BOOLEAN, CLASS, ENUM, INT, LIST = Type.BOOLEAN, Type.CLASS, Type.ENUM, Type.INT, Type.LIST
LONG, PASSWORD, REGEX_LIST, STRING = Type.LONG, Type.PASSWORD, Type.REGEX_LIST, Type.STRING
HIGH, LOW = Importance.HIGH, Importance.LOW
NODE: Final = frozenset({Role.NODE, Role.CONNECTOR})
DIFF_ONLY: Final = frozenset({Role.DIFF})
WITH_CACHE: Final = frozenset({Role.NODE, Role.DIFF})


class Group(NamedTuple):
    """Fields that the documentation shows together."""

    name: str
    title: str
    fields: tuple[Field, ...]


def group(name: str, title: str, *fields: Field) -> Group:
    """A group, and its name in each of its fields."""
    return Group(name, title, tuple(replace(field, group=name) for field in fields))
