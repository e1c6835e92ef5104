"""A user's transforms and predicates, good and bad, for the tests of the pipeline."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, ClassVar

from deelog_connector.transforms import Predicate, Record, Row, Transform, Type, option

BOMB = "bomb"


class Suffix(Transform):
    """Appends to texts, before and after, and adds a header with the op and the original texts."""

    OPTIONS = (option(name="text", type=Type.STRING, default="!", doc="What to add."),)

    def apply(self, record: Record) -> Record | None:
        text, seen = self.options["text"], [record.op]
        for row in (record.before, record.after):
            seen.append("-" if row is None else row.value)
        record = record.with_header("seen", ">".join(seen))
        if record.before is not None:
            record = record.with_before(record.before.value + text)
        return record if record.after is None else record.with_value(record.after.value + text)


class Bomb(Transform):
    """Raises on one value while it is armed."""

    armed: ClassVar[bool] = True

    def apply(self, record: Record) -> Record | None:
        if self.armed and record.after is not None and record.after.value == BOMB:
            raise RuntimeError("boom")
        return record


class Slow(Transform):
    """Waits at one value."""

    goes_on: ClassVar[threading.Event] = threading.Event()

    def apply(self, record: Record) -> Record | None:
        if record.after is not None and record.after.value == BOMB:
            assert self.goes_on.wait(60)
        return record


class Garbage(Transform):
    """On one value, does what a transform may not do; the value names it."""

    OPTIONS = (option(name="what", type=Type.STRING, doc="The name."),)

    def apply(self, record: Record) -> Record | None:
        if record.after is None or record.after.value != BOMB:
            return record
        what: dict[str, Any] = {
            "number": lambda: 5,
            "true": lambda: True,
            "tuple": lambda: tuple(record),
            "key": lambda: record._replace(key="another"),
            "strange key": lambda: record._replace(key=Strange()),
            "op": lambda: record._replace(op="d"),
            "topic": lambda: record._replace(topic="elsewhere"),
            "position": lambda: record._replace(source={**record.source, "seq": 1}),
            "time": lambda: record._replace(ts_us=1),
            "no after": lambda: record._replace(after=None),
            "a before": lambda: record._replace(before=Row("x")),
            "after": lambda: record._replace(after="x"),  # type: ignore[arg-type]
            "expiry": lambda: record._replace(after=Row("x", 17)),
            "headers": lambda: record._replace(headers=[("a", "b")]),  # type: ignore[arg-type]
            "header name": lambda: record.with_header("deelog", b"x"),
            "control header": lambda: record.with_header("deelog.control", b"x"),
            "header value": lambda: record._replace(headers=(("a", 5),)),  # type: ignore[arg-type]
            "surrogate header": lambda: record.with_header("a", "\ud800"),
            "surrogate name": lambda: record.with_header("\ud800", b"x"),
            "bytes name": lambda: record._replace(headers=((b"a", b"x"),)),  # type: ignore[arg-type]
            "long header": lambda: record._replace(headers=(("a", b"x", 1),)),  # type: ignore[arg-type]
            "bytes": lambda: record.with_value(b"x"),
            "nothing": lambda: record.with_value(None),
            "surrogate": lambda: record.with_value("\ud800"),
            "too long": lambda: record.with_value("x" * 2_000_000),
            "exit": lambda: exit(3),
            "recursion": lambda: self.apply(record),
        }
        return what[self.options["what"]]()  # type: ignore[no-any-return]


GARBAGE = """number true tuple key op topic position time after expiry headers bytes nothing surrogate exit recursion
    strange-key no-after a-before header-name control-header header-value surrogate-header surrogate-name
    bytes-name long-header too-long"""


class Strange:
    """Cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    __hash__ = None  # type: ignore[assignment]


class Undecided(Predicate):
    """Returns neither true nor false."""

    def test(self, record: Record) -> bool:
        return None  # type: ignore[return-value]


class ValueIsLong(Predicate):
    """Looks at the value."""

    def test(self, record: Record) -> bool:
        return record.after is not None and len(record.after.value) > 3


class Picky(Transform):
    """Refuses its options."""

    OPTIONS = (
        option(name="low", type=Type.INT, doc="A number.", low=1),
        option(name="high", type=Type.INT, default=9, doc="A greater one."),
    )

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        if options["low"] >= options["high"]:
            raise ValueError(f"low must be below high ({options['high']})")
        if options["low"] == 7:
            raise RuntimeError("sevens are broken")

    def apply(self, record: Record) -> Record | None:
        return record


class Half(Transform):
    """Does not implement `apply`."""


class NoTransform:
    """Is not a transform."""
