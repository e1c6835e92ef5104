"""A transform's record: what a change of it leaves alone. Bad input: values that are not there."""

from __future__ import annotations

import pytest

from deelog_connector.transforms import (
    Record,
    Row,
    Type,
    option,
)
from deelog_schemas.config.field import REQUIRED
from tests.connector.transforms.transforms_for_tests import Suffix, ValueIsLong


def test_a_value_that_is_not_there_is_not_replaced() -> None:
    record = Record("t", b"k", "d", None, None, {}, 0)
    with pytest.raises(ValueError, match="a delete has no value after it"):
        record.with_value("x")
    with pytest.raises(ValueError, match="there is no value before this change"):
        record.with_before("x")


def test_a_record_is_changed_by_making_another() -> None:
    record = Record("t", "k", "u", Row("old"), Row("new", 7), {}, 17, (("a", b"1"),))
    assert record.with_value("x") == record._replace(after=Row("x", 7))
    assert record.with_before("x") == record._replace(before=Row("x"))
    assert record.with_header("b", None) == record._replace(headers=(("a", b"1"), ("b", None)))
    assert record == Record("t", "k", "u", Row("old"), Row("new", 7), {}, 17, (("a", b"1"),))


def test_a_row_is_its_value_and_its_expiry() -> None:
    row = Row.loaded_by(lambda: "v", 7)
    assert repr(Row("v", 7)) == "Row('v', 7)"
    assert row == Row("v", 7) == Row("w", 7).with_value("v")
    assert row not in (Row("v"), Row("w", 7), "v")
    with pytest.raises(AttributeError):
        row.expires_at = 8  # type: ignore[misc]
    with pytest.raises(AttributeError):
        row.value = "w"  # type: ignore[misc]


def test_an_option_is_text_and_required_unless_it_says_otherwise() -> None:
    made = option(name="a", doc="A.")
    assert (made.name, made.type, made.default, made.group) == ("a", Type.STRING, REQUIRED, "transforms")
    assert option(name="b", type=Type.INT, default=3, doc="B.").default == 3


def test_what_is_made_of_options_keeps_them() -> None:
    options = {"text": "?"}
    assert Suffix(options).options is options
    assert (Suffix.NEEDS_PREDICATE, Suffix.OPTIONS[0].name, ValueIsLong.OPTIONS) == (False, "text", ())
