"""The table of docs/howto/acls.md, as rights to grant."""

from __future__ import annotations

from tests.support.paths import ROOT
from tests.support.secure import Right

PAGE = ROOT / "docs" / "howto" / "acls.md"
PREFIX, CACHE = "shop", "sessions"
"""The prefix and the cache in the page's names."""


def rights_of(user: str) -> list[Right]:
    """The page's rows of one user."""
    rights = [right for right in _rows() if right.user == user]
    assert rights, f"{PAGE.name} has no rows of {user}"
    return rights


def creating(user: str) -> list[Right]:
    """The further rights of a user who creates the topics."""
    assert "`Create` on the topic prefix `shop` and on `__debezium-heartbeat.shop`" in PAGE.read_text("utf-8")
    heartbeat = f"__debezium-heartbeat.{PREFIX}"
    return [Right(user, "Topic", PREFIX, True, "Create"), Right(user, "Topic", heartbeat, False, "Create")]


def _rows() -> list[Right]:
    rows = []
    for line in PAGE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 5 and cells[0] != "user":
            user, resource, name, operation, _ = cells
            rows.append(Right(user, resource, name.removesuffix("*"), name.endswith("*"), operation))
    return rows
