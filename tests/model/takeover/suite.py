"""Configurations to explore with all rules on, and the bugs of the product that the model has found so far."""

from __future__ import annotations

from typing import Final, NamedTuple

QUICK: Final = (
    "OPS=2 PART=1 COMPACT=1 COMPACTANY=2",
    "OPS=2 PART=1 OPEN=1",
    "OPS=2 PART=1 FOREIGN=1",
    "PART=1 GHOST=1 XFENCE=1",
    "PART=1 MOVE=1 TWIN=1",
    "OPS=2 CRASH=2 JOIN=1",
    "N=3 OPS=1 CRASH=2 ACKS=1",
    "OPS=2 MOVE=2 ACKS=1",
    "KEYS=2 OPS=3 COALESCE=1 CRASH=1",
    "KEYS=2 OPS=3 COALESCE=1 CRASH=1 ACKS=1 FILTER=3",
    "KEYS=2 OPS=3 OVER=1 CHUNK=1 CRASH=1",
    "CAP=1 KEYS=2 OPS=2 READS=1 CRASH=1",
    "CAP=1 KEYS=2 OPS=2 OVER=1 COMPACT=1 COMPACTKEYS=1",
    "HAND=2 STOP=1 JOIN=1",
    "OPS=2 TRUNC=1",
    "SEGS=2 SWAP=1 OPS=0",
    "SEGS=2 PARTS=2 MOVE=1 FOREIGN=1",
)
"""For CI: each with up to a few thousand states, together more than 50,000."""

COVERED: Final = (
    "catch-up by operations",
    "catch-up by state",
    "claims",
    "coalesces",
    "commits what was open",
    "compaction",
    "corrects",
    "clean stop",
    "crash",
    "ends a reset",
    "fences",
    "goes ACTIVE",
    "handover",
    "must reset",
    "newer process",
    "notices truncation",
    "overflow",
    "prunes",
    "re-initialises",
    "rest",
    "restart",
    "resumes",
    "skips the fence",
    "steps down",
    "swap",
    "truncation",
    "writes",
    "writes a chunk",
    "writes a run",
    "writes open",
)
"""Kinds of steps that the quick configurations must take: a step that is never tried is not shown to be safe."""

LONG: Final = (
    "N=3 OPS=2 KEYS=2 CRASH=2 JOIN=1",
    "N=3 OPS=2 KEYS=2 CRASH=2 JOIN=1 ACKS=1",
    "N=3 OPS=2 PART=2 COMPACT=1 COMPACTANY=2",
    "N=3 OPS=1 PART=2 GHOST=1 CRASH=1 JOIN=1",
    "N=3 OPS=2 PART=1 CRASH=1 JOIN=1 FOREIGN=1",
    "SEGS=2 SWAP=1 OPS=1 CRASH=1 XFENCE=1",
    "SEGS=2 PARTS=2 MOVE=2 FOREIGN=1 OPEN=1",
    "OPS=2 PART=1 TWIN=1 MOVE=1 JOIN=1 CRASH=1",
    "OPS=3 KEYS=2 OVER=2 CHUNK=1 CRASH=2 JOIN=1",
    "OPS=3 KEYS=2 COALESCE=2 CRASH=1 JOIN=1 OPEN=1",
    "OPS=3 KEYS=2 COALESCE=1 CRASH=1 MOVE=1 ACKS=1",
    "OPS=3 KEYS=2 CAP=1 READS=2 CRASH=2 JOIN=1 OVER=1",
    "OPS=3 KEYS=2 COMPACT=2 COMPACTKEYS=1 OVER=1 CRASH=1 ACKS=1",
    "OPS=2 HAND=2 STOP=1 JOIN=1 PART=1 XFENCE=1",
    "OPS=3 TRUNC=2 OVER=1 OPEN=1",
)
"""For `make model`: each up to the bound given there."""


class Known(NamedTuple):
    """A violation with all rules on: in words, its configuration, and the beginning of its text."""

    words: str
    config: str
    kind: str


KNOWN: Final = (
    Known(
        "a backup sees that Kafka lost records, becomes primary before the old one has reset, and has forgotten it",
        "TRUNC=1 CRASH=1",
        "V1 s0",
    ),
    Known(
        "the claim that a process waits for is lost by Kafka: it waits for ever",
        "TRUNC=1 TRUNCANY=1 MOVE=1",
        "V6 n1, primary of s0, is stuck (l)",
    ),
)
"""Known bugs of the product. A fix makes the bug's test fail: then remove it here, and the bound that avoids it."""
