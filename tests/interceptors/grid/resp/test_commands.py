"""How a command finds its segment, and who answers where it is not here."""

from __future__ import annotations

import asyncio

import pytest

from deelog_connector.core.segment import Phase
from deelog_interceptors.grid.resp import commands
from deelog_interceptors.grid.resp.commands import TABLE, Call, Command, command, keys_of
from deelog_schemas.keys import segment_of, slot_of
from deelog_schemas.operation import OVERHEAD
from tests.connector.cache import run
from tests.interceptors.grid.resp.served import (
    ME,
    OTHER,
    SEGMENTS,
    Client,
    FakeNode,
    K,
    answered,
    foreign,
)


def test_a_stopped_segment_that_is_to_move_takes_writes(served: FakeNode, client: Client) -> None:
    """Its release cannot be written; what stopped it can be deleted."""
    client("SET", K, "1")
    number = next(s.number for s in served.store.segments if len(s.data))
    served.core._segments[number].phase = Phase.STOPPED
    served.follow(target=OTHER, epoch=served.view.rows[0].epoch)
    assert not served.store.segments[number].closed
    assert client("DEL", K) == 1


def test_another_primary_is_named(client: Client, served: FakeNode) -> None:
    async def run() -> None:
        slot = client("CLUSTER", "KEYSLOT", foreign())
        assert client.error("GET", foreign()) == f"MOVED {slot} 10.0.0.2:7002"
        served.view.members.pop(OTHER)
        assert client.error("GET", foreign()) == "CLUSTERDOWN Hash slot not served"

    asyncio.run(run())


def test_command_tells_clients_where_keys_are(client: Client) -> None:
    told = {info[0].decode(): info for info in client("COMMAND")}
    assert set(told) == {name.decode().lower() for name in TABLE}
    assert client("COMMAND", "COUNT") == len(TABLE)
    get, nothing, mget = client("COMMAND", "INFO", "GET", "nope", "mget")
    assert (get[:6], nothing, mget[3:6]) == ([b"get", 2, [b"readonly", b"fast"], 1, 1, 1], None, [1, -1, 1])
    assert get[6:] == [[], [], [], []]
    assert mget[7] == [b"request_policy:multi_shard"]
    assert client("COMMAND", "INFO") == client("COMMAND")
    assert told["ping"][3:6] == [0, 0, 0]


def test_a_command_has_the_number_of_arguments_that_the_table_says(client: Client) -> None:
    for arity in (("GET",), ("GET", K, K), ("MGET",), ("get",), ("SET", K)):
        assert client.error(*arity) == f"ERR wrong number of arguments for '{arity[0].lower()}' command"
    assert client("MGET", K) == [None]


def test_an_unknown_command_is_named_with_its_first_arguments(client: Client) -> None:
    assert client.error("NOPE", "a") == "ERR unknown command 'NOPE', with args beginning with: 'a' "
    told = client.error("X" * 200, *(str(number) * 200 for number in range(1, 10)))
    assert told.startswith(f"ERR unknown command '{'X' * 128}', with args beginning with: '{'1' * 128}' ")
    assert told.endswith(f"'{'8' * 128}' ")
    assert client.error("CLIENT", "Y" * 200) == f"ERR unknown subcommand '{'Y' * 128}'. Try CLIENT HELP."


def test_all_keys_of_a_command_are_of_one_slot(client: Client) -> None:
    assert client.error("DEL", "a", "b") == "CROSSSLOT Keys in request don't hash to the same slot"
    assert client.error("MGET", f"{{{K}}}1", f"{{{K}}}2", "b").startswith("CROSSSLOT")
    assert client("MGET", f"{{{K}}}1", f"{{{K}}}2") == [None, None]


def test_a_backup_serves_reads_to_who_asked_for_them_and_redirects_after_one_wait(served: FakeNode) -> None:
    async def work() -> None:
        client = Client(served.clients)
        served.follow(primary=OTHER, in_sync=(OTHER, ME), owners=(OTHER, ME))
        assert client("GET", K) is False  # no answer yet
        assert client.connection.waited
        await answered(client)
        moved = b"-MOVED %d 10.0.0.2:7002\r\n" % slot_of(K.encode())
        assert client.wire.written == moved
        assert client("READONLY") == b"OK"
        assert client.raw(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(K), K.encode())) == b"$-1\r\n"
        served.follow(primary=OTHER, in_sync=(OTHER,), owners=(OTHER, ME))
        client("GET", K)  # here it may have nothing yet
        await answered(client)
        assert client.wire.written == moved
        served.follow(primary=OTHER, in_sync=(OTHER, ME), owners=(OTHER, ME))
        client("SET", K, "v")
        assert client.connection.waited
        await answered(client)
        assert client.wire.written == moved
        assert client("READWRITE") == b"OK"
        client("GET", K)
        await answered(client)
        assert client.wire.written == moved

    run(work(), 20)


def test_a_pipeline_by_an_old_map_waits_once(served: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        client, waits = Client(served.clients), 0

        async def soon() -> None:
            nonlocal waits
            waits += 1

        monkeypatch.setattr(served, "role_changed_soon", soon)
        served.follow(primary=OTHER, in_sync=(OTHER, ME), owners=(OTHER, ME))
        get, moved = b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(K), K.encode()), b"-MOVED"
        for round_ in (1, 2):  # a client that is redirected here again waits again
            client.raw(get * 100)
            await answered(client)
            assert (client.wire.written.count(moved), waits) == (100, round_)

    run(work(), 20)


def test_a_closed_segment_lets_writes_wait_and_answers_reads(served: FakeNode, client: Client) -> None:
    segment = served.store.segments[segment_of(K.encode(), SEGMENTS)]

    async def work() -> None:
        opened = asyncio.Event()
        served.role_changed = opened.wait  # type: ignore[method-assign, assignment]
        segment.stepped_down = True
        assert client("GET", K) is None
        request = b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$1\r\nv\r\n" % (len(K), K.encode())
        assert client.raw(request + b"*1\r\n$4\r\nPING\r\n") == b""
        await asyncio.sleep(0)
        assert (client.wire.written, client.wire.reading, len(served.operations)) == (b"", False, 0)
        segment.stepped_down = False
        opened.set()
        await answered(client)
        assert (client.wire.written, client.wire.reading) == (b"+OK\r\n+PONG\r\n", True)

    run(work(), 20)


def test_integers_are_written_as_redis_writes_them(client: Client) -> None:
    for good in ("0", "1"):
        assert client("SCAN", good)[0] == b"0"
    for bad in ("01", "+1", " 1", "1_0", 2**63, -(2**63) - 1, "x"):
        assert client.error("SCAN", bad) == "ERR value is not an integer or out of range"


def test_a_command_that_no_op_log_can_hold_is_refused() -> None:
    """Waiting would make no room for it."""
    served = FakeNode(**{"max.queue.size.in.bytes": "2000000", "max.entry.bytes": "900000"})
    client = Client(served.clients)
    client("SET", K, "1")
    served.core.budget.max_bytes = 1000
    assert client.error("DEL", *[K] * 10).startswith("ERR captured, this takes")
    assert client("GET", K) == b"1"
    assert not served.core.counts.overflow


def test_a_write_asks_for_room_for_all_that_it_may_capture(served: FakeNode, client: Client) -> None:
    asked: list[tuple[int, int]] = []
    served.prepare = lambda segment, size: asked.append((segment.number, size))  # type: ignore[method-assign, misc]
    number = segment_of(K.encode(), SEGMENTS)
    client("SET", K, "1234")
    client("DEL", K, K)
    size = len(K) + OVERHEAD
    assert asked == [(number, size + 4), (number, 2 * size)]


def test_a_handler_is_added_to_the_table_with_the_place_of_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "TABLE", {})

    def handler(call: Call) -> bytes:
        return b""

    assert command("NONE", -1)(handler) is handler
    command("ONE", 2, "fast", first=1)(handler)
    command("MANY", -3, "write", first=1, last=-2, tips=("a",))(handler)
    assert {
        b"NONE": Command("NONE", -1, (), 0, 0, 0, handler),
        b"ONE": Command("ONE", 2, ("fast",), 1, 1, 1, handler),
        b"MANY": Command("MANY", -3, ("write",), 1, -2, 1, handler, ("a",)),
    } == commands.TABLE
    assert keys_of(commands.TABLE[b"ONE"], [b"ONE", b"k"]) == [b"k"]
    assert keys_of(commands.TABLE[b"MANY"], [b"MANY", b"a", b"b", b"c"]) == [b"a", b"b"]
