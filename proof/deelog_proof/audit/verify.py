"""The comparison at the end: the caches, the change topic, and the Spark job's diff."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deelog_proof.audit.topics import ChangeTopic, DiffTopic, Ownership
from deelog_proof.demo.faults import Happened
from deelog_proof.load.history import Audit, History, audit
from deelog_proof.load.traces import differing_ids
from deelog_schemas.keys import segment_of
from deelog_schemas.member import node_id_of
from deelog_schemas.operation import Entry


@dataclass(slots=True)
class Verdict:
    """The result of all comparisons. `final` is None where the trace has no list of its final state."""

    audit: Audit
    differing: dict[bytes, str]
    """Keys in which the three differ, and how."""
    final: list[bytes] | None
    keys: int
    takeovers: int
    takeover_ms: list[int] = field(default_factory=list)


def verify(
    history: History,
    caches: Mapping[bytes, Entry],
    changes: ChangeTopic,
    diff: DiffTopic,
    *,
    segments: int,
    happened: Sequence[Happened],
    final: dict[bytes, bytes] | None,
    names_expiry: bool = True,
) -> Verdict:
    """Compares caches, change topic and diff key by key, and the history of writes with the change topic."""
    resets = {
        key: ends
        for key in history.writes
        if (ends := changes.reset_ends.get(segment_of(key, segments))) is not None
    }  # fmt: skip
    differing = differences(caches, changes.entries, diff.entries)
    wrong = None
    if final is not None:
        states = (caches, diff.entries)
        wrong = sorted({key for state in states for key in differing_ids(_values(state), final)})
    taken, durations = takeovers(changes.owners, happened)
    audited = audit(history, changes.captured, resets, names_expiry=names_expiry)
    return Verdict(audited, differing, wrong, len(caches), taken, durations)


def differences(
    caches: Mapping[bytes, Entry], topic: Mapping[bytes, Entry], diff: Mapping[bytes, Entry]
) -> dict[bytes, str]:
    """The keys in which the change topic or the diff differs from the caches, expiry included, and how."""
    differing = {}
    for key in caches.keys() | topic.keys() | diff.keys():
        held = caches.get(key)
        problems = [
            f"{name}: {_difference(held, state.get(key))}"
            for name, state in (("change topic", topic), ("diff", diff))
            if state.get(key) != held
        ]
        if problems:
            differing[key] = "; ".join(problems)
    return differing


def _difference(held: Entry | None, emitted: Entry | None) -> str:
    if held is None:
        return "has a key that the caches do not hold"
    if emitted is None:
        return "lacks the key"
    return "another value" if held.value != emitted.value else f"expires at {emitted.expires_at}, not {held.expires_at}"


def _values(entries: Mapping[bytes, Entry]) -> dict[bytes, bytes]:
    return {key: entry.value for key, entry in entries.items()}


def takeovers(owners: Sequence[Ownership], happened: Sequence[Happened]) -> tuple[int, list[int]]:
    """The number of takeovers, and the durations of those from dead nodes.

    The duration is from the fault to the active record of the new primary, in milliseconds: detection, election and
    takeover together. A second active record of the same ownership (after a fence) counts once.
    """
    current: dict[int, Ownership] = {}
    count = 0
    durations = []
    # A segment's records are in offset order, and segments are independent: this keeps the order within each.
    for owner in owners:
        former = current.get(owner.segment)
        if former is not None and owner.epoch <= former.epoch:
            continue
        current[owner.segment] = owner
        if former is None:
            continue
        count += 1
        began = [
            fault.at_ms
            for fault in happened
            if fault.at_ms <= owner.timestamp_ms and node_id_of(former.member) in fault.nodes
        ]
        if began and former.timestamp_ms <= began[-1]:
            durations.append(owner.timestamp_ms - began[-1])
    return count, durations
