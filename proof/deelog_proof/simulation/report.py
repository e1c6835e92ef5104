"""The report of a campaign: as a table and as JSON."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from deelog_proof.simulation.campaign import Tally
from deelog_proof.simulation.script import GRID


def figures(tally: Tally, wall: float, scripts: dict[int, str]) -> dict[str, Any]:
    """The report in JSON types. `wall` is in seconds, `scripts` are the shortened ones by seed."""
    return {
        "cache": tally.plan.cache,
        "first_seed": tally.plan.first,
        "last_seed": tally.plan.last,
        "steps_asked": tally.plan.steps,
        "faults_asked": list(tally.plan.kinds),
        "seeds": tally.seeds,
        "steps": tally.steps,
        "simulated_seconds": round(tally.simulated, 1),
        "seconds": round(wall, 2),
        "cpu_seconds": round(tally.cpu, 2),
        "steps_per_second_per_core": round(tally.steps / tally.cpu) if tally.cpu else 0,
        "seeds_per_minute": round(60 * tally.seeds / wall) if wall else 0,
        "faults": tally.faults(),
        "counts": dict(sorted(tally.counts.items())),
        "missing": tally.missing(),
        "violations": [
            {"seed": f.seed, "part": f.part, "text": f.text, "digest": f.digest, "script": scripts.get(f.seed)}
            for f in tally.failures
        ],
        "digest": tally.digest,
    }


def show(tally: Tally, wall: float, console: Console) -> None:
    """The table."""
    table = Table(show_header=False, box=None, padding=(0, 1), title="\nWhat happened", title_justify="left")
    table.add_column(justify="right", style="bold")
    table.add_column()
    for number, text in _rows(tally, wall):
        table.add_row(f"{number:,}", Text(text))
    console.print(table)
    console.print(Text(f" digest of all traces: {tally.digest}"), soft_wrap=True)


def _rows(tally: Tally, wall: float) -> list[tuple[int, str]]:
    c, faults = tally.counts, tally.faults()
    resets = {name[6:]: n for name, n in c.items() if name.startswith("reset ")}
    overflows = {name[9:]: n for name, n in c.items() if name.startswith("overflow ")}
    shown = figures(tally, wall, {})
    return [
        (tally.seeds, f"of {tally.plan.seeds:,} seeds, {tally.plan.first}..{tally.plan.last}, in {wall:.0f} s"),
        (shown["seeds_per_minute"], "seeds per minute"),
        (tally.steps, f"steps, {tally.simulated / 3600:.1f} simulated hours"),
        (shown["steps_per_second_per_core"], "steps per second of a core"),
        (sum(faults.values()), f"faults: {_listed(faults)}"),
        *(_of_grid(c) if tally.plan.cache == GRID else _of_redis(c)),
        (c["pruned"], "operations pruned from op logs"),
        (c["kafka zombie_appends"], f"appends of zombies tried, {c['kafka fenced_commits']:,} of their commits"),
        (c["commit_fenced"], f"transactions fenced, {c['commit_lost']:,} with their answer lost, "
         f"{c['commit_refused']:,} refused, {c['kafka aborts']:,} aborted, {c['kafka timeouts']:,} timed out, "
         f"{c['hanging transactions']:,} left hanging"),
        (sum(resets.values()), f"resets: {_listed(resets)}"),
        (sum(overflows.values()), f"overflows of op logs: {_listed(overflows)}; {c['coalesced']:,} coalesced"),
        (len(tally.failures), "violations"),
    ]  # fmt: skip


def _of_grid(c: Counter[str]) -> list[tuple[int, str]]:
    return [
        (c["acked"], f"writes acknowledged, {c['written']:,} changes in Kafka"),
        (c["takeovers"], f"takeovers, {c['other owners']:,} from another owner, {c['controllers']:,} controllers"),
        (c["corrections"], "phantoms corrected"),
        (c["truncations"], "truncations of a partition noticed"),
        (c["caught up by operations"] + c["caught up by state"],
         f"backups caught up, {c['caught up by state']:,} by state transfer; {c['stale answers']:,} stale answers and "
         f"{c['frames refused']:,} frames refused"),
    ]  # fmt: skip


def _of_redis(c: Counter[str]) -> list[tuple[int, str]]:
    return [
        (c["commands"], f"commands, {c['written']:,} changes in Kafka"),
        (c["transactions"], f"transactions, {c['lost by servers']:,} of them lost by servers"),
        (c["takeovers"], "takeovers"),
        (c["corrections"], "changes taken back"),
    ]


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {name}" for name, n in sorted(counts.items(), key=lambda i: (-i[1], i[0])) if n) or "none"
