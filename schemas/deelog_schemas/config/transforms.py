"""The aliases of `transforms` and `predicates`, and the fields of each alias, in Connect's syntax.

    transforms=secrets,old
    transforms.secrets.type=my_package.module.Class
    transforms.secrets.fields=password
    transforms.secrets.predicate=people
    predicates=people
    predicates.people.type=deelog_connector.transforms.KeyMatches
    predicates.people.pattern=person:.*

Only names and aliases are checked here, without the classes: the Spark job reads the same file and does not have them.
The connector imports the classes and checks their own options (`deelog_connector.transforms`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from deelog_schemas.config.field import Field, Type
from deelog_schemas.config.secrets import is_secret
from deelog_schemas.errors import FieldError

LISTS: Final = ("transforms", "predicates")
BUILTIN: Final = re.compile(r"deelog_connector\.transforms[.:][A-Za-z]+")
"""The classes that are part of deelog."""

_ALIAS: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAME: Final = re.compile(rf"({'|'.join(LISTS)})\.({_ALIAS.pattern})\.([A-Za-z0-9._-]+)")
_CLASS: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*([.:$][A-Za-z_][A-Za-z0-9_]*)+")


class Declared(NamedTuple):
    """One alias of a list. `options` are the names of its class's options, without their prefix."""

    prefix: str
    """`transforms.<alias>.` or `predicates.<alias>.`."""
    type: str
    options: tuple[str, ...]
    predicate: str | None = None
    negate: bool = False


def field_of(name: str) -> Field | None:
    """The declaration of `transforms.<alias>.…` or `predicates.<alias>.…`."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    kind, option = match[1], match[3]
    if option == "type":
        doc = "Class, by its dotted path: my_package.module.Class or my_package.module:Class."
        return _field(name, Type.STRING, doc, _CLASS)
    if kind == "transforms" and option == "predicate":
        return _field(name, Type.STRING, "Alias of the predicate that must hold for the transform to apply.", _ALIAS)
    if kind == "transforms" and option == "negate":
        return _field(name, Type.BOOLEAN, "Apply where the predicate does not hold.")
    return _field(name, Type.PASSWORD if is_secret(name) else Type.STRING, "An option of the class.")


def _field(name: str, kind: Type, doc: str, pattern: re.Pattern[str] | None = None) -> Field:
    return Field(name=name, type=kind, group="transforms", default=None, doc=doc, pattern=pattern)


def declared(kind: str, alias: str, values: Mapping[str, Any]) -> Declared:
    """The declaration of an alias; `values` are typed, by full name."""
    prefix = f"{kind}.{alias}."
    own = {"type"} if kind == "predicates" else {"type", "predicate", "negate"}
    options = tuple(n.removeprefix(prefix) for n in values if n.startswith(prefix))
    options = tuple(option for option in options if option not in own)
    predicate, negate = values.get(f"{prefix}predicate"), values.get(f"{prefix}negate", False)
    return Declared(prefix, values[f"{prefix}type"], options, predicate, bool(negate))


def check_aliases(aliases: tuple[str, ...]) -> str | None:
    """The check of the two lists, `transforms` and `predicates`."""
    if len(set(aliases)) < len(aliases):
        return "must not name an alias twice: give the second one another alias"
    if all(_ALIAS.fullmatch(alias) for alias in aliases):
        return None
    return "must be a comma separated list of aliases, 1 to 64 of A-Z a-z 0-9 _ - each"


def check(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    """The errors between the names."""
    for kind in LISTS:
        aliases = known.get(kind)
        if aliases is None:
            continue
        for alias in aliases:
            if f"{kind}.{alias}.type" not in given:
                problem = f"is required, since {kind} names {alias}: the dotted path of a class"
                yield FieldError(f"{kind}.{alias}.type", problem)
        for name in given:
            match = _NAME.fullmatch(name)
            if match is not None and match[1] == kind and match[2] not in aliases:
                nearest = difflib.get_close_matches(match[2], aliases, n=1, cutoff=0.6)
                suggested = f"{kind}.{nearest[0]}.{match[3]}" if nearest else None
                yield FieldError(name, f"belongs to no alias: add {match[2]} to {kind}, or remove it", None, suggested)
    yield from _predicates(known, given)


def _predicates(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    predicates = known.get("predicates", ())
    for alias in known.get("transforms", ()):
        name, negate = f"transforms.{alias}.predicate", f"transforms.{alias}.negate"
        wanted = known.get(name)
        if wanted is not None and wanted not in predicates:
            nearest = difflib.get_close_matches(wanted, predicates, n=1, cutoff=0.6)
            yield FieldError(name, "must be an alias of predicates", repr(wanted), nearest[0] if nearest else None)
        if negate in given and name not in given:
            yield FieldError(negate, f"says nothing without {name}: set that, or remove it", repr(given[negate]))


def refused_from_rest(given: Mapping[str, str], own: Mapping[str, str]) -> list[FieldError]:
    """The errors for classes in a configuration sent by REST that the node's `own` file does not allow.

    The node imports and runs a class that is named. So a REST client may only name classes that are part of deelog, and
    classes that the file on the node's disk names under any alias. The texts are compared as given: a reference
    (`${env:X}`) is allowed where the file has the same reference.
    """
    allowed = {text.strip() for name, text in own.items() if _is_type(name)}
    return [
        FieldError(
            name,
            "names code that REST may not bring in: use a class of deelog's, or one that the node's own file names",
            repr(text[:80]),
        )
        for name, text in given.items()
        if _is_type(name) and not BUILTIN.fullmatch(text.strip()) and text.strip() not in allowed
    ]


def _is_type(name: str) -> bool:
    match = _NAME.fullmatch(name)
    return match is not None and match[3] == "type"
