"""CLUSTER: the view in the words of Redis Cluster. Bad input: slots that do not exist."""

from __future__ import annotations

from deelog_interceptors.grid.data.segment import Role
from deelog_interceptors.grid.resp.cluster import short_id, slot_ranges
from deelog_interceptors.grid.topology.view import Registration, SegmentState, State, View
from deelog_schemas.keys import segment_of
from tests.interceptors.grid.resp.served import ME, OTHER, SEGMENTS, Client, FakeNode, K, foreign

MEMBERS = {name: Registration(name, f"h:{number}", "h:2") for number, name in enumerate((ME, OTHER), 1)}


def ranges(*primaries: str | None, state: State = State.ONLINE) -> list[tuple[int, int, str]]:
    """The ranges of slots of a view with these primaries, one per segment."""
    return list(slot_ranges(View(1, ME, MEMBERS, tuple(SegmentState(state, 1, name) for name in primaries))))


def test_neighbours_of_one_primary_are_one_range_and_unserved_slots_are_left_out() -> None:
    assert ranges(ME, ME, OTHER, ME) == [(0, 8191, ME), (8192, 12287, OTHER), (12288, 16383, ME)]
    assert ranges(None, ME, "gone@1", OTHER) == [(4096, 8191, ME), (12288, 16383, OTHER)]
    assert ranges(ME, ME, state=State.OFFLINE) == []
    assert ranges() == []


def test_a_client_is_told_who_serves_which_slots(client: Client, served: FakeNode) -> None:
    assert client("CLUSTER", "SLOTS") == [
        [0, 12287, [b"127.0.0.1", 7001, short_id(ME).encode(), []]],
        [12288, 16383, [b"10.0.0.2", 7002, short_id(OTHER).encode(), []]],
    ]
    assert client("cluster", "myid") == short_id(ME).encode()
    assert client("CLUSTER", "NODES").decode().splitlines() == [
        f"{short_id(ME)} 127.0.0.1:7001@1 myself,master - 0 0 1 connected 0-12287",
        f"{short_id(OTHER)} 10.0.0.2:7002@2 master - 0 0 2 connected 12288-16383",
    ]
    served.view = View(3, ME, MEMBERS, tuple(SegmentState(State.ONLINE, 1, ME) for _ in range(16384)))
    assert client("CLUSTER", "NODES").decode().splitlines()[1] == f"{short_id(OTHER)} h:2@2 master - 0 0 2 connected"
    rows = (SegmentState(State.ONLINE, 1, OTHER), *served.view.rows[1:])
    served.view = served.view._replace(rows=rows)
    assert [line.rpartition(" ")[2] for line in client("CLUSTER", "NODES").decode().splitlines()] == ["1-16383", "0"]


def test_an_address_of_ip_version_6_is_told_without_brackets(client: Client, served: FakeNode) -> None:
    served.view.members[ME] = Registration(ME, "[::1]:7001", "[::1]:1")
    assert client("CLUSTER", "SLOTS")[0][2][:2] == [b"::1", 7001]


def test_shards_are_one_for_each_primary(client: Client) -> None:
    def shard(member: str, host: bytes, port: int, *slots: int) -> list[object]:
        facts = [b"id", short_id(member).encode(), b"port", port, b"ip", host, b"endpoint", host]
        node = [*facts, b"role", b"master", b"replication-offset", 0, b"health", b"online"]
        return [b"slots", list(slots), b"nodes", [node]]

    assert client("CLUSTER", "SHARDS") == [
        shard(ME, b"127.0.0.1", 7001, 0, 12287),
        shard(OTHER, b"10.0.0.2", 7002, 12288, 16383),
    ]
    client("HELLO", 3)
    (mine, _) = client("CLUSTER", "SHARDS")
    assert (mine[b"slots"], mine[b"nodes"][0][b"port"]) == ([0, 12287], 7001)


def test_the_state_is_ok_only_where_all_slots_are_served(client: Client, served: FakeNode) -> None:
    def told() -> dict[str, str]:
        return dict(line.split(":") for line in client("CLUSTER", "INFO").decode().split("\r\n") if line)

    assert told() == {
        "cluster_enabled": "1",
        "cluster_state": "ok",
        "cluster_slots_assigned": "16384",
        "cluster_slots_ok": "16384",
        "cluster_slots_pfail": "0",
        "cluster_slots_fail": "0",
        "cluster_known_nodes": "2",
        "cluster_size": "2",
        "cluster_current_epoch": "1",
        "cluster_my_epoch": "1",
    }
    served.view.members.pop(OTHER)
    assert (told()["cluster_state"], told()["cluster_slots_ok"], told()["cluster_size"]) == ("fail", "12288", "1")


def test_the_keys_of_a_slot_are_those_of_a_primary(client: Client, served: FakeNode) -> None:
    for key in (keys := [f"{{{K}}}{number}" for number in range(3)]):
        client("SET", key, "v")
    slot, others = client("CLUSTER", "KEYSLOT", K), client("CLUSTER", "KEYSLOT", foreign())
    counts = [client("CLUSTER", "COUNTKEYSINSLOT", each) for each in (slot, slot + 1, others, -1, 16384, 0, 16383)]
    assert counts == [3, 0, 0, 0, 0, 0, 0]
    assert client("CLUSTER", "GETKEYSINSLOT", slot, 2) == [key.encode() for key in keys[:2]]
    served.store.segments[segment_of(K.encode(), SEGMENTS)].role = Role.BACKUP
    assert client("CLUSTER", "COUNTKEYSINSLOT", slot) == 0
    for wrong in (("COUNTKEYSINSLOT",), ("GETKEYSINSLOT", slot), ("KEYSLOT",), ("NOPE",)):
        assert client.error("CLUSTER", *wrong) == f"ERR unknown subcommand '{wrong[0]}'. Try CLUSTER HELP."
