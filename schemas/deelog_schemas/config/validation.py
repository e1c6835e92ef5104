"""The answer of `deelog validate` and of the REST API's validate, in Kafka Connect's format.

The definitions come from the declarations of the fields, the errors from `parse`; this module only arranges them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from deelog_schemas.config.config import displayed, parse
from deelog_schemas.config.field import REQUIRED, Field, Role, Type
from deelog_schemas.config.fields import FIELDS, GROUPS
from deelog_schemas.errors import ConfigError, FieldError

_CONNECT_TYPES: Final = {Type.ENUM: "STRING"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """All errors of a configuration, and the given values, safe to print."""

    errors: tuple[FieldError, ...]
    shown: Mapping[str, str]

    @property
    def body(self) -> dict[str, Any]:
        """The answer of `PUT /connector-plugins/{plugin}/config/validate`."""
        by_name: dict[str, list[str]] = {}
        for error in self.errors:
            by_name.setdefault(error.field, []).append(str(error))
        entries = [(definition, str(definition["name"])) for definition in definitions()]
        others = sorted({*by_name, *self.shown} - FIELDS.keys())
        configs = [
            {
                "definition": definition,
                "value": {
                    "name": name,
                    "value": self.shown.get(name, FIELDS[name].default_text if name in FIELDS else None),
                    "recommended_values": list(FIELDS[name].allowed) if name in FIELDS else [],
                    "errors": by_name.get(name, []),
                    "visible": True,
                },
            }
            for definition, name in [*entries, *((None, name) for name in others)]
        ]
        plugin = self.shown.get("connector.class", FIELDS["connector.class"].default_text)
        return {"name": plugin, "error_count": len(self.errors), "groups": list(GROUPS), "configs": configs}


def judge(mapping: Mapping[str, Any], role: Role | str = Role.NODE, further: Iterable[FieldError] = ()) -> Verdict:
    """All errors of a flat map, and the `further` errors of the caller."""
    errors = list(further)
    try:
        parse(mapping, role)
    except ConfigError as error:
        errors += error.errors
    return Verdict(tuple(errors), displayed(mapping))


def definitions() -> list[dict[str, Any]]:
    """The fields as `GET /connector-plugins/{plugin}/config` of Kafka Connect lists them."""
    order: dict[str, int] = {}
    answers = []
    for field in FIELDS.values():
        order[field.group] = order.get(field.group, 0) + 1
        answers.append(_definition(field, order[field.group]))
    return answers


def _definition(field: Field, order: int) -> dict[str, Any]:
    return {
        "name": field.name,
        "type": _CONNECT_TYPES.get(field.type, field.type.name),
        "required": field.default is REQUIRED,
        "default_value": field.default_text,
        "importance": field.importance.value,
        "documentation": field.doc,
        "group": field.group,
        "order_in_group": order,
        "width": "MEDIUM",
        "display_name": field.name,
        "dependents": [],
    }
