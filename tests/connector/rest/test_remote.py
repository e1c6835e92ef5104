"""What a configuration over REST may say. Bad input: masks of nothing, references, classes that are not deelog's."""

from __future__ import annotations

import pytest

from deelog_connector.rest.remote import as_text, without_masks
from deelog_schemas.config import MASK, parse
from tests.connector.rest.fakes import GIVEN

OWN = parse(
    GIVEN
    | {
        "producer.override.sasl.password": "hunter2",
        "rest.token": "${env:TOKEN}",
        "transforms": "a",
        "transforms.a.type": "mine.Transform",
    }
)


def problems(**given: str) -> dict[str, str]:
    _, errors = without_masks({name.replace("_", "."): text for name, text in given.items()}, OWN, OWN)
    return {error.field: error.problem for error in errors}


def test_numbers_and_booleans_are_text_as_in_a_file() -> None:
    assert as_text({"a": 1, "b": 1.5, "c": True, "d": False, "e": "x"}) == {
        "a": "1",
        "b": "1.5",
        "c": "true",
        "d": "false",
        "e": "x",
    }


def test_a_mask_is_the_present_value() -> None:
    given = {"producer.override.sasl.password": MASK, "rest.token": MASK, "topic.prefix": "q"}
    meant = {"producer.override.sasl.password": "hunter2", "rest.token": "${env:TOKEN}", "topic.prefix": "q"}
    assert without_masks(given, OWN, OWN) == (meant, [])


def test_a_mask_of_nothing_is_an_error() -> None:
    whole, errors = without_masks({"rest.readonly.token": MASK}, OWN, OWN)
    assert whole == {"rest.readonly.token": MASK}
    assert [str(error) for error in errors] == [
        f"rest.readonly.token: is {MASK}, which keeps the present value, and there is none"
    ]


@pytest.mark.parametrize(
    ("name", "text", "refused"),
    [
        ("rest.token", "${env:TOKEN}", False),
        ("rest.token", "${env:OTHER}", True),
        ("topic.prefix", "${env:TOKEN}", True),
        ("topic.prefix", "a${file:/etc/passwd:x}", True),
        ("topic.prefix", "$plain", False),
    ],
)
def test_a_reference_is_taken_only_as_it_is_in_the_file(name: str, text: str, refused: bool) -> None:
    told = problems(**{name.replace(".", "_"): text})
    words = "must not refer to anything but what the process's own file refers to, under the same name"
    assert told == ({name: words} if refused else {})


def test_code_is_named_only_by_the_file() -> None:
    assert problems(transforms_b_type="mine.Transform") == {}
    assert problems(transforms_b_type="deelog_connector.transforms.Filter") == {}
    assert "names code that REST may not bring in" in problems(transforms_b_type="os.path")["transforms.b.type"]


def test_what_was_taken_out_over_rest_may_come_back() -> None:
    less = parse(GIVEN | {"producer.override.sasl.password": "hunter2"})
    given = {"rest.token": "${env:TOKEN}", "transforms": "a", "transforms.a.type": "mine.Transform"}
    assert without_masks(given, less, OWN) == (given, [])
    assert [e.field for e in without_masks(given, less, less)[1]] == ["rest.token", "transforms.a.type"]
