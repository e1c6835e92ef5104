"""The decisions of a takeover and of catching up, as functions of what is known. READ's fold and DECIDE: `scan.py`.

The core, its tests and the explicit-state model under `tests/model` call the same small functions. Alternatives:
docs/decisions.md, "Decisions are functions".
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from deelog_connector.core.history import History
from deelog_connector.core.scan import Claimant, start_of_read
from deelog_schemas.member import is_newer_process, node_id_of
from deelog_schemas.positions import PositionState, ResetState


def outranking(seen: Iterable[Claimant], epoch: int, member: str) -> Claimant | None:
    """LOOK: the claim before which `member` steps down with its own of `epoch`; None where it may go on.

    That of a newer process of its node, of a higher epoch, or of another member in the same epoch.
    """
    for claimant in sorted(seen):
        if is_newer_process(claimant[1], member):
            return claimant
        if claimant[0] > epoch or (claimant[0] == epoch and claimant[1] != member):
            return claimant
    return None


def to_fence(claims: Iterable[Claimant], member: str) -> frozenset[Claimant]:
    """The claimants that `member` fences before its ACTIVE, which then removes their claims."""
    return frozenset(c for c in claims if c[1] != member)


def foreign(
    claimants: Iterable[Claimant], member: str, spares: Container[str] = (), spare: bool = False
) -> frozenset[str]:
    """The members among them whose producer is not one's own, which the opening of one's session has fenced.

    `spares` are those that have claimed with their spare producers, `spare`: one has oneself.
    """
    mine = node_id_of(member), spare
    return frozenset(m for _, m in claimants if (node_id_of(m), m in spares) != mine)


def epoch_in_use(
    writers: Mapping[int, str], position: PositionState | None, is_certain: bool, epoch: int, member: str
) -> int:
    """The epoch of records before which `member` steps down with its own of `epoch`; 0 where it may go on.

    One above its own, or its own where somebody else has written in it: readers drop what is below a position that they
    have. Of such an owner no claim is left where the positions topic was lost. `writers`: see `SegmentScan`;
    `is_certain`: whether `position` is, see `PositionsView`.
    """
    found = dict(writers)
    if position is not None and not found.get(position.epoch):  # the change topic may have lost what it tells of
        found[position.epoch] = position.member
    highest = max(found, default=0)
    if highest != epoch:
        return highest if highest > epoch else 0
    # Without a certain position the read began before one's own ACTIVE: what is before that is somebody else's.
    is_own = found[epoch] == member or (not found[epoch] and is_certain)
    return 0 if is_own else epoch


class ReadStart(NamedTuple):
    """Where READ begins: `offset` (None: nothing below one's own claim counts), the written sequence that needs no
    reading, and why a reset must come whatever is read."""

    offset: int | None = None
    written: int | None = None
    owed: str | None = None


def where_to_read(
    history: History, epoch: int, position: PositionState | None, reset: ResetState | None, topic_id: str
) -> ReadStart:
    """Where the READ of a segment begins that one owns in `epoch`, by what the positions topic says of it."""
    fresh = len(history) == 1 and history[0][0] == epoch
    if position is not None and position.topic_id != topic_id:
        return ReadStart(owed="topic_recreated")
    # CHECK open-reset-again: a reset found open is never resumed. The next one replaces all that could be read.
    if reset is not None:
        return ReadStart(owed="open_reset")
    if fresh and (position is None or position.epoch != epoch):
        return ReadStart()  # nothing of a history that begins with this epoch can be before its claim
    offset, written = start_of_read(history, position)
    return ReadStart(offset, written)


def is_overtaken(unwritten: tuple[int, int] | None, ahead: tuple[int, int]) -> bool:
    """Whether the next position to be written lies below one that Kafka holds beyond this history: of an owner between
    that lacked the operation. Readers would drop it as a repeat."""
    return unwritten is not None and unwritten < ahead


def to_correct(phantoms: Iterable[bytes], pending: Iterable[bytes]) -> list[bytes]:
    """The keys that need a correct operation: those of phantoms that have no operation pending here."""
    return sorted(set(phantoms) - set(pending))


def holds_all_after(complete_from: int, sequence: int) -> bool:
    """Whether an op log complete from there has every operation that a backup which holds up to `sequence` lacks."""
    return complete_from <= sequence + 1


def knows_what_it_drops(complete_from: int, last_sequence: int, sequence: int) -> bool:
    """Whether an op log has every key that changed after `sequence`."""
    return last_sequence <= sequence or complete_from <= sequence + 1
