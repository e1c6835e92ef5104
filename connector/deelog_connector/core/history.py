"""What a node knows of a segment's past: a failover log of `(epoch, last sequence of that epoch)`.

A position is *in* a history or *beyond* it. The sequence continues across epochs, so that two histories that share a
position share everything below it. Catch-up, pruning and takeover rest on that alone.
"""

from __future__ import annotations

from typing import Final

from deelog_schemas.header import Position

History = tuple[Position, ...]

MAX_EPOCHS: Final = 64
"""Older epochs are forgotten: a position in one of them is then beyond, which costs a reset, never a loss."""


def last_of(history: History) -> int:
    """The last sequence; 0 for an empty history."""
    return history[-1][1] if history else 0


def end_of(history: History, epoch: int) -> int:
    """The last sequence of an epoch; -1 where it is unknown, so that nothing of it is in the history."""
    for known, last in reversed(history):
        if known == epoch:
            return last
    return -1


def holds(history: History, position: Position) -> bool:
    """Whether a position is in the history."""
    epoch, sequence = position
    return sequence <= end_of(history, epoch)


def extended(history: History, position: Position) -> History:
    """The history with one more operation: the next of its epoch, or the first of a later one."""
    epoch, sequence = position
    if history and history[-1][0] == epoch:
        return (*history[:-1], position)
    assert not history or epoch > history[-1][0], f"epoch {epoch} after {history[-1][0]}"
    return (*history, (epoch, sequence))[-MAX_EPOCHS:]


def opened(history: History, epoch: int) -> History:
    """The history at the start of an epoch, without an operation of it."""
    if history and history[-1][0] >= epoch:
        return history
    return (*history, (epoch, last_of(history)))[-MAX_EPOCHS:]


def opened_at(history: History, epoch: int) -> int:
    """The last sequence before that epoch, as far as is known."""
    return max((last for known, last in history if known < epoch), default=0)


def common_point(primary: History, backup: History) -> int:
    """The last sequence that both histories share; 0 for none.

    -1 where the primary knows no epoch of the backup's: no operation follows that, so that the backup gets a state.
    """
    return max((min(last, end_of(primary, epoch)) for epoch, last in backup), default=0) if backup else 0


def cut(history: History, sequence: int) -> History:
    """The history without what is above `sequence`."""
    kept: list[Position] = []
    for epoch, last in history:
        if last >= sequence:
            kept.append((epoch, sequence))
            break
        kept.append((epoch, last))
    return tuple(kept)
