"""The items of a transaction."""

from __future__ import annotations

import pytest

from deelog_connector.core.batch import Advance, Batch, entry_key
from deelog_connector.core.effects import ControlItem, OperationsItem, RowsItem, StateItem, TakenBackItem
from deelog_connector.core.segment import Phase, Reset, Segment
from deelog_schemas.header import Kind
from deelog_schemas.keys import claim_key, position_key, reset_key
from deelog_schemas.operation import Entry, Operation, Reason
from deelog_schemas.positions import ClaimState, PositionState, ResetState, decode_state, encode_state
from tests.connector.core.builders import MEMBER, node


def batch_of_one() -> tuple[Batch, Segment]:
    state = node()
    segment = state.segment(3)
    segment.epoch, segment.history, segment.phase = 5, ((5, 7),), Phase.WRITING
    state.changes.topic_id, state.changes.leader_epochs[segment.partition] = "t", 4
    return Batch(state), segment


def test_a_control_record_carries_epoch_and_member_and_has_a_key_of_its_own() -> None:
    batch, segment = batch_of_one()
    keys = [batch.control(Kind.RESET_BEGIN, segment, (5, 7), {"id": "x"}) for _ in range(2)]
    first, second = batch.items
    assert isinstance(first, ControlItem)
    assert isinstance(second, ControlItem)
    assert (first.kind, first.segment, first.partition, first.position) == (
        Kind.RESET_BEGIN,
        3,
        segment.partition,
        (5, 7),
    )
    assert first.fields == {"epoch": 5, "member": MEMBER, "id": "x"}
    assert keys == [entry_key(first, MEMBER), entry_key(second, MEMBER)]
    assert len({*keys, entry_key(first, "n1@1")}) == 3


def test_the_claim_is_the_one_that_is_awaited() -> None:
    batch, segment = batch_of_one()
    segment.awaited = 9
    batch.claim_state(segment, (5, 7))
    state = ClaimState(5, MEMBER, "", "", 8, 2, 9)
    assert batch.items == [StateItem(Kind.CLAIM_STATE, 3, segment.partition, (5, 7), claim_key(3, MEMBER), state)]


@pytest.mark.parametrize(("known", "told"), [(4, 0), (5, 0), (6, 6), (10_018, 10_018)])
def test_a_claim_tells_the_highest_epoch_where_that_is_another_one(known: int, told: int) -> None:
    """Positions that are made again may have no other record of it."""
    batch, segment = batch_of_one()
    batch.node.positions.highest_claim = known
    batch.claim_state(segment, (5, 7))
    (item,) = batch.items
    assert isinstance(item, StateItem)
    assert isinstance(item.state, ClaimState)
    assert (item.state.epoch, item.state.highest) == (5, told)
    assert decode_state(item.key, encode_state(item.state), item.kind).state == item.state


def test_an_open_reset_names_its_begin() -> None:
    batch, segment = batch_of_one()
    batch.reset_state(segment, Reset("id", "signal", (5, 6), begin_offset=30))
    state = ResetState("id", 5, 6, "signal", 30, MEMBER)
    assert batch.items == [StateItem(Kind.RESET_STATE, 3, segment.partition, (5, 6), reset_key(3), state)]


def test_a_position_says_from_where_to_read() -> None:
    batch, segment = batch_of_one()
    ledger = segment.ledger
    ledger.read_from, ledger.read_from_sequence, ledger.base_offset, ledger.leader_epoch = 40, 6, 12, 3
    ledger.coalesce(0, 2, 1)
    segment.is_unread = True
    batch.position(segment, (5, 7))
    assert not segment.is_unread, "this one takes the place of the one that was lost"
    batch.position(segment, (5, 7), Kind.POSITION_RENEWAL)
    state = PositionState(5, 7, 40, 6, 2, 1, 12, 3, "t", MEMBER)
    assert batch.items == [
        StateItem(kind, 3, segment.partition, (5, 7), position_key(3), state)
        for kind in (Kind.POSITION, Kind.POSITION_RENEWAL)
    ]


def test_an_advance_is_of_the_phase_and_generation_of_its_segment() -> None:
    batch, segment = batch_of_one()
    segment.generation = 8
    batch.advance(segment, 7, 6, 2)
    batch.advance(segment, 3, ended=True)
    assert batch.advances == [
        Advance(3, 8, Phase.WRITING, 7, 6, 2),
        Advance(3, 8, Phase.WRITING, 3, ended=True),
    ]


def test_writers_are_the_segments_with_entries() -> None:
    batch, segment = batch_of_one()
    operation = Operation(5, 7, Reason.PUT, b"k", b"v", None, 0, True)
    batch.control(Kind.CLAIM, segment, (5, 7), {})
    batch.position(segment, (5, 7))
    assert batch.writers == []
    batch.items += [
        RowsItem(6, 0, (5, 7), "signal", [Entry(b"a", b"1", None)], True, True),
        OperationsItem(2, 0, [operation]),
        TakenBackItem(4, 0, (5, 7), "signal", [b"b"]),
        OperationsItem(6, 0, [operation]),
    ]
    assert batch.writers == [2, 4, 6]


def test_up_to_where_a_segment_is_written() -> None:
    batch, segment = batch_of_one()
    segment.sent = 6
    assert batch.written_to(segment) is None  # something is not written yet: a reader may be beyond any position
    segment.sent = 7
    assert batch.written_to(segment) == (5, 7)
    operations = [Operation(5, sequence, Reason.PUT, b"k", b"v", None, 0, True) for sequence in (4, 5)]
    segment.sent = 3
    batch.items += [OperationsItem(3, 0, operations), OperationsItem(2, 0, operations[:1])]
    assert batch.written_to(segment) == (5, 5)
