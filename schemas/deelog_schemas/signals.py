"""Signals: what a user asks of the connectors of a prefix, in Debezium's format, `{"id", "type", "data"}`.

Signals from every channel are parsed here, and `deelog signal` sends nothing that would be refused here. Unknown
fields are refused: Debezium ignores them, but a misspelt `segments` would then mean the whole cache.

Anybody may write to a signal topic, so every part has a limit, and only regular expressions that cannot run for long
are accepted (Python's have no time limit, and block the whole process).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, Self

from deelog_schemas import canonical
from deelog_schemas.errors import RecordError, shown
from deelog_schemas.patterns import PatternError, compiled

MAX_BYTES: Final = 65_536
MAX_ID: Final = 255
MAX_MESSAGE: Final = 4096
MAX_COLLECTIONS: Final = 100
MAX_SEGMENTS: Final = 16_384
MAX_EXPRESSION: Final = 200
_COSTLY: Final = re.compile(r"\)[*+?{]|\\[1-9]|\(\?")
_MAX_EXPRESSIONS: Final = 4_000
"""Of all together: to compile them takes milliseconds of who reads the signal."""
_MAX_REPEATS: Final = 3
_MAX_CHOICES: Final = 5
"""Repeats included: each may double the time, or multiply it by the length of the name."""

Expressions = tuple[re.Pattern[str], ...]


class UnknownSignal(RecordError):
    """This version does not know the signal's type."""


@dataclass(frozen=True, slots=True)
class Signal(ABC):
    """A signal. Each type is a class below, and has a row in the connector's table of handlers."""

    kind: ClassVar[str]
    """Its `type`."""
    id: str

    @classmethod
    @abstractmethod
    def read(cls, identity: str, data: Fields) -> Self:
        """The signal, from the fields of its `data`. Raises `RecordError`."""

    @abstractmethod
    def concerns(self, cache: str) -> bool:
        """Whether the signal is for this cache."""


@dataclass(frozen=True, slots=True)
class ResetSegment(Signal):
    """The owners of these segments send their whole state."""

    kind = "reset-segment"
    cache: str
    segments: tuple[int, ...]
    reason: str

    @classmethod
    def read(cls, identity: str, data: Fields) -> Self:
        segments = data.segments()
        if segments is None:
            raise RecordError("`data` of reset-segment: `segments` is missing, and must be a list")
        return cls(identity, data.text("cache"), segments, data.text("reason", MAX_MESSAGE, default="signal"))

    def concerns(self, cache: str) -> bool:
        return cache == self.cache


@dataclass(frozen=True, slots=True)
class Log(Signal):
    """A line in the log of every cache. `{}` in the message is replaced by the cache and the node's segments."""

    kind = "log"
    message: str

    @classmethod
    def read(cls, identity: str, data: Fields) -> Self:
        return cls(identity, data.text("message", MAX_MESSAGE))

    def concerns(self, cache: str) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class _ForCollections(Signal):
    """For the caches that match `data-collections`; None means all caches."""

    collections: Expressions | None

    @classmethod
    def read(cls, identity: str, data: Fields) -> Self:
        return cls(identity, data.collections())

    def concerns(self, cache: str) -> bool:
        return self.collections is None or any(one.fullmatch(cache) for one in self.collections)


class PauseWriting(_ForCollections):
    """Stops writing these caches to Kafka, until `resume-writing`."""

    kind = "pause-writing"


class ResumeWriting(_ForCollections):
    """These caches are written to Kafka again."""

    kind = "resume-writing"


@dataclass(frozen=True, slots=True)
class ExecuteSnapshot(_ForCollections):
    """Sends these caches again while writes continue. `segments` None means all."""

    kind = "execute-snapshot"
    segments: tuple[int, ...] | None

    @classmethod
    def read(cls, identity: str, data: Fields) -> Self:
        _incremental(data)
        if not identity:
            raise RecordError("execute-snapshot: `id` is missing: its progress is kept under it")
        collections = data.collections()
        if collections is None:
            raise RecordError("`data` of execute-snapshot: `data-collections` is missing, and must be a list")
        return cls(identity, collections, data.segments())


class StopSnapshot(_ForCollections):
    """The incremental snapshots of these caches end."""

    kind = "stop-snapshot"

    @classmethod
    def read(cls, identity: str, data: Fields) -> Self:
        _incremental(data)
        return cls(identity, data.collections())


_SIGNALS: Final[dict[str, type[Signal]]] = {
    signal.kind: signal for signal in (ResetSegment, ExecuteSnapshot, StopSnapshot, PauseWriting, ResumeWriting, Log)
}
KINDS: Final = tuple(sorted(_SIGNALS))


class Progress(NamedTuple):
    """A record that nodes exchange on the signal topic, under `progress_key`: these segments of a snapshot are done.

    `refused`: they cannot be done, and the snapshot ends.
    """

    id: str
    cache: str
    segments: tuple[int, ...]
    rows: int
    member: str
    refused: bool


def progress_key(prefix: str) -> bytes:
    """The key of `Progress` records. It differs from the key of signals, so the two cannot be confused."""
    return f"{prefix}/progress".encode()


def encode_progress(progress: Progress) -> bytes:
    """Canonical JSON."""
    return canonical.dumps(progress._asdict())


def decode_progress(raw: bytes | None) -> Progress:
    """The progress in `raw`. Raises `RecordError`."""
    content = _object(raw)
    data = Fields(content, "progress of a snapshot")
    progress = Progress(
        data.text("id", MAX_ID),
        data.text("cache"),
        data.segments() or (),
        data.number("rows"),
        data.text("member"),
        data.flag("refused"),
    )
    data.done()
    return progress


def decode_signal(raw: bytes | None) -> Signal:
    """The signal in a record's value. Raises `UnknownSignal`, `RecordError`."""
    content = _object(raw)
    whole = Fields(content, "the signal")
    identity, kind = whole.text("id", MAX_ID, default=""), whole.text("type", MAX_ID)
    signal_type = _SIGNALS.get(kind)
    if signal_type is None:
        raise UnknownSignal(f"type {kind!r} is none of {', '.join(KINDS)}")
    data = content.get("data", {})
    if isinstance(data, str):  # as in Debezium's signal table
        data = canonical.loads(data.encode(), f"`data` of {kind}")
    if not isinstance(data, dict):
        raise RecordError(f"`data` of {kind} is not an object but {type(data).__name__}")
    fields = Fields(data, f"`data` of {kind}")
    signal = signal_type.read(identity, fields)
    fields.done()
    return signal


def _object(raw: bytes | None) -> dict[str, Any]:
    if raw is None:
        raise RecordError("there is no value")
    if len(raw) > MAX_BYTES:
        raise RecordError(f"it has {len(raw)} bytes, and {MAX_BYTES} are allowed")
    return canonical.loads(raw, "the signal")


class Fields:
    """Reads fields one by one. `done` refuses those that were not asked for."""

    def __init__(self, content: Mapping[str, Any], what: str) -> None:
        self._content, self._what, self._asked = content, what, set[str]()

    def _take(self, name: str, kind: type, default: object = None) -> Any:
        self._asked.add(name)
        value = self._content.get(name, default)
        if type(value) is not kind:  # not isinstance: true is no int
            problem = "is missing" if name not in self._content else f"is {shown(value)}"
            raise RecordError(f"{self._what}: `{name}` {problem}, and must be {_NAMES[kind]}")
        return value

    def text(self, name: str, limit: int = MAX_BYTES, default: str | None = None) -> str:
        value: str = self._take(name, str, default)
        if len(value) > limit:
            raise RecordError(f"{self._what}: `{name}` has {len(value)} characters, and {limit} are allowed")
        return value

    def number(self, name: str) -> int:
        value: int = self._take(name, int)
        return value

    def flag(self, name: str) -> bool:
        value: bool = self._take(name, bool)
        return value

    def segments(self) -> tuple[int, ...] | None:
        """None where the field is left out."""
        self._asked.add("segments")
        if "segments" not in self._content:
            return None
        numbers = self._take("segments", list)
        self._count("segments", numbers, MAX_SEGMENTS)
        if not all(type(s) is int and 0 <= s < MAX_SEGMENTS for s in numbers):
            raise RecordError(f"{self._what}: `segments` must be whole numbers from 0 to {MAX_SEGMENTS - 1}")
        return tuple(sorted(set(numbers)))

    def collections(self) -> Expressions | None:
        """None where the field is left out."""
        name = "data-collections"
        self._asked.add(name)
        if name not in self._content:
            return None
        texts = self._take(name, list)
        self._count(name, texts, MAX_COLLECTIONS)
        if (size := sum(len(text) for text in texts if type(text) is str)) > _MAX_EXPRESSIONS:
            raise RecordError(f"{self._what}: `{name}` has {size} characters, and {_MAX_EXPRESSIONS} are allowed")
        return tuple(self._expression(one) for one in texts)

    def _count(self, name: str, entries: list[Any], limit: int) -> None:
        if not 0 < len(entries) <= limit:
            raise RecordError(f"{self._what}: `{name}` has {len(entries)} entries, and 1 to {limit} are allowed")

    def _expression(self, text: object) -> re.Pattern[str]:
        if type(text) is not str or len(text) > MAX_EXPRESSION:
            problem = f"is no text of at most {MAX_EXPRESSION} characters"
        elif (
            _COSTLY.search(text)
            or sum(map(text.count, "*+{")) > _MAX_REPEATS
            or sum(map(text.count, "*+{?|(")) > _MAX_CHOICES
        ):
            problem = (
                f"may take long: repeat no group, refer back to none, and use at most {_MAX_REPEATS} of * + {{, and "
                f"{_MAX_CHOICES} of * + {{ ? | (; name several collections one by one"
            )
        else:
            try:
                return compiled(text)
            except PatternError as error:
                problem = f"is no regular expression: {error}"
        raise RecordError(f"{self._what}: `data-collections` has {shown(text)}, which {problem}")

    def done(self) -> None:
        """Raises `RecordError` for a field that was not asked for."""
        if unknown := sorted(map(str, self._content.keys() - self._asked)):
            known = ", ".join(sorted(self._asked)) or "none"
            raise RecordError(f"{self._what}: `{unknown[0][:80]}` is unknown; the fields are: {known}")


_NAMES: Final[dict[type, str]] = {str: "text", int: "a whole number", bool: "true or false", list: "a list"}


def _incremental(data: Fields) -> None:
    kind = data.text("type", MAX_ID, default="incremental")
    if kind.lower() != "incremental":
        raise RecordError(f"`type` is {kind!r}, and must be incremental: a cache is never locked to be read")
