"""A node: how its parts work together, what a write waits for, and how it ends. Without peers and without Kafka."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deelog_connector.errors import TopologyError
from deelog_interceptors.grid.data.segment import Role
from deelog_interceptors.grid.node import Node, NodeError
from deelog_interceptors.grid.replication.frames import Ask, Heard, Heartbeat, Refused
from deelog_interceptors.grid.resp.connection import Blocked
from deelog_interceptors.grid.topology.view import Registration, SegmentState, State, View
from deelog_schemas.config import Config, ConfigError, parse
from deelog_schemas.operation import Entry, Operation
from tests.support.memory import Memory


def config_of(**fields: str) -> Config:
    given = {"node.id": "n1", "bootstrap.servers": "127.0.0.1:1", "topic.prefix": "p", "cache.name": "c"}
    return parse(given | {name.replace("_", "."): value for name, value in fields.items()})


def test_a_node_that_had_no_time_to_hand_over_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_time(self: Node) -> bool:
        assert self.leaving
        raise TimeoutError

    monkeypatch.setattr(Node, "_has_left", no_time)

    async def work() -> None:
        await Node(config_of()).stop()

    asyncio.run(work())
    (line,) = [line for line in caplog.messages if "could not hand over" in line]
    assert line.endswith("could not hand over all of its segments: no time left")


@pytest.mark.parametrize("field", ["cache.listen", "cache.peer.listen"])
def test_an_address_that_is_taken_is_an_error_of_its_field(field: str) -> None:
    async def work(taken: str) -> None:
        free = {"cache.listen": "127.0.0.1:0", "cache.peer.listen": "127.0.0.1:0"}
        node = Node(config_of(**free | {field: taken}))
        try:
            await node.start()
        finally:
            await node.abort()

    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConfigError) as refused:
            asyncio.run(work(taken))
    assert f"{field} = {taken}: cannot be listened on (" in str(refused.value)
    assert str(refused.value).endswith("): name another port or host")


ME, OTHER = "n1@1700000000000", "n2@5"
"""The first is of the moment at which virtual time begins."""
SEGMENTS = 4
HEARD = Heartbeat(1, 1, False, [])


class Desk:
    """A node that was not started, on a loop of virtual time."""

    def __init__(self, memory: Memory, monkeypatch: pytest.MonkeyPatch, **fields: str) -> None:
        given = {"segment_count": str(SEGMENTS), "topic_creation_default_partitions": "2"}
        self.loop, self.monkeypatch = memory.loop, monkeypatch
        self.node = Node(config_of(**given | fields), memory.port)
        assert self.node.member == ME
        self.calls: list[tuple[str, Any]] = []

    def note(self, part: object, *names: str, answer: Any = None) -> None:
        """Calls of these methods are noted, and answered so."""
        for name in names:

            def noted(*given: Any, name: str = name) -> Any:
                self.calls.append((name, given[0] if len(given) == 1 else given))
                return answer

            self.monkeypatch.setattr(part, name, noted)

    def view(self, number: int = 1, controller: str = ME, **row: Any) -> View:
        """A view in which this node is primary of all segments, and the other one a backup in sync."""
        members = {m: Registration(m, "127.0.0.1:1", "127.0.0.1:2") for m in (ME, OTHER)}
        state = SegmentState(State.ONLINE, number, ME, (ME,), (ME,))._replace(**row)
        return View(number, controller, members, (state,) * SEGMENTS)

    def read(self, view: View) -> None:
        """The node reads a view."""
        self.monkeypatch.setattr(self.node, "_dial", lambda: None)
        self.node._registry.view, self.node._registry.controller = view, view.controller
        self.node.view_read(view)

    def lease(self) -> None:
        """A heartbeat was answered."""
        self.node._lease.sent(99, *self.node._time())
        self.node._lease.heard(Heard(99, 0), 0)

    async def blocked(self, size: int = 10) -> Any:
        """What a write waits for."""
        with pytest.raises(Blocked) as blocked:
            self.node.prepare(self.node.store.segments[0], size)
        return blocked.value.until


def with_node(
    memory: Memory,
    monkeypatch: pytest.MonkeyPatch,
    test: Callable[[Desk], Coroutine[Any, Any, None]],
    **fields: str,
) -> None:
    async def work() -> None:
        desk = Desk(memory, monkeypatch, **fields)
        await test(desk)
        with monkeypatch.context() as patch:
            patch.setattr(desk.node, "_until", lambda condition: asyncio.sleep(0))
            await desk.node.abort()

    memory.run(work())


def test_a_node_is_named_as_others_reach_it(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        desk.node.client_port, desk.node.peer_port = 1, 2
        assert desk.node.addresses == ("[::1]:1", "[::1]:2")

    with_node(memory, monkeypatch, test, cache_advertised_host="::1")


def test_a_write_waits_for_what_it_lacks(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        node, segment = desk.node, desk.node.store.segments[0]
        desk.read(desk.view())
        assert await desk.blocked() == node._renewed_lease
        desk.lease()
        node.prepare(segment, 10)
        segment.stepped_down = True
        assert await desk.blocked() == node.role_changed
        segment.stepped_down = False
        node.replicator.unreplicated = 10**9
        assert await desk.blocked() == node.replicator.room
        desk.note(node.connector, "make_room")
        until = await desk.blocked(10**12)
        until()
        assert desk.calls == [("make_room", (0, 10**12))]

    with_node(memory, monkeypatch, test)


@pytest.mark.parametrize(("acks", "leased"), [("all", False), ("1", True)])
def test_a_lease_is_needed_only_where_all_acknowledge(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, acks: str, leased: bool
) -> None:
    async def test(desk: Desk) -> None:
        assert desk.node.leased() is leased

    with_node(memory, monkeypatch, test, cache_acks=acks)


def test_who_waits_for_a_view_is_woken_by_it_or_after_a_moment(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        waiting = asyncio.ensure_future(desk.node.role_changed())
        begun = desk.loop.time()
        await desk.node.role_changed_soon()
        assert desk.loop.time() - begun == pytest.approx(0.05)
        assert not waiting.done()
        desk.read(desk.view())
        await waiting
        assert desk.loop.time() - begun == pytest.approx(0.05)

    with_node(memory, monkeypatch, test)


def test_a_view_is_applied_and_told_to_the_controller(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        node = desk.node
        desk.note(node.controller_service, "heartbeat")
        desk.read(desk.view())
        assert {segment.role for segment in node.store.segments} == {Role.PRIMARY}
        assert desk.calls == []
        await asyncio.sleep(0.01)
        assert desk.calls == [("heartbeat", (ME, Heartbeat(1, 1, False, [])))]

    with_node(memory, monkeypatch, test)


def test_heartbeats_go_to_the_controller_alone(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        node, sent = desk.node, list[Any]()
        desk.note(node.controller_service, "heartbeat")
        node._beat()
        assert node._beats == 0  # there is no controller
        desk.read(desk.view(controller=OTHER))
        node._links[OTHER] = cast(Any, SimpleNamespace(send=sent.append, ready=False))
        node._beat()
        node._registry.controller = "n3@1"
        node._beat()
        assert sent == [Heartbeat(1, 1, False, [])]
        assert (desk.calls, node._beats, node._beat_timer) == ([], 2, None)
        del node._links[OTHER]

    with_node(memory, monkeypatch, test)


def test_an_answer_of_the_controller_renews_the_lease(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        node = desk.node
        desk.read(desk.view(controller=OTHER))
        desk.note(node.replicator, "renewed")
        node._beat()
        waiting = asyncio.ensure_future(node._renewed_lease())
        await asyncio.sleep(0)
        link, stranger = (cast(Any, SimpleNamespace(member=member)) for member in (OTHER, "n3@1"))
        node.link_frame(stranger, Heard(1, 1))
        node._heard(OTHER, None)
        assert not node.leased()
        node.link_frame(link, Heard(1, 1))
        assert (node.leased(), desk.calls) == (True, [("renewed", ())])
        await waiting
        node._beat()
        node.link_frame(link, Heard(node._beats, 1))
        assert len(desk.calls) == 1  # it had one
        seconds, node._lease.seconds = node._lease.seconds, 0.0
        assert not node.leased()
        node._lease.seconds = seconds
        assert node.leased()  # a clock was put forward, and back
        node._beat()
        node.link_frame(link, Heard(node._beats, 1))
        assert len(desk.calls) == 2

    with_node(memory, monkeypatch, test)


def test_frames_go_to_the_part_that_they_are_for(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        node, sent = desk.node, list[Any]()
        incoming = cast(Any, SimpleNamespace(member=OTHER, send=sent.append))
        link = cast(Any, SimpleNamespace(member=OTHER))
        desk.note(node.replicator, "frame", "link_down")
        desk.note(node.backup, "up", "down")
        desk.note(node.controller_service, "refused")
        node.link_frame(link, Refused(1, []))
        node.link_down(link)
        node.link_refused(OTHER)
        node.incoming_up(incoming)
        node.incoming_down(incoming)
        assert desk.calls == [
            ("frame", (link, Refused(1, []))),
            ("link_down", link),
            ("refused", OTHER),
            ("up", incoming),
            ("down", incoming),
        ]
        desk.calls.clear()
        desk.note(node.backup, "frame")
        node.incoming_frame(incoming, Ask(1, []))
        assert desk.calls.pop() == ("frame", (incoming, Ask(1, [])))
        for answer, expected in ((None, []), (Heard(1, 1), [Heard(1, 1)])):
            desk.note(node.controller_service, "heartbeat", answer=answer)
            node.incoming_frame(incoming, HEARD)
            assert (desk.calls.pop(), sent) == (("heartbeat", (OTHER, HEARD)), expected)

    with_node(memory, monkeypatch, test)


def test_a_link_that_is_up_asks_for_the_segments_of_its_member(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        node = desk.node
        desk.read(desk.view(owners=(ME, OTHER)))
        node.store.segments[2].members = ()
        node.store.segments[3].role = Role.BACKUP
        desk.note(node.replicator, "follow")
        node.link_up(cast(Any, SimpleNamespace(member=OTHER)))
        ((_, (segments, number)),) = desk.calls
        assert ([segment.number for segment in segments], number) == ([0, 1], 1)

    with_node(memory, monkeypatch, test)


@pytest.mark.parametrize("clock", [0, 1])
def test_a_process_that_was_stopped_doubts_that_it_is_controller(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, clock: int
) -> None:
    """Either clock tells: a virtual machine that was paused has counted no time, and is put forward."""

    async def test(desk: Desk) -> None:
        node, timeout, time = desk.node, desk.node.settings.failure_timeout, [100.0, 100.0]
        desk.note(node.controller_service, "doubt", "heartbeat")
        monkeypatch.setattr(node, "_time", lambda: tuple(time))
        node._notice_pause()  # it has just begun
        time[clock] += timeout
        node._notice_pause()
        assert desk.calls == []
        time[clock] += 1 + timeout
        node._notice_pause()
        assert desk.calls == [("doubt", ())]
        assert f"{ME} was stopped for {1 + timeout:.1f} s" in caplog.messages
        time[clock] += 1
        node._notice_pause()
        time[1] -= 3600  # a clock that is put back is no pause
        node._notice_pause()
        assert len(desk.calls) == 1

    with_node(memory, monkeypatch, test)


def test_the_first_error_ends_the_node(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        node, defect = desk.node, RuntimeError("a defect")

        async def fails() -> None:
            raise defect

        node._spawn(fails(), "work")
        await asyncio.sleep(0.01)
        error = node.failure.exception()
        assert isinstance(error, NodeError)
        assert (str(error), error.__cause__) == ("internal error: RuntimeError('a defect')", defect)
        node.failed(TopologyError("later"))
        assert node.failure.exception() is error

    with_node(memory, monkeypatch, test)


def test_an_error_of_ours_keeps_its_words_and_ends_what_waits(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        ours = TopologyError("no topic")
        desk.node.failed(ours)
        assert desk.node.failure.exception() is ours
        with pytest.raises(TopologyError, match="no topic"):
            await desk.node._or_failure(asyncio.Event().wait())

    with_node(memory, monkeypatch, test)


def test_the_failure_of_its_connector_is_its_own(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        desk.node._connector_failed(future)
        assert not desk.node.failure.done()
        failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failure.set_exception(TopologyError("why"))
        desk.node._connector_failed(failure)
        assert str(desk.node.failure.exception()) == "why"

    with_node(memory, monkeypatch, test)


@pytest.mark.parametrize("serves", [True, False])
def test_a_right_that_is_missing_ends_only_a_start(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, serves: bool
) -> None:
    async def test(desk: Desk) -> None:
        if serves:
            desk.read(desk.view())
        desk.node._refused(TopologyError("Read is missing"))
        assert desk.node.failure.done() is not serves
        assert ("Read is missing" in caplog.messages) is serves

    with_node(memory, monkeypatch, test)


def test_what_is_captured_is_replicated_and_expires_in_time(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        node = desk.node
        desk.note(node.replicator, "operation")
        desk.note(node._expiry, "run_at")
        segment = node.store.segments[1]
        operation = Operation(1, 1, "put", b"k", b"v", None, 0, False)
        node.captured(segment, operation)
        timed = operation._replace(expires_at=7500)
        node.captured(segment, timed)
        assert desk.calls == [("operation", (segment, operation)), ("operation", (segment, timed)), ("run_at", 7.5)]

    with_node(memory, monkeypatch, test)


def test_the_connector_reads_entries_and_hands_over_what_it_writes(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(desk: Desk) -> None:
        node = desk.node
        desk.read(desk.view())
        await asyncio.sleep(0.01)
        segment = node.store.segments[1]
        node.store.put(segment, b"k", b"v", None)
        assert node.entries(1) == [node.get(1, b"k")] == [Entry(b"k", b"v", None)]
        assert (node.get(1, b"none"), node.entries(0)) == (None, [])
        desk.note(node.replicator, "operation")
        operations = [Operation(1, number, "correct", b"k", b"v", None, 0, True) for number in (8, 9)]
        node.corrected(1, operations)
        assert (segment.last, desk.calls) == (9, [("operation", (segment, one)) for one in operations])
        desk.calls.clear()
        desk.note(node, "_beat_soon")
        desk.note(node.roles, "stepped_down")
        node.released(1)
        node.stepped_down(2, "why")
        assert segment.released
        assert desk.calls == [("_beat_soon", ()), ("stepped_down", 2), ("_beat_soon", ())]

    with_node(memory, monkeypatch, test)


def test_a_node_has_left_once_nothing_is_its_own_or_nobody_is_left(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(desk: Desk) -> None:
        node = desk.node
        for view, left in (
            (desk.view(), False),
            (desk.view(primary=OTHER, in_sync=(OTHER, ME), owners=(OTHER,)), False),
            (desk.view(primary=OTHER, in_sync=(OTHER,), owners=(OTHER,)), True),
        ):
            node._registry.view = view
            assert node._has_left() is left
        alone = desk.view()
        alone.members[OTHER] = alone.members[OTHER]._replace(leaving=True)
        node._registry.view = alone
        assert node._has_left()

    with_node(memory, monkeypatch, test)


def test_a_registration_that_was_written_over_is_written_again(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(desk: Desk) -> None:
        node, published = desk.node, list[str]()
        errors = [TopologyError("no broker"), None]

        async def publish(key: str, value: bytes) -> None:
            published.append(key)
            error = errors.pop(0)
            if error is not None:
                raise error

        monkeypatch.setattr(node._topology, "publish", publish)
        desk.note(node.controller_service, "changed")
        desk.note(node, "_dial")
        node._registry.overwritten = True
        node._registry_read()
        await asyncio.sleep(2)
        assert (published, node._registry.overwritten) == ([], True)  # it has not begun yet
        node._beats = 1
        node._registry_read()
        await asyncio.sleep(2)
        assert (published, node._registry.overwritten) == (["member/n1"] * 2, False)
        assert "no broker; trying again" in caplog.messages
        assert desk.calls == [("_dial", ()), ("changed", ())] * 2

    with_node(memory, monkeypatch, test)


def test_segments_without_all_streams_are_asked_for_at_each_heartbeat(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(desk: Desk) -> None:
        node = desk.node
        desk.read(desk.view(owners=(ME, OTHER)))
        node.store.segments[0].members = ()
        desk.note(node.replicator, "follow", "expire_pendings")
        desk.note(node, "_beat")
        begun = desk.loop.time()
        for work in (node._beat_regularly, node._sweep):
            node._spawn(work(), work.__name__)
        await asyncio.sleep(node.settings.failure_timeout + 0.01)
        assert [call for call, _ in desk.calls].count("_beat") == 6
        follows = [[segment.number for segment in given[0]] for call, given in desk.calls if call == "follow"]
        assert follows == [[1, 2, 3]] * 6
        (first, *_) = [given for call, given in desk.calls if call == "expire_pendings"]
        assert first - begun == pytest.approx(0.25)

    with_node(memory, monkeypatch, test)


def test_heartbeats_that_are_due_soon_are_one(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        node = desk.node
        desk.read(desk.view())
        desk.note(node.controller_service, "heartbeat")
        for _ in range(3):
            node._beat_soon()
        await asyncio.sleep(0.01)
        assert len(desk.calls) == 1
        node._beat_soon()
        node._beat()
        await asyncio.sleep(0.01)
        assert len(desk.calls) == 2
        node._beats = -1  # it is closed
        node._beat()
        assert len(desk.calls) == 2

    with_node(memory, monkeypatch, test)


@pytest.mark.parametrize("taken_back", [True, False])
def test_a_release_that_is_taken_back_wakes_the_writers(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, taken_back: bool
) -> None:
    async def test(desk: Desk) -> None:
        node = desk.node
        waiting = asyncio.ensure_future(node.role_changed())
        await asyncio.sleep(0)
        desk.note(node.roles, "hand_over", answer=taken_back)
        desk.note(node._expiry, "run_at")
        node._spawn(node._beat_regularly(), "beats")
        await asyncio.sleep(0.01)
        assert desk.calls == [("hand_over", ())] + [("run_at", 0.0)] * taken_back
        assert waiting.done() is taken_back
        waiting.cancel()

    with_node(memory, monkeypatch, test)


def test_a_node_that_has_ended_capture_takes_no_release_back(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        node = desk.node
        desk.note(node.roles, "hand_over", answer=True)
        node._ends = True
        node._spawn(node._beat_regularly(), "beats")
        await asyncio.sleep(2 * node.settings.failure_timeout)
        assert desk.calls == []

    with_node(memory, monkeypatch, test)


def test_each_heartbeat_notices_a_pause(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        node = desk.node
        desk.read(desk.view())
        desk.note(node.controller_service, "doubt", "heartbeat")
        node._turned = node._time()
        await asyncio.sleep(2 * node.settings.failure_timeout)
        desk.calls.clear()
        node._beat()
        assert [call for call, _ in desk.calls] == ["doubt", "heartbeat"]

    with_node(memory, monkeypatch, test)
