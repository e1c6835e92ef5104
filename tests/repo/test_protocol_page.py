"""docs/protocol.md says what the code says: phases, kinds, reasons and rules.

python -m tests.repo.test_protocol_page     writes the diagram of the phases into the page
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from deelog_connector.core.segment import TRANSITIONS, Phase
from deelog_connector.core.snapshots import SNAPSHOT_REASON
from deelog_connector.metrics.families import _RESETS
from deelog_schemas.header import Kind
from tests.proof.simulation.rows import RULES
from tests.support.paths import ROOT

PAGE: Final = ROOT / "docs" / "protocol.md"
_NOT_DRAWN: Final = frozenset({Phase.IDLE, Phase.CLAIM})
_DIAGRAM: Final = re.compile(r"(?<=<!-- phases: begin -->\n).*(?=<!-- phases: end -->)", re.DOTALL)


def diagram() -> str:
    """The table of transitions as Mermaid draws it, without the edges that every phase has."""
    edges = [
        f"  {phase} --> {target}"
        for phase, targets in TRANSITIONS.items()
        for target in sorted(targets - _NOT_DRAWN, key=list(Phase).index)
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", "  idle --> claim", *edges, "```", ""])


def table(page: str, head: str) -> list[list[str]]:
    """The rows of the table whose first line is `head`."""
    lines = page[page.index(f"\n{head}\n") + 1 :].splitlines()[2:]
    rows = lines[: next((n for n, line in enumerate(lines) if not line.startswith("|")), len(lines))]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_diagram_is_the_table_of_transitions() -> None:
    remedy = "stale: run `python -m tests.repo.test_protocol_page`"
    assert _DIAGRAM.findall(PAGE.read_text("utf-8")) == [diagram()], remedy


def test_every_kind_of_record_has_a_row() -> None:
    page = PAGE.read_text("utf-8")
    rows = table(page, "| kind | number | key | says |") + table(page, "| kind | number | key | carries |")
    assert {row[0]: int(row[1]) for row in rows} == {kind.name: kind.value for kind in Kind}


def test_every_reason_of_a_reset_has_a_row() -> None:
    rows = table(PAGE.read_text("utf-8"), "| reason | when |")
    reasons = [reason for row in rows for reason in re.findall(r"`(\w+)`", row[0])]
    assert sorted(reasons) == sorted([*_RESETS, SNAPSHOT_REASON, "interval"])


def test_every_rule_has_a_row() -> None:
    assert sorted(row[0] for row in table(PAGE.read_text("utf-8"), "| rule | without it |")) == sorted(RULES)


def _write(page: Path) -> None:
    page.write_text(_DIAGRAM.sub(lambda _: diagram(), page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    _write(PAGE)
