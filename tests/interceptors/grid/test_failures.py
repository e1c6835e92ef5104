"""What a grid does while nodes die, stand still, leave and come back, on a Kafka, a network and a time in memory.

Bad input: nodes of another `segment.count`, and two of one `node.id`.
"""

from __future__ import annotations

import asyncio
import signal

from deelog_interceptors.grid.topology.placement import place
from deelog_schemas.keys import segment_of
from tests.interceptors.grid.in_memory import SEGMENTS, Client, Grid, Writer


def key_in(segment: int) -> str:
    """A key of a segment."""
    return next(f"k{n}" for n in range(10_000) if segment_of(f"k{n}".encode(), SEGMENTS) == segment)


def is_acknowledged(grid: Grid, reply: asyncio.Task[object]) -> bool:
    """Whether the write that was sent is: by a node that was given the role anew meanwhile it may be."""
    grid.eventually(reply.done, what="the reply")
    return reply.exception() is None and reply.result() == b"OK"


def nothing_is_lost(grid: Grid, writer: Writer) -> None:
    """Each key has the last acknowledged value, or a later one."""
    client = grid.client()
    for key, number in writer.acked.items():
        assert number <= int(client("GET", key)) <= writer.sent[key], key


def size(grid: Grid) -> int:
    return len(grid.cached())


def test_a_full_segment_evicts_on_the_primary_and_the_backup_follows(memory_grid: Grid) -> None:
    grid = memory_grid
    grid.config["cache.max.entries"] = str(SEGMENTS * 4)
    grid.start(2)
    grid.put(SEGMENTS * 20, "v")
    assert size(grid) <= SEGMENTS * 4
    assert sum(n.stats()["grid"]["evicted"] for n in grid.live()) == SEGMENTS * 20 - size(grid)
    grid.equal_copies()


def test_a_stopped_primary_that_continues_acknowledges_nothing_and_catches_up(memory_grid: Grid) -> None:
    grid = memory_grid
    grid.start(3)
    client = grid.client()
    keys = [f"k{n}" for n in range(200)]
    for key in keys:
        client.set(key, "before")
    zombie = grid.primary_of(0)
    mine = [k for k in keys if zombie.dump(segment_of(k.encode(), SEGMENTS))[0] == "primary"]
    late = grid.client()
    late("PING")
    connected(late, zombie.port)
    zombie.signal(signal.SIGSTOP)
    # Sent while it sleeps: it will read these before it reads the view that took its role.
    reply = late.send(zombie, "SET", mine[0], "zombie")
    others = [n for n in grid.live() if n is not zombie]
    grid.eventually(lambda: all(n.stats()["grid"]["members"] == 2 for n in others))
    survivor = grid.client()
    for key in keys:
        survivor.set(key, "after")
    zombie.signal(signal.SIGCONT)
    acknowledged = is_acknowledged(grid, reply)
    grid.complete(3)
    grid.equal_copies()
    held = {key: survivor("GET", key) for key in keys}
    assert held == dict.fromkeys(keys, b"after") | ({mine[0]: b"zombie"} if acknowledged else {})
    assert zombie.alive


def connected(client: Client, port: int) -> None:
    client.loop.run_until_complete(client.connected(port))


def test_owners_that_were_stopped_until_their_segments_were_given_away_acknowledge_nothing(memory_grid: Grid) -> None:
    """Both owners continue at once, in the same old view: neither would refuse what the other one says."""
    grid = memory_grid
    grid.config["cache.failure.timeout.ms"] = "500"
    grid.start(3)
    *stopped, third = grid.live()
    roles = [[node.dump(segment)[0] for segment in range(SEGMENTS)] for node in stopped]
    lost = [segment for segment, found in enumerate(zip(*roles, strict=True)) if "none" not in found]
    mine = [next(s for s in lost if found[s] == "primary") for found in roles]
    late = [grid.client() for _ in stopped]
    for one, node in zip(late, stopped, strict=True):
        connected(one, node.port)
    for node in stopped:
        node.signal(signal.SIGSTOP)
    replies = [c.send(n, "SET", key_in(s), "late") for c, n, s in zip(late, stopped, mine, strict=True)]
    grid.eventually(lambda: all(third.dump(segment)[0] == "primary" for segment in lost), 15)
    direct = grid.client()
    for segment in mine:
        direct.set(key_in(segment), "after")
    for node in stopped:
        node.signal(signal.SIGCONT)
    assert [is_acknowledged(grid, reply) for reply in replies] == [False, False]
    grid.complete(3)
    grid.equal_copies()
    assert [direct("GET", key_in(segment)) for segment in mine] == [b"after", b"after"]


def test_a_lone_primary_that_was_stopped_reads_the_views_before_it_acknowledges(memory_grid: Grid) -> None:
    grid = memory_grid
    grid.config["cache.backups"] = "0"
    grid.start(2)
    zombie = grid.primary_of(0)
    other = next(n for n in grid.live() if n is not zombie)
    key, late = key_in(0), grid.client()
    late.set(key, "before")
    connected(late, zombie.port)
    zombie.signal(signal.SIGSTOP)
    reply = late.send(zombie, "SET", key, "zombie")
    grid.eventually(lambda: other.dump(0)[0] == "primary")
    taken = other.stats()["grid"]["topology_id"]
    zombie.signal(signal.SIGCONT)
    acknowledged = is_acknowledged(grid, reply)
    grid.eventually(lambda: zombie.stats()["grid"]["topology_id"] >= taken)
    grid.complete(2)
    assert grid.client()("GET", key) == (b"zombie" if acknowledged else None)


def test_a_killed_node_that_is_restarted_takes_the_state(memory_grid: Grid) -> None:
    grid = memory_grid
    grid.start(2)
    grid.put(500, "v" * 100)
    first = grid.nodes["n1"]
    old = first.member
    first.signal(signal.SIGKILL)
    grid.complete(1)
    # What Kafka holds is pruned, so that the newcomer cannot be served by operations alone.
    grid.put(250, "w")
    grid.again("n1")
    assert first.member != old
    grid.complete(2)
    grid.equal_copies()
    assert first.stats()["grid"]["states_taken"] > 0
    assert size(grid) == 500


def test_a_node_restarted_before_its_death_is_noticed_is_another_member(memory_grid: Grid) -> None:
    grid = memory_grid
    grid.config["cache.failure.timeout.ms"] = "20000"
    grid.start(2)
    grid.put(100, "v")
    grid.nodes["n1"].signal(signal.SIGKILL)
    grid.again("n1")
    grid.complete(2)
    assert size(grid) == 100
    grid.equal_copies()
    assert grid.resets() <= {"initial"}


def test_segments_whose_owners_are_all_killed_come_back_empty_and_are_reset(memory_grid: Grid) -> None:
    grid = memory_grid
    grid.start(3)
    grid.put(300, "v")
    victims = [grid.nodes["n1"], grid.nodes["n2"]]
    lost = [s for s in range(SEGMENTS) if all(v.dump(s)[0] != "none" for v in victims)]
    assert lost
    for victim in victims:
        victim.signal(signal.SIGKILL)
    grid.complete(1)
    survivor = grid.nodes["n3"]
    for segment in range(SEGMENTS):
        role, _, entries = survivor.dump(segment)
        assert role == "primary"
        assert bool(entries) == (segment not in lost)
    grid.eventually(lambda: survivor.stats()["resets"].get("owners_lost") == len(lost))


def test_the_controller_may_be_killed(memory_grid: Grid) -> None:
    grid = memory_grid
    grid.start(3)
    holder = next(n for n in grid.live() if n.stats()["grid"]["office"]["holds"])
    writer = Writer(grid, "w")
    grid.eventually(writer.has_written)
    holder.signal(signal.SIGKILL)
    grid.complete(2)
    assert any(n.stats()["grid"]["office"]["holds"] for n in grid.live())
    writer.end()
    nothing_is_lost(grid, writer)
    grid.equal_copies()


def test_a_killed_controller_costs_others_nothing_that_they_own(memory_grid: Grid) -> None:
    """The next one hears the others one after the other."""
    grid = memory_grid
    grid.start(5)
    grid.put(100, "v")
    controller = next(node for node in grid.live() if node.stats()["grid"]["office"]["holds"])
    view = controller.node.view
    before = [row.owners for row in view.rows]
    left = sorted(member for member in view.members if member != controller.member)
    needed = sum(len(set(new) - set(old)) for old, new in zip(before, place(before, left, 2), strict=True))
    others = [node for node in grid.live() if node is not controller]
    taken = sum(node.stats()["grid"]["states_taken"] for node in others)
    controller.signal(signal.SIGKILL)
    grid.complete(4)
    assert sum(node.stats()["grid"]["states_taken"] for node in others) - taken <= needed


def test_an_owner_that_was_given_up_says_what_it_had_acknowledged(memory_grid: Grid) -> None:
    """Its segments are Offline first, until its lease has run out."""
    grid = memory_grid
    grid.config["cache.backups"] = "0"
    grid.start(3)
    given_up = next(node for node in grid.live() if not node.stats()["grid"]["office"]["holds"])
    segments = [number for number in range(SEGMENTS) if given_up.dump(number)[0] == "primary"]
    grid.put(100, "v")
    grid.written()
    others = [node for node in grid.live() if node is not given_up]
    given_up.signal(signal.SIGSTOP)
    grid.eventually(lambda: any(node.dump(segments[0])[0] == "primary" for node in others))
    given_up.signal(signal.SIGCONT)
    grid.complete(3)
    assert given_up.stats()["grid"]["given_away"] == len(segments)


def test_of_two_nodes_with_one_id_the_newer_stays(memory_grid: Grid) -> None:
    grid = memory_grid
    grid.start(2)
    older = grid.nodes["n1"]
    grid.join("n1")
    assert f"has the node.id of {older.member} and is newer" in str(older.ended())
    grid.complete(2)


def test_another_segment_count_is_refused(memory_grid: Grid) -> None:
    grid = memory_grid
    grid.start(1)
    other = grid.node("n2", segment_count="64")
    other.start()
    assert "segment.count" in str(other.ended())
    assert grid.nodes["n1"].alive


def test_all_nodes_stop_at_once(memory_grid: Grid) -> None:
    grid = memory_grid
    grid.start(3)
    grid.client().set("k", "v")
    nodes = grid.live()
    for node in nodes:
        node.signal(signal.SIGTERM)
    assert [node.ended() for node in nodes] == [None, None, None]
