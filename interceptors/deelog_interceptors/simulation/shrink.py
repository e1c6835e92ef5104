"""The shortest script that still fails: delta debugging over the events, then over the settings.

Source of the idea: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (2002), ddmin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from deelog_interceptors.simulation.script import SETTINGS, Event, Script


def shrink(script: Script, fails: Callable[[Script], bool], tell: Callable[[int], None] = lambda left: None) -> Script:
    """`fails` runs a script and says whether it fails in the same way; `tell` gets the number of events left."""
    events: Sequence[Event] = script.events
    parts = 2
    while len(events) > 1:
        size = max(1, len(events) // parts)
        for start in range(0, len(events), size):
            fewer = [*events[:start], *events[start + size :]]
            if fails(script.only(fewer)):
                events, parts = fewer, max(2, parts - 1)
                tell(len(events))
                break
        else:
            if size == 1:
                break
            parts = min(len(events), parts * 2)
    script = script.only(events)
    for name, value in SETTINGS.items():
        simpler = replace(script, settings=script.settings | {name: value})
        if name != "seed" and script.settings[name] != value and fails(simpler):
            script = simpler
    return script
