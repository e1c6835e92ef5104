"""The built-in transforms and predicates. Bad input: values that are no objects, keys that are no text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deelog_connector.errors import TransformFailed
from deelog_connector.transforms import (
    Filter,
    KeyMatches,
    MaskField,
    OperationIs,
    Record,
    ReplaceField,
    Row,
    TopicNameMatches,
)
from deelog_connector.transforms.pipeline import (
    TransformedOperation,
)
from tests.connector.transforms.building import OURS, of, parts_of, put


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


RECORD = Record("shop.users", "k", "u", Row({"a": 1}), Row({"a": 2, "b": 3}), {}, 0)


def test_a_row_that_is_not_there_stays_so() -> None:
    mask = MaskField({"fields": ("a",), "replacement": None})
    assert mask.apply(RECORD._replace(before=None)) == RECORD._replace(before=None, after=Row({"a": 0, "b": 3}))
    assert mask.apply(RECORD._replace(after=None)) == RECORD._replace(before=Row({"a": 0}), after=None)
    assert RECORD.after == Row({"a": 2, "b": 3})


def test_a_mask_names_at_least_one_field() -> None:
    with pytest.raises(ValueError, match="fields must name at least one"):
        MaskField({"fields": (), "replacement": None})


def test_a_field_keeps_its_row_and_expiry() -> None:
    record = RECORD._replace(before=None, after=Row({"a": 2}, 99))
    replace = ReplaceField({"include": (), "exclude": (), "renames": ("a:z",)})
    assert replace.apply(record) == record._replace(after=Row({"z": 2}, 99))


@pytest.mark.parametrize("renames", [("a",), (":b",), ("a:",), ("a:b:c",), ("a:x", "b")])
def test_a_rename_is_an_old_and_a_new_name(renames: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="renames must be old:new"):
        ReplaceField({"include": (), "exclude": (), "renames": renames})


def test_two_fields_may_change_their_names_but_not_share_one() -> None:
    swap = ReplaceField({"include": (), "exclude": (), "renames": ("a:b", "b:a")})
    assert swap.apply(RECORD._replace(before=None)) == RECORD._replace(before=None, after=Row({"b": 2, "a": 3}))
    with pytest.raises(ValueError, match="renames must not give two fields one name"):
        ReplaceField({"include": (), "exclude": (), "renames": ("a:x", "b:x")})


def test_a_predicate_takes_the_whole_text() -> None:
    topic = TopicNameMatches({"pattern": r"shop\..*"})
    assert [topic.test(RECORD._replace(topic=name)) for name in ("shop.users", "my.shop.users", "shop")] == [
        True,
        False,
        False,
    ]
    key = KeyMatches({"pattern": "k+"})
    assert [key.test(RECORD._replace(key=name)) for name in ("k", "kk", "ka", "")] == [True, True, False, False]
    with pytest.raises(ValueError, match="takes keys that are text, not bytes"):
        key.test(RECORD._replace(key=b"k"))
    for predicate in (KeyMatches, TopicNameMatches):
        with pytest.raises(ValueError, match="pattern must be a regular expression: "):
            predicate({"pattern": "("})


def test_an_operation_is_one_of_those_named() -> None:
    predicate = OperationIs({"operations": ("c", "r")})
    assert [predicate.test(RECORD._replace(op=op)) for op in "cudr"] == [True, False, False, True]
    assert Filter({}).apply(RECORD) is None
    assert Filter.NEEDS_PREDICATE
