"""Every rule of the takeover, and how it is removed.

If a function of the product decides a rule, the rule is removed by replacing that function (`change`). If the rule is
an order of steps, or nodes and controller enforce it, it is a switch of the model's steps.
`config` is the smallest configuration known to need the rule, `kind` the violation without it, `steps` and `states` the
bounds within which the violation must be found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from deelog_connector.core.history import History
from deelog_connector.core.rules import ReadStart, where_to_read
from deelog_connector.core.scan import Claimant, reason_to_reset
from deelog_connector.core.segment import RECHECK, Phase
from tests.model.explore import Result, search
from tests.model.takeover.model import Takeover
from tests.model.takeover.shipped import Decisions
from tests.model.takeover.state import Config


@dataclass(frozen=True)
class Rule:
    """See the module."""

    meaning: str
    config: str
    kind: str
    steps: int
    change: Callable[[Decisions], Decisions] | None = None
    slow: bool = False


def _nobody(seen: Iterable[Claimant], epoch: int, member: str) -> None:
    return None


def _no(*_: Any) -> bool:
    return False


def _never(reason: str) -> Callable[[Decisions], Decisions]:
    """Removes this reason from DECIDE."""

    def decide(*args: Any) -> str | None:
        found = reason_to_reset(*args)
        return None if found == reason else found

    return lambda d: d.but(reason_to_reset=decide)


def _open_reset_ignored(d: Decisions) -> Decisions:
    def start(history: History, epoch: int, position: Any, reset: Any, topic: str) -> ReadStart:
        return where_to_read(history, epoch, position, None, topic)

    return _never("open_reset")(d.but(where_to_read=start))


_FROM_CLAIM: Final = dict.fromkeys(RECHECK, Phase.CLAIM)
_STRAIGHT_ON: Final = {**RECHECK, Phase.LOOK: Phase.ACTIVE, Phase.FENCE: Phase.ACTIVE}

RULES: Final[dict[str, Rule]] = {
    "fencing": Rule(
        "claimants are not fenced", "PART=1", "V2", 9, lambda d: d.but(foreign=lambda claims, member: frozenset())
    ),
    "claim_before_fence": Rule("fence, then claim", "PART=1", "V2", 12),
    "claim_then_look": Rule(
        "nobody steps down before a higher claim", "PART=1", "V2", 12, lambda d: d.but(outranking=_nobody)
    ),
    "look_behind_claim": Rule("look, then claim", "MOVE=1 PART=1", "V2", 18),
    "read_to_own_record": Rule("read to the last stable offset", "PART=1 FOREIGN=1", "V3", 12),
    "each_partition_is_read": Rule(
        "a record on one partition vouches for another", "N=2 SEGS=2 PARTS=2 MOVE=1 FOREIGN=1", "V", 14
    ),
    "position_is_not_claim": Rule("one key for both", "OPS=2 PART=1 COMPACT=1 COMPACTANY=2", "V2", 16),
    "claims_outlive_compaction": Rule("claims are in the change topic alone", "N=3 PART=2 COMPACT=1", "V2", 13),
    "claim_key_per_member": Rule(
        "one claims key, overwritten by each",
        "N=3 PART=2 COMPACT=1",
        "V2",
        15,
        lambda d: d.but(state_of_claim=lambda record: record._replace(member="")),
    ),
    "recheck_after_fence": Rule("re-initialise and go on", "PART=1", "V2", 10, lambda d: d.but(recheck={})),
    "fence_once": Rule(
        "after a fence, all over again", "SEGS=2 SWAP=1 OPS=0", "V6", 27, lambda d: d.but(recheck=_FROM_CLAIM)
    ),
    "recheck_keeps_place": Rule(
        "fenced before its own FENCE: straight to ACTIVE",
        "PART=1 XFENCE=1",
        "V2",
        9,
        lambda d: d.but(recheck=_STRAIGHT_ON),
    ),
    "release_is_final": Rule("write on after a release", "HAND=1 PART=1", "V2", 10),
    "release_keeps_rank": Rule(
        "who has released is forgotten",
        "HAND=1 PART=1",
        "V",
        14,
        lambda d: d.but(ranked=lambda known: known.claims),
    ),
    "incarnation": Rule("a restarted process is the same member", "CRASH=1", "V1", 3),
    "one_id_per_node": Rule("a newer process has another transactional id", "PART=1 TWIN=1 MOVE=1", "V2", 14),
    "read_from_trails": Rule(
        "read_from goes to the last end seen",
        "N=3 KEYS=2 OPS=2 CRASH=2 ACKS=1 corrections_in_one_transaction=0",
        "V4",
        20,
        lambda d: d.but(advanced_read_from=lambda candidate, *_: candidate[0] if candidate else None),
    ),
    "corrections_in_one_transaction": Rule(
        "corrections are written one by one",
        "N=3 KEYS=2 OPS=2 CRASH=2 ACKS=1 read_from_trails=0",
        "V4",
        20,
    ),
    "correct_phantoms": Rule(
        "phantoms stay", "CRASH=1 ACKS=1", "V4", 9, lambda d: d.but(to_correct=lambda phantoms, pending: [])
    ),
    "nothing_below_a_phantom": Rule(
        "an operation below a phantom is written", "OPS=2 MOVE=2 ACKS=1", "V3", 19, lambda d: d.but(is_overtaken=_no)
    ),
    "continuity": Rule("a hole is no reason to reset", "OPS=2 CRASH=2 JOIN=1", "V1", 14, _never("hole")),
    "empty_is_a_change": Rule(
        "an unknown history is no reason to reset", "N=1 CRASH=1 JOIN=1", "V4", 9, _never("unknown_history")
    ),
    "transfer_is_not_ops": Rule("a state leaves complete-from as it was", "OPS=2 CRASH=2 JOIN=1", "V1", 14),
    "catch_up_by_ops": Rule(
        "always by state", "N=3 CRASH=2", "V5", 10, lambda d: d.but(holds_all_after=lambda *_: False)
    ),
    "in_sync_order": Rule("in the set before it is waited for", "CRASH=2 JOIN=1", "V1", 5),
    "answers_carry_epochs": Rule("answers of any epoch count", "PART=1 GHOST=1", "V1", 4),
    "nothing_over_a_hole": Rule("write on while a reset is owed", "OPS=2 KEYS=2 OVER=1 CRASH=1", "V1", 12),
    "reset_acked_only": Rule("rows before they are acked", "OVER=1 CRASH=1 end_beyond_again=0", "V1", 11),
    "open_reset_again": Rule("an open reset is ignored", "OVER=1 CRASH=1", "V1", 10, _open_reset_ignored),
    "end_beyond_again": Rule(
        "a reset's end beyond the history counts", "OVER=1 CRASH=1 ACKS=1", "V1", 11, _never("end_beyond")
    ),
    "chunk_is_a_barrier": Rule("each chunk reads the cache anew", "KEYS=2 OPS=4 OVER=1 CHUNK=1", "V7", 12),
    "prune_in_history": Rule(
        "prune by any position",
        "N=3 PART=1 GHOST=1 CRASH=1 ACKS=1",
        "V4",
        11,
        lambda d: d.but(holds=lambda history, position: True),
    ),
    "coalesce_acked": Rule(
        "what is not acked replaces what is",
        "KEYS=2 OPS=3 COALESCE=1 CRASH=1",
        "V1",
        16,
        lambda d: d.but(coalesce=lambda log, above, acked, last: log.coalesce(above, last)),
    ),
    "truncation_noticed": Rule("nobody watches the ends", "TRUNC=1", "V1", 5),
    "primary_decides_eviction": Rule("a backup evicts by itself", "CAP=1 KEYS=2 OPS=2 READS=1 CRASH=1", "V1", 14),
    "base_offset": Rule(
        "a reader begins below the base offset", "CAP=1 KEYS=2 OPS=2 OVER=1 COMPACT=1 COMPACTKEYS=1", "V1", 12
    ),
}


def without(rules: Iterable[str]) -> Decisions:
    """The product's decisions without these rules."""
    decisions = Decisions()
    for name in rules:
        change = RULES[name].change
        decisions = change(decisions) if change else decisions
    return decisions


def run(text: str, max_states: int, max_seconds: float = float("inf"), **more: Any) -> Result:
    """Searches a configuration, written as on the command line. ValueError names an unknown rule."""
    config = Config.parse(text)
    unknown = config.removed - RULES.keys()
    if unknown:
        raise ValueError(f"no such rule: {', '.join(sorted(unknown))}")
    return search(Takeover(config, without(sorted(config.removed))), max_states, max_seconds, **more)
