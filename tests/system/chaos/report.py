"""The outcome of a chaos run for people; its JSON is the report itself."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_SHOWN = 8
_WAITS = 3


def show(report: dict[str, Any], console: Console) -> None:
    """Counts, recovery times by kind of fault, the longest waits, and the verdict last."""
    violations = report["violations"]
    outcomes, seconds = report["outcomes"], report["seconds"]
    counts = [
        (report["operations"], f"operations: {_listed(outcomes)}; seed {report['seed']}, {report['nodes']} nodes"),
        (sum(report["faults"].values()), f"faults: {_listed(report['faults'])}"),
        (report["changes"], f"changes in Kafka, {report['takeovers']:,} takeovers, {report['fenced']:,} fenced nodes"),
        (len(violations.get("lost", ())), "acknowledged operations lost"),
        (report["covered_by_reset"], "acknowledged operations that a reset covers which a fault called for"),
        (len(violations.get("phantoms", ())), "phantoms"),
        (len(violations.get("duplicates", ())), "records twice"),
        (sum(report["resets"].values()), f"resets: {_listed(report['called_for']) or 'none called for'}"),
        (len(violations.get("needless", ())), "needless resets"),
        (len(violations.get("differing", ())), f"of {report['keys']:,} keys differ"),
        (round(sum(seconds.values())), f"seconds: {_listed(seconds)}"),
    ]
    table = Table(show_header=False, box=None, padding=(0, 1))
    table.add_column(justify="right", style="bold")
    table.add_column()
    for number, text in counts:
        table.add_row(f"{number:,}", text)
    console.print(table)
    console.print(_times(report))
    for wait in report["longest_waits"][:_WAITS]:
        during, answers = ", ".join(wait["during"]) or "nothing", _listed(wait["answers"]) or "none"
        console.print(
            Text(f"{wait['ms'] / 1000:.1f} s {wait['client']} ({wait['outcome']}) during {during}: {answers}")
        )
    for name, found in violations.items():
        console.print(Text(f"✗ {name}: {len(found):,}", style="bold red"))
        for line in found[:_SHOWN]:
            console.print(Text(f"    {line}"))
    if not violations:
        console.print(Text("✓ nothing is lost, nothing is twice, and all is equal, key by key", style="bold green"))


def _times(report: dict[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 1), title="\nMilliseconds by kind of fault", title_justify="left")
    for name in ("fault", "times", "recovery p50", "max", "longest wait p50", "max"):
        table.add_column(name, justify="left" if name == "fault" else "right")
    for kind, recovery in report["recovery_ms"].items():
        wait = report["longest_wait_ms"][kind]
        numbers = (recovery["count"], recovery["p50"], recovery["max"], wait["p50"], wait["max"])
        table.add_row(kind, *(f"{number:,}" for number in numbers))
    return table


def _listed(counts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
