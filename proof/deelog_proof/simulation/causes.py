"""What calls for a reset. One that nothing has called for is needless: readers pay for it, and it hides a bug.

A cause counts from when it came to the end of the run: a loss may be noticed late.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from deelog_interceptors.grid.topology.view import SegmentState, View
from deelog_proof.simulation.event import Event
from deelog_proof.simulation.verbs import is_fault
from deelog_schemas.member import node_id_of

_CALLS: Final[dict[str, frozenset[str]]] = {
    "clear": frozenset({"clear"}),
    "signal": frozenset({"signal", "send"}),
    "offsets": frozenset({"connector"}),
    "restart": frozenset({"connector"}),
    "topic_recreated": frozenset({"recreate"}),
    "positions_lost": frozenset({"recreate_positions", "cut_positions"}),
}
"""By reason: verbs of which one must have happened."""
_AS_THEY_COME: Final = frozenset({"initial", "overflow", "open_reset", "end_beyond", "phantom_ahead"})
"""Not looked at: a full op log may have no other cause than much load, and the others follow from an earlier reset."""


class Causes:
    """Call `happened` and `view_made` as they come, and add the partitions that lost records."""

    def __init__(self, nodes: int, interval: int) -> None:
        self.cut: set[int] = set()
        """Partitions of the change topic that were truncated or made again."""
        self.truncated: set[int] = set()
        """Those that lost records while the topic stayed, perhaps only of open transactions."""
        self._nodes, self._interval = nodes, interval
        self._troubled: set[str] = set()
        """Node ids that anything was ever wrong with."""
        self._verbs: set[str] = set()
        self._rows: tuple[SegmentState, ...] = ()
        """Of the last view."""
        self._owners: dict[int, dict[int, set[str]]] = {}
        """By segment and epoch: who ever was."""

    def happened(self, event: Event, names: Mapping[str, str]) -> None:
        """An event of the script; `names` are those that `let` gave."""
        self._verbs.add(event.verb)
        if event.verb == "recreate_topology":  # something is wrong with every node
            self._troubled.update(f"n{number}" for number in range(self._nodes))
        elif is_fault(event):
            self._troubled.update(names.get(argument, argument) for argument in event.arguments)

    def view_made(self, view: View) -> list[int]:
        """The controller committed a view; the segments that it wants reset though one that is well was in sync."""
        needless = []
        for number, row in enumerate(view.rows):
            before = self._rows[number] if self._rows else row
            if row.must_reset and not before.must_reset and any(map(self._is_well, before.in_sync)):
                needless.append(number)
            self._owners.setdefault(number, {}).setdefault(row.epoch, set()).update(row.in_sync)
        self._rows = view.rows
        return needless

    def call_for(self, reason: str, segment: int, partition: int, epoch: int) -> bool:
        """Whether anything called for this reset."""
        if reason == "interval":
            return self._interval > 0
        if reason in _CALLS:
            return not _CALLS[reason].isdisjoint(self._verbs)
        if reason == "truncated":
            return partition in self.truncated or "recreate" in self._verbs  # whose new id may be read later
        if reason in ("hole", "unknown_history"):  # one that is not well may have left the others a hole
            owners = self._owners[segment]
            return not all(map(self._is_well, owners.get(max((of for of in owners if of < epoch), default=0), ())))
        return reason == "owners_lost" or reason in _AS_THEY_COME  # the first is looked at where a view asks for it

    def _is_well(self, member: str) -> bool:
        return node_id_of(member) not in self._troubled
