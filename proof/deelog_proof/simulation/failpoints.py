"""Failpoints: events that happen at the next effect of a kind, of one node or of any, not at a time.

A crash at each boundary between two effects is what a simulation is for, and a time hits such a boundary by luck
only, until something is changed elsewhere. Weighed in docs/decisions.md, "Failpoints are the shell's seams".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from deelog_connector.core.effects import (
    Commit,
    ControlItem,
    Effect,
    OperationsItem,
    RowsItem,
    StateItem,
    TakenBackItem,
)
from deelog_proof.memory.engine import Engine
from deelog_proof.simulation.event import Event

FAILPOINTS: Final[dict[str, str]] = {
    "open": "a producer's session is about to be opened",
    "commit": "a transaction is about to be sent",
    "appended": "its records are there, its commit is not",
    "committed": "it is committed, the answer is not there",
    "fence": "others are about to be fenced",
    "scan": "the change topic is about to be read",
    "corrected": "phantoms are about to be corrected",
    "released": "a release was read back",
    "steppeddown": "a higher claim was found",
    "superseded": "a newer process was found",
    "captured": "an operation is captured and not sent to backups",
    "view": "a view is about to be followed",
    "sends": "a frame is about to be sent to another process",
}
"""Failpoints, and when they are reached. `commit`, `appended`, `committed` may name the transaction's content
(`commit:claim`), `captured` the operation's reason, `view` the new role (`view:primary`), `sends` the frame
(`sends:patch`), or the command (`sends:role`)."""

_CONTROL: Final = {"reset_begin": "begin", "reset_end": "end"}


class Comes(Protocol):
    """A process that reaches them."""

    node_id: str
    member: str
    engine: Engine

    @property
    def alive(self) -> bool: ...


@dataclass(slots=True)
class _Armed:
    node: str
    moment: str
    event: Event


class Failpoints:
    """`happen` executes an event; `it` in its arguments is the node that reached the failpoint."""

    def __init__(self, happen: Callable[[Event], object]) -> None:
        self._happen = happen
        self._armed: list[_Armed] = []
        self._under_way: dict[str, frozenset[str]] = {}
        """By member: the content of its open transaction."""

    def arm(self, node: str, moment: str, event: Event) -> None:
        """The event happens once, when this node id (`*`: any) next reaches the failpoint."""
        self._armed.append(_Armed(node, moment, event))

    @property
    def waits(self) -> bool:
        """Whether any is armed."""
        return bool(self._armed)

    def clear(self) -> None:
        """Removes all armed failpoints."""
        self._armed.clear()

    def come(self, node: Comes, name: str, kinds: frozenset[str] = frozenset()) -> bool:
        """A failpoint is reached; returns whether the node ended."""
        if self._armed:
            names = {name, *(f"{name}:{kind}" for kind in kinds)}
            here = [a for a in self._armed if a.node in (node.node_id, "*") and a.moment in names]
            for armed in here:
                self._armed.remove(armed)
                event = armed.event._replace(at=node.engine.now)
                if event.verb != "at":  # the nested failpoint sets its own `it`
                    event = event._replace(arguments=tuple(node.node_id if a == "it" else a for a in event.arguments))
                self._happen(event)
        return not node.alive

    def effect(self, node: Comes, effect: Effect) -> bool:
        """An effect is about to be executed; returns whether the node ended."""
        kinds: frozenset[str] = frozenset()
        if isinstance(effect, Commit):
            kinds = self._under_way[node.member] = _kinds(effect)
        return self.come(node, {"openproducer": "open"}.get(name := type(effect).__name__.lower(), name), kinds)

    def transaction(self, node: Comes, name: str) -> bool:
        """The open transaction reaches a failpoint; returns whether the node ended."""
        return self.come(node, name, self._under_way.get(node.member, frozenset()))


def _kinds(effect: Commit) -> frozenset[str]:
    kinds = set()
    for item in effect.items:
        if isinstance(item, ControlItem):
            name = item.kind.name.lower()
            kinds.add(_CONTROL.get(name, name))
        elif isinstance(item, OperationsItem):
            kinds |= {"changes", *(str(o.reason) for o in item.operations)}
        elif isinstance(item, RowsItem):
            kinds |= {"rows"} if not item.first else {"rows", "first"}
        elif isinstance(item, TakenBackItem):
            kinds.add("taken_back")
        elif isinstance(item, StateItem):
            kinds.add(item.kind.name.lower())
    return frozenset(kinds)
