"""Breadth-first search over all states of a model, for the shortest script that breaks a promise.

The visited set has 64-bit fingerprints of states. For each state it has the previous state and the step, so that the
script can be found by walking back. Two of n states share a fingerprint with probability n²/2^65: below one in a
million for four million states. Weighed in docs/decisions.md, "The model checker".
"""

from __future__ import annotations

import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)

_LOOK_AT_CLOCK = 2048


class Step(NamedTuple, Generic[S]):
    """One possible step: its kind (for counting), its description, the next state, the promise that it breaks, and
    whether it needs no outside cause (client, fault, controller)."""

    kind: str
    words: str
    state: S
    bad: str | None = None
    alone: bool = True


class Space(Protocol[S]):
    """A model: its first state, its possible steps, and the errors of states at rest."""

    def first(self) -> S:
        """The initial state."""

    def steps(self, state: S) -> Iterator[Step[S]]:
        """Every step that is possible in this state, always in the same order."""

    def at_rest(self, state: S) -> str | None:
        """The error of a state in which only outside causes allow a step; None if there is no error."""


@dataclass
class Result:
    """The result of a search. `exhaustive`: no state was left out. `seconds` are CPU seconds of one core."""

    violation: str | None
    script: list[str]
    states: int
    transitions: int
    depth: int
    seconds: float
    exhaustive: bool
    counts: Counter[str] = field(default_factory=Counter)
    """How often each kind of step was possible; `rest` counts the states at rest."""

    def __str__(self) -> str:
        how = "exhaustive" if self.exhaustive else "bounded"
        found = self.violation or f"no violation ({how})"
        rate = self.states / max(self.seconds, 1e-9)
        return f"{found}: {self.states} states, depth {self.depth}, {self.seconds:.1f} s, {rate:.0f} states/s"


class _Found:
    """The states by number: fingerprint, parent, and the parent's step that led here."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.parent, self.step = array("q"), array("i")

    def add(self, state: Hashable, parent: int, step: int) -> int | None:
        """The state's number if it is new, else None."""
        mark = hash(state)
        if mark in self.numbers:
            return None
        number = self.numbers[mark] = len(self.parent)
        self.parent.append(parent)
        self.step.append(step)
        return number


def search(
    space: Space[S],
    max_states: int,
    max_seconds: float = float("inf"),
    cycles: bool = True,
    progress: Callable[[int, int, int], None] | None = None,
) -> Result:
    """Searches until a violation, a bound, or the end. `progress` gets the states, the states that wait, the depth.

    With `cycles` an exhaustive search also fails if steps without outside cause can continue for ever.
    """
    began, worked = time.monotonic(), time.process_time()
    found, counts = _Found(), Counter[str]()
    start = space.first()
    found.add(start, -1, -1)
    waiting: deque[tuple[S, int, int]] = deque([(start, 0, 0)])
    after: list[list[int]] = []
    transitions = depth = 0

    def result(violation: str | None, script: list[str], exhaustive: bool = False) -> Result:
        seconds = time.process_time() - worked
        return Result(violation, script, len(found.parent), transitions, depth, seconds, exhaustive, counts)

    while waiting:
        state, me, depth = waiting.popleft()
        rests, ahead = True, []
        for index, step in enumerate(space.steps(state)):
            transitions += 1
            counts[step.kind] += 1
            if step.bad:
                return result(step.bad, [*_script(space, found, me), step.words])
            number = found.add(step.state, me, index)
            if number is not None:
                waiting.append((step.state, number, depth + 1))
            if step.alone and step.state != state:
                rests = False
                if cycles:
                    ahead.append(found.numbers[hash(step.state)])
        if cycles:
            after.append(ahead)
        if rests:
            counts["rest"] += 1
            bad = space.at_rest(state)
            if bad:
                return result(bad, _script(space, found, me))
        if me % _LOOK_AT_CLOCK == 0:
            if progress:
                progress(len(found.parent), len(waiting), depth)
            if time.monotonic() - began > max_seconds:
                return result(None, [])
        if len(found.parent) >= max_states:
            return result(None, [])
    bad_state = _on_a_cycle(after) if cycles else None
    if bad_state is not None:
        return result("V6 a cycle of steps without outside cause", _script(space, found, bad_state), True)
    return result(None, [], True)


def _script(space: Space[S], found: _Found, number: int) -> list[str]:
    """The descriptions of the steps that lead to a state, which are walked again for this."""
    choices: list[int] = []
    while found.parent[number] >= 0:
        choices.append(found.step[number])
        number = found.parent[number]
    state, words = space.first(), []
    for choice in reversed(choices):
        step = next(s for i, s in enumerate(space.steps(state)) if i == choice)
        words.append(step.words)
        state = step.state
    return words


def _on_a_cycle(after: list[list[int]]) -> int | None:
    """A state from which rest may never be reached; None if every path of `after` ends."""
    before: list[list[int]] = [[] for _ in after]
    for x, ahead in enumerate(after):
        for y in ahead:
            before[y].append(x)
    left = [len(ahead) for ahead in after]
    ready = [x for x, n in enumerate(left) if not n]
    while ready:
        for x in before[ready.pop()]:
            left[x] -= 1
            if not left[x]:
                ready.append(x)
    return next((x for x, n in enumerate(left) if n), None)
