"""The shortest script that still fails: delta debugging over the events, then over the settings.

Source of the idea: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (2002), ddmin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from deelog_proof.simulation.event import Event
from deelog_proof.simulation.script import Script


def shrink(
    script: Script, fails: Callable[[Script], bool], progress: Callable[[int], None] = lambda left: None
) -> Script:
    """`fails` runs a script and says whether it fails in the same way; `progress` gets the number of events left."""
    events: Sequence[Event] = script.events
    size = max(1, len(events) // 2)
    while events:
        before, start = len(events), 0
        while start < len(events):
            fewer = [*events[:start], *events[start + size :]]
            if fails(script.only(fewer)):
                events = fewer
                progress(len(events))
            else:
                start += size
        if size == 1 and len(events) == before:
            break
        size = max(1, min(size, len(events)) // 2)
    script = script.only(events)
    for name, value in script.language.settings.items():
        simpler = replace(script, settings=script.settings | {name: value})
        if name != "seed" and script.settings[name] != value and fails(simpler):
            script = simpler
    return script
