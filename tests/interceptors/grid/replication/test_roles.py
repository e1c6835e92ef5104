"""How views become roles, and how a segment is released."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from deelog_connector.core.segment import Phase
from deelog_interceptors.grid.data.pending import Pending
from deelog_interceptors.grid.data.segment import Role, Segment
from deelog_interceptors.grid.topology.requests import RELEASED, RESET_DONE, STEPPED_DOWN
from deelog_interceptors.grid.topology.view import State
from tests.interceptors.grid.replication.pair import A, B, Client, Pair, put


async def handing_over() -> Pair:
    """A is primary, and is to hand its segment over to B."""
    pair = Pair()
    pair.view(1, A, A)
    await pair.settle()
    pair.view(2, A, A, B, epoch=1)
    await pair.settle()
    pair.view(3, A, A, B, epoch=1, target=B)
    return pair


def test_a_segment_is_released_once_all_of_it_is_acknowledged_and_can_be_taken_back() -> None:
    async def run() -> None:
        pair = Pair()
        roles, segment, core = pair.a.roles, pair.a.segment, pair.a.core
        pair.view(1, A, A)
        await pair.settle()
        pair.view(2, A, A, B, epoch=1)
        put(pair.a, "k", "1")
        pair.view(3, A, A, B, epoch=1, target=B)
        assert (segment.releasing, segment.release_begun, core._segments[0].release_wanted) == (True, False, False)
        await pair.settle()
        assert not roles.hand_over()
        assert (segment.release_begun, core._segments[0].release_wanted) == (True, True)
        core.paused = True
        assert roles.hand_over()
        assert (segment.releasing, segment.release_begun, core._segments[0].release_wanted) == (False, False, False)
        assert not roles.hand_over()
        core.paused = False
        roles.hand_over()
        segment.released = True
        assert [r.kind for r in roles.requests()] == [RELEASED]
        assert not list(pair.b.roles.requests())

    asyncio.run(run())


def test_a_segment_takes_writes_again_while_its_partition_takes_nothing() -> None:
    async def run() -> None:
        pair = await handing_over()
        roles, segment, core = pair.a.roles, pair.a.segment, pair.a.core
        core.withheld = frozenset({0})
        assert (roles.hand_over(), segment.releasing, core._segments[0].release_wanted) == (True, False, False)
        core.withheld = frozenset()
        assert (roles.hand_over(), segment.releasing) == (False, True)

    asyncio.run(run())


@pytest.mark.parametrize("paused", [True, False])
def test_a_segment_takes_writes_again_when_who_should_have_it_is_gone(paused: bool) -> None:
    async def run() -> None:
        pair = await handing_over()
        roles, segment, core = pair.a.roles, pair.a.segment, pair.a.core
        pair.view(4, A, A, epoch=1)
        core.paused = paused
        roles.hand_over()
        assert (segment.releasing, segment.release_begun, core._segments[0].release_wanted) == (False, False, False)

    asyncio.run(run())


def test_a_segment_takes_writes_again_while_kafka_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        pair, waited = await handing_over(), 0.0
        roles, segment, core = pair.a.roles, pair.a.segment, pair.a.core
        core._segments[0].phase = Phase.RELEASING
        monkeypatch.setattr(core, "waits", lambda seconds: waited > seconds)
        assert (roles.hand_over(), segment.releasing) == (False, True)
        waited = pair.a.store.settings.failure_timeout + 0.1
        assert (roles.hand_over(), segment.releasing, segment.release_begun) == (True, False, False)
        assert (roles.hand_over(), segment.releasing) == (False, False)
        waited = 0.0
        roles.hand_over()
        assert segment.releasing

    asyncio.run(run())


def test_what_a_primary_asks_of_the_controller_and_what_a_view_takes_from_it() -> None:
    async def run() -> None:
        pair = Pair()
        roles, segment = pair.a.roles, pair.a.segment
        pair.view(1, A, A, must_reset="owners_lost")
        assert list(roles.requests()) == []
        pair.a.core._segments[0].phase = Phase.WRITING
        assert [r.kind for r in roles.requests()] == [RESET_DONE]
        pair.b.roles.stepped_down(0)
        roles.stepped_down(0)
        assert (segment.stepped_down, pair.b.segment.stepped_down) == (True, False)
        assert [r.kind for r in roles.requests()] == [STEPPED_DOWN]
        pair.view(2, A, A)
        assert not segment.stepped_down
        pair.view(3, B, B, must_reset="unclean_election")
        assert (roles.given_away, pair.b.roles.given_away) == (1, 0)
        pair.view(4, B, B, epoch=3, owners=(B,))
        pair.view(5, B, B, epoch=3)
        pair.b.core._segments[0].phase = Phase.WRITING
        assert list(pair.b.roles.requests()) == []  # this view wants no reset
        assert roles.transitions == {
            "none→primary": 1, "primary→primary": 1, "primary→backup": 1, "backup→none": 1, "none→backup": 1
        }  # fmt: skip
        assert pair.b.roles.transitions == {"none→backup": 1, "backup→backup": 1, "backup→primary": 1}

    asyncio.run(run())


def stream(segment: Segment) -> tuple[object, object]:
    """Whom a backup was reported to, and the state that it is being sent."""
    return segment.source, segment.staged


def test_a_promotion_begins_an_epoch_in_which_nothing_is_acknowledged_yet() -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A)
        await pair.settle()
        pair.view(2, A, A, B, epoch=1)
        put(pair.a, "k", "1")
        put(pair.a, "k", "2")
        await pair.settle()
        segment = pair.b.segment
        assert segment.source is pair.a.incoming
        pair.view(3, B, B, A, to=B)
        assert (segment.role, segment.primary, segment.epoch) == (Role.PRIMARY, B, 3)
        assert (segment.last, segment.begun, segment.acked, segment.waiting) == (2, 2, 0, {A})
        assert stream(segment) == (None, None)
        assert (segment.in_sync, segment.members) == ((B, A), (A,))

    asyncio.run(run())


def test_a_demoted_primary_keeps_its_entries_in_a_plain_map_and_answers_no_writer() -> None:
    async def run() -> None:
        pair, client = Pair(), Client()
        pair.view(1, A, A)
        await pair.settle()
        pair.view(2, A, A, B, epoch=1)
        segment = pair.a.segment
        pending = pair.a.replicator.reply(client, b"+OK", [(segment, put(pair.a, "k", "1"))])
        assert isinstance(pending, Pending)
        segment.stepped_down = segment.releasing = segment.release_begun = segment.released = True
        pair.view(3, B, B, A, to=A)
        assert (segment.role, segment.sessions, segment.waiting) == (Role.BACKUP, {}, set())
        assert pair.a.store.plain(segment) is segment.data
        assert segment.data == {b"k": (b"1", None)}
        assert not any((segment.stepped_down, segment.releasing, segment.release_begun, segment.released))
        assert (pending.left, client.flushes) == (0, 1)
        assert pending.reply.startswith(b"-TRYAGAIN the segment's primary changed before the write was acknowledged")

    asyncio.run(run())


@pytest.mark.parametrize("primary", [True, False])
def test_a_segment_that_this_node_no_longer_holds_is_dropped(primary: bool) -> None:
    async def run() -> None:
        pair, client = Pair(), Client()
        replica = pair.a if primary else pair.b
        pair.view(1, A, A)
        await pair.settle()
        pair.view(2, A, A, B, epoch=1)
        sequence = put(pair.a, "k", "1")
        pending = pair.a.replicator.reply(client, b"+OK", [(pair.a.segment, sequence)])
        assert isinstance(pending, Pending)
        await pair.settle()
        put(pair.a, "k", "2")
        late = pair.a.replicator.reply(client, b"+OK", [(pair.a.segment, sequence + 1)])
        assert isinstance(late, Pending)
        other = B if primary else A
        pair.view(3, other, other, owners=(other,))
        segment = replica.segment
        assert (segment.role, segment.data, replica.core.history(0)) == (Role.NONE, {}, ())
        assert (*stream(segment), segment.sessions) == (None, None, {})
        assert late.reply.startswith(b"-TRYAGAIN") is primary

    asyncio.run(run())


def test_a_backup_of_another_epoch_is_no_longer_that_of_the_connection_before() -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A)
        await pair.settle()
        pair.b.segment.staged = {}
        pair.view(2, A, A, epoch=1, to=B)  # the same epoch: the stream goes on
        assert stream(pair.b.segment) == (pair.a.incoming, {})
        pair.view(3, A, A, to=B)
        assert stream(pair.b.segment) == (None, None)
        assert pair.b.roles.transitions == {"none→backup": 1, "backup→backup": 1}

    asyncio.run(run())


def test_a_segment_that_is_offline_has_no_primary() -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A)
        put(pair.a, "k", "1")
        pair.view(2, A, A, state=State.OFFLINE, epoch=1, to=A)
        assert (pair.a.segment.role, pair.a.entries) == (Role.BACKUP, {b"k": b"1"})
        pair.view(3, A, A, to=A)
        assert (pair.a.segment.role, pair.a.roles.transitions["backup→primary"]) == (Role.PRIMARY, 1)

    asyncio.run(run())


def test_each_view_wakes_the_connector_and_is_timed() -> None:
    class Clock:
        now = 100.0

        def monotonic(self) -> float:
            self.now += 0.25
            return self.now

    async def run() -> None:
        pair = Pair()
        pair.a.roles._clock = cast(Any, Clock())
        for number in (1, 2):
            pair.view(number, A, A, epoch=1, to=A)
            assert (pair.a.wakes, pair.a.roles.apply_ms) == (number, 250.0)

    asyncio.run(run())


def test_what_a_view_took_from_a_primary_is_logged_with_what_may_be_lost(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A)
        put(pair.a, "k", "1")
        pair.view(2, B, B, must_reset="owners_lost", owners=(B,), to=A)
        assert pair.a.roles.given_away == 1
        assert caplog.messages == [
            "segment 0 was given to b@1 in epoch 2 (owners_lost) while this node held it: of what it acknowledged, up "
            "to @1.1, is lost what b@1 does not hold"
        ]

    asyncio.run(run())


def test_a_primary_that_stepped_down_releases_nothing_and_fails_its_writers() -> None:
    async def run() -> None:
        pair, client = Pair(), Client()
        roles, segment, core = pair.a.roles, pair.a.segment, pair.a.core
        pair.view(1, A, A)
        await pair.settle()
        pair.view(2, A, A, B, epoch=1)
        pending = pair.a.replicator.reply(client, b"+OK", [(segment, put(pair.a, "k", "1"))])
        assert isinstance(pending, Pending)
        roles.stepped_down(0)
        assert pending.reply.startswith(b"-TRYAGAIN")
        await pair.settle()
        pair.view(3, A, A, B, epoch=1, target=B)
        assert (segment.releasing, segment.release_begun, core._segments[0].release_wanted) == (True, False, False)
        segment.stepped_down = False
        woken = pair.a.wakes
        roles.level_reached(segment)
        roles.level_reached(segment)
        assert (segment.release_begun, core._segments[0].release_wanted, pair.a.wakes) == (True, True, woken + 1)

    asyncio.run(run())


def test_a_segment_that_is_held_up_or_released_already_is_not_handed_over() -> None:
    async def run() -> None:
        pair = Pair()
        roles, segment, core = pair.a.roles, pair.a.segment, pair.a.core
        assert roles.hand_over() is False  # before the first view
        pair.view(1, A, A)
        await pair.settle()
        core._segments[0].phase = Phase.STOPPED
        pair.view(2, A, A, B, epoch=1, target=B)
        assert not segment.releasing
        core._segments[0].phase = Phase.WRITING
        segment.released = True
        roles.hand_over()
        assert not segment.releasing
        segment.released = False
        assert roles.hand_over() is False
        assert segment.releasing

    asyncio.run(run())
