"""The status of a job, seen from outside: its checkpoint compared with the topic's ends. The job may run or not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from deelog_schemas.config import Config
from deelog_spark.batches.checkpoint import Checkpoint
from deelog_spark.errors import CheckpointError
from deelog_spark.kafka import Cluster


def status(config: Config) -> dict[str, Any]:
    """What the job has done and what is left, as `deelog diff --status --json` prints it.

    `batch`: the last one, -1 the start; `seconds_ago`: since it was done; `lag`: offsets by partition; `open_resets` by
    segment: the offset of the begin, -1 where records were lost and the segment waits for a reset, and the reason;
    totals as in `Totals`. Raises `CheckpointError` where there is no checkpoint, `TopicError` where there is no topic.
    """
    state = Checkpoint(config["diff.checkpoint.location"]).now()
    if state is None:
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
    totals = state.totals
    return {
        "topic": topics.changes,
        "diff": topics.diff,
        "batch": state.number,
        "seconds_ago": round(time.time() - state.written_ms / 1000, 1),
        "lag": {str(p): max(0, end - state.end.get(p, 0)) for p, end in sorted(ends.items())},
        "open_resets": {
            str(n): {"offset": segment.open.begin, "reason": segment.open.reason}
            for n, segment in sorted(state.segments.items())
            if segment.open is not None
        },
        "records": totals.records,
        "repeats": totals.repeats,
        "resets": totals.resets,
        "changes": totals.changes,
        "resets_rows": totals.resets_rows,
        "dead_letters": totals.dead_letters,
    }


def lines(status: dict[str, Any]) -> Iterator[str]:
    """`status` for people."""
    yield f"{status['topic']} -> {status['diff']}"
    last = "the start" if status["batch"] < 0 else f"batch {status['batch']}"
    yield f"last:        {last}, {status['seconds_ago']:,} s ago"
    behind = ", ".join(f"{lag:,} on partition {p}" for p, lag in status["lag"].items() if lag)
    yield f"lag:         {sum(status['lag'].values()):,} offsets" + (f" ({behind})" if behind else "")
    opened = status["open_resets"]
    yield f"open resets: {len(opened)}"
    for number, one in opened.items():
        where = f"since offset {one['offset']}" if one["offset"] >= 0 else "waits for a reset"
        yield f"  segment {number}: {one['reason']}, {where}"
    ops = " ".join(f"{op}{status['changes'][op] + status['resets_rows'][op]:,}" for op in "cud")
    resets = f"{sum(status['resets'].values()):,} resets"
    yield f"so far:      {status['records']:,} records, {status['repeats']:,} repeats, {resets}; wrote {ops}"
    if status["dead_letters"]:
        yield f"             {status['dead_letters']:,} dead letters"
