"""From a flat map of text to typed values, or to all errors in it.

Weighed in docs/decisions.md, "A configuration is a mapping over declarations".

References are resolved at each access and the result is not kept. So neither a printed `Config` nor one that is pickled
to an executor contains what they point at.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from deelog_schemas.config import checks, foreign, sources, transforms
from deelog_schemas.config.field import Field, Importance, Refused, Role, Type
from deelog_schemas.config.fields import FIELDS, PLANNED
from deelog_schemas.config.overrides import ALLOWED, CLIENTS, PATTERNS, refusal
from deelog_schemas.config.secrets import MASK, Masked, hides, is_secret, references, shown
from deelog_schemas.config.shapes import split_address
from deelog_schemas.errors import ConfigError, FieldError
from deelog_schemas.kafka.names import Topics

MAX_KEYS: Final = 1000
MAX_VALUE_LENGTH: Final = 65_536
MAX_SUGGESTIONS: Final = 5

Given = str | Path | Mapping[str, Any]
"""A file, its fields, or a `Config`."""


def load(path: str | Path, role: Role | str = Role.NODE) -> Config:
    """The configuration in a `.properties` or `.json` file.

    `role` says which program asks, and so which fields are required: `node`, `cache`, `diff` (the Spark job), `client`.
    Raises `ConfigError` with everything that is wrong, naming the file.
    """
    raw = sources.read_config(Path(path))
    try:
        return parse(raw, role)
    except ConfigError as error:
        raise ConfigError(error.errors, str(path)) from None


def parse(mapping: Mapping[str, Any], role: Role | str = Role.NODE) -> Config:
    """The configuration in a flat map; numbers and booleans may be JSON's own or text. Raises `ConfigError`."""
    role = Role(role)
    if len(mapping) > MAX_KEYS:
        raise ConfigError([FieldError("configuration", f"has more than {MAX_KEYS} keys")])
    errors: list[FieldError] = []
    raw: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name, given in mapping.items():
        field = _field(name)
        if field is None:
            errors.append(_unknown(name, suggesting=len(errors) < MAX_SUGGESTIONS))
            continue
        text = None
        try:
            raw[name] = text = _text(given)
            if not _has_reference(text):  # the text that a reference points at is checked when it is resolved
                values[name] = field.parse(text)
        except Refused as error:
            errors.append(FieldError(name, str(error), None if text is None else shown(name, text)))
    for field in FIELDS.values():
        if field.name not in mapping:
            if field.required_by(role, mapping):
                errors.append(FieldError(field.name, f"is required; {field.takes}"))
            else:
                values[field.name] = field.default_for(role)
    errors += checks.across(values, raw)
    if errors:
        raise ConfigError(errors)
    return Config(raw, values, role)


def config_of(given: Given, role: Role | str = Role.NODE) -> Config:
    """The configuration in a file or in a flat map; one that was loaded or parsed before as it is."""
    if isinstance(given, Config):
        return given
    return load(given, role) if isinstance(given, str | Path) else parse(given, role)


class Config(Mapping[str, Any]):
    """Typed values by field name, defaults and the given overrides included. Immutable; prints secrets masked.

    `config["max.batch.size"]` is an int, a list a tuple of str, a field without a value None, a secret a
    `Secret`. A value with a reference is resolved at each access, which may raise `ConfigError`: call `resolved()` once
    at start to see everything that is wrong with references.
    """

    __slots__ = ("_hidden", "_raw", "_registered", "_role", "_values")

    def __init__(
        self, raw: Mapping[str, str], values: Mapping[str, Any], role: Role, registered: Mapping[str, Any] | None = None
    ) -> None:
        """Called by `parse`, which has checked the values. `values` lacks the names whose text has a reference."""
        self._registered = dict(registered or {})
        self._raw = dict(raw)
        self._values = dict(values)
        self._role = role
        self._hidden = _hidden(self._raw)

    @property
    def role(self) -> Role:
        return self._role

    @property
    def raw(self) -> Masked:
        """The given texts, references unresolved. A copy; it contains secrets, which print masked."""
        return Masked(self._raw)

    @property
    def registered(self) -> Mapping[str, Any]:
        """The schema registry's answers, by part of a record; empty until `formats.connected` has asked."""
        return self._registered

    def with_registered(self, registered: Mapping[str, Any]) -> Config:
        """The same configuration with the registry's answers, for processes that shall not ask the registry."""
        return Config(self._raw, self._values, self._role, registered)

    @property
    def topics(self) -> Topics:
        """The names of the cache's topics, groups and transactional ids. Raises `ConfigError` without a cache.name."""
        cache = self["cache.name"]
        if cache is None:
            raise ConfigError([FieldError("cache.name", "is required here")])
        # Only Topics derives names.
        overrides = {name: self[name] if name in self._raw else None for name in ("diff.topic", "signal.kafka.topic")}
        try:
            return _topics(
                self["topic.prefix"],
                cache,
                self["topic.delimiter"],
                overrides["diff.topic"],
                overrides["signal.kafka.topic"],
            )
        except ConfigError as error:
            raise ConfigError(checks.without_resolved(error.errors, self._raw)) from None

    def of_cache(self, name: str) -> Config:
        """This configuration for the cache of that name. Raises `ConfigError` for a name that is not valid."""
        return parse({**self._raw, "cache.name": name}, self._role)

    def declared(self, kind: str) -> dict[str, transforms.Declared]:
        """The declaration of each alias of `transforms` or `predicates`, in order."""
        given = {name: self[name] for name in self._raw if name.startswith(f"{kind}.")}
        # Aliases that come from a reference are known only now.
        errors = checks.across({**self, **given}, self._raw) if given else []
        if errors:
            raise ConfigError(errors)
        return {alias: transforms.declared(kind, alias, given) for alias in self[kind]}

    def secret(self, name: str) -> str | None:
        """The value of any field as text, references resolved. Pass it on; do not keep or print it."""
        self._known(name)
        if name not in self._raw:
            return FIELDS[name].default_text
        try:
            return sources.resolve(self._raw[name])
        except Refused as error:
            raise ConfigError([FieldError(name, str(error))]) from None

    def overrides(self, client: str) -> Masked:
        """The settings given for `producer`, `consumer` or `admin`, prefix removed, resolved: str by str."""
        if client not in CLIENTS:
            raise ValueError(f"{client!r} is not one of {', '.join(CLIENTS)}")
        prefix = f"{client}.override."
        names = [name for name in self._raw if name.startswith(prefix)]
        settings = {n.removeprefix(prefix): self.secret(n) if is_secret(n) else self[n] for n in names}
        return Masked(settings, frozenset(n.removeprefix(prefix) for n in self._hidden))

    def resolved(self) -> Masked:
        """Every value, references resolved and secrets as plain text. Raises `ConfigError` with all that fail."""
        errors: list[FieldError] = []
        values: dict[str, Any] = {}
        for name in self:
            try:
                values[name] = self.secret(name) if is_secret(name) else self[name]
            except ConfigError as error:
                errors += error.errors
        errors += checks.across(values, self._raw)
        if errors:
            raise ConfigError(errors)
        return Masked(values, self._hidden)

    def masked(self) -> dict[str, str]:
        """The given texts, for a log or an answer: secrets as `********`, references as written."""
        return {name: MASK if hides(name, text) else text for name, text in self._raw.items()}

    def __getitem__(self, name: str) -> Any:
        field = self._known(name)
        if name in self._values:
            value = self._values[name]
            return self._derived(name) if value is None and field.derived is not None else value
        text = self.secret(name)
        assert text is not None  # a name that has no value is in _values
        try:
            return field.parse(text)
        except Refused as error:
            problem = f"resolves to something that is not allowed: {error}"
            raise ConfigError([FieldError(name, problem, shown(name, self._raw[name]))]) from None

    def __iter__(self) -> Iterator[str]:
        yield from FIELDS
        yield from (name for name in self._raw if name not in FIELDS)

    def __len__(self) -> int:
        return len(FIELDS) + sum(name not in FIELDS for name in self._raw)

    def __repr__(self) -> str:
        return f"Config({self._role.value}, {self.masked()!r})"

    def __reduce__(self) -> tuple[type[Config], tuple[dict[str, str], dict[str, Any], Role, dict[str, Any]]]:
        return type(self), (self._raw, self._values, self._role, self._registered)

    def _known(self, name: str) -> Field:
        field = FIELDS.get(name) or (_field(name) if name in self._raw else None)
        if field is None:
            raise KeyError(str(_unknown(name)) if _field(name) is None else name)
        return field

    def _derived(self, name: str) -> Any:
        if name == "cache.advertised.host":
            return split_address(self["cache.listen"])[0]
        if name == "signal.kafka.topic":
            return f"{self['topic.prefix']}-signal"
        return None if self["cache.name"] is None else self.topics.diff


_topics: Final = functools.lru_cache(maxsize=64)(Topics)
"""To check names takes longer than to look them up, and a node looks often."""


def _hidden(raw: Mapping[str, str]) -> frozenset[str]:
    """Names whose resolved value must not be printed: derived values may contain resolved references."""
    referred = {name for name, text in raw.items() if references(text)}
    derived = {f.name for f in FIELDS.values() if f.derived is not None and referred}
    return frozenset(referred | derived | {name for name in raw if is_secret(name)})


def displayed(mapping: Mapping[str, Any]) -> dict[str, str]:
    """The given values of known names, valid or not, as an answer may show them. Only texts and numbers are included.

    The value of an unknown name is not shown: the name may be a misspelt secret.
    """
    answer = {}
    for name, given in mapping.items():
        if _field(name) is not None and isinstance(given, str | int | float):
            text = str(given).lower() if isinstance(given, bool) else str(given)[:MAX_VALUE_LENGTH]
            answer[name] = MASK if hides(name, text) else text
    return answer


def _field(name: Any) -> Field | None:
    """The declaration of a name: that of a field, or one made for an allowed override."""
    if name in FIELDS:
        return FIELDS[name]
    for client in CLIENTS if isinstance(name, str) else ():
        prefix = f"{client}.override."
        if name.startswith(prefix) and refusal(client, name.removeprefix(prefix)) is None:
            return Field(
                name=name,
                type=Type.PASSWORD if is_secret(name) else Type.STRING,
                group="kafka",
                default=None,
                importance=Importance.LOW,
                pattern=PATTERNS.get(name.removeprefix(prefix)),
                doc=f"Handed to the {client} as it is.",
            )
    return transforms.field_of(name) if isinstance(name, str) else None


def _unknown(name: Any, suggesting: bool = True) -> FieldError:
    """The error for an unknown name. The value is not shown: the name may be a misspelt secret.

    To look for the field that was meant takes ten milliseconds, and names come from outside, in any number.
    """
    if not isinstance(name, str):
        return FieldError("configuration", "names of fields must be text")
    if not name.isprintable() or len(name) > 200:
        return FieldError(repr(name[:200]), "is no field of deelog")
    if name in PLANNED:
        return FieldError(name, "is known but not implemented in this version; remove it")
    known = [*FIELDS, *(f"{c}.override.{s}" for c in CLIENTS for s in sorted(ALLOWED[c]))]
    for client in CLIENTS:
        prefix = f"{client}.override."
        if name.startswith(prefix):
            problem = refusal(client, name.removeprefix(prefix))
            if problem is not None and not problem.startswith("is not among"):
                return FieldError(name, problem)
            break
    why = foreign.reason(name)
    suggesting = suggesting and name not in foreign.NAMES
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.9 if why else 0.6) if suggesting else []
    if why and not nearest:
        return FieldError(name, f"is no field of deelog: {why}")
    return FieldError(name, "is no field of deelog", None, nearest[0] if nearest else None)


def _text(given: Any) -> str:
    """A value of the map as Connect reads it: scalars become text, a JSON list a comma separated text."""
    match given:
        case bool():
            text = "true" if given else "false"
        case str():
            text = given
        case int() | float():
            text = _number_text(given)
        case list() | tuple() if all(isinstance(entry, str) for entry in given):
            text = ",".join(entry.replace(",", "\\,") for entry in given)
        case None:
            raise Refused("must not be null; leave the field out")
        case _:
            raise Refused("must be text, a number, true, false or a list of texts")
    if len(text) > MAX_VALUE_LENGTH:
        raise Refused(f"must not be longer than {MAX_VALUE_LENGTH} characters")
    return text


def _number_text(number: float) -> str:
    try:
        return str(number)
    except ValueError:  # Python does not print integers of more than 4300 digits
        raise Refused("must not be a number of thousands of digits") from None


def _has_reference(text: str) -> bool:
    """Whether `text` has a reference. Raises `Refused` for an unknown provider or a missing key."""
    matches = references(text)
    for match in matches:
        if match.group(1) not in sources.PROVIDERS:
            raise Refused("refers to a provider that is none of ${env:X}, ${file:path:key}, ${dir:path:key}")
        if not match.group(2) or (match.group(1) != "env" and not all(match.group(2).rpartition(":")[::2])):
            raise Refused("has an incomplete reference; write ${env:X}, ${file:path:key} or ${dir:path:key}")
    return bool(matches)
