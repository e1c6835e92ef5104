"""The outcome: as JSON for machines, as a table for people, and whether what was promised holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

_SHOWN: Final = 10
"""Keys that a report lists of each kind of problem."""


def problems(report: dict[str, Any]) -> list[str]:
    """What does not hold, one sentence each; empty where all that was promised holds."""
    checks: list[tuple[int, str]] = [
        (report["unacked"], "writes were not acknowledged"),
        (report["lost_acked"], "acknowledged operations are missing from the topic, and nothing covers them"),
        (report["duplicates"], "operations are in the change topic twice"),
        (report["diff_duplicates"], "records are in the diff topic twice"),
        (report["phantoms"], "records of the change topic were written by no client"),
        (report["open_resets"], "resets were begun and never ended"),
        (report["differing_keys"], "keys are not the same in the caches, the change topic and the Spark job's diff"),
        ((report["final"] or {}).get("differing_keys", 0), "keys are not what the history itself ends at"),
    ]
    return [f"{count:,} {sentence}" for count, sentence in checks if count]


def write(report: dict[str, Any], path: Path) -> None:
    """The report as indented JSON."""
    path.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def shown(keys: list[Any]) -> list[str]:
    """The first keys of a list, as text."""
    return [k.decode(errors="backslashreplace") if isinstance(k, bytes) else str(k) for k in keys[:_SHOWN]]


def show(report: dict[str, Any], console: Console) -> None:
    """A summary that a person understands, the verdict last."""
    table = Table(show_header=False, box=None, padding=(0, 1), title="\nWhat happened", title_justify="left")
    table.add_column(justify="right", style="bold")
    table.add_column()
    for number, text in _rows(report):
        table.add_row(number, text)
    console.print(table)
    found = problems(report)
    for problem in found:
        console.print(Text(f"✗ {problem}", style="bold red"))
    for key in report["examples"]:
        console.print(Text(f"    {key}"))
    if not found:
        console.print(Text(f"✓ {_holds(report)}", style="bold green"))


def _holds(report: dict[str, Any]) -> str:
    text = (
        f"all {report['keys']:,} keys are equal in the caches, in the change topic and in the Spark job's diff; no "
        "acknowledged operation is lost, none is written twice"
    )
    final = report["final"]
    return f"{text}; and it is exactly what {final['file']} lists ({final['keys']:,} keys)" if final else text


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    resets = ", ".join(f"{count} {reason}" for reason, count in sorted(report["resets"].items())) or "none"
    takeover = report["takeover_ms"]
    diff = report["diff"]
    diffs = sum(sum(counts.values()) for counts in diff.values())
    seconds = report["seconds"]
    faults = ", ".join(fault["fault"] for fault in report["faults"]) or "none"
    took = (
        ""
        if takeover["p50"] is None
        else f" (half within {takeover['p50']:,} ms of the kill, all in {takeover['max']:,})"
    )

    def cud(counts: dict[str, int]) -> str:
        return f"{counts['c']:,} c, {counts['u']:,} u, {counts['d']:,} d"

    rows = [
        (f"{report['operations']:,}", f"writes by clients, {report['acked']:,} acknowledged, seed {report['seed']}"),
        (f"{len(report['faults'])}", f"faults: {faults}"),
        (f"{report['written']:,}", f"changes in Kafka, {report['duplicates']} of them twice"),
        (f"{report['takeovers']:,}", f"segments taken over{took}"),
        (f"{report['fenced']:,}", f"nodes fenced, {report['zombie_commits_refused']:,} commits of zombies refused"),
        (f"{sum(report['resets'].values()):,}", f"resets ({resets}) with {report['reset_rows']:,} rows"),
        (f"{report['covered_by_reset']:,}", "acknowledged operations that a reset had to cover"),
        (f"{report['lost_acked']:,}", "acknowledged operations lost"),
        (f"{diffs:,}", f"diffs: of changes {cud(diff['changes'])}; of resets {cud(diff['resets'])}"),
        (f"{report['differing_keys']:,}", f"of {report['keys']:,} keys differ"),
        (f"{sum(seconds.values()):.0f} s", ", ".join(f"{name} {value:.0f}" for name, value in seconds.items())),
    ]  # fmt: skip
    if report["diff_restarts"]:
        rows.append((f"{report['diff_restarts']}", "restarts of the Spark job from its checkpoint"))
    return rows
