"""What a campaign of Redis must have reached; see `deelog_proof.simulation.vacuity`."""

from __future__ import annotations

from typing import Final

from deelog_proof.simulation.redis.generate import FAULTS
from deelog_proof.simulation.vacuity import Guard, Required

_VERBS: Final = {"crash_server": "crash"}
"""The verb of an entry of `FAULTS`, where it has another name."""
_ANY: Final = tuple(FAULTS)
_REQUIRED: Final[Required] = (
    ("written", 100, _ANY),
    ("pruned", 100, _ANY),
    ("takeovers", 100, _ANY),
    ("reset initial", 100, _ANY),
    ("transactions", 100, _ANY),
    ("lost by servers", 100, ("failover",)),
    ("corrections", 100, ("failover",)),
    ("commit_fenced", 100, ("crash", "kafka", "failover")),
    ("kafka aborts", 100, ("crash", "kafka")),
    ("did restart", 100, ("crash",)),
    ("moves ended", 100, ("slots",)),
)
GUARD: Final = Guard(FAULTS, _VERBS, _REQUIRED)
