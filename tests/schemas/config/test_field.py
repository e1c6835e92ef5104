"""One declaration: which texts it takes, which it refuses, and the words for both."""

from __future__ import annotations

import re
from typing import Any

import pytest

from deelog_schemas.config.field import INT_MAX, LONG_MAX, REQUIRED, Field, Refused, Role, Type, split_list, words
from deelog_schemas.config.secrets import Secret


def field_of(kind: Type, **more: Any) -> Field:
    return Field("x", kind, doc="D.", **more)


SMALL = field_of(Type.INT, low=1, high=5)
SOME = field_of(Type.ENUM, allowed=("a", "b"), refused={"c": "a is the same"})
MANY = field_of(Type.LIST, allowed=("a", "b"), refused={"c": "a is the same"})
FREE = field_of(Type.LIST)
WORD = field_of(Type.STRING, pattern=re.compile("[a-z]+"))


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        (SMALL, " 1 ", 1),
        (SMALL, "+5", 5),
        (field_of(Type.INT), "-2147483648", -INT_MAX - 1),
        (field_of(Type.INT), "2147483647", INT_MAX),
        (field_of(Type.LONG), str(LONG_MAX), LONG_MAX),
        (field_of(Type.LONG), str(-LONG_MAX - 1), -LONG_MAX - 1),
        (field_of(Type.LONG), "1" + "0" * 18, 10**18),
        (field_of(Type.BOOLEAN), " TRUE", True),
        (field_of(Type.BOOLEAN), "False", False),
        (SOME, " b ", "b"),
        (field_of(Type.CLASS, allowed=("m.C",)), "m.C", "m.C"),
        (field_of(Type.CLASS), "any.Class", "any.Class"),
        (MANY, "b, a", ("b", "a")),
        (FREE, r"a, , b\,c", ("a", "b,c")),
        (FREE, "", ()),
        (WORD, " abc ", "abc"),
        (field_of(Type.STRING), " a b ", "a b"),
        (field_of(Type.STRING, pattern=re.compile("[a-z]*")), "", ""),
        (field_of(Type.PASSWORD), " p w ", Secret(" p w ")),
        (field_of(Type.PASSWORD), "", Secret("")),
    ],
)
def test_a_text_that_is_taken(field: Field, text: str, value: Any) -> None:
    found = field.parse(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("field", "text", "problem"),
    [
        *((SMALL, text, "must be a whole number from 1 to 5") for text in ("0", "6", "-1", "", "many", "1.5", "true")),
        *((SMALL, text, "must be a whole number from 1 to 5") for text in ("1_0", "٣", "1e0", "0x1", "--1", "1\n2")),
        (field_of(Type.INT, low=-1), "-2", "must be a whole number of at least -1"),
        (field_of(Type.INT, low=1), str(2**31), "must be a whole number of at least 1"),
        (field_of(Type.INT), str(-(2**31) - 1), f"must be a whole number of at least {-INT_MAX - 1}"),
        (field_of(Type.LONG, low=1), str(2**63), "must be a whole number of at least 1"),
        (field_of(Type.LONG, low=1), "9" * 30, "must be a whole number of at least 1"),
        (field_of(Type.LONG, low=1), "0" * 20 + "5", "must be a whole number of at least 1"),
        *((field_of(Type.BOOLEAN), text, "must be true or false") for text in ("1", "yes", "", "trueish")),
        (SOME, "B", "must be one of a, b"),
        (SOME, "", "must be one of a, b"),
        (SOME, "c", "must be one of a, b: a is the same"),
        (field_of(Type.CLASS, allowed=("m.C",)), "m.D", "must be m.C"),
        (MANY, "a,x", "must be a comma separated list of a, b"),
        (MANY, "a,c", "must be a comma separated list of a, b: a is the same"),
        (WORD, "a b", "must be text that matches [a-z]+"),
        (WORD, "a\nb", "must be text that matches [a-z]+"),
        (WORD, "", "must not be empty"),
        (field_of(Type.STRING), "  ", "must not be empty"),
    ],
)
def test_a_text_that_is_refused(field: Field, text: str, problem: str) -> None:
    with pytest.raises(Refused) as caught:
        field.parse(text)
    assert str(caught.value) == problem


def test_a_check_sees_the_typed_value_and_says_what_is_wrong() -> None:
    def even(number: int) -> str | None:
        return "must be even" if number % 2 else None

    field = field_of(Type.INT, check=even)
    assert field.parse("4") == 4
    with pytest.raises(Refused, match="must be even"):
        field.parse("3")


@pytest.mark.parametrize(
    ("default", "text"),
    [
        (REQUIRED, None),
        (None, None),
        (True, "true"),
        (False, "false"),
        (("a", "b"), "a,b"),
        ((), ""),
        (7, "7"),
        ("", ""),
    ],
)
def test_a_default_is_written_as_in_a_file(default: Any, text: str | None) -> None:
    assert field_of(Type.STRING, default=default).default_text == text


@pytest.mark.parametrize(
    ("field", "takes"),
    [
        (SMALL, "a whole number from 1 to 5"),
        (field_of(Type.LONG, high=5), f"a whole number from {-LONG_MAX - 1} to 5"),
        (field_of(Type.INT, low=0), "a whole number of at least 0"),
        (field_of(Type.LONG, low=0), "a whole number of at least 0"),
        (field_of(Type.BOOLEAN), "true or false"),
        (SOME, "one of a, b"),
        (field_of(Type.CLASS, allowed=("m.C",)), "m.C"),
        (MANY, "a comma separated list of a, b"),
        (FREE, "a comma separated list"),
        (WORD, "text that matches [a-z]+"),
        (field_of(Type.STRING), "text"),
        (field_of(Type.PASSWORD), "text"),
    ],
)
def test_what_it_takes_in_words(field: Field, takes: str) -> None:
    assert field.takes == takes


def test_it_is_required_by_the_programs_that_need_it_and_only_without_a_default() -> None:
    assert all(SMALL.required_by(role, ()) for role in Role)
    for_nodes = field_of(Type.INT, roles=frozenset({Role.NODE}))
    assert [role for role in Role if for_nodes.required_by(role, ())] == [Role.NODE]
    assert not field_of(Type.INT, default=None).required_by(Role.NODE, ())
    replaced = field_of(Type.INT, instead="other")
    assert [role for role in Role if not replaced.required_by(role, {"other": 1})] == [Role.NODE]
    assert all(replaced.required_by(role, {"another": 1}) for role in Role)


@pytest.mark.parametrize(
    ("text", "entries"),
    [("", []), (" , ,", []), ("a", ["a"]), (" a ,b", ["a", "b"]), (r"a\,b,c", ["a,b", "c"]), (r"\,", [","])],
)
def test_a_list_is_split_at_its_commas(text: str, entries: list[str]) -> None:
    assert split_list(text) == entries


def test_words_are_split_at_any_blank() -> None:
    assert words(" a.b\n  c\td a.b ") == {"a.b", "c", "d"}
