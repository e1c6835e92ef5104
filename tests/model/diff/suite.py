"""Configurations to explore with all rules on, and the bugs of the job that the model has found so far."""

from __future__ import annotations

from typing import Final

from tests.model.takeover.suite import Known

QUICK: Final = (
    "OPS=2 DEL=1 RESETS=1 BATCH=1",
    "OPS=1 DEL=1 COMPACT=1 LOSE=1",
    "OPS=2 DEL=1 COMPACT=1 STALE=1",
    "OPS=2 RETAIN=1 BATCH=1",
    "OPS=1 TAIL=1 REPEAT=1 BATCH=1",
    "OPS=1 DEL=1 SCRATCH=1 COMPACT=1 RESETS=1",
    "OPS=2 COMPACT=1 RESETS=1 NULLS=0 age=0",
    "OPS=2 WALLOST=1 BATCH=1",
    "SEGS=2 KEYS=1 OPS=1 LOSE=1 CLAIM=1 BATCH=1",
)
"""For CI."""

COVERED: Final = (
    "batch done",
    "begins a reset",
    "claims",
    "compaction",
    "cuts a batch",
    "deletes",
    "ends a reset",
    "loses",
    "plans",
    "plans a start",
    "repeats",
    "rest",
    "retention",
    "row",
    "stale",
    "starts over",
    "tells",
    "voids a reset",
    "wal lost",
    "writes again",
    "writes an older epoch's",
)
"""Kinds of steps that the quick configurations must take."""

LONG: Final = (
    "OPS=2 DEL=1 RESETS=1 LOSE=1 CLAIM=1 BATCH=2",
    "OPS=2 DEL=2 COMPACT=2 RESETS=1 SCRATCH=1 STALE=1",
    "OPS=2 DEL=1 COMPACT=1 RESETS=2 BATCH=2 NULLS=0",
    "OPS=2 DEL=1 RETAIN=2 LOSE=1 BATCH=1",
    "OPS=2 DEL=1 TAIL=1 REPEAT=1 RESETS=1 BATCH=1",
    "OPS=3 DEL=1 WALLOST=2 BATCH=2 RESETS=1",
    "SEGS=2 KEYS=1 OPS=2 DEL=1 LOSE=1 CLAIM=1 BATCH=2 COMPACT=1",
)
"""For `make model`."""

KNOWN: Final = (
    Known(
        "a plan, of a start or a batch, is carried out whatever its age, and the state's age counts from then: what "
        "was compacted meanwhile is not missed",
        "DEL=1 COMPACT=1 PAUSE=1",
        "D3 told (3, 0)",
    ),
)
"""Known bugs of the job."""
