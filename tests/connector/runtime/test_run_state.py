"""The holds of a connector: each event in each state, and typical sequences of events."""

from __future__ import annotations

from itertools import chain, combinations

import pytest

from deelog_connector.runtime.run_state import TRANSITIONS, Event, Hold, RunState

STATES = [RunState(frozenset(holds)) for n in range(len(Hold) + 1) for holds in combinations(Hold, n)]


def after(*events: Event) -> RunState:
    state = RunState()
    for event in events:
        state = state.after(event)
    return state


def shown(state: RunState) -> tuple[set[str], bool, bool]:
    """Holds by name, paused, closed."""
    return {str(hold) for hold in state.holds}, state.paused, state.closed


def test_a_new_one_writes() -> None:
    assert shown(RunState()) == (set(), False, False)
    assert not RunState().wants_pause
    assert not RunState().stopped
    assert not RunState().ending


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([Event.PAUSE], ({"paused"}, True, False)),
        ([Event.PAUSE, Event.RESUME], (set(), False, False)),
        ([Event.HALT], ({"halted"}, True, False)),
        ([Event.HALT, Event.RESUME], (set(), False, False)),
        ([Event.DRAIN], ({"draining"}, False, False)),
        ([Event.DRAIN, Event.SUSPEND], ({"stopping"}, True, True)),
        ([Event.DRAIN, Event.SUSPEND, Event.STOP], ({"stopped"}, True, True)),
        ([Event.SUSPEND, Event.CONTINUE], (set(), False, False)),
        # A pause or resume while a stop is under way takes effect afterwards.
        ([Event.DRAIN, Event.PAUSE], ({"draining", "paused"}, False, False)),
        ([Event.DRAIN, Event.PAUSE, Event.CONTINUE], ({"paused"}, True, False)),
        ([Event.SUSPEND, Event.PAUSE, Event.CONTINUE], ({"paused"}, True, False)),
        ([Event.PAUSE, Event.SUSPEND, Event.RESUME], ({"stopping"}, True, True)),
        ([Event.PAUSE, Event.SUSPEND, Event.RESUME, Event.CONTINUE], (set(), False, False)),
        ([Event.PAUSE, Event.SUSPEND, Event.CONTINUE], ({"paused"}, True, False)),
        # A transform that fails while a stop writes the rest holds the connector at once; a restart tries again.
        ([Event.HALT, Event.PAUSE, Event.RENEW], ({"paused"}, True, False)),
        ([Event.HALT, Event.STOP, Event.RENEW], ({"stopped"}, True, True)),
        ([Event.DRAIN, Event.HALT], ({"draining", "halted"}, True, False)),
        ([Event.DRAIN, Event.HALT, Event.CONTINUE], ({"halted"}, True, False)),
        ([Event.HALT, Event.SUSPEND, Event.STOP], ({"halted", "stopped"}, True, True)),
        # Stopped while paused: a pause then opens the producer, a resume writes.
        ([Event.PAUSE, Event.SUSPEND, Event.STOP], ({"paused", "stopped"}, True, True)),
        ([Event.PAUSE, Event.SUSPEND, Event.STOP, Event.REOPEN], ({"paused"}, True, False)),
        ([Event.PAUSE, Event.SUSPEND, Event.STOP, Event.RESUME], (set(), False, False)),
        ([Event.STOP, Event.PAUSE], ({"paused", "stopped"}, True, True)),
        # At the end everything is written, and no hold delays it.
        ([Event.PAUSE, Event.HALT, Event.STOP, Event.END], ({"ending"}, False, False)),
        ([Event.LEAVE, Event.PAUSE], ({"ending"}, False, False)),
        ([Event.LEAVE, Event.DRAIN, Event.SUSPEND, Event.STOP], ({"ending"}, False, False)),
        ([Event.PAUSE, Event.LEAVE], ({"paused", "ending"}, True, False)),
        # The end waits for a stop that is under way.
        ([Event.DRAIN, Event.LEAVE, Event.PAUSE], ({"draining", "ending"}, False, False)),
        ([Event.DRAIN, Event.LEAVE, Event.SUSPEND], ({"stopping", "ending"}, True, True)),
        ([Event.DRAIN, Event.LEAVE, Event.SUSPEND, Event.STOP], ({"stopped", "ending"}, True, True)),
        ([Event.DRAIN, Event.LEAVE, Event.SUSPEND, Event.STOP, Event.END], ({"ending"}, False, False)),
        ([Event.SUSPEND, Event.LEAVE, Event.CONTINUE], ({"ending"}, False, False)),
        ([Event.END, Event.HALT], ({"ending", "halted"}, True, False)),
    ],
)
def test_a_life(events: list[Event], expected: tuple[set[str], bool, bool]) -> None:
    assert shown(after(*events)) == expected


@pytest.mark.parametrize("state", STATES, ids=lambda state: "+".join(sorted(state.holds)) or "none")
def test_of_every_state(state: RunState) -> None:
    assert (state.wants_pause, state.stopped) == (Hold.PAUSED in state.holds, Hold.STOPPED in state.holds)
    assert state.paused or not state.closed, "a core that is not paused would open another session at once"
    for event in Event:
        changed = state.after(event)
        removed, added = TRANSITIONS[event]
        ignored = state.ignores(event)
        assert changed.holds == (state.holds if ignored else (state.holds - removed) | added)
        assert changed.after(event) == changed, "an event that comes twice changes nothing more"
        assert not state.ending or changed.ending, "no way leads back from the end"
    for event in (Event.STOP, Event.CONTINUE, Event.END):
        if not state.ending:
            assert not {Hold.DRAINING, Hold.STOPPING} & state.after(event).holds
    assert state.after(Event.END).holds == {Hold.ENDING}
    assert not state.after(Event.END).paused


def test_every_event_and_hold_has_its_place() -> None:
    assert set(TRANSITIONS) == set(Event)
    assert set(chain.from_iterable(added for _, added in TRANSITIONS.values())) == set(Hold)
