from __future__ import annotations

import pytest

from deelog_connector.errors import MissingExtraError, NodeSuperseded


@pytest.mark.parametrize(("place", "told"), [("", ""), ("h:1", " at h:1")])
def test_who_is_superseded_tells_by_whom_and_keeps_that(place: str, told: str) -> None:
    error = NodeSuperseded("n1@9", "n1@7", place)
    assert error.by == "n1@9"
    assert str(error) == (
        f"n1@9{told} has the node.id of n1@7 and is newer: this process ends. Give each node an id of its own"
    )


def test_a_missing_extra_is_named_with_what_installs_it() -> None:
    assert str(MissingExtraError("diff", "spark", "pyspark")) == (
        "deelog diff needs pyspark, which is not installed: pip install 'deelog[spark]'"
    )
