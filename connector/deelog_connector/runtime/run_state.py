"""The run state of a connector: a set of holds that keep it from writing, and the table of transitions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Hold(StrEnum):
    """A reason not to write. Holds are independent: writing goes on once none is left."""

    PAUSED = "paused"
    """It was paused and not resumed since."""
    STOPPED = "stopped"
    """It was stopped: its producer is closed."""
    HALTED = "halted"
    """A transform failed, and the failure is not skipped."""
    DRAINING = "draining"
    """A running stop writes what is acknowledged: until then a pause has no effect."""
    STOPPING = "stopping"
    """A running stop closes the producer."""
    ENDING = "ending"
    """It writes what it captured and ends. This does not keep it from writing: it ends other holds."""


class Event(StrEnum):
    """Events that change the run state."""

    PAUSE = "pause"
    RESUME = "resume"
    HALT = "halt"
    REOPEN = "reopen"
    """A pause of a stopped connector: its producer is opened."""
    DRAIN = "drain"
    SUSPEND = "suspend"
    STOP = "stop"
    """The suspension ends in a stop. A connector that has not started starts stopped."""
    CONTINUE = "continue"
    """The suspension failed."""
    RENEW = "renew"
    """A restart: what halted is tried again."""
    LEAVE = "leave"
    """The connector ends: a pause or stop has no effect any more."""
    END = "end"


_P, _S, _H, _D, _R, _E = Hold
_SUSPENSION: Final = {_D, _R}

TRANSITIONS: Final[dict[Event, tuple[frozenset[Hold], frozenset[Hold]]]] = {
    event: (frozenset(removed), frozenset(added))
    for event, removed, added in (
        (Event.PAUSE, (), {_P}),
        (Event.RESUME, {_P, _S, _H}, ()),
        (Event.HALT, (), {_H}),
        (Event.REOPEN, {_S}, ()),
        (Event.DRAIN, (), {_D}),
        (Event.SUSPEND, {_D}, {_R}),
        (Event.STOP, _SUSPENSION, {_S}),
        (Event.CONTINUE, _SUSPENSION, ()),
        (Event.RENEW, {_H}, ()),
        (Event.LEAVE, (), {_E}),
        (Event.END, set(Hold), {_E}),
    )
}
"""By event, the holds that it removes and adds."""

_IGNORED_AT_THE_END: Final = frozenset({Event.PAUSE, Event.DRAIN, Event.SUSPEND, Event.STOP})
_UNDER_WAY: Final = frozenset({Event.SUSPEND, Event.STOP})
"""What ends a suspension that began before the end was near: it is waited for."""


@dataclass(frozen=True, slots=True)
class RunState:
    """The holds of a connector."""

    holds: frozenset[Hold] = frozenset()

    def after(self, event: Event) -> RunState:
        """The state after an event."""
        if self.ignores(event):
            return self
        removed, added = TRANSITIONS[event]
        return RunState(self.holds - removed | added)

    def ignores(self, event: Event) -> bool:
        """Whether an event has no effect, since the end is near."""
        if Hold.ENDING not in self.holds or event not in _IGNORED_AT_THE_END:
            return False
        return not (event in _UNDER_WAY and self.holds & _SUSPENSION)

    @property
    def paused(self) -> bool:
        """Whether no new transaction begins."""
        holds = self.holds - {Hold.ENDING}
        return bool(holds - {Hold.DRAINING, Hold.PAUSED} if Hold.DRAINING in holds else holds)

    @property
    def closed(self) -> bool:
        """Whether the producer is closed, or is to be."""
        return bool(self.holds & {Hold.STOPPED, Hold.STOPPING})

    @property
    def stopped(self) -> bool:
        """Whether it was stopped."""
        return Hold.STOPPED in self.holds

    @property
    def wants_pause(self) -> bool:
        """Whether it was paused: this outlasts a restart, a stop and a halt."""
        return Hold.PAUSED in self.holds

    @property
    def ending(self) -> bool:
        """Whether it is ending."""
        return Hold.ENDING in self.holds
