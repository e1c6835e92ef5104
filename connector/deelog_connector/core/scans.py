"""Scans of the change topic: one per partition at a time, for all segments that wait for a record of their own."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from deelog_connector.core.effects import Hanging, HangingAbort, Place, Scan, ScannedRecord
from deelog_connector.core.hanging import HangingTransactions
from deelog_connector.core.reset_strategy import KeysInKafka
from deelog_connector.core.segment import Segment
from deelog_connector.core.state import NodeState


class Scans:
    """See the module."""

    def __init__(self, node: NodeState, hanging: HangingTransactions) -> None:
        self._node = node
        self._hanging = hanging
        self._markers: dict[int, frozenset[bytes]] = {}
        """By partition the markers that the scan under way was sent for."""
        self._read_to: dict[int, int] = {}
        """By partition the offset up to which it has come."""
        self._missed: dict[int, frozenset[bytes]] = {}
        """By partition the markers of a scan that read all there is to be read, and not these."""

    @property
    def idle(self) -> bool:
        """Whether no scan is under way."""
        return not self._markers

    def effects(self, working: Iterable[Segment], in_flight: Collection[int]) -> list[Scan]:
        """The scans that segments wait for, but for those that the transaction under way writes, and of partitions that
        are withheld."""
        waiting: dict[int, list[Segment]] = {}
        for segment in self._node.writable(working):
            if segment.listens and segment.number not in in_flight:
                waiting.setdefault(segment.partition, []).append(segment)
        scans = []
        for partition, segments in waiting.items():
            if partition in self._markers:
                continue
            # A reset that collects keys may begin far below, and nobody waits for it: takeovers go first.
            segments = [s for s in segments if not s.collects_keys] or segments
            markers = frozenset(s.marker for s in segments if s.marker is not None)
            self._markers[partition] = markers
            keys = frozenset(s.number for s in segments if s.collects_keys)
            scans.append(Scan(partition, min(s.scan_next for s in segments), markers, keys, _places(segments)))
        return scans

    def forget(self) -> None:
        """The scans under way do not come to their end."""
        self._markers.clear()
        self._read_to.clear()
        self._missed.clear()
        self._node.hidden.clear()

    def scanned(self, partition: int, records: Iterable[ScannedRecord]) -> None:
        """Records of the change topic, in offset order; those that no segment waits for are passed over."""
        # A scan serves the segments that it was sent for: one that waits since then may need what it has passed.
        served = self._markers.get(partition, frozenset())
        for record in records:
            self._read_to[partition] = record.offset + 1
            segment = self._node.primaries.get(record.segment)
            if segment is None or segment.marker not in served or not segment.listens:
                continue
            if segment.marker_offset >= 0 or record.offset < segment.scan_next:
                continue
            segment.scan_next = record.offset + 1
            if record.key == segment.marker:
                segment.marker_offset = record.offset
            elif segment.scan is not None:
                segment.scan.apply(record)
            elif segment.reset is not None and segment.reset.keys_in_kafka is not None:
                segment.reset.keys_in_kafka.apply(record)

    def hanging_found(self, partition: int, transactions: Iterable[Hanging | HangingAbort], hidden: bool) -> None:
        """What is open on a partition, of what is known; `hidden`: whether anything is, or may be.

        Where nothing is, a marker that a scan up to the end has not read is gone: retention, or somebody, has deleted
        the log up to behind it, or it was cut away; so is a record on the positions topic. They are written again.
        """
        self._hanging.found(partition, transactions)
        missed = self._missed.pop(partition, frozenset())
        waiting = [s for s in self._node.primaries_of(partition) if s.marker is not None]
        (self._node.hidden.add if hidden and waiting else self._node.hidden.discard)(partition)
        if hidden:
            self._hanging.something_hides(partition)
            return
        self._hanging.nothing_hides(partition)
        for segment in waiting:
            if segment.marker in missed and segment.marker_offset < 0:
                segment.look_again()

    def ended(self, partition: int, reached: bool, at_end: bool = False) -> list[Segment]:
        """A scan is over; the segments whose marker was read. Not reached: an open transaction hides the rest, unless
        the scan came to the end (`at_end`) and none is open."""
        served, read_to = self._markers.pop(partition, frozenset()), self._read_to.pop(partition, -1)
        waiting = [s for s in self._node.primaries_of(partition) if s.marker is not None]
        if not reached:
            self._missed[partition] = served if at_end else frozenset()
            self._hanging.waited_in_vain(partition)
        else:
            self._node.hidden.discard(partition)
        complete = []
        for segment in waiting:
            if segment.marker in served and segment.marker_offset < 0:
                # All records up to there were offered to it, though its own last one may be far below. Once its marker
                # was read, nothing after that was offered to it.
                segment.scan_next = max(segment.scan_next, read_to)
            keys = segment.reset.keys_in_kafka if segment.reset is not None else None
            if keys is not None and (keys.in_vain or (segment.marker_offset >= 0 and not keys.whole)):
                segment.collect_keys(KeysInKafka(-1))
            elif segment.marker_offset >= 0:
                segment.marker = None
                complete.append(segment)
        return complete


def _places(segments: Iterable[Segment]) -> tuple[Place, ...]:
    """The highest of each leader's: who has that has all below."""
    places: dict[int, Place] = {}
    for segment in segments:
        place = segment.scan.place if segment.scan is not None else None
        if place is not None:
            places[place.leader_epoch] = max(place, places.get(place.leader_epoch, place))
    return tuple(sorted(places.values()))
