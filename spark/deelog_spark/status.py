"""How far a job is, told from outside: its checkpoint beside the topic's ends. Works while the job runs, and after."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from deelog_schemas.config import Config
from deelog_spark.batches.checkpoint import Checkpoint
from deelog_spark.errors import CheckpointError
from deelog_spark.kafka import Cluster


def status(config: Config) -> dict[str, Any]:
    """What the job has done and what is left.

    `batch` is -1 behind a start; `seconds_ago` since that batch was done; `lag` in offsets, by partition;
    `open_resets` by segment: since which offset, and why; offset -1: records were lost, and the segment waits for a
    reset. Raises `CheckpointError` where there is none, `TopicError` where there is no topic.
    """
    found = Checkpoint(config["diff.checkpoint.location"]).now()
    if found is None:
        raise CheckpointError(
            f"{config['diff.checkpoint.location']} holds no checkpoint of a diff job: start one, or correct "
            "diff.checkpoint.location"
        )
    topics = config.topics
    cluster = Cluster(config)
    try:
        ends = cluster.ends(topics.changes, cluster.layout(topics.changes).partitions)
    finally:
        cluster.close()
    totals = found.totals
    return {
        "topic": topics.changes,
        "diff": topics.diff,
        "batch": found.number,
        "seconds_ago": round(time.time() - found.written_ms / 1000, 1),
        "lag": {str(p): max(0, end - found.end.get(p, 0)) for p, end in sorted(ends.items())},
        "open_resets": {
            str(n): {"offset": segment.open.begin, "reason": segment.open.reason}
            for n, segment in sorted(found.segments.items())
            if segment.open is not None
        },
        "records": totals.records,
        "repeats": totals.repeats,
        "resets": totals.resets,
        "changes": totals.changes,
        "resets_rows": totals.resets_rows,
        "dead_letters": totals.dead_letters,
    }


def lines(told: dict[str, Any]) -> Iterator[str]:
    """`status` for people."""
    yield f"{told['topic']} -> {told['diff']}"
    last = "the start" if told["batch"] < 0 else f"batch {told['batch']}"
    yield f"last:        {last}, {told['seconds_ago']:,} s ago"
    behind = ", ".join(f"{lag:,} on partition {p}" for p, lag in told["lag"].items() if lag)
    yield f"lag:         {sum(told['lag'].values()):,} offsets" + (f" ({behind})" if behind else "")
    opened = told["open_resets"]
    yield f"open resets: {len(opened)}"
    for number, one in opened.items():
        where = f"since offset {one['offset']}" if one["offset"] >= 0 else "waits for a reset"
        yield f"  segment {number}: {one['reason']}, {where}"
    ops = " ".join(f"{op}{told['changes'][op] + told['resets_rows'][op]:,}" for op in "cud")
    resets = f"{sum(told['resets'].values()):,} resets"
    yield f"so far:      {told['records']:,} records, {told['repeats']:,} repeats, {resets}; told {ops}"
    if told["dead_letters"]:
        yield f"             {told['dead_letters']:,} dead letters"
