"""The demo's report: as JSON, as a table, and whether all checks hold."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap
from typing import Any, Final

import orjson
from rich.console import Console
from rich.text import Text

_SHOWN: Final = 10
"""Keys listed for each kind of problem."""
_NUMBER_WIDTH: Final = 8
_LEAST_WIDTH: Final = 30
_REASONS: Final = {
    "initial": "Kafka had no record of the segment yet",
    "start": "an owner of all segments came back without the state that it had released",
    "owners_lost": "all nodes that had the segment were lost",
    "hole": "the node that took over misses operations between Kafka's last and its own first",
    "phantom_ahead": "Kafka has records beyond all that the segment's owners wrote",
    "unknown_history": "Kafka has records that the segment's owners know nothing of",
    "open_reset": "the node that wrote a reset died before its end",
    "end_beyond": "a reset in Kafka ends beyond what the segment's owners know",
    "overflow": "an op log was full, since Kafka took nothing for too long",
    "truncated": "Kafka lost records that it had committed",
    "topic_recreated": "the topic was deleted and created again",
    "positions_lost": "the positions topic was deleted or lost records",
    "signal": "somebody asked for it",
    "refused": "Kafka refused a record of the segment, which is tried again",
    "clear": "the cache was cleared",
    "unclean_election": "a node that was not in sync took over, since no owner in sync answered",
    "stream_lost": "the server's stream could not be read from where Kafka's knowledge ends",
    "unknown_command": "the server carried out a command of which it is not known what it changes",
}
"""The meanings of reset reasons; docs/protocol.md has their causes."""


def problems(report: dict[str, Any]) -> list[str]:
    """The failed checks, one sentence each."""
    checks: list[tuple[int, str]] = [
        (report["unacked"], "writes were not acknowledged"),
        (report["lost_acked"], "acknowledged operations are missing from the topic, and nothing covers them"),
        (report["duplicates"], "operations are in the change topic twice"),
        (report["diff_duplicates"], "records are in the diff topic twice"),
        (report["phantoms"], "records of the change topic were written by no client"),
        (report["open_resets"], "resets are open: begun and never ended"),
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
    """Prints a summary within the console's width, the verdict last."""
    console.print()
    for number, text in _rows(report):
        first, *more = wrap(text, max(_LEAST_WIDTH, console.width - _NUMBER_WIDTH - 2), break_on_hyphens=False)
        console.print(Text(f"{number:>{_NUMBER_WIDTH}}", style="bold").append(f"  {first}", style="not bold"))
        for line in more:
            console.print(" " * (_NUMBER_WIDTH + 2) + line, markup=False)
    console.print()
    broken = problems(report)
    for problem in broken:
        console.print(Text(f"✗ {problem}", style="bold red"), soft_wrap=False)
    for key in report["examples"]:
        console.print(Text(f"    {key}"), soft_wrap=False)
    if not broken:
        console.print(Text(f"✓ {_holds(report)}", style="bold green"), soft_wrap=False)


def _holds(report: dict[str, Any]) -> str:
    text = (
        f"All {report['keys']:,} keys are equal in the caches, in the change topic and in the Spark job's diff. Every "
        "acknowledged operation is in Kafka or covered by a later write or a reset, and none is written twice."
    )
    final = report["final"]
    return f"{text} This is exactly what {final['file']} lists ({final['keys']:,} keys)." if final else text


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    takeover, diff, seconds = report["takeover_ms"], report["diff"], report["seconds"]
    faults = ", ".join(fault["fault"] for fault in report["faults"]) or "none"
    took = ""
    if takeover["p50"] is not None:
        took = f"; half of them within {takeover['p50']:,} ms of the kill, all within {takeover['max']:,} ms"

    def cud(counts: dict[str, int]) -> str:
        return f"{counts['c']:,} creates, {counts['u']:,} updates, {counts['d']:,} deletes"

    rows = [
        (report["operations"], f"writes by clients, {report['acked']:,} of them acknowledged; seed {report['seed']}"),
        (len(report["faults"]), f"faults: {faults}"),
        (report["written"], f"changes in Kafka: writes, evictions and expiries; {report['duplicates']:,} twice"),
        (report["takeovers"], f"segments taken over by another process{took}"),
        (
            report["fenced"],
            "former primaries fenced: Kafka refuses what they still write; "
            f"{report['zombie_commits_refused']:,} commits of such zombies were refused",
        ),
        (
            sum(report["resets"].values()),
            f"resets: the whole state of a segment is written again, here in {report['reset_rows']:,} rows",
        ),
        *(
            (count, f"· {reason}: {_REASONS.get(reason, 'see docs/protocol.md')}")
            for reason, count in sorted(report["resets"].items())
        ),
        (
            report["covered_by_reset"],
            "acknowledged operations that a reset had to cover: lost with their nodes, or given up by a full op log, "
            "before Kafka had them; the reset says what is left",
        ),
        (
            report["lost_acked"],
            "acknowledged operations lost: neither in Kafka nor covered by a later write or a reset",
        ),
        (sum(diff["changes"].values()), f"diffs of the Spark job from changes: {cud(diff['changes'])}"),
        (sum(diff["resets"].values()), f"diffs of the Spark job from resets: {cud(diff['resets'])}"),
    ]
    if report["diff_restarts"]:
        rows.append((report["diff_restarts"], "restarts of the Spark job, each from its checkpoint"))
    rows.append((report["differing_keys"], f"of {report['keys']:,} keys differ"))
    took = ", ".join(f"{name} {value:.0f}" for name, value in seconds.items())
    return [(f"{number:,}", text) for number, text in rows] + [(f"{sum(seconds.values()):.0f} s", took)]
