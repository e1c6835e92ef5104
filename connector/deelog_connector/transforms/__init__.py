"""Single-message transforms: the base classes and the built-in ones. See docs/transforms.md."""

from __future__ import annotations

from deelog_connector.transforms.builtin import (
    Filter,
    KeyMatches,
    MaskField,
    OperationIs,
    ReplaceField,
    TopicNameMatches,
)
from deelog_connector.transforms.record import Predicate, Record, Row, Transform, option
from deelog_schemas.config.field import Type

__all__ = [
    "Filter",
    "KeyMatches",
    "MaskField",
    "OperationIs",
    "Predicate",
    "Record",
    "ReplaceField",
    "Row",
    "TopicNameMatches",
    "Transform",
    "Type",
    "option",
]
