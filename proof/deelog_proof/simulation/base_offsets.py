"""The base offsets in the positions topic, and a reader that begins there, behind any compaction.

Compaction leaves the last record of each key, and in time no delete, begin or end: what such a reader derives is the
last value of each key, from the base offset on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from deelog_connector.kafka_port import InRecord
from deelog_proof.simulation.context import CHANGES, POSITIONS, Context
from deelog_proof.simulation.stock_consumer import StockConsumer
from deelog_schemas.fold import SegmentReader
from deelog_schemas.positions import PositionState, decode_state
from deelog_schemas.records import ON_POSITIONS, decode


def base_offset_problems(world: Context, cut: Collection[int], readers: Mapping[int, SegmentReader]) -> Iterator[str]:
    """What is wrong with the base offsets at the end of a run; `readers` have read all of the change topic.

    A base offset may go back in the partitions that were `cut` alone.
    """
    bases: dict[int, int] = {}
    for raw in _records(world, POSITIONS):
        record = decode(*raw, ON_POSITIONS)
        entry = decode_state(record.key, record.value, record.header.kind)
        if isinstance(entry.state, PositionState):
            number, base = entry.segment, entry.state.base_offset
            if base < bases.get(number, -1) and world.partition_of(number) not in cut:
                yield f"segment {number}: {base} follows {bases[number]}"
            bases[number] = base
    consumers = {number: StockConsumer() for number in readers}
    for raw in _records(world, CHANGES):
        number = decode(*raw).header.segment
        if raw.offset >= bases.get(number, -1):
            consumers[number].apply(raw.key, raw.value)
    for number, reader in readers.items():
        derived = {key: (entry.value, entry.expires_at) for key, entry in reader.entries.items()}
        found = consumers[number].content
        if found != derived:
            yield f"segment {number}: from {bases.get(number)} on there is {found}, not {derived}"


def _records(world: Context, topic: str) -> Iterator[InRecord]:
    for log in world.kafka.logs.values():
        if log.topic == topic:
            yield from log.read(log.first, len(log.slots))[0]
