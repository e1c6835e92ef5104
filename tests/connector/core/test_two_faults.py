"""Two rare things at once, each of which is survived alone: the reader ends with what the cache holds, or is told."""

from __future__ import annotations

import pytest

from deelog_connector.core.effects import SteppedDown
from deelog_schemas.header import Kind
from deelog_schemas.keys import segment_of
from deelog_schemas.records import decode
from tests.connector.world import (
    CHANGES,
    PARTITIONS,
    POSITIONS,
    SEGMENTS,
    Node,
    World,
    key_of,
    lose_unseen,
    partition_log,
    skipping,
    started,
)


def derived(world: World, segment: int) -> dict[bytes, bytes]:
    return {key: entry.value for key, entry in world.reader(segment).entries.items()}


def held(node: Node, segment: int) -> dict[bytes, bytes]:
    return {entry.key: entry.value for entry in node.entries(segment)}


def superseded() -> tuple[World, Node]:
    """A node whose segment 0 another one has owned since, and died; the positions topic, which told of it, is lost."""
    world, (old, new) = started()
    world.put(key_of(0), b"a")
    world.settle()
    world.own(0, new)
    world.settle(new)
    world.put(key_of(0), b"b", at=new, acked=False)
    new.core.acked(0, 2)
    world.settle(new)
    new.core.release(0)
    world.settle(new)
    world.crash(new)
    world.broker.recreate(POSITIONS)
    old.tails = dict.fromkeys(range(PARTITIONS), 0)
    old.core.positions_lost()
    return world, old


@pytest.mark.parametrize("then", ["nothing", "signal", "overflow", "promoted again"])
def test_who_was_superseded_steps_down_whatever_else_asks_for_a_reset(then: str) -> None:
    """Readers drop what is below the records of a higher epoch."""
    world, old = superseded()
    if then == "signal":
        old.core.ask_reset(0, "signal")
    elif then == "overflow":
        old.core.overflow(0)
    elif then == "promoted again":
        old.core.demote(0)
        old.core.promote(0, 2)  # with the topology its epochs were lost, too
        old.core.acked(0, old.core.last_sequence(0))
    world.settle(old)
    assert [effect.segment for effect in old.announced(SteppedDown)] == [0]
    assert world.reader(0).repeats == 0


def test_who_was_superseded_steps_down_though_a_position_alone_tells_of_it() -> None:
    """The positions topic is lost, the new owner writes on and ends, and then the change topic is lost as well."""
    world, (old, new) = started()
    world.put(key_of(0), b"a")
    world.settle()
    world.own(0, new)
    world.settle(new)
    world.broker.recreate(POSITIONS)
    world.put(key_of(0), b"b", at=new, acked=False)
    new.core.acked(0, 2)
    world.settle(new)
    world.crash(new)
    world.broker.recreate(CHANGES)
    old.tails = dict.fromkeys(range(PARTITIONS), 0)
    old.core.positions_lost()
    old.core.topic_is("t2")
    world.settle(old)
    assert [effect.segment for effect in old.announced(SteppedDown)] == [0]
    assert old.core.highest_claim() == world.epoch


@pytest.mark.parametrize("before", ["asked as a backup", "asked as the primary"])
def test_a_reset_that_was_asked_for_is_done_by_whoever_is_promoted_twice(before: str) -> None:
    world, (old, new) = started()
    world.put(key_of(0), b"a")
    world.settle()
    if before == "asked as a backup":
        new.core.ask_reset(0, "signal")
    world.crash(old)
    world.own(0, new)
    if before == "asked as the primary":
        new.core.ask_reset(0, "signal")
    new.step()
    new.core.demote(0)  # e.g. a lease that has run out
    world.own(0, new)
    world.settle(new)
    assert world.reader(0).resets == ["initial", "signal"]
    new.core.demote(0)
    world.own(0, new)
    world.settle(new)
    assert world.reader(0).resets == ["initial", "signal"]


def test_a_clear_does_not_give_way_to_the_empty_key() -> None:
    segment = segment_of(b"", SEGMENTS)
    world, (node, _) = started()
    world.put(key_of(segment), b"old")
    world.settle()
    node.core.paused = True
    world.settle()
    world.clear(segment)
    world.put(b"", b"empty")
    node.core.coalesce(segment)
    node.core.paused = False
    world.settle()
    assert derived(world, segment) == held(node, segment) == {b"": b"empty"}


def test_what_gave_way_behind_a_clear_is_no_excuse_for_the_next_owner() -> None:
    """It writes all of it, while the position of the clear was the last one's."""
    world, (old, new) = started()
    keys = [key_of(0, number) for number in range(4)]
    old.core.paused = True
    world.put(keys[0], b"1")
    world.clear(0)
    world.put(keys[3], b"d")
    for number in range(3):
        world.put(keys[1], b"b%d" % number)
    world.put(keys[2], b"c")
    assert old.core.coalesce(0) == 3
    old.core.paused = False
    while new.core.table.positions[0].sequence < 2:
        old.step()
        world.now += 0.1
        new.follow()
    position = new.core.table.positions[0]
    assert (position.sequence, position.coalesced) == (2, 0)
    world.crash(old)
    world.own(0, new)
    world.settle(new)
    position = new.core.table.positions[0]
    assert (position.sequence, position.coalesced) == (7, 0)
    assert world.reader(0).resets == ["initial", "clear"]


def test_a_correction_that_gives_way_to_what_a_filter_drops_corrects_still() -> None:
    world, (old, new) = started(2, pipeline=skipping("u"))
    world.put(key_of(0), b"v1")
    world.settle()
    old.core.append(0, "remove", key_of(0), None, None, 0, True)
    old.core.append(0, "put", key_of(0), b"ghost", None, 0, False)
    old.core.acked(0, old.core.last_sequence(0))  # the other one never got these
    world.settle(old)
    world.crash(old)
    world.own(0, new)
    while new.core.phase(0) != "writing":
        world.now += 0.1
        new.step()
    new.core.paused = True
    world.now += 0.1
    new.step()
    world.put(key_of(0), b"v5")  # an update
    assert new.core.coalesce(0) == 1
    new.core.paused = False
    world.settle(new)
    assert b"ghost" not in derived(world, 0).values()


def test_what_a_reset_has_replaced_is_missed_no_more() -> None:
    world, (node, other) = started()
    lose_unseen(world, 3)
    for one in (node, other):
        one.step()  # the look at the ends tells of the new leader
    world.watching = False  # and the next two looks are two seconds away
    world.settle()
    assert world.reader(0).resets == ["initial", "truncated"]
    for _ in range(3):
        node.core.session_lost()
        world.settle()
    assert world.reader(0).resets == ["initial", "truncated"]
    assert sum(record.header.kind is Kind.RESET_BEGIN for record in world.records(0)) == 2


def three() -> tuple[World, Node, Node, Node]:
    """The first one owns segment 0, of which four operations are written, and looked at. Then nobody looks."""
    world = World(3)
    n0, n1, n2 = world.nodes.values()
    world.own_all(n0, n1, n2)
    world.settle()
    for _ in range(4):
        world.put(key_of(0), b"early")
        world.settle()
    world.watching = False
    return world, n0, n1, n2


def coalesced(world: World, node: Node, *more: bytes) -> None:
    """Of four changes of a key three gave way at this node; `more` are changes of other keys behind them."""
    for number in range(4):
        world.put(key_of(0), b"v%d" % number)
    for number, value in enumerate(more, 1):
        world.put(key_of(0, number), value)
    assert node.core.coalesce(0) == 3


def gave_way_at_the_first() -> tuple[World, Node, Node, Node]:
    world, n0, n1, n2 = three()
    coalesced(world, n0, b"w")
    return world, n0, n1, n2


def gave_way_at_the_second() -> tuple[World, Node, Node, Node]:
    """It owned the segment, and has written nothing of that; then the first one, which has all of them."""
    world, n0, n1, n2 = three()
    world.own(0, n1, n0, n2)
    world.settle()
    coalesced(world, n1, b"w1", b"w2", b"w3")
    world.own(0, n0, n1, n2)
    until(world, n0, "writing")
    return world, n0, n1, n2


def a_run_that_takes_two_transactions(before: int = 0) -> tuple[World, Node, Node]:
    """At the second node, which owns all, and has not written it; the first one has all that gave way.

    `before` it, as many others.
    """
    world = World(2, batch=2)
    n0, n1 = world.nodes.values()
    world.own_all(n1, n0)
    world.settle()
    for number in range(1, before + 1):
        world.put(key_of(0, number), b"before")
    coalesced(world, n1)
    return world, n0, n1


def writes_alone(world: World, node: Node) -> None:
    """An operation that nobody else has."""
    operation = world.put(key_of(0, 5), b"alone", acked=False)
    node.core.acked_here(0, operation.sequence)


def owned_by_who_lagged() -> tuple[World, Node, Node]:
    """Three changes were written, and their owner has died. Who owns the segment now lacks them, the third has them."""
    world, n0, n1, n2 = three()
    for number in range(3):
        operation = world.put(key_of(0, 1), b"w%d" % number, acked=False)
        n2.core.apply(0, operation)
        n2.take(operation)
        n0.core.acked_here(0, operation.sequence)
    world.settle(n0)
    world.crash(n0)
    world.own(0, n1)
    return world, n1, n2


def until(world: World, node: Node, phase: str) -> None:
    while node.core.phase(0) != phase:
        world.now += 0.1
        node.step()


def commits_before_its_fence(world: World, old: Node, new: Node) -> None:
    """What the old owner has left is committed between the new one's claim and its fence."""
    until(world, new, "look")
    old.follow = lambda: False  # type: ignore[method-assign]
    old.step()
    world.settle(new)


def cut_away(world: World, *values: bytes) -> None:
    """These changes are gone from the log of partition 0, and nobody has heard of it."""
    for slot in partition_log(world, 0).slots:
        if slot.record is not None and any(value in (slot.record.value or b"") for value in values):
            slot.record = None


def taken_over(world: World, old: Node, new: Node) -> list[str]:
    """The reasons of the resets, once the new one has taken over from one that has died, under another leader."""
    world.crash(old)
    world.watching, world.leader_epoch = True, 1
    new.follow()
    world.own(0, new)
    world.settle(new)
    world.check()
    return world.reader(0).resets


def test_what_gave_way_before_a_fence_is_not_missed_afterwards() -> None:
    world, n0, n1, n2 = gave_way_at_the_first()
    world.own(0, n1, n2)
    commits_before_its_fence(world, n0, n1)
    assert n1.core.written(0) == 9
    world.put(key_of(0, 2), b"y")
    world.settle(n1, n2)
    assert taken_over(world, n1, n2) == ["initial"]


def test_what_gave_way_here_and_was_written_before_a_fence_excuses_nothing() -> None:
    world, n0, n1, n2 = gave_way_at_the_second()
    world.own(0, n1, n2)
    commits_before_its_fence(world, n0, n1)
    assert n1.core.written(0) == 11
    cut_away(world, b"w1", b"w2", b"w3")
    world.put(key_of(0, 4), b"y")
    world.settle(n1, n2)
    assert taken_over(world, n1, n2) == ["initial", "truncated"]


def test_what_was_cut_away_has_not_given_way() -> None:
    """`cache.acks=1`: the last position is beyond the history of the next owner, who reads all since the last reset."""
    world, n0, n1, n2 = three()
    for number in (1, 2, 3):
        world.put(key_of(0, number), b"w%d" % number)
    world.settle()
    cut_away(world, b"w1", b"w2", b"w3")
    world.put(key_of(0, 4), b"on")
    world.settle()
    writes_alone(world, n0)
    world.settle(n0)
    world.crash(n0)
    world.own(0, n1, n2)
    world.settle(n1, n2)
    assert taken_over(world, n1, n2) == ["initial", "truncated"]


@pytest.mark.parametrize("is_cut", [True, False])
def test_records_of_an_epoch_that_nobody_has_heard_of_are_missed(is_cut: bool) -> None:
    """`cache.acks=1`: the owner before lagged, and took back what the one before it had written."""
    world, n1, n2 = owned_by_who_lagged()
    world.settle(n1)
    world.put(key_of(0, 2), b"x")
    world.settle(n1)
    slots = [slot for slot in partition_log(world, 0).slots if slot.record]
    last = [slot for slot in slots if decode(*slot.record).header.position[0] > 1]  # type: ignore[misc]
    for slot in last[1:] if is_cut else ():
        slot.record = None
    assert taken_over(world, n1, n2) == ["initial", *(["truncated"] if is_cut else [])]


def test_an_epoch_in_which_nothing_was_written_is_not_missed() -> None:
    world, n0, n1, n2 = three()
    world.crash(n0)
    world.own(0, n1)
    world.settle(n1)
    for _ in range(20):  # its position is renewed
        world.now += 1.0
        n1.step()
    position = n1.core.position(0)
    assert position is not None
    assert (position.epoch > 1, position.sequence) == (True, 4)
    assert taken_over(world, n1, n2) == ["initial"]


@pytest.mark.parametrize("before", [0, 2])
def test_a_run_of_which_another_owner_has_written_a_part_is_given_up(before: int) -> None:
    """Its operations tell of what was before others that are in Kafka by now; of what came before it they do not."""
    world, n0, n1 = a_run_that_takes_two_transactions(before)
    world.own(0, n0, n1)
    until(world, n0, "writing")
    n0.step()  # two operations
    world.crash(n0)
    n1.follow()
    world.own(0, n1)
    world.settle(n1)
    world.check()
    assert world.reader(0).resets == ["initial", *(["hole"] if before == 0 else [])]


def test_what_gave_way_to_an_operation_that_is_cut_off_is_missed() -> None:
    """Who lacked it is elected, and cuts it off the op log of another node, which owns the segment next."""
    world, n0, n1, n2 = three()
    world.own(0, n0, n1)
    world.settle(n0, n1)
    n2.core.adopt(0, n0.core.history(0))
    n0.core.paused = True
    for number, (value, is_lagging) in enumerate(((b"first", True), (b"a", True), (b"b", False), (b"last", False))):
        operation = world.put(key_of(0, number % 3), value)
        if is_lagging:
            n2.core.apply(0, operation)
            n2.take(operation)
    assert n0.core.coalesce(0) == 1
    world.crash(n1)
    world.own(0, n2, n0)
    world.catch_up(0, n0)
    world.crash(n2)
    n0.core.paused = False
    world.own(0, n0)
    world.settle(n0)
    world.check()
    assert world.reader(0).resets == ["initial", "hole"]
    assert derived(world, 0) == held(n0, 0)


@pytest.mark.parametrize("is_cut", [True, False])
def test_what_gave_way_is_counted_anew_where_the_old_owner_wrote_beyond_what_is_known(is_cut: bool) -> None:
    """`cache.acks=1`, but for one operation: all others are held by all."""
    world, n0, n1, n2 = gave_way_at_the_second()
    writes_alone(world, n0)
    world.own(0, n1, n2)
    commits_before_its_fence(world, n0, n1)
    cut_away(world, *((b"w1", b"w2", b"w3") if is_cut else ()))
    world.put(key_of(0, 4), b"y")
    world.settle(n1, n2)
    assert taken_over(world, n1, n2) == ["initial", *(["truncated"] if is_cut else [])]


def test_what_gave_way_at_an_owner_that_wrote_beyond_what_is_known_is_not_missed() -> None:
    world, n0, n1, n2 = gave_way_at_the_first()
    writes_alone(world, n0)
    world.own(0, n1, n2)
    until(world, n1, "look")
    n0.follow = lambda: False  # type: ignore[method-assign]
    for _ in range(2):
        n0.step()
        world.now += 0.1
    world.settle(n1)
    world.put(key_of(0, 2), b"y")
    world.settle(n1, n2)
    assert taken_over(world, n1, n2) == ["initial"]


@pytest.mark.parametrize("again", ["nothing", "promoted", "owned by another"])
@pytest.mark.parametrize("then", ["its backup", "who lagged"])
def test_what_others_gave_way_to_comes_with_it(again: str, then: str) -> None:
    """An owner of a run writes it as one, also after another takeover: who lacks its end may be elected."""
    world, n0, n1, n2 = three()
    world.own(0, n0, n1)
    world.settle(n0, n1)
    n2.core.adopt(0, n0.core.history(0))
    n0.core.paused, before = True, n0.core.last_sequence(0)
    for key, value, is_lagging in ((0, b"first", True), (1, b"a", True), (0, b"last", False)):
        operation = world.put(key_of(0, key), value)
        if is_lagging:
            n2.core.apply(0, operation)
            n2.take(operation)
    assert n0.core.coalesce(0) == 1
    if again == "owned by another":
        world.own(0, n1, n0)
    if again != "nothing":
        world.own(0, n0, n1)
    n0.core.paused = False
    while n0.core.table.positions[0].sequence == before:
        world.now += 0.1
        n0.step()
        n0.follow()
    world.crash(n0)
    new = n1 if then == "its backup" else n2
    if new is n1:
        world.own(0, n2, n1)  # it cuts its op log
        world.crash(n2)
    world.own(0, new)
    world.settle(new)
    assert derived(world, 0) == held(new, 0)


def test_what_was_in_flight_at_a_look_is_missed_though_another_one_follows_that_the_cut_has_not_taken() -> None:
    """It stands at the very offset from which on the next owner is to read."""
    world, n0, n1, _ = three()
    log = partition_log(world, 0)

    def write(value: bytes) -> None:
        world.put(key_of(0, 2), value)
        world.settle()

    for value in (b"1", b"2", b"3"):
        n0.core.end_read(0, log.end, 0)
        write(value)
    end = log.end
    world.put(key_of(0, 1), b"in flight")
    world.now += 0.1
    effects = n0.core.poll(world.now, int(world.now * 1e6))
    n0.core.end_read(0, end, 0)
    for effect in effects:
        n0.carry_out(effect, False)
    world.settle()
    n0.core.end_read(0, log.end, 0)
    cut_away(world, b"in flight")
    for value in (b"4", b"5", b"6"):
        write(value)
    assert taken_over(world, n0, n1) == ["initial", "truncated"]


@pytest.mark.parametrize("what", ["claim", "position"])
def test_what_is_cut_off_the_positions_before_it_was_read_is_written_again(what: str) -> None:
    world, (old, new) = started()
    world.put(key_of(0), b"a")
    world.settle()
    log = world.broker.logs[POSITIONS, 0]
    node, before, follow = (new if what == "claim" else old), len(log.slots), Node.follow
    node.follow = lambda: False  # type: ignore[method-assign]  # it is behind
    if what == "claim":
        world.crash(old)
        world.own_all(new)
    else:
        world.put(key_of(0), b"b")
    for _ in range(3):
        world.now += 0.1
        node.step()
    assert len(log.slots) > before
    world.broker.truncate(POSITIONS, 0, len(log.slots) - before)
    node.follow = lambda: follow(node)  # type: ignore[method-assign]
    if what == "position":
        node.core.release(0)
    for _ in range(300):
        world.now += 0.1
        node.step()
    assert node.core.phase(0) == ("writing" if what == "claim" else "released")


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_reset_whose_end_is_cut_off_the_positions_alone_is_not_done_again(is_busy: bool) -> None:
    world, (old, new) = started()
    world.put(key_of(0), b"a")
    world.settle()
    log = world.broker.logs[POSITIONS, 0]
    old.core.ask_reset(0, "signal")
    until(world, old, "rows")
    follow, before = Node.follow, len(log.slots)
    old.follow = lambda: False  # type: ignore[method-assign]
    until(world, old, "writing")
    world.broker.truncate(POSITIONS, 0, len(log.slots) - before)
    old.follow = lambda: follow(old)  # type: ignore[method-assign]
    for number in range(30):
        if is_busy:
            world.put(key_of(0), b"%d" % number)
        world.now += 0.1
        old.step()
    world.fail_over(old, new)
    world.settle(new)
    assert world.reader(0).resets == ["initial", "signal"]


@pytest.mark.parametrize("cause", ["another leader", "a lost session"])
def test_a_ledger_that_goes_back_to_its_last_position_goes_back_to_its_gaps(cause: str) -> None:
    world, (old, new) = started()
    world.put(key_of(0), b"0")
    world.settle()
    old.core.paused = True
    world.put(key_of(0, 3), b"d")
    for number in range(5):
        world.put(key_of(0, 1), b"b%d" % number)
    world.put(key_of(0, 2), b"c")
    assert old.core.coalesce(0) == 4
    old.core.paused = False
    world.settle()
    ledger = old.core._segments[0].ledger
    for number in range(8):
        world.put(key_of(0, 4), b"e%d" % number)
        world.settle()
        position = old.core.position(0)
        assert position is not None
        if not ledger.coalesced_runs and position.coalesced:
            break
    assert position is not None
    assert position.coalesced == 4
    if cause == "another leader":
        world.leader_epoch = 1
    else:
        old.core.session_lost()
    world.settle()
    world.put(key_of(0, 5), b"f")
    world.settle(old)
    assert ledger.coalesced(20)[1] in (0, 4)
    world.leader_epoch, world.watching = 2, True
    world.fail_over(old, new)
    world.settle(new)
    assert world.reader(0).resets == ["initial"]
    world.check()


def test_an_active_of_a_recheck_excuses_nothing_that_was_captured_before_it() -> None:
    """`cache.acks=1`: a correction and a write are cut away, and older ones of the same numbers stand there."""
    world, n1, n2 = owned_by_who_lagged()
    until(world, n1, "writing")
    n1.core.paused = True
    world.settle(n1)
    world.put(key_of(0, 2), b"x")
    n1.core.paused = False
    n1.core.session_lost()
    world.settle(n1)
    for slot in partition_log(world, 0).slots:
        header = decode(*slot.record).header if slot.record is not None else None
        if header is not None and header.kind in (Kind.CHANGE, Kind.TOMBSTONE) and header.position[0] > 1:
            slot.record = None
    assert taken_over(world, n1, n2) == ["initial", "truncated"]


def test_a_run_that_is_in_flight_stays_one_when_another_is_coalesced() -> None:
    world, n0, n1 = a_run_that_takes_two_transactions()
    world.now += 0.1
    n1.step(hang=True)
    for number in range(3):
        world.put(key_of(0, 1), b"w%d" % number)
    assert n1.core.coalesce(0) == 2
    world.own(0, n0, n1)
    until(world, n0, "writing")
    n0.step()
    world.crash(n0)
    n1.finish()
    n1.follow()
    world.own(0, n1)
    world.settle(n1)
    world.check()
    assert world.reader(0).resets == ["initial", "hole"]


def test_a_reset_that_was_asked_for_is_not_done_again_in_another_topic() -> None:
    """Its first offsets come again."""
    world, (old, new) = started()
    for topic in ("t2", "t3"):
        world.broker.recreate(CHANGES)
        for node in (old, new):
            node.core.topic_is(topic)
        world.settle()
        if topic == "t2":
            old.core.ask_reset(0, "signal")
            new.core.ask_reset(0, "signal")
            world.settle()
    resets = world.reader(0).resets
    world.fail_over(old, new)
    world.settle(new)
    assert world.reader(0).resets == resets


def test_the_end_of_a_reset_whose_begin_was_cut_away_ends_none_before_it() -> None:
    """A reset was begun twice. Readers are within the first one until the next."""
    world, n0, n1, _ = three()
    n0.core.ask_reset(0, "signal")
    until(world, n0, "begun")
    n0.core.session_lost()
    until(world, n0, "begun")
    until(world, n0, "rows")
    assert world.kinds(0)[-1] == "RESET_BEGIN"
    slots = partition_log(world, 0).slots
    lost = next(number for number, slot in enumerate(reversed(slots), 1) if slot.record is not None)
    world.broker.truncate(CHANGES, 0, lost)
    until(world, n0, "writing")
    world.crash(n0)
    world.own(0, n1)
    world.put(key_of(0, 3), b"later")
    world.settle(n1)
    assert derived(world, 0) == held(n1, 0)
    assert world.reader(0).resets == ["initial", "truncated"]
