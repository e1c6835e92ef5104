"""Names that the user makes: `transforms`, `predicates`, and what is said of each under its alias, in Connect's syntax.

    transforms=secrets,old
    transforms.secrets.type=my_package.module.Class
    transforms.secrets.fields=password
    transforms.secrets.predicate=people
    predicates=people
    predicates.people.type=deelog_connector.transforms.KeyMatches
    predicates.people.pattern=person:.*

Here is what can be checked without the classes: names, and which alias belongs to which. The Spark job reads the same
file and has none of them. The connector imports the classes and checks their own options
(`deelog_connector.transforms`).
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
"""The classes that deelog brings along."""

_STRATEGY: Final = "topic.naming.strategy"
_ALIAS: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAME: Final = re.compile(rf"({'|'.join(LISTS)})\.({_ALIAS.pattern})\.([A-Za-z0-9._-]+)")
_CLASS: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*([.:$][A-Za-z_][A-Za-z0-9_]*)+")


class Declared(NamedTuple):
    """One alias of a list. `options` are the names of what its class gets, without their prefix."""

    prefix: str
    """`transforms.<alias>.` or `predicates.<alias>.`."""
    type: str
    options: tuple[str, ...]
    predicate: str | None = None
    negate: bool = False


def field_of(name: str) -> Field | None:
    """The declaration of `transforms.<alias>.…` or `predicates.<alias>.…`."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    kind, option = found[1], found[3]
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
    """What is said of an alias; `values` are typed, by full name."""
    prefix = f"{kind}.{alias}."
    own = {"type"} if kind == "predicates" else {"type", "predicate", "negate"}
    options = tuple(n.removeprefix(prefix) for n in values if n.startswith(prefix))
    options = tuple(option for option in options if option not in own)
    predicate, negate = values.get(f"{prefix}predicate"), values.get(f"{prefix}negate", False)
    return Declared(prefix, values[f"{prefix}type"], options, predicate, bool(negate))


def check_aliases(aliases: tuple[str, ...]) -> str | None:
    """For the two lists' own declarations."""
    if len(set(aliases)) < len(aliases):
        return "must not name an alias twice: give the second one another alias"
    if all(_ALIAS.fullmatch(alias) for alias in aliases):
        return None
    return "must be a comma separated list of aliases, 1 to 64 of A-Z a-z 0-9 _ - each"


def check(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    """What the names must be to one another."""
    for kind in LISTS:
        aliases = known.get(kind)
        if aliases is None:
            continue
        for alias in aliases:
            if f"{kind}.{alias}.type" not in given:
                problem = f"is required, since {kind} names {alias}: the dotted path of a class"
                yield FieldError(f"{kind}.{alias}.type", problem)
        for name in given:
            found = _NAME.fullmatch(name)
            if found is not None and found[1] == kind and found[2] not in aliases:
                nearest = difflib.get_close_matches(found[2], aliases, n=1, cutoff=0.6)
                suggested = f"{kind}.{nearest[0]}.{found[3]}" if nearest else None
                yield FieldError(name, f"belongs to no alias: add {found[2]} to {kind}, or remove it", None, suggested)
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
    """The classes in a configuration that came by REST which the node's `own` file does not allow.

    Naming a class makes the node import and run it. So whoever may only reach the REST interface chooses among what
    deelog brings along and the classes that the file on the node's disk names under any alias. Both as they were
    given: a reference (`${env:X}`) is allowed where the file has the very same.
    """
    allowed = {text.strip() for name, text in own.items() if _is_type(name)}
    return [
        FieldError(
            name,
            "names code that REST may not bring in: use a class of deelog's, or one that the node's own file names",
            repr(text[:80]),
        )
        for name, text in given.items()
        if (_is_type(name) and not BUILTIN.fullmatch(text.strip()) and text.strip() not in allowed)
        or (name == _STRATEGY and text != own.get(name))
    ]


def _is_type(name: str) -> bool:
    found = _NAME.fullmatch(name)
    return found is not None and found[3] == "type"
