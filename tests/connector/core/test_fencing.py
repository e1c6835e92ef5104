"""Fences: which members a takeover fences, and how often."""

from __future__ import annotations

from deelog_connector.core.effects import Cause, Fence, Producer
from deelog_connector.core.fencing import Fencing
from deelog_connector.core.segment import Phase, Segment
from deelog_connector.core.state import NodeState
from deelog_schemas.positions import ClaimState, StateRecord
from tests.connector.core.builders import claimed, node, primary
from tests.connector.world import (
    key_of,
    started,
)


def test_fencing() -> None:
    """The old primary is cut off and has an open transaction. It must not commit after the new primary's ACTIVE."""
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    n0.step(hang=True)
    world.own(0, n1)
    world.settle(n1)
    assert ("n1", "n0") in world.fences
    n0.finish()
    assert world.refused == [("n0", Cause.FENCED)]
    world.settle()
    world.check()


def test_fence_once() -> None:
    """Two nodes that swap segments must come to rest."""
    world, (n0, n1) = started()
    world.own(1, n1, n0)
    world.settle()
    before = len(world.fences)
    world.own(0, n1, n0)
    world.own(1, n0, n1)
    world.settle()
    assert len(world.fences) - before <= 3
    assert n1.core.phase(0) == n0.core.phase(1) == "writing"
    world.check()


def test_recheck_keeps_place() -> None:
    """Fenced for another segment before its own FENCE, a node still fences the old primary."""
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    n0.step(hang=True)
    world.own(0, n1)
    for _ in range(60):
        if n1.core.phase(0) == "fence":
            break
        world.now += 0.1
        n1.follow()
        for effect in n1.core.poll(world.now, 0):
            if not isinstance(effect, Fence) or not effect.takeovers:
                n1.carry_out(effect, False)
    world.broker.init("n1")
    n1.core._transactions.reopen()
    assert n1.core.phase(0) == "fence"


def fencing(state: NodeState, number: int, *nodes: str, epoch: int = 7) -> Segment:
    """A segment that waits until these nodes are fenced."""
    return primary(state, number, Phase.FENCE, epoch=epoch, unfenced=frozenset(map(Producer, nodes)))


def test_one_fence_of_a_node_serves_all_that_wait_and_no_other_begins_meanwhile() -> None:
    state = node()
    fences = Fencing(state)
    assert fences.effects() == []
    first, second = fencing(state, 0, "n1", "n2"), fencing(state, 1, "n1", epoch=8)
    assert fences.effects() == [Fence(Producer("n1"), ((0, 7), (1, 8))), Fence(Producer("n2"), ((0, 7),))]
    assert state.counts.fenced == 2
    third = fencing(state, 2, "n1", "n3")
    assert fences.effects() == [Fence(Producer("n3"), ((2, 7),))]  # its claim came after the fence of n1 had begun
    fences.fenced(Producer("n1"), ((0, 7), (1, 8), (5, 7)))
    assert [segment.phase for segment in (first, second, third)] == [Phase.FENCE, Phase.ACTIVE, Phase.FENCE]
    assert fences.effects() == [Fence(Producer("n1"), ((2, 7),))]
    fences.fenced(Producer("n2"), ((0, 7),))
    fences.fenced(Producer("n3"), ((2, 7),))
    assert [segment.phase for segment in (first, third)] == [Phase.ACTIVE, Phase.FENCE]
    fences.fenced(Producer("n1"), ((2, 7),))
    assert third.phase is Phase.ACTIVE
    assert state.counts.fenced == 4


def test_a_node_whose_fence_is_not_answered_holds_up_nobody_else() -> None:
    state = node()
    fences = Fencing(state)
    away, other = fencing(state, 0, "n1"), fencing(state, 1, "n2")
    fences.effects()
    fences.fenced(Producer("n2"), ((1, 7),))
    assert (away.phase, other.phase) == (Phase.FENCE, Phase.ACTIVE)
    later = fencing(state, 2, "n2")
    assert fences.effects() == [Fence(Producer("n2"), ((2, 7),))]
    fences.fenced(Producer("n2"), ((2, 7),))
    assert later.phase is Phase.ACTIVE


def test_the_answer_to_a_fence_of_another_takeover_does_not_count() -> None:
    state = node()
    fences = Fencing(state)
    segment = fencing(state, 0, "n1")
    fences.effects()
    segment.epoch = 9  # promoted again meanwhile: n1 may have claimed once more in between
    fences.fenced(Producer("n1"), ((0, 7),))
    assert (segment.phase, segment.unfenced) == (Phase.FENCE, frozenset({Producer("n1")}))
    assert fences.effects() == [Fence(Producer("n1"), ((0, 9),))]
    segment.phase = Phase.CLAIM
    fences.fenced(Producer("n1"), ((0, 9),))
    assert segment.phase is Phase.CLAIM


def test_a_fence_that_nobody_waits_for_stands_for_no_other() -> None:
    state = node()
    fences = Fencing(state)
    segment = fencing(state, 0, "n1")
    fences.effects()
    fences.fenced(Producer("n1"), ())
    assert fences.effects() == []
    assert segment.phase is Phase.FENCE


def test_superseded_claimants_are_fenced_when_our_own_record_is_hidden_for_too_long() -> None:
    state = node(patience=10.0)
    fencing = Fencing(state)
    asked = [primary(state, n, phase, awaited=1, asked_at=100.0) for n, phase in enumerate((Phase.LOOK, Phase.READ))]
    primary(state, 2, Phase.LOOK, awaited=0, asked_at=0.0)
    primary(state, 3, Phase.BEGUN, awaited=1, asked_at=0.0)
    for number in range(4):
        claimed(state, number, 6, f"n{number + 1}@1")
    claimed(state, 0, 8, "n8@1")  # above our own
    claimed(state, 0, 7, "n9@1")
    claimed(state, 0, 5, "n0@4")  # of this node
    for now in (100.0, 109.9):
        state.now = now
        fencing.lose_patience()
    assert (state.outbox, state.counts.scans_in_vain) == ([], 0)
    state.now = 110.0
    fencing.lose_patience()
    hidden = frozenset(segment.partition for segment in asked)
    assert state.take_outbox() == [Fence(Producer(name), (), hidden) for name in ("n1", "n2")]
    assert [segment.asked_at for segment in asked] == [110.0, 110.0]
    assert (state.counts.scans_in_vain, state.counts.fenced) == (1, 2)
    fencing.lose_patience()
    assert (state.outbox, state.counts.scans_in_vain) == ([], 1)


def test_nobody_is_superseded() -> None:
    state = node()
    Fencing(state).waited_in_vain([primary(state, 0)])
    assert (state.outbox, state.counts.scans_in_vain) == ([], 1)


def test_opening_ones_session_fences_ones_own_producer_for_takeovers_that_wait() -> None:
    """A node's process before this one wrote with the producer that this one opens only now."""
    state = node()
    state.spare = True
    own, other = Producer("n0"), Producer("n1")
    waits, goes = (
        primary(state, n, Phase.FENCE, unfenced=unfenced) for n, unfenced in enumerate(({own, other}, {own}))
    )
    primary(state, 2, Phase.ACTIVE)
    fencing = Fencing(state)
    fencing.opened()  # the spare one
    assert (waits.phase, goes.phase) == (Phase.FENCE, Phase.FENCE)
    state.spare = False
    fencing.opened()
    assert (waits.phase, goes.phase) == (Phase.FENCE, Phase.ACTIVE)
    assert waits.unfenced == {other}


def test_nobody_is_fenced_for_what_is_hidden_on_a_partition_that_is_withheld() -> None:
    state = node(patience=10.0)
    segment = primary(state, 0, Phase.LOOK, awaited=1, asked_at=100.0)
    claimed(state, 0, 6, "n1@1")
    state.now, state.withheld = 200.0, frozenset({segment.partition})
    Fencing(state).lose_patience()
    assert state.outbox == []
    state.withheld = frozenset()
    Fencing(state).lose_patience()
    assert len(state.outbox) == 1


def test_a_claimant_is_fenced_by_the_producer_that_it_claimed_with() -> None:
    state = node()
    claimants = [(1, "n1@1"), (2, "n2@1"), (3, "n0@1")]
    assert state.producers_of(claimants, {"n2@1"}) == {Producer("n1"), Producer("n2", spare=True)}
    state.spare = True
    assert state.producers_of(claimants, {"n0@1"}) == {Producer("n1"), Producer("n2")}


def test_a_record_that_stays_hidden_may_be_so_by_a_producer_that_was_left() -> None:
    """Of a claimant, and of this node: a transaction that did not end is why it was left."""
    state = node()
    segment = primary(state, 0, Phase.LOOK)
    spare = ClaimState(5, "n1@1", "", "", 8, 2, 1, spare=True)
    state.positions.apply(StateRecord("claim", 0, "n1@1", spare))
    fencing = Fencing(state)

    def fenced() -> list[Producer]:
        fencing.waited_in_vain([segment])
        found = [effect.producer for effect in state.take_outbox() if isinstance(effect, Fence)]
        for producer in found:
            fencing.fenced(producer, ())
        return found

    assert fenced() == [Producer("n1"), Producer("n1", spare=True)]
    state.spare = state.has_switched = True
    assert fenced() == [Producer("n0"), Producer("n1"), Producer("n1", spare=True)]
    state.spare = False
    assert fenced() == [Producer("n0", spare=True), Producer("n1"), Producer("n1", spare=True)]


def test_a_fence_in_vain_is_not_asked_for_again_until_it_is_answered() -> None:
    """It takes as long as the last transaction of the id does not end."""
    state = node()
    segment = primary(state, 0, Phase.LOOK)
    claimed(state, 0, 5, "n1@1")
    fencing = Fencing(state)

    def asked() -> int:
        fencing.waited_in_vain([segment])
        return len(state.take_outbox())

    assert [asked(), asked()] == [1, 0]
    fencing.fenced(Producer("n1"), [(0, segment.epoch)])  # that of a takeover
    assert asked() == 0
    fencing.fenced(Producer("n1"), ())
    assert [asked(), asked()] == [1, 0]
    fencing.forget()
    assert asked() == 1


def test_what_a_newer_claimant_has_left_is_not_fenced() -> None:
    state = node()
    segment = primary(state, 0, Phase.LOOK)
    newer = ClaimState(segment.epoch + 1, "n1@1", "", "", 8, 2, 1, spare=True)
    state.positions.apply(StateRecord("claim", 0, "n1@1", newer))
    Fencing(state).waited_in_vain([segment])
    assert state.outbox == []
