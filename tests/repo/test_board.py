"""The board as Grafana's own model has it. What its expressions find, `grid/test_prometheus.py` asks Prometheus."""

from __future__ import annotations

import json
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.interceptors.grid.test_prometheus import BOARD as PATH

BOARD: dict[str, Any] = json.loads(PATH.read_text("utf-8"))
NOT_IN_THE_MODEL = "definition"
"""Of a variable: the text of its query, which Grafana's list of variables shows; the model knows the query alone."""


@pytest.fixture(scope="module", autouse=True)
def plugins() -> None:
    """The models of the panels and of Prometheus' queries."""
    register_default_plugins()


def lost(told: Any, kept: Any, path: str = "") -> list[str]:
    """Where what a model keeps is not what it was told."""
    if isinstance(told, dict) and isinstance(kept, dict):
        return [at for key, value in told.items() for at in lost(value, kept.get(key), f"{path}/{key}")]
    if isinstance(told, list) and isinstance(kept, list) and len(told) == len(kept):
        return [
            at for n, (one, other) in enumerate(zip(told, kept, strict=True)) for at in lost(one, other, f"{path}/{n}")
        ]
    return [] if told == kept else [path]


def as_grafana(board: dict[str, Any]) -> Any:
    """Read into the model, and written by it."""
    return json.loads(JSONEncoder().encode(Dashboard.from_json(board)))


def test_grafana_knows_every_field_of_the_board() -> None:
    variables = BOARD["templating"]["list"]
    known = [f"/templating/list/{n}/{NOT_IN_THE_MODEL}" for n, one in enumerate(variables) if NOT_IN_THE_MODEL in one]
    assert lost(BOARD, as_grafana(BOARD)) == known


def test_a_field_that_grafana_does_not_know_is_found() -> None:
    board = json.loads(json.dumps(BOARD))
    panel = next(n for n, panel in enumerate(board["panels"]) if panel["type"] != "row")
    board["panels"][panel]["fieldConfig"]["defaults"]["unite"] = "s"
    board["panels"][panel]["targets"][0]["expression"] = "up"
    added = {f"/panels/{panel}/fieldConfig/defaults/unite", f"/panels/{panel}/targets/0/expression"}
    assert {at for at in lost(board, as_grafana(board)) if NOT_IN_THE_MODEL not in at} == added


def test_panels_are_told_apart_and_do_not_cover_each_other() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
