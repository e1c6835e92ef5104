"""How transforms are found and made from the configuration.

Bad input: a missing class, module or option; a class that is not a transform, is abstract, or raises when it is
imported or created; an option of the wrong type; a Filter without a predicate; aliases that are not in the lists once
they are known.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from deelog_connector.transforms import (
    OperationIs,
)
from deelog_connector.transforms.loading import steps_of
from deelog_schemas.config import parse
from tests.connector.transforms.building import MINE, OURS, REQUIRED, config_of, errors_of, of
from tests.connector.transforms.transforms_for_tests import Suffix


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


def test_a_class_of_java_is_answered_with_ours() -> None:
    (error,) = errors_of(of({"type": "org.apache.kafka.connect.transforms.MaskField$Value"}))
    assert "is a class of Java: deelog_connector.transforms.builtin.MaskField does that" in error


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


def test_a_step_has_its_name_its_predicate_and_whether_that_is_negated() -> None:
    config = of(
        {"type": f"{OURS}.Filter", "predicate": "p", "negate": "true"},
        {"type": f"{OURS}.Filter", "predicate": "p"},
        {"type": f"{MINE}.Suffix"},
        predicates={"p": {"type": f"{OURS}.OperationIs", "operations": "c"}},
    )
    first, second, third = steps_of(config)
    assert [(step.alias, step.name) for step in (first, third)] == [("t0", f"{OURS}.Filter"), ("t2", f"{MINE}.Suffix")]
    assert isinstance(first.predicate, OperationIs)
    assert first.predicate is second.predicate
    assert (first.negate, second.negate, third.predicate, third.negate) == (True, False, None, False)
    assert isinstance(third.transform, Suffix)
    assert third.transform.options == {"text": "!"}
    assert steps_of(config_of()) == ()


def test_a_name_that_resembles_nothing_is_told_without_a_guess() -> None:
    (error,) = errors_of(of({"type": f"{OURS}.Xyzzy"}))
    assert error.endswith(f"cannot be imported: {OURS} has no Xyzzy")
    (error,) = errors_of(of({"type": f"{MINE}.Suffix", "wxyz": "1"}))
    assert error == f"transforms.t0.wxyz: is no option of {MINE}.Suffix"
    (error,) = errors_of(of({"type": f"{OURS}.filter", "predicate": "p"}, predicates={"p": OPERATIONS}))
    assert error.endswith("has no filter; did you mean Filter?")


def test_a_predicate_is_no_transform_and_a_transform_no_predicate() -> None:
    (error,) = errors_of(of({"type": f"{OURS}.OperationIs", "operations": "c"}))
    assert error.endswith("must be a subclass of deelog_connector.transforms.record.Transform")
    (error,) = errors_of(of({"type": f"{MINE}.Suffix"}, predicates={"p": {"type": f"{MINE}.Suffix"}}))
    assert error.endswith("must be a subclass of deelog_connector.transforms.record.Predicate")


OPERATIONS = {"type": f"{OURS}.OperationIs", "operations": "c"}
