"""Fences: which members a takeover fences, and how often."""

from __future__ import annotations

from deelog_connector.core.effects import Cause, Fence, Producer
from deelog_connector.core.fencing import Fencing
from deelog_connector.core.segment import Phase, Segment
from deelog_connector.core.state import NodeState
from tests.connector.core.builders import node, primary
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
            if not isinstance(effect, Fence):
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
    assert fences.effects(state.working()) == []
    first, second = fencing(state, 0, "n1", "n2"), fencing(state, 1, "n1", epoch=8)
    assert fences.effects(state.working()) == [
        Fence(Producer("n1"), ((0, 7), (1, 8))),
        Fence(Producer("n2"), ((0, 7),)),
    ]
    assert state.counts.fenced == 2
    third = fencing(state, 2, "n1", "n3")
    assert fences.effects(state.working()) == [
        Fence(Producer("n3"), ((2, 7),))
    ]  # its claim came after the fence of n1 had begun
    fences.fenced(Producer("n1"), ((0, 7), (1, 8), (5, 7)))
    assert [segment.phase for segment in (first, second, third)] == [Phase.FENCE, Phase.ACTIVE, Phase.FENCE]
    assert fences.effects(state.working()) == [Fence(Producer("n1"), ((2, 7),))]
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
    fences.effects(state.working())
    fences.fenced(Producer("n2"), ((1, 7),))
    assert (away.phase, other.phase) == (Phase.FENCE, Phase.ACTIVE)
    later = fencing(state, 2, "n2")
    assert fences.effects(state.working()) == [Fence(Producer("n2"), ((2, 7),))]
    fences.fenced(Producer("n2"), ((2, 7),))
    assert later.phase is Phase.ACTIVE


def test_the_answer_to_a_fence_of_another_takeover_does_not_count() -> None:
    state = node()
    fences = Fencing(state)
    segment = fencing(state, 0, "n1")
    fences.effects(state.working())
    segment.epoch = 9  # promoted again meanwhile: n1 may have claimed once more in between
    fences.fenced(Producer("n1"), ((0, 7),))
    assert (segment.phase, segment.unfenced) == (Phase.FENCE, frozenset({Producer("n1")}))
    assert fences.effects(state.working()) == [Fence(Producer("n1"), ((0, 9),))]
    segment.phase = Phase.CLAIM
    fences.fenced(Producer("n1"), ((0, 9),))
    assert segment.phase is Phase.CLAIM


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


def test_a_claimant_is_fenced_by_the_producer_that_it_claimed_with() -> None:
    state = node()
    claimants = [(1, "n1@1"), (2, "n2@1"), (3, "n0@1")]
    assert state.producers_of(claimants, {"n2@1"}) == {Producer("n1"), Producer("n2", spare=True)}
    state.spare = True
    assert state.producers_of(claimants, {"n0@1"}) == {Producer("n1"), Producer("n2")}
