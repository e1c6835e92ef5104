"""What keeps a connector from writing: a set of holds, and one table of what changes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Hold(StrEnum):
    """A reason not to write. Holds are independent: writing goes on once none is left."""

    PAUSED = "paused"
    """Somebody paused it, and nobody has resumed it since."""
    STOPPED = "stopped"
    """Somebody stopped it: its producer is closed."""
    HALTED = "halted"
    """A transform failed, and may not."""
    DRAINING = "draining"
    """A stop is under way, and writes what is acknowledged: a pause has no effect before it is done."""
    RESTARTING = "restarting"
    """A stop or a restart is under way, and the producer is closed or about to be."""
    ENDING = "ending"
    """It writes what it captured and ends. No reason not to write: nobody holds it up any more."""


class Event(StrEnum):
    """What happens to a connector."""

    PAUSE = "pause"
    RESUME = "resume"
    HALT = "halt"
    REOPEN = "reopen"
    """A pause of what is stopped: its producer is opened."""
    DRAIN = "drain"
    SUSPEND = "suspend"
    STOP = "stop"
    """The suspension ends in a stop. Of a connector that has not started: it starts stopped."""
    CONTINUE = "continue"
    """The suspension is over, or given up."""
    LEAVE = "leave"
    """The end is near: from now on no pause, stop or restart counts."""
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
        (Event.CONTINUE, {*_SUSPENSION, _S, _H}, ()),  # new clients, and another try for what failed
        (Event.LEAVE, (), {_E}),
        (Event.END, set(Hold), {_E}),
    )
}
"""By event, which holds it removes and which it adds."""

IGNORED_AT_THE_END: Final = frozenset({Event.PAUSE, Event.DRAIN, Event.SUSPEND, Event.STOP})


@dataclass(frozen=True, slots=True)
class RunState:
    """Whether a connector writes, and what holds it."""

    holds: frozenset[Hold] = frozenset()

    def after(self, event: Event) -> RunState:
        """The state that an event leads to."""
        if Hold.ENDING in self.holds and event in IGNORED_AT_THE_END:
            return self
        removed, added = TRANSITIONS[event]
        return RunState(self.holds - removed | added)

    @property
    def paused(self) -> bool:
        """Whether no new transaction begins."""
        holds = self.holds - {Hold.ENDING}
        return bool(holds - {Hold.DRAINING, Hold.PAUSED} if Hold.DRAINING in holds else holds)

    @property
    def closed(self) -> bool:
        """Whether the producer is closed, or is to be."""
        return bool(self.holds & {Hold.STOPPED, Hold.RESTARTING})

    @property
    def stopped(self) -> bool:
        """Whether somebody stopped it; false during a restart."""
        return Hold.STOPPED in self.holds

    @property
    def wants_pause(self) -> bool:
        """Whether somebody paused it: this outlasts a restart, a stop and a halt."""
        return Hold.PAUSED in self.holds

    @property
    def ending(self) -> bool:
        """Whether it is about to end."""
        return Hold.ENDING in self.holds
