"""Connections between nodes, on a network in memory: who is dialled and when again, and who is turned away.

Bad input: no hello, no welcome, a node of another cache or of another number of segments, another member's address.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator

import pytest

from deelog_interceptors.grid.replication import frames
from deelog_interceptors.grid.replication.frames import AnyFrame, Ask, FrameError, Heard, Hello, Refused, Welcome
from deelog_interceptors.grid.replication.peers import MOST_STRANGERS, SILENCE_MS, Incoming, Link, Links, PeerListener
from deelog_proof.memory.engine import Engine
from deelog_proof.memory.loop import NodeLoop
from deelog_proof.memory.network import Network
from tests.connector.cache import run
from tests.support.waiting import awaiting

A, B = "a@1", "b@1"
PORT = 7000
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Dialling:
    """What a link told, and when."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.told: list[str] = []
        self.times: list[float] = []
        self.frames: list[AnyFrame] = []
        self.failures: list[BaseException] = []
        self.defect: Exception | None = None

    def _tell(self, what: str) -> None:
        self.told.append(what)
        self.times.append(self._engine.now)

    def link_up(self, link: Link) -> None:
        assert link.ready
        self._tell("up")

    def link_frame(self, link: Link, frame: AnyFrame) -> None:
        self.frames.append(frame)
        if self.defect is not None:
            raise self.defect

    def link_down(self, link: Link) -> None:
        assert not link.ready
        self._tell("down")

    def link_refused(self, member: str) -> None:
        self._tell(f"refused {member}")

    def failed(self, error: BaseException) -> None:
        self.failures.append(error)


class Listening:
    """What a listener told."""

    def __init__(self) -> None:
        self.connections: list[Incoming] = []
        self.frames: list[AnyFrame] = []
        self.downs = 0

    def incoming_up(self, connection: Incoming) -> None:
        self.connections.append(connection)

    def incoming_frame(self, connection: Incoming, frame: AnyFrame) -> None:
        self.frames.append(frame)

    def incoming_down(self, connection: Incoming) -> None:
        self.downs += 1


class Peers:
    """Two nodes: `a@1` dials, `b@1` listens."""

    def __init__(self) -> None:
        self.engine = Engine(1)
        self.network = Network(self.engine)
        self.dialler, self.host = (NodeLoop(self.engine, name, self.network) for name in ("a", "b"))
        self.dialling, self.listening = Dialling(self.engine), Listening()
        self.writers: list[asyncio.StreamWriter] = []
        """Kept: a writer that is freed before it is closed warns."""

    def listen(self, hello: Hello | None = None, host: str = "127.0.0.1", port: int = PORT) -> PeerListener:
        """Listens as `b@1`, or as `hello` says."""
        listener = PeerListener(hello or Hello("p.c", B, 8), self.listening)
        assert self.host.run_until_complete(listener.listen(host, port)) == port
        return listener

    def serve(self, *answers: AnyFrame) -> None:
        """Listens as something that answers each hello with these frames."""

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.writers.append(writer)
            await frames.read(reader, 32)
            for answer in answers:
                writer.write(frames.encode(answer))

        self.host.run_until_complete(asyncio.start_server(take, "127.0.0.1", PORT))

    def link(self, address: str = f"127.0.0.1:{PORT}") -> Link:
        """A link from `a@1` to `b@1`."""
        return self.dialler.within(Link, B, address, Hello("p.c", A, 8), self.dialling)

    def links(self) -> Links:
        return self.dialler.within(Links, Hello("p.c", A, 8), self.dialling)

    def up(self) -> Link:
        """A link that is up."""
        link = self.link()
        self.until(lambda: link.ready and self.listening.connections)
        return link

    def send(self, *sent: AnyFrame) -> asyncio.StreamReader:
        """Sends these frames over a connection of no link, and returns what reads the answers."""
        streams: Streams = self.dialler.run_until_complete(asyncio.open_connection("127.0.0.1", PORT))
        reader, writer = streams
        self.writers.append(writer)
        for frame in sent:
            self.dialler.within(writer.write, frames.encode(frame))
        return reader

    def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        self.engine.run(condition, seconds)

    def later(self, seconds: float) -> None:
        """Lets so much time pass."""
        self.engine.run(None, seconds)


@pytest.fixture
def peers(caplog: pytest.LogCaptureFixture) -> Iterator[Peers]:
    caplog.set_level(logging.INFO)
    found = Peers()
    yield found
    for loop in (found.dialler, found.host):
        for writer in found.writers:
            writer.transport.abort()
        loop.bury()


def test_frames_go_both_ways_over_one_connection(peers: Peers) -> None:
    peers.listen()
    link = peers.up()
    assert peers.dialling.told == ["up"]
    (connection,) = peers.listening.connections
    assert (connection.member, connection.asked, link.queued) == (A, [], 0)
    peers.dialler.within(link.send, Ask(1, [(0, 1)]))
    peers.dialler.run_until_complete(link.drain())
    peers.until(lambda: peers.listening.frames)
    peers.host.within(connection.send, Heard(5, 1))
    peers.until(lambda: peers.dialling.frames)
    assert (peers.listening.frames, peers.dialling.frames) == ([Ask(1, [(0, 1)])], [Heard(5, 1)])


def test_what_is_sent_before_a_link_is_up_is_dropped(peers: Peers) -> None:
    link = peers.link()
    assert (link.ready, link.queued) == (False, 0)
    peers.dialler.within(link.send, Ask(1, []))
    with pytest.raises(ConnectionResetError, match="the link is down"):
        peers.dialler.run_until_complete(link.drain())
    peers.serve(Refused(1, []))  # instead of a welcome
    peers.until(lambda: peers.writers)
    peers.dialler.within(link.send, Ask(2, []))
    peers.later(1.0)
    peers.listen(port=PORT + 1)
    assert not link.ready


def test_bytes_that_nobody_takes_are_counted_until_they_are_sent(peers: Peers) -> None:
    peers.listen()
    link = peers.up()
    peers.network.part("a", "b")
    peers.dialler.within(link.send, Ask(1, [(number % 8, 1) for number in range(300_000)]))
    queued = link.queued
    assert queued > 100_000
    peers.network.heal("a", "b")
    peers.until(lambda: link.queued == 0)
    assert len(peers.listening.frames) == 1


def test_nobody_at_an_address_is_told_and_dialled_again_ever_later(peers: Peers) -> None:
    peers.link()
    peers.until(lambda: len(peers.dialling.times) == 7)
    assert set(peers.dialling.told) == {f"refused {B}"}
    waits = [later - before for before, later in zip(peers.dialling.times, peers.dialling.times[1:], strict=False)]
    assert waits == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.4, 0.4], abs=0.02)


def test_an_address_that_does_not_answer_is_given_up_after_two_seconds(
    peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    peers.listen()
    peers.network.part("a", "b")
    link = peers.link()
    peers.later(1.9)
    assert caplog.messages == []
    peers.later(0.2)
    assert caplog.messages == [f"link to {B} at 127.0.0.1:{PORT}: TimeoutError()"]
    assert peers.dialling.told == []
    peers.network.heal("a", "b")
    peers.until(lambda: link.ready)


@pytest.mark.parametrize(
    "address",
    [f"node..example:{PORT}", f".:{PORT}", f"{'x' * 64}.example:{PORT}", "127.0.0.1:x", "127.0.0.1:99999999999"],
)
def test_what_is_no_address_ends_no_node(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Another node has registered it. On sockets of the operating system: names are looked up there."""
    dialling = Dialling(Engine(1))

    async def dial() -> None:
        ended = asyncio.Event()
        monkeypatch.setattr(Link, "_ended", lambda _: ended.set())
        link = Link(B, address, Hello("p.c", A, 8), dialling)
        await ended.wait()
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the callback of a task that has failed
        link.close()

    asyncio.run(asyncio.wait_for(dial(), 20))
    assert dialling.failures == []


def test_another_member_at_the_address_is_as_if_nobody_were_there(
    peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    peers.listen(Hello("p.c", "b@2", 8))
    link = peers.link()
    peers.until(lambda: len(peers.dialling.told) == 2)
    assert set(peers.dialling.told) == {f"refused {B}"}
    assert f"FrameError('b@2 listens at 127.0.0.1:{PORT}')" in caplog.text
    assert not link.ready


@pytest.mark.parametrize(
    ("answers", "words"), [((Heard(1, 1),), "FrameError('Heard instead of a welcome')"), ((), "TimeoutError()")]
)
def test_who_does_not_welcome_is_hung_up_on(
    peers: Peers, caplog: pytest.LogCaptureFixture, answers: tuple[AnyFrame, ...], words: str
) -> None:
    peers.serve(*answers)
    peers.link()
    peers.later(4.9)
    assert (words in caplog.text) is bool(answers)
    peers.later(0.2)
    assert words in caplog.text
    assert peers.dialling.told == []


def test_a_link_that_breaks_is_dialled_again_soon(peers: Peers) -> None:
    peers.listen()
    link = peers.link()
    for turn in range(1, 5):
        peers.until(lambda turn=turn: len(peers.listening.connections) == turn and link.ready)  # type: ignore[misc]
        peers.host.within(peers.listening.connections[-1].abort)
        peers.until(lambda: not link.ready)
    assert peers.dialling.told == ["up", "down"] * 4
    peers.until(lambda: link.ready)
    waits = [up - down for down, up in zip(peers.dialling.times[1::2], peers.dialling.times[2::2], strict=True)]
    assert waits == pytest.approx([0.05] * 4, abs=0.02)
    assert peers.listening.downs == 4


def test_a_link_that_is_closed_is_not_dialled_again(peers: Peers) -> None:
    peers.listen()
    link = peers.up()
    peers.dialler.within(link.close)
    assert (peers.dialling.told, link.ready) == (["up", "down"], False)
    peers.dialler.within(link.close)
    peers.later(5.0)
    assert peers.dialling.told == ["up", "down"]
    assert (len(peers.listening.connections), peers.listening.downs, peers.dialling.failures) == (1, 1, [])


def test_a_defect_in_taking_a_frame_ends_the_link_and_is_reported(peers: Peers) -> None:
    peers.listen()
    peers.up()
    peers.dialling.defect = RuntimeError("a defect")
    peers.host.within(peers.listening.connections[0].send, Heard(1, 1))
    peers.until(lambda: peers.dialling.failures)
    assert peers.dialling.failures == [peers.dialling.defect]
    peers.later(5.0)
    assert peers.dialling.told == ["up", "down"]


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such limit: Linux alone has it")
def test_the_system_ends_connections_on_which_nothing_is_acknowledged() -> None:
    """A firewall may have forgotten them."""

    async def work() -> None:
        dialling, listening = Dialling(Engine(1)), Listening()
        listener = PeerListener(Hello("p.c", B, 8), listening)
        port = await listener.listen("127.0.0.1", 0)
        link = Link(B, f"127.0.0.1:{port}", Hello("p.c", A, 8), dialling)
        await awaiting(lambda: link.ready and listening.connections, 20, "the link")
        for writer in link._writer, listening.connections[0]._writer:
            assert writer is not None
            plain = writer.get_extra_info("socket")
            assert plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == SILENCE_MS
        link.close()
        await listener.close()

    run(work(), 30)


def test_an_address_of_ip_version_6_may_have_brackets(peers: Peers) -> None:
    peers.listen(host="::1")
    link = peers.link(f"[::1]:{PORT}")
    peers.until(lambda: link.ready)


def test_there_is_one_link_to_each_member_that_is_to_be_dialled(peers: Peers) -> None:
    peers.listen()
    links = peers.links()
    peers.dialler.within(links.dial, {B: f"127.0.0.1:{PORT}", "c@1": "127.0.0.1:1"})
    first = links[B]
    assert (sorted(links), first.address, links["c@1"].member) == ([B, "c@1"], f"127.0.0.1:{PORT}", "c@1")
    peers.until(lambda: first.ready)
    peers.dialler.within(links.dial, {B: f"127.0.0.1:{PORT}"})
    assert dict(links) == {B: first}
    assert first.ready
    peers.dialler.within(links.dial, {})
    assert (dict(links), first.ready) == ({}, False)


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        (Hello("other.c", A, 8), "connection of a stranger: FrameError('a node of other.c')"),
        (Hello("p.c", A, 9), "connection of a stranger: FrameError('segment.count 9; here it is 8')"),
        (Ask(1, []), "connection of a stranger: FrameError('no hello')"),
    ],
)
def test_who_is_not_of_this_cache_is_turned_away(
    peers: Peers, caplog: pytest.LogCaptureFixture, hello: AnyFrame, words: str
) -> None:
    peers.listen()
    reader = peers.send(hello)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        peers.dialler.run_until_complete(frames.read(reader, 32))
    assert words in caplog.text
    assert (peers.listening.connections, peers.listening.downs) == ([], 0)


def test_who_says_nothing_is_hung_up_on_after_five_seconds(peers: Peers) -> None:
    peers.listen()
    reader = peers.send()
    peers.later(4.9)
    assert not reader.at_eof()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        peers.dialler.run_until_complete(frames.read(reader, 32))
    assert peers.engine.now == pytest.approx(5.0, abs=0.1)


def test_strangers_that_say_nothing_take_no_place_from_a_node(peers: Peers) -> None:
    peers.listen()
    first = peers.send()
    readers = [peers.send() for _ in range(MOST_STRANGERS - 1)]
    peers.later(1.0)
    assert not first.at_eof()
    up = peers.up()  # a node is no stranger once it has said hello
    readers += [peers.send() for _ in range(MOST_STRANGERS)]
    peers.later(1.0)
    assert [reader.at_eof() or reader.exception() is not None for reader in (first, *readers)] == (
        [True] * MOST_STRANGERS + [False] * MOST_STRANGERS
    )
    assert up.ready


def test_a_frame_that_the_node_does_not_take_ends_its_connection(
    peers: Peers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(connection: Incoming, frame: AnyFrame) -> None:
        raise FrameError("not for a backup")

    monkeypatch.setattr(peers.listening, "incoming_frame", refuse)
    peers.listen()
    reader = peers.send(Hello("p.c", A, 8), Welcome(B))
    assert peers.dialler.run_until_complete(frames.read(reader, 32)) == Welcome(B)
    peers.until(lambda: peers.listening.downs)
    assert f"connection of {A}: FrameError('not for a backup')" in caplog.text


def test_a_listener_that_closes_ends_its_connections(peers: Peers) -> None:
    never = PeerListener(Hello("p.c", B, 8), peers.listening)
    peers.host.run_until_complete(never.close())
    listener = peers.listen()
    with pytest.raises(OSError, match="in use"):
        peers.listen()
    link = peers.up()
    peers.host.run_until_complete(listener.close())
    peers.until(lambda: not link.ready and peers.listening.downs)
    peers.until(lambda: f"refused {B}" in peers.dialling.told)
