"""Aliases of transforms and predicates, without the classes: the Spark job, which reads the same file, has none."""

from __future__ import annotations

from typing import Any

import pytest

from deelog_schemas.config import Declared, FieldError, Type, parse, refused_from_rest
from deelog_schemas.config.field import Refused
from deelog_schemas.config.transforms import check, check_aliases, declared, field_of
from tests.schemas.config.builders import GOOD

OURS = "deelog_connector.transforms"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("transforms.a.type", Type.STRING),
        ("predicates.a.type", Type.STRING),
        ("transforms.a.predicate", Type.STRING),
        ("transforms.a.negate", Type.BOOLEAN),
        ("predicates.a.negate", Type.STRING),  # an option of the class
        ("transforms.a.fields", Type.STRING),
        ("transforms.a-b_1.more.x", Type.STRING),
        ("transforms.a.password", Type.PASSWORD),
        ("predicates.a.some.token", Type.PASSWORD),
        *((name, None) for name in ("transforms.a", "transforms", "transform.a.type", "transforms.a b.type", "x")),
        *((name, None) for name in (f"transforms.{'a' * 65}.type", "transforms..type", "transforms.a.", "predicates.")),
    ],
)
def test_a_name_with_an_alias_declares_a_field(name: str, kind: Type | None) -> None:
    field = field_of(name)
    assert (None if field is None else field.type) == kind
    if field is not None:
        assert (field.name, field.group, field.default) == (name, "transforms", None)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("transforms.a.type", ("m.C", "a.b:C", "m.C$D"), ("C", "os.system()", ".C", "m.")),
        ("predicates.a.type", ("m.C",), ("C",)),
        ("transforms.a.predicate", ("p", "p-1"), ("a b", "")),
        ("transforms.a.negate", ("true", "FALSE"), ("maybe",)),
        ("predicates.a.predicate", ("anything at all",), ()),
    ],
)
def test_what_such_a_field_takes(name: str, good: tuple[str, ...], bad: tuple[str, ...]) -> None:
    field = field_of(name)
    assert field is not None
    for text in good:
        assert str(field.parse(text)).lower() == text.lower()
    for text in bad:
        with pytest.raises(Refused):
            field.parse(text)


@pytest.mark.parametrize(
    ("aliases", "problem"),
    [
        ((), None),
        (("a", "b-1_C"), None),
        (("a" * 64,), None),
        (("a", "b", "a"), "must not name an alias twice: give the second one another alias"),
        (("a b",), "must be a comma separated list of aliases, 1 to 64 of A-Z a-z 0-9 _ - each"),
        (("a", "b.c"), "must be a comma separated list of aliases, 1 to 64 of A-Z a-z 0-9 _ - each"),
        (("a" * 65,), "must be a comma separated list of aliases, 1 to 64 of A-Z a-z 0-9 _ - each"),
    ],
)
def test_aliases_are_words_and_each_is_there_once(aliases: tuple[str, ...], problem: str | None) -> None:
    assert check_aliases(aliases) == problem


def test_a_declaration_has_the_names_of_the_options() -> None:
    values = {
        "transforms.a.type": "m.C",
        "transforms.a.predicate": "p",
        "transforms.a.negate": True,
        "transforms.a.fields": "x",
        "transforms.a.more.of": "y",
        "transforms.ab.z": "other",
        "predicates.a.q": "1",
    }
    assert declared("transforms", "a", values) == Declared("transforms.a.", "m.C", ("fields", "more.of"), "p", True)
    plain = declared("transforms", "b", {"transforms.b.type": "m.D"})
    assert plain == Declared("transforms.b.", "m.D", (), None, False)
    of_predicate = declared("predicates", "p", {"predicates.p.type": "m.P", "predicates.p.negate": "its own"})
    assert of_predicate == Declared("predicates.p.", "m.P", ("negate",), None, True)


def told(known: dict[str, Any], *given: str) -> list[str]:
    return [str(error) for error in check(known, dict.fromkeys(given, "x"))]


@pytest.mark.parametrize(
    ("known", "given", "errors"),
    [
        ({}, (), []),
        ({}, ("transforms.a.type",), []),  # the list is a reference that is not resolved yet
        ({"transforms": ("a",)}, ("transforms.a.type", "transforms.a.fields"), []),
        (
            {"transforms": ("a",)},
            (),
            ["transforms.a.type: is required, since transforms names a: the dotted path of a class"],
        ),
        (
            {"predicates": ("p",)},
            (),
            ["predicates.p.type: is required, since predicates names p: the dotted path of a class"],
        ),
        (
            {"transforms": ()},
            ("transforms.a.type",),
            ["transforms.a.type: belongs to no alias: add a to transforms, or remove it"],
        ),
        (
            {"transforms": ("ab",), "predicates": ("abc",)},
            ("transforms.ab.type", "predicates.abc.type", "transforms.abc.x"),
            [
                "transforms.abc.x: belongs to no alias: add abc to transforms, or remove it; did you mean "
                "transforms.ab.x?"
            ],
        ),
        (
            {"transforms": ("a",), "transforms.a.predicate": "pp", "predicates": ("p",)},
            ("transforms.a.type", "transforms.a.predicate", "predicates.p.type"),
            ["transforms.a.predicate = 'pp': must be an alias of predicates; did you mean p?"],
        ),
        (
            {"transforms": ("a",), "transforms.a.predicate": "zzz"},
            ("transforms.a.type", "transforms.a.predicate"),
            ["transforms.a.predicate = 'zzz': must be an alias of predicates"],
        ),
        (
            {"transforms": ("a",), "transforms.a.predicate": "p", "transforms.a.negate": True, "predicates": ("p",)},
            ("transforms.a.type", "transforms.a.predicate", "transforms.a.negate", "predicates.p.type"),
            [],
        ),
        (
            {"transforms": ("a",), "transforms.a.negate": True},
            ("transforms.a.type", "transforms.a.negate"),
            ["transforms.a.negate = 'x': says nothing without transforms.a.predicate: set that, or remove it"],
        ),
    ],
)
def test_names_that_do_not_go_together(known: dict[str, Any], given: tuple[str, ...], errors: list[str]) -> None:
    assert told(known, *given) == errors


def test_the_spark_job_reads_the_same_file_without_the_classes() -> None:
    given = {"transforms": "a", "transforms.a.type": "only.on.the.Nodes", "diff.checkpoint.location": "/x"}
    config = parse({k: v for k, v in (GOOD | given).items() if k != "node.id"}, "diff")
    assert config["transforms"] == ("a",)


def test_rest_may_name_what_comes_along_and_what_the_nodes_file_names() -> None:
    own = {
        "transforms": "x",
        "transforms.x.type": " mine.Allowed",
        "transforms.y.type": "${env:SOME}",
        "predicates.p.type": "mine.Predicate",
        "transforms.x.path": "os.system",
    }
    allowed = {
        "transforms.a.type": "mine.Allowed", "predicates.b.type": " mine.Allowed ", "transforms.a.x": "os.system",
        "transforms.c.type": f"{OURS}.Filter", "transforms.d.type": f"{OURS}:Filter",
        "transforms.e.type": "${env:SOME}", "transforms.f.type": "mine.Predicate", "name": "os.system",
    }  # fmt: skip
    assert refused_from_rest(allowed, own) == []
    bad = ["os.system", "mine.Allowed2", f"{OURS}.loading.importlib", f"{OURS}x.Filter", "${env:OTHER}", "x" * 500]
    for text in bad:
        for name in ("transforms.a.type", "predicates.a.type"):
            problem = (
                "names code that REST may not bring in: use a class of deelog's, or one that the node's own file names"
            )
            assert refused_from_rest({name: text}, own) == [FieldError(name, problem, repr(text[:80]))]
