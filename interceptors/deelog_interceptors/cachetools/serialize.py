"""Keys and values as they are captured: checked and frozen at the write, encoded later by the connector's thread.

Immutable text and bytes are kept as they are, anything else is serialized at the write. What is kept is a `Raw`: a
`str` that is ASCII, hence sure to encode, or `bytes`. An entry key has exactly one `Raw`. Weighed in
docs/decisions.md, "What is kept of a value".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import cachetools.keys
import orjson

from deelog_interceptors.cachetools.errors import NotCapturable
from deelog_schemas.json_text import json_problem
from deelog_schemas.keys import RESERVED_PREFIX

Raw = str | bytes
Serializer = Callable[[Any], str | bytes]
_RESERVED_TEXT = RESERVED_PREFIX.decode()
_KEYWORDS: Final = next(part for part in cachetools.keys.hashkey(a=1) if isinstance(part, type))


def encoded(raw: Raw) -> bytes:
    """The captured bytes of a raw key or value."""
    return raw.encode() if type(raw) is str else raw  # type: ignore[return-value]


class Keys(Protocol):
    """The keys of one cache. All methods are called under the user's lock, in the order of the writes."""

    @property
    def known(self) -> Mapping[Any, object] | None:
        """Those of the entries that are captured; None where they are not kept."""

    def prepare(self, key: Any) -> Raw:
        """The raw key of a write; raises `NotCapturable`."""

    def stored(self, key: Any, raw: Raw) -> None:
        """The write of `key` succeeded."""

    def raw(self, key: Any) -> Raw | None:
        """The raw key of an entry that was captured; None where none was."""

    def forget(self, key: Any) -> None:
        """The entry is gone."""

    def cleared(self) -> None:
        """All entries were removed."""


class PlainKeys:
    """Keys that are text (`string`, `json`) or bytes (`bytes`) by themselves.

    One type per cache: `"a"` and `b"a"` are two keys of a cache and would be one in Kafka.
    """

    def __init__(self, format_name: str) -> None:
        self.known: Mapping[Any, object] | None = None
        self.text, self.plain = format_name != "bytes", format_name != "json"
        """Whether text and bytes are taken as they are."""
        self._type = str if self.text else bytes

    def prepare(self, key: Any) -> Raw:
        if not isinstance(key, self._type):
            raise NotCapturable(
                f"a key of type {type(key).__name__} cannot be captured: cache.key.format takes {self._type.__name__}; "
                'name a key_serializer ("json" or a function), or change cache.key.format'
            )
        kind = type(key)
        if kind is not self._type and (kind.__eq__, kind.__hash__) != (self._type.__eq__, self._type.__hash__):
            raise NotCapturable(
                f"keys of type {kind.__name__} are equal by a rule of their own, which text has not: name a "
                "key_serializer that gives equal keys the same text"
            )
        raw = _plain(key, "key")
        if encoded(raw).startswith(RESERVED_PREFIX):
            raise _reserved()
        return raw if self.plain else _json_text(raw, "key")

    def stored(self, key: Any, raw: Raw) -> None:
        """Nothing to keep: a key's raw form follows from the key."""

    def raw(self, key: Any) -> Raw | None:
        if not isinstance(key, self._type):
            return None
        try:
            return _plain(key, "key")
        except NotCapturable:
            return None

    def forget(self, key: Any) -> None:
        """Nothing is kept."""

    def cleared(self) -> None:
        """Nothing is kept."""


class SerializedKeys:
    """Keys that a serializer turns into bytes. Keeps, for every live entry, which key has which bytes.

    Equal keys may serialize differently (`1`, `1.0`, `True`): the entry stays under the bytes of its first write.
    Different keys may serialize alike (`1` and `"1"` by `str`): refused at the write.
    """

    def __init__(self, serializer: Serializer) -> None:
        self._serialize = serializer
        self._raw: dict[Any, bytes] = {}
        self.known: Mapping[Any, object] | None = self._raw
        self._key: dict[bytes, Any] = {}
        """The keys of these bytes; where a call was interrupted it has some that are gone, or lacks some."""

    def prepare(self, key: Any) -> Raw:
        raw = self._raw.get(key)
        if raw is None:
            raw = _serialized(self._serialize, key, "key")
            if raw.startswith(RESERVED_PREFIX):
                raise _reserved()
            if raw in self._key and (other := self._key[raw]) in self._raw and other != key:
                raise NotCapturable(
                    f"keys {_shown(other)} and {_shown(key)} serialize to the same bytes: "
                    "give a key_serializer that distinguishes them"
                )
        return raw

    def stored(self, key: Any, raw: Raw) -> None:
        self._key[self._raw.setdefault(key, encoded(raw))] = key

    def raw(self, key: Any) -> Raw | None:
        return self._raw.get(key)

    def forget(self, key: Any) -> None:
        raw = self._raw.pop(key, None)
        if raw is not None:
            self._key.pop(raw, None)

    def cleared(self) -> None:
        self._raw.clear()
        self._key.clear()


class KnownKeys:
    """`keys`, and which of them the cache is recorded to hold: for caches whose methods may do more than they say."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.prepare = keys.prepare
        self.known: dict[Any, None] = {}

    def stored(self, key: Any, raw: Raw) -> None:
        self.known[key] = None
        self._keys.stored(key, raw)

    def raw(self, key: Any) -> Raw | None:
        return self._keys.raw(key)

    def forget(self, key: Any) -> None:
        self.known.pop(key, None)
        self._keys.forget(key)

    def cleared(self) -> None:
        self.known.clear()
        self._keys.cleared()


class Values:
    """The values of one cache: text or bytes by `cache.value.format`, or anything by a serializer."""

    def __init__(self, format_name: str, serializer: Serializer | None) -> None:
        self.text, self._is_json = format_name != "bytes", format_name == "json" and serializer is not _json
        self._serialize = serializer
        self.plain = serializer is None and not self._is_json
        """Whether text and bytes are taken as they are."""

    def prepare(self, value: Any) -> Raw:
        """The raw value; raises `NotCapturable`."""
        raw = self._raw(value)
        return _json_text(raw, "value") if self._is_json else raw

    def _raw(self, value: Any) -> Raw:
        if self._serialize is not None:
            raw = _serialized(self._serialize, value, "value")
            return _utf8(raw, "value") if self.text else raw
        if isinstance(value, str):
            return _plain(value, "value")
        if isinstance(value, bytes):
            return _utf8(_plain(value, "value"), "value") if self.text else _plain(value, "value")
        raise NotCapturable(
            f"a value of type {type(value).__name__} cannot be captured: it is neither str nor bytes; "
            'name a value_serializer ("json" or a function)'
        )


def keys_of(format_name: str, serializer: str | Serializer | None) -> Keys:
    """The keys of a cache by `cache.key.format` and the user's serializer."""
    if serializer is None:
        return PlainKeys(format_name)
    function = _json_key if serializer == "json" else named(serializer)
    if format_name == "bytes":
        return SerializedKeys(function)
    if format_name == "json" and function is not _json_key:
        return SerializedKeys(lambda key: encoded(_json_text(_serialized(function, key, "key"), "key")))
    return SerializedKeys(lambda key: _utf8(_serialized(function, key, "key"), "key"))


def named(serializer: str | Serializer) -> Serializer:
    """A serializer by its name (`json`), or the function itself."""
    if callable(serializer):
        return serializer
    if serializer == "json":
        return _json
    raise ValueError(f'serializer {serializer!r} is unknown: give "json" or a function that returns str or bytes')


def _json(value: Any) -> bytes:
    return orjson.dumps(value, default=_tuple)


def _json_key(key: Any) -> bytes:
    return orjson.dumps(key, default=_part_of_key)


def _part_of_key(value: Any) -> Any:
    """`@cached` has a class between the arguments by place and those by name, and `typedkey` the arguments' classes.

    As objects, which no argument can be: they are no keys of a cache.
    """
    if value is _KEYWORDS:
        return {"keywords": True}
    if isinstance(value, type):
        return {"type": f"{value.__module__}.{value.__qualname__}"}
    return _tuple(value)


def _tuple(value: Any) -> Any:
    # orjson refuses subclasses of tuple, as named tuples are.
    if isinstance(value, tuple):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no JSON type")


def _serialized(serializer: Serializer, item: Any, what: str) -> bytes:
    try:
        raw: Any = serializer(item)
    except NotCapturable:
        raise
    except Exception as error:
        raise NotCapturable(f"{what} {_shown(item)} cannot be serialized: {error}") from error
    if isinstance(raw, str):
        return encoded(_plain(raw, what))
    if isinstance(raw, bytes):
        # A copy: what a serializer returns may keep the buffer that it grew in (4 kB for 100 bytes of orjson's), and
        # this is kept for as long as the entry.
        return bytes(memoryview(raw))
    raise NotCapturable(f"the {what} serializer must return str or bytes, and returned {type(raw).__name__}")


def _plain(item: str | bytes, what: str) -> Raw:
    """An exact `str` that is ASCII, or exact `bytes`: methods of a subclass are not called."""
    if isinstance(item, bytes):
        return item if type(item) is bytes else bytes.__getitem__(item, slice(None))
    text = item if type(item) is str else str.__str__(item)
    if text.isascii():
        return text
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise NotCapturable(f"{what} {_shown(item)} is not valid Unicode: {error.reason}") from error


def _utf8(raw: Raw, what: str) -> bytes:
    frozen = encoded(raw)
    if not frozen.isascii():
        try:
            frozen.decode()
        except UnicodeDecodeError as error:
            raise NotCapturable(
                f"{what} {_shown(frozen)} is not UTF-8 ({error.reason} at byte {error.start}): "
                f"set cache.{what}.format=bytes to capture it as it is"
            ) from error
    return frozen


def _json_text(raw: Raw, what: str) -> Raw:
    if problem := json_problem(raw):
        raise NotCapturable(
            f"{what} {_shown(raw)} is not JSON ({problem}): set cache.{what}.format=string to capture it as text"
        )
    return raw


def _reserved() -> NotCapturable:
    return NotCapturable(f"keys that begin with {_RESERVED_TEXT!r} are reserved for deelog's control records")


def _shown(item: Any) -> str:
    text = ascii(item)
    return text if len(text) <= 80 else f"{text[:77]}..."
