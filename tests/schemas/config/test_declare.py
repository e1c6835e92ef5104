"""Fields in groups."""

from __future__ import annotations

from deelog_schemas.config.declare import INT, STRING, Group, group
from deelog_schemas.config.field import Field


def test_a_group_is_named_in_each_of_its_fields() -> None:
    one, two = Field("a", INT, 1, doc="A."), Field("b", STRING, "x", doc="B.", group="other")
    made = group("grid", "Node and grid", one, two)
    assert made[:2] == ("grid", "Node and grid")
    assert isinstance(made, Group)
    assert [(field.name, field.type, field.default, field.group) for field in made.fields] == [
        ("a", INT, 1, "grid"),
        ("b", STRING, "x", "grid"),
    ]
    assert (one.group, two.group) == ("", "other"), "the declarations themselves stay"
