"""Transforms without Kafka: how they are found and configured, what they may return, and the built-in ones.

Bad input: a missing class, module or option; a class that is not a transform, is abstract, or raises when it is
imported or created; an option of the wrong type; a Filter without a predicate; aliases that are not in the lists once
they are known; all of `GARBAGE`, and a predicate that returns None; captured values that do not fit their format.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from deelog_connector.core.effects import ControlItem, Item, OperationsItem, RowsItem
from deelog_connector.errors import TransformFailed
from deelog_connector.transforms import Record, Row
from deelog_connector.transforms.loading import steps_of
from deelog_connector.transforms.pipeline import (
    Closing,
    PipedOperations,
    PipedRows,
    Pipeline,
    Skipped,
    TransformedOperation,
)
from deelog_schemas.config import Config, ConfigError, parse
from deelog_schemas.digest import digest_of
from deelog_schemas.header import Kind
from deelog_schemas.operation import Entry, Operation
from tests.connector.transforms.transforms_for_tests import BOMB, GARBAGE
from tests.support.memory import Memory

MINE = "tests.connector.transforms.transforms_for_tests"
OURS = "deelog_connector.transforms"
REQUIRED = {"topic.prefix": "p", "cache.name": "c", "node.id": "n1", "bootstrap.servers": "h:1"}


def config_of(**fields: str) -> Config:
    return parse(REQUIRED | {name.replace("__", "."): value for name, value in fields.items()})


def of(*transforms: dict[str, str], predicates: dict[str, dict[str, str]] | None = None, **fields: str) -> Config:
    """A configuration with transforms t0, t1, … and predicates by alias."""
    given = {"transforms": ",".join(f"t{n}" for n in range(len(transforms)))}
    for number, options in enumerate(transforms):
        given |= {f"transforms.t{number}.{name}": value for name, value in options.items()}
    given["predicates"] = ",".join(predicates or {})
    for alias, options in (predicates or {}).items():
        given |= {f"predicates.{alias}.{name}": value for name, value in options.items()}
    return config_of(**given, **fields)


def put(sequence: int, key: str, value: str | None, epoch: int = 1, **more: Any) -> Operation:
    raw = None if value is None else value.encode()
    operation = Operation(epoch, sequence, "put" if raw else "remove", key.encode(), raw, None, 17, False)
    return operation._replace(**more)


def parts_of(config: Config, *operations: Operation) -> list[Any]:
    pipeline = Pipeline.of(config, time, Counter())
    assert pipeline is not None
    (item,) = pipeline([OperationsItem(3, 1, operations)])
    assert isinstance(item, PipedOperations)
    return list(item.parts)


def errors_of(config: Config) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        steps_of(config)
    return [str(error) for error in raised.value.errors]


# -- configuration ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [f"{OURS}.ReplaceField", f"{OURS}:ReplaceField", f"{OURS}.builtin:ReplaceField"])
def test_a_class_is_found_by_either_form_of_its_path(path: str) -> None:
    (step,) = steps_of(of({"type": path, "exclude": "a,b"}))
    assert type(step.transform).__name__ == "ReplaceField"
    assert step.transform.options == {"include": (), "exclude": ("a", "b"), "renames": ()}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"type": "no.such.Thing"}, "transforms.t0.type = 'no.such.Thing': cannot be imported: there is no module no;"),
        ({"type": f"{OURS}.Filtr"}, "has no Filtr; did you mean Filter?"),
        ({"type": f"{MINE}.NoTransform"}, "must be a subclass of deelog_connector.transforms.record.Transform"),
        ({"type": f"{MINE}.BOMB"}, "must be a subclass of"),
        ({"type": f"{MINE}.Undecided"}, "must be a subclass of"),
        ({"type": f"{MINE}.Half"}, "must define what deelog_connector.transforms.record.Transform leaves open: apply"),
        (
            {"type": f"{OURS}.Filter"},
            "transforms.t0.predicate: is required: deelog_connector.transforms.Filter with",
        ),
        ({"type": f"{MINE}.Picky"}, "transforms.t0.low: is required; a whole number of at least 1"),
        ({"type": f"{MINE}.Picky", "low": "no"}, "transforms.t0.low = 'no': must be a whole number of at least 1"),
        ({"type": f"{MINE}.Picky", "low": "9"}, "does not take its options: low must be below high (9)"),
        ({"type": f"{MINE}.Picky", "low": "7"}, "cannot be made: RuntimeError: sevens are broken"),
        ({"type": f"{MINE}.Picky", "low": "1", "hihg": "3"}, "transforms.t0.hihg: is no option of"),
        ({"type": f"{MINE}.Picky", "low": "1", "hihg": "3"}, "did you mean transforms.t0.high?"),
        ({"type": f"{OURS}.MaskField", "fields": " , "}, "fields must name at least one"),
        ({"type": f"{OURS}.ReplaceField", "renames": "a"}, "renames must be old:new"),
        ({"type": f"{OURS}.ReplaceField", "renames": "a:x,b:x"}, "renames must not give two fields one name"),
    ],
)
def test_what_is_wrong_with_a_class_names_field_value_and_remedy(given: dict[str, str], told: str) -> None:
    (error,) = errors_of(of(given))
    assert told in error


def test_everything_that_is_wrong_is_told_at_once() -> None:
    broken = of(
        {"type": "no.such.Thing"},
        {"type": f"{MINE}.Picky", "low": "0", "more": "1"},
        predicates={"p": {"type": f"{OURS}.KeyMatches", "pattern": "("}, "q": {"type": f"{OURS}.OperationIs"}},
    )
    found = [error.partition(":")[0].partition(" ")[0] for error in errors_of(broken)]
    assert found == [
        "predicates.p.type", "predicates.q.operations", "transforms.t0.type", "transforms.t1.low", "transforms.t1.more"
    ]  # fmt: skip


def test_a_module_that_cannot_be_imported_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raises_at_import.py").write_text("1 / 0")
    (tmp_path / "is_no_python.py").write_text("def")
    (tmp_path / "wants_another.py").write_text("import not_installed_here")
    monkeypatch.syspath_prepend(tmp_path)
    for name, told in (
        ("raises_at_import", "raised ZeroDivisionError: division by zero"),
        ("is_no_python", "raised SyntaxError: "),
        ("wants_another", "there is no module not_installed_here; install it"),
    ):
        (error,) = errors_of(of({"type": f"{name}.Thing"}))
        assert told in error
        sys.modules.pop(name, None)


def test_a_secret_of_a_transform_is_masked_and_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEPPER", "hunter2")
    config = of({"type": f"{MINE}.Suffix", "text": "${env:PEPPER}", "password": "hunter2"})
    assert "hunter2" not in repr(config)
    assert "hunter2" not in str(errors_of(config))
    (step,) = steps_of(of({"type": f"{MINE}.Suffix", "text": "${env:PEPPER}"}))
    assert step.transform.options == {"text": "hunter2"}


def test_aliases_behind_a_reference_are_checked_when_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHICH", "b")
    config = parse(REQUIRED | {"transforms": "${env:WHICH}", "transforms.a.type": f"{MINE}.Suffix"})
    assert sum("transforms." in error for error in errors_of(config)) == 2


# -- a transform's input, and its effect --------------------------------------------------------------------------


def test_transforms_run_in_order_and_see_before_and_after() -> None:
    config = of(
        {"type": f"{MINE}.Suffix", "text": "1"},
        {"type": f"{MINE}.Suffix", "text": "2", "predicate": "p"},
        {"type": f"{MINE}.Suffix", "text": "3", "predicate": "p", "negate": "true"},
        predicates={"p": {"type": f"{MINE}.ValueIsLong"}},
    )
    update = put(2, "k", "abc", existed=True, before=b"old")
    found = parts_of(config, put(1, "k", "ab"), update, put(3, "k", None, existed=True))
    assert [part.operation.value for part in found] == [b"ab13", b"abc12", None]
    assert [part.operation.before for part in found] == [None, b"old12", None]
    assert found[1].headers == (("seen", "u>old>abc"), ("seen", "u>old1>abc1"))
    assert found[2].headers == (("seen", "d>->-"), ("seen", "d>->-"))


def test_a_record_says_where_it_is_from() -> None:
    seen: list[Record] = []
    config = of({"type": f"{MINE}.Suffix"})
    pipeline = Pipeline.of(config, time, Counter())
    assert pipeline is not None
    pipeline._steps[0].transform.apply = lambda record: seen.append(record)  # type: ignore[method-assign]
    operation = put(9, "k", "v", 4, existed=True, expires_at=5, reason="correct")
    (item,) = pipeline([OperationsItem(3, 1, [operation])])
    assert seen[0][:5] == ("p.c", "k", "u", None, Row("v", 5))
    source = {"cache": "c", "segment": 3, "epoch": 4, "seq": 9, "reason": "correct", "ts_us": 17}
    assert dict(seen[0].source) == source
    with pytest.raises(TypeError):
        seen[0].source["seq"] = 1  # type: ignore[index]
    # A correction that is dropped becomes a delete: what it was to replace must go.
    assert item.parts == [TransformedOperation(operation._replace(value=None, expires_at=None))]  # type: ignore[union-attr]


def test_what_is_dropped_leaves_one_record_for_each_run_of_an_epoch() -> None:
    config = config_of(skipped__operations="c,d")
    operations = [
        put(1, "a", "x"), put(2, "b", None), put(3, "c", "x", existed=True), put(5, "a", "x"), put(6, "a", "x", 2),
        put(7, "a", "x", 2), put(9, "a", "x", 2), put(10, "a", None, 2, reason="correct"),
    ]  # fmt: skip
    found = parts_of(config, *operations)
    assert found == [
        Skipped(1, 1, 2), TransformedOperation(operations[2]), Skipped(1, 5, 5), Skipped(2, 6, 7), Skipped(2, 9, 9),
        TransformedOperation(operations[7])
    ]  # fmt: skip


def test_a_reset_tells_count_and_digest_of_what_is_left() -> None:
    config = of(
        {"type": f"{OURS}.Filter", "predicate": "k"},
        {"type": f"{MINE}.Suffix", "text": "!"},
        predicates={"k": {"type": f"{OURS}.KeyMatches", "pattern": "x.*"}},
        skipped__operations="c,u,d",
    )
    pipeline = Pipeline.of(config, time, Counter())
    assert pipeline is not None
    begin = ControlItem(Kind.RESET_BEGIN, 3, 1, (1, 1), 1, {"id": "r"})
    end = ControlItem(Kind.RESET_END, 3, 1, (1, 9), 2, {"id": "r", "count": 3, "digest": "of what was read"})
    rows = [Entry(b"a", b"1", None), Entry(b"x", b"2", None), Entry(b"b", b"3", 5)]
    for _ in range(2):  # a reset that begins again counts from the start
        pipeline([begin, RowsItem(3, 1, (1, 9), "signal", rows[:2], True, False)])
    pipeline([RowsItem(3, 1, (1, 9), "snapshot", rows[:1], False, False, incremental=True)])  # of no reset
    told, ended = pipeline([RowsItem(3, 1, (1, 9), "signal", rows[2:], False, True), end])
    assert isinstance(told, PipedRows)
    assert (told.rows.entries, told.headers) == ([Entry(b"b", b"3!", 5)], [(("seen", "r>->3"),)])
    assert isinstance(ended, ControlItem)
    assert ended.fields == {"id": "r", "count": 2, "digest": digest_of([(b"a", b"1!"), (b"b", b"3!")])}
    items: list[Item] = [begin, end]
    assert pipeline(items)[1].fields == {"id": "r", "count": 0, "digest": digest_of(())}  # type: ignore[union-attr]


@pytest.mark.parametrize("what", [name.replace("-", " ") for name in GARBAGE.split()])
@pytest.mark.parametrize("mode", ["fail", "skip"])
def test_garbage_is_a_failure_that_says_what_is_wrong(what: str, mode: str) -> None:
    config = of({"type": f"{MINE}.Garbage", "what": what}, event__processing__failure__handling__mode=mode)
    operations = [put(1, "a", "good"), put(2, "b", BOMB), put(3, "c", "good")]
    if mode == "skip":
        assert parts_of(config, *operations) == [
            TransformedOperation(operations[0]),
            Skipped(1, 2, 2),
            TransformedOperation(operations[2]),
        ]
        return
    with pytest.raises(TransformFailed) as raised:
        parts_of(config, *operations)
    told = str(raised.value)
    assert f"transform t0 ({MINE}.Garbage) failed on cache c, segment 3, position 1.2: " in told
    assert "event.processing.failure.handling.mode to skip, warn or dead-letter" in told
    assert ("which is neither a Record nor None" in told) is (what in ("number", "true", "tuple"))
    assert len(told) < 600
    assert BOMB not in told


def test_failures_are_logged_once_a_second(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    config = of({"type": f"{MINE}.Garbage", "what": "number"}, event__processing__failure__handling__mode="warn")
    pipeline = Pipeline.of(config, memory.port().clock, Counter())
    assert pipeline is not None
    for seconds in (0, 0, 1):
        memory.run(asyncio.sleep(seconds))
        pipeline([OperationsItem(3, 1, [put(1, "b", BOMB)])])
    assert [line.endswith("(1 more since the last such line)") for line in caplog.messages] == [False, True]


def test_a_predicate_answers_true_or_false() -> None:
    config = of({"type": f"{MINE}.Suffix", "predicate": "p"}, predicates={"p": {"type": f"{MINE}.Undecided"}})
    with pytest.raises(TransformFailed, match="answered a NoneType, which is neither True nor False"):
        parts_of(config, put(1, "a", "x"))


def test_a_connector_that_is_closed_ends_between_two_records() -> None:
    pipeline = Pipeline.of(of({"type": f"{MINE}.Suffix"}), time, Counter())
    assert pipeline is not None
    pipeline.closing.set()
    with pytest.raises(Closing):
        pipeline([OperationsItem(3, 1, [put(1, "a", "x")])])


def test_without_anything_to_do_there_is_no_pipeline() -> None:
    assert Pipeline.of(config_of(), time, Counter()) is None
    assert Pipeline.of(config_of(predicates=""), time, Counter()) is None


# -- formats ------------------------------------------------------------------------------------------------------


class Seen:
    """The value that a transform gets, and the bytes that are written of its result."""

    def __init__(self, format_name: str) -> None:
        config = of({"type": f"{MINE}.Suffix"}, cache__value__format=format_name, cache__key__format=format_name)
        pipeline = Pipeline.of(config, time, Counter())
        assert pipeline is not None
        self.pipeline = pipeline

    def made(self, raw: bytes, change: Any) -> tuple[Any, bytes]:
        seen = []

        def apply(record: Record) -> Record | None:
            assert record.after is not None
            seen.append(record.after.value)
            return change(record)  # type: ignore[no-any-return]

        self.pipeline._steps[0].transform.apply = apply  # type: ignore[method-assign]
        operation = Operation(1, 1, "put", raw, raw, None, 17, False)
        (item,) = self.pipeline([OperationsItem(3, 1, [operation])])
        (told,) = item.parts  # type: ignore[union-attr]
        assert isinstance(told, TransformedOperation)
        assert told.operation.key == raw
        assert told.operation.value is not None
        return seen[0], told.operation.value


def test_what_is_not_changed_is_written_byte_for_byte() -> None:
    raw = b'{ "b": 1.50, "a": [12345678901234567890123], "\\u00e4": null }'
    value, written = Seen("json").made(raw, lambda record: record)
    assert value == {"b": 1.5, "a": [12345678901234567890123], "ä": None}
    assert written == raw
    same = {"b": 1.5, "a": [12345678901234567890123], "ä": None}
    assert Seen("json").made(raw, lambda record: record.with_value(same))[1] == raw
    assert Seen("string").made(raw, lambda record: record) == (raw.decode(), raw)
    assert Seen("bytes").made(b"\xff\0", lambda record: record) == (b"\xff\0", b"\xff\0")


def test_what_is_changed_in_place_is_written_as_it_is_then() -> None:
    def change(record: Record) -> Record:
        assert record.after is not None
        record.after.value["a"][0] = True
        return record

    _, written = Seen("json").made(b'{"a": [1], "n": 12345678901234567890123}', change)
    assert json.loads(written) == {"a": [True], "n": 12345678901234567890123}
    assert b"true" in written
    assert Seen("bytes").made(b"x", lambda record: record.with_value(bytearray(b"y")))[1] == b"y"


def test_a_value_that_is_not_there_is_not_replaced() -> None:
    record = Record("t", b"k", "d", None, None, {}, 0)
    with pytest.raises(ValueError, match="a delete has no value after it"):
        record.with_value("x")
    with pytest.raises(ValueError, match="there is no value before this change"):
        record.with_before("x")


@pytest.mark.parametrize(
    "value",
    [math.nan, {1, 2}, object(), b"x", "\ud800", {"a": math.inf}],
    ids=["nan", "set", "object", "bytes", "surrogate", "infinity"],
)
def test_what_is_no_json_is_a_failure(value: Any) -> None:
    with pytest.raises(TransformFailed, match=r"the value is (no JSON|text that is no UTF-8)"):
        Seen("json").made(b"1", lambda record: record.with_value(value))


@pytest.mark.parametrize("raw", [b"", b"{", b"[" * 100_000])
def test_a_captured_value_that_is_no_json_is_a_failure(raw: bytes) -> None:
    with pytest.raises(TransformFailed, match="a captured value is not JSON, though its format says so"):
        Seen("json").made(raw, lambda record: record)


# -- the built-in transforms --------------------------------------------------------------------------------------


def transformed(options: dict[str, str], before: Any, after: Any) -> tuple[Any, Any]:
    config = of({**options, "type": f"{OURS}.{options['type']}"}, cache__value__format="json")
    raws = [json.dumps(value).encode() for value in (before, after)]
    (told,) = parts_of(config, put(1, "k", raws[1].decode(), existed=True, before=raws[0]))
    return json.loads(told.operation.before), json.loads(told.operation.value)


def test_mask_field() -> None:
    value = {"text": "a", "number": 5, "real": 1.5, "flag": True, "list": [1], "object": {"a": 1}, "null": None, "k": 1}
    names = ",".join(n for n in value if n != "k") + ",absent"
    empty = {"text": "", "number": 0, "real": 0.0, "flag": False, "list": [], "object": {}, "null": None, "k": 1}
    assert transformed({"type": "MaskField", "fields": names}, value, {"k": 2}) == (empty, {"k": 2})
    found, _ = transformed({"type": "MaskField", "fields": "text,number,null", "replacement": "***"}, value, {})
    assert found == {**value, "text": "***", "number": "***"}


def test_replace_field() -> None:
    value = {"a": 1, "b": 2, "c": 3}
    assert transformed({"type": "ReplaceField", "exclude": "a"}, value, {}) == ({"b": 2, "c": 3}, {})
    options = {"type": "ReplaceField", "include": "a,b", "exclude": "b", "renames": "a:x,c:y"}
    assert transformed(options, value, {"c": 3}) == ({"x": 1}, {})
    with pytest.raises(TransformFailed, match="give a field the name of another one that is there"):
        transformed({"type": "ReplaceField", "renames": "a:b"}, value, {})


def test_fields_are_those_of_objects() -> None:
    with pytest.raises(TransformFailed, match=r"takes JSON objects \(cache.value.format=json\), not list"):
        transformed({"type": "MaskField", "fields": "a"}, {}, [1])


@pytest.mark.parametrize(
    ("predicate", "kept"),
    [
        ({"type": "KeyMatches", "pattern": "a+"}, ["b", "ba"]),
        ({"type": "OperationIs", "operations": "u,d"}, ["a", "b"]),
        ({"type": "TopicNameMatches", "pattern": "p\\..*"}, []),
        ({"type": "TopicNameMatches", "pattern": "p"}, ["a", "aa", "b", "ba"]),
    ],
)
def test_filter_by_what_a_predicate_says(predicate: dict[str, str], kept: list[str]) -> None:
    predicate = {**predicate, "type": f"{OURS}.{predicate['type']}"}
    config = of({"type": f"{OURS}.Filter", "predicate": "p"}, predicates={"p": predicate})
    operations = [
        put(1, "a", "x"), put(2, "aa", "x", existed=True), put(3, "b", "x"), put(4, "ba", None, existed=True)
    ]  # fmt: skip
    found = parts_of(config, *operations)
    assert [part.operation.key.decode() for part in found if isinstance(part, TransformedOperation)] == kept


def test_a_key_that_is_no_text_matches_nothing_and_says_so() -> None:
    predicate = {"p": {"type": f"{OURS}.KeyMatches", "pattern": ".*"}}
    config = of({"type": f"{OURS}.Filter", "predicate": "p"}, predicates=predicate, cache__key__format="bytes")
    with pytest.raises(TransformFailed, match="takes keys that are text, not bytes"):
        parts_of(config, put(1, "a", "x"))
