"""The built-in transforms and predicates: few, with Connect's names and options.

Left out on purpose: `RegexRouter`, `ByLogicalTableRouter`, `ContentBasedRouter` and everything else that changes
the topic, since the records of a segment are in order, fenced, counted and folded on one partition of one topic;
`ValueToKey` and `ExtractField$Key`, since the key makes the segment; `ExtractNewRecordState`, since deelog's readers
need the envelope: run it after the topic; a `condition` in a language of its own, since Python is one: write a
`Predicate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from deelog_connector.transforms.record import Predicate, Record, Row, Transform, option
from deelog_schemas.config.field import Type
from deelog_schemas.patterns import PatternError, compiled

Object = dict[str, Any]


class Filter(Transform):
    """Drops every record for which its predicate is true."""

    NEEDS_PREDICATE = True

    def apply(self, record: Record) -> Record | None:
        return None


class _OfFields(Transform):
    """Changes fields of values that are JSON objects, in both `before` and `after`."""

    def apply(self, record: Record) -> Record | None:
        before, after = self._row(record.before), self._row(record.after)
        return record._replace(before=before, after=after)

    def _row(self, row: Row | None) -> Row | None:
        if row is None:
            return None
        if not isinstance(row.value, dict):
            raise ValueError(f"takes JSON objects (cache.value.format=json), not {type(row.value).__name__}")
        return row.with_value(self._fields(row.value))

    def _fields(self, value: Object) -> Object:
        raise NotImplementedError


class MaskField(_OfFields):
    """Replaces fields by `replacement`, or by the empty value of their type: "", 0, false, [], {}."""

    OPTIONS = (
        option(name="fields", type=Type.LIST, doc="Names of the fields."),
        option(name="replacement", type=Type.STRING, default=None, doc="Text to put there, whatever the type."),
    )

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        if not options["fields"]:
            raise ValueError("fields must name at least one")

    def _fields(self, value: Object) -> Object:
        text = self.options["replacement"]
        masked = {}
        for name in value.keys() & set(self.options["fields"]):
            field = value[name]
            masked[name] = None if field is None else type(field)() if text is None else text
        return {**value, **masked}


class ReplaceField(_OfFields):
    """Removes or keeps fields, and renames them."""

    OPTIONS = (
        option(name="include", type=Type.LIST, default=(), doc="Fields to keep; empty for all."),
        option(name="exclude", type=Type.LIST, default=(), doc="Fields to leave out; goes before include."),
        option(name="renames", type=Type.LIST, default=(), doc="`old:new`, several of them separated by commas."),
    )

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        pairs = [entry.partition(":") for entry in options["renames"]]
        if not all(old and new and ":" not in new for old, _, new in pairs):
            raise ValueError("renames must be old:new, several of them separated by commas")
        self._names = {old: new for old, _, new in pairs}
        if len(set(self._names.values())) < len(pairs):
            raise ValueError("renames must not give two fields one name")

    def _fields(self, value: Object) -> Object:
        include, exclude = self.options["include"], self.options["exclude"]
        kept = {n: v for n, v in value.items() if n not in exclude and (not include or n in include)}
        renamed = {self._names.get(name, name): field for name, field in kept.items()}
        if len(renamed) < len(kept):
            raise ValueError("renames give a field the name of another one that is there")
        return renamed


class KeyMatches(Predicate):
    """Holds where the whole key matches a regular expression. For keys that are text."""

    OPTIONS = (option(name="pattern", type=Type.STRING, doc="The regular expression."),)

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._matches = _matcher(options["pattern"])

    def test(self, record: Record) -> bool:
        if not isinstance(record.key, str):
            raise ValueError(f"takes keys that are text, not {type(record.key).__name__}")
        return self._matches(record.key)


class TopicNameMatches(Predicate):
    """Holds where the whole name of the change topic matches a regular expression."""

    OPTIONS = KeyMatches.OPTIONS

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._matches = _matcher(options["pattern"])

    def test(self, record: Record) -> bool:
        return self._matches(record.topic)


class OperationIs(Predicate):
    """Holds for some operations: creates (`c`), updates (`u`), deletes (`d`), rows of resets (`r`)."""

    OPTIONS = (option(name="operations", type=Type.LIST, allowed=("c", "u", "d", "r"), doc="Which ones."),)

    def test(self, record: Record) -> bool:
        return record.op in self.options["operations"]


def _matcher(pattern: str) -> Callable[[str], bool]:
    try:
        expression = compiled(pattern)
    except PatternError as error:
        raise ValueError(f"pattern must be a regular expression: {error}") from None
    return lambda text: expression.fullmatch(text) is not None
