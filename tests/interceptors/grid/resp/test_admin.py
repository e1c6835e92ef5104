"""Commands on the connection and on all keys of a node, and what a node says of itself."""

from __future__ import annotations

import fnmatch
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deelog_interceptors.grid.data.segment import Role
from deelog_interceptors.grid.resp import admin
from deelog_interceptors.grid.resp.cluster import short_id
from deelog_interceptors.grid.resp.commands import TABLE
from deelog_schemas.keys import segment_of, slot_of
from tests.connector.cache import run
from tests.interceptors.grid.resp.served import ME, SEGMENTS, Client, FakeNode, K, answered, here, now_ms


def test_scan_gives_each_key_that_stays_whatever_happens_meanwhile(client: Client) -> None:
    keys = {key for n in range(2000) if segment_of((key := f"s{n}").encode(), SEGMENTS) != SEGMENTS - 1}
    for key in keys:
        client("SET", key, "v")
    found: set[str] = set()
    cursor, rounds = 0, 0
    while rounds == 0 or cursor:
        answer, batch = client("SCAN", cursor, "COUNT", 50)
        cursor = int(answer)
        found |= {key.decode() for key in batch}
        rounds += 1
        client("SET", here(f"new{rounds}"), "v")
        assert rounds < 1000
    assert found >= keys
    assert rounds > 10
    match = client("SCAN", 0, "COUNT", 100_000, "MATCH", "s1[0-4]?")[1]
    assert sorted(match) == sorted(k.encode() for k in keys if len(k) == 4 and k[:2] == "s1" and k[2] in "01234")
    assert client("SCAN", 0, "COUNT", 100_000, "TYPE", "hash")[1] == []


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (b"a*c", b"abbc", b"abb"),
        (b"a?c", b"a\nc", b"ac"),
        (b"a[^b]c", b"axc", b"abc"),
        (b"a\\*c", b"a*c", b"abc"),
        (b"a.c", b"a.c", b"abc"),
        (b"[", b"[", b"x"),
        (b"a[b-d]", b"ac", b"ae"),
        (b"a[x&&y]", b"a&", b"a["),
        (b"a[[b]", b"a[", b"ac"),
    ],
)
def test_patterns(pattern: bytes, yes: bytes, no: bytes) -> None:
    assert admin.glob(pattern).fullmatch(yes)
    assert not admin.glob(pattern).fullmatch(no)


@settings(deadline=None, max_examples=500)
@given(st.text("a*b?", max_size=12), st.text("ab", max_size=12))
def test_a_pattern_matches_what_fnmatch_says(pattern: str, key: str) -> None:
    assert bool(admin.glob(pattern.encode()).fullmatch(key.encode())) == fnmatch.fnmatchcase(key, pattern)


def test_a_pattern_with_many_stars_takes_no_longer_than_others(client: Client) -> None:
    """Each of its stars gives nothing back: with a backtracking match this takes longer than the universe lasts."""
    client("SET", here("a" * 500), "v")
    assert client("SCAN", 0, "COUNT", 1000, "MATCH", "*a" * 200 + "*b")[1] == []
    assert len(client("SCAN", 0, "COUNT", 1000, "MATCH", "*a" * 200 + "*")[1]) == 1


def test_a_pattern_has_a_length(client: Client) -> None:
    assert client("SCAN", 0, "MATCH", "a" * 1024)[1] == []
    assert client.error("SCAN", 0, "MATCH", "a" * 1025) == "ERR the pattern is longer than 1024 bytes"


def test_no_command_repeats_its_options_for_ever(client: Client) -> None:
    """A hundred thousand of them take seconds, in which the node answers nobody."""
    assert client("SCAN", 0, "COUNT", 1, "MATCH", "b", "TYPE", "string")[1] == []
    assert client.error("SCAN", 0, *("COUNT", 1) * 4) == "ERR syntax error"
    assert "NOAUTH" not in client.error("HELLO", 3, "AUTH", "u", "p", "SETNAME", "n")
    assert client.error("HELLO", 3, *("SETNAME", "n") * 3).startswith("ERR Syntax error in HELLO: it has AUTH")
    assert client("COMMAND", "INFO", *["nope"] * 1000) == [None] * 1000
    assert client.error("COMMAND", "INFO", *["nope"] * 1001) == "ERR more than 1000 names: ask without any"


def test_flushall_is_one_operation_for_each_segment_with_entries(client: Client, served: FakeNode) -> None:
    for number in range(50):
        if segment_of((key := f"x{number}").encode(), SEGMENTS) != SEGMENTS - 1:
            client("SET", key, "v")
    before = len(served.operations)
    assert client("FLUSHALL") == b"OK"
    assert client("FLUSHALL", "ASYNC") == b"OK"
    assert client("DBSIZE") == 0
    assert [o.reason for o in served.operations[before:]] == ["clear"] * (SEGMENTS - 1)


def test_hello_changes_the_protocol_and_its_null(client: Client) -> None:
    assert client.raw(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(K), K.encode())) == b"$-1\r\n"
    assert client("HELLO", 3)[b"proto"] == 3
    assert client.raw(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(K), K.encode())) == b"_\r\n"
    assert client("HELLO", 2, "SETNAME", "me")[:2] == [b"server", b"redis"]
    assert client("CLIENT", "GETNAME") == b"me"


def test_what_is_told_of_the_node(client: Client, served: FakeNode) -> None:
    second = Client(served.clients)
    assert [each("CLIENT", "ID") for each in (client, second)] == [1, 2]
    assert [second("CLIENT", "GETNAME"), second.connection.readonly] == [None, False]
    told = client("INFO", "clients", "Keyspace").decode()
    assert told.split("\r\n") == ["# Clients", "connected_clients:2", "maxclients:100", "", "# Keyspace", ""]
    client("SET", K, "v")
    assert "db0:keys=1," in client("INFO").decode()
    served.started = time.monotonic() - 100
    uptime = client("INFO", "server").decode().partition("uptime_in_seconds:")[2].partition("\r")[0]
    assert 100 <= int(uptime) < 160
    number = segment_of(K.encode(), SEGMENTS)
    assert client("DEELOG.DUMP", number)[3:] == [[K.encode(), b"v", -1]]
    for none in (SEGMENTS, -1):
        assert client.error("DEELOG.DUMP", none) == f"ERR segment.count: segments are 0 to {SEGMENTS - 1}"
    client("PEXPIREAT", K, now_ms() + 100_000)
    assert client("DEELOG.DUMP", number)[3][2] > now_ms()


def test_options_that_are_none(client: Client) -> None:
    for wrong in (("FLUSHALL", "x"), ("FLUSHALL", "SYNC", "x"), ("SCAN", 0, "COUNT"), ("SCAN", 0, "COUNT", 0)):
        assert client.error(*wrong) == "ERR syntax error"
    assert client("SET", f"[b-a]{{{K}}}", "v") == client("SET", K, "v") == b"OK"
    assert client("SCAN", 0, "MATCH", f"[b-a]{{{K}}}")[1] == [f"[b-a]{{{K}}}".encode()]
    assert client.error("SCAN", 16384) == client.error("SCAN", -1) == "ERR invalid cursor"
    assert client.error("HELLO", 3, "x").endswith("HELLO option 'x'")
    assert "no password" in client.error("HELLO", 3, "AUTH", "u", "p")
    assert client("SCAN", 16383)[0] == b"0"
    assert client("QUIT") == b"OK"
    assert client.wire.closed


def test_a_connection_is_greeted_asked_and_ended(client: Client) -> None:
    assert (client("PING"), client("PING", "again"), client("ECHO", "what")) == (b"PONG", b"again", b"what")
    assert client("SELECT", 0) == b"OK"
    assert client.error("SELECT", 1) == "ERR SELECT is not allowed in cluster mode"
    assert (client("CLIENT", "SETNAME", "me"), client("CLIENT", "GETNAME")) == (b"OK", b"me")
    assert client("CLIENT", "SETINFO", "LIB-NAME", "x") == client("CLIENT", "NO-EVICT", "on") == b"OK"
    assert client("CLIENT", "NO-TOUCH", "on") == b"OK"
    for wrong in (("SETNAME",), ("SETINFO", "LIB-NAME"), ("KILL", "x")):
        assert client.error("CLIENT", *wrong) == f"ERR unknown subcommand '{wrong[0]}'. Try CLIENT HELP."
    assert not client.wire.closed
    assert client("QUIT") == b"OK"
    assert client.wire.closed


def test_hello_tells_the_server_and_refuses_what_it_does_not_speak(client: Client) -> None:
    facts = [b"server", b"redis", b"version", b"7.2.0", b"proto", 2, b"id", 1]
    assert client("HELLO") == [*facts, b"mode", b"cluster", b"role", b"master", b"modules", []]
    assert client.error("HELLO", 4) == client.error("HELLO", "x") == "NOPROTO unsupported protocol version"
    assert client("HELLO")[5] == 2
    assert client.error("HELLO", 3, "SETNAME") == "ERR Syntax error in HELLO option 'setname'"
    assert client.error("HELLO", 3, "AUTH", "u") == "ERR Syntax error in HELLO option 'auth'"
    assert client.error("HELLO", 3, "SETNAME", "me", "x") == "ERR Syntax error in HELLO option 'x'"
    assert client("HELLO")[5] == 2  # an error changes nothing
    assert client("CLIENT", "GETNAME") is None


def test_a_client_says_whether_it_reads_from_backups(client: Client) -> None:
    assert not client.connection.readonly
    assert (client("READONLY"), client.connection.readonly) == (b"OK", True)
    assert (client("READWRITE"), client.connection.readonly) == (b"OK", False)


def test_command_lists_its_names_and_has_no_documents(client: Client) -> None:
    assert client("COMMAND", "LIST") == [spec.name.lower().encode() for spec in TABLE.values()]
    assert client("COMMAND", "DOCS") == []
    assert len(client("COMMAND", "INFO")) == client("COMMAND", "COUNT") == len(TABLE)
    assert client("COMMAND", "INFO", "nope") == [None]
    assert client.error("COMMAND", "GETKEYS") == "ERR unknown subcommand 'GETKEYS'. Try COMMAND HELP."


def test_a_flush_waits_for_a_segment_that_takes_no_writes_and_for_room(served: FakeNode, client: Client) -> None:
    client("SET", K, "v")
    segment = served.store.segments[segment_of(K.encode(), SEGMENTS)]

    async def work() -> None:
        segment.stepped_down = True
        assert client("FLUSHALL") is False  # no answer yet
        assert (len(segment.data), client("GET", K)) == (1, False)
        segment.stepped_down = False
        await answered(client)
        assert client.wire.written == b"+OK\r\n$-1\r\n"

    run(work(), 20)
    assert not segment.data


def test_info_has_the_sections_that_were_asked_for(client: Client, served: FakeNode) -> None:
    def sections(*names: str) -> list[str]:
        return [line[2:] for line in client("INFO", *names).decode().split("\r\n") if line.startswith("# ")]

    assert sections() == ["Server", "Clients", "Stats", "Replication", "Cluster", "Keyspace"]
    assert sections("all") == sections("default") == sections("everything") == sections()
    assert sections("STATS", "server", "nope") == ["Server", "Stats"]
    facts = dict(line.split(":") for line in client("INFO", "server", "stats").decode().split("\r\n") if ":" in line)
    assert facts == {
        "redis_version": "7.2.0",
        "redis_mode": "cluster",
        "run_id": short_id(ME),
        "tcp_port": "7001",
        "uptime_in_seconds": facts["uptime_in_seconds"],
        "deelog_member": ME,
        "total_connections_received": "1",
        "total_commands_processed": str(served.clients.executed),
        "expired_keys": "0",
        "evicted_keys": "0",
    }


def test_stats_are_json(client: Client) -> None:
    assert client("DEELOG.STATS") == b'{"grid":{}}'


def test_a_segment_is_dumped_as_this_node_holds_it(client: Client, served: FakeNode) -> None:
    number = segment_of(K.encode(), SEGMENTS)
    assert client("DEELOG.DUMP", number) == [b"primary", 1, 0]
    assert client("DEELOG.DUMP", SEGMENTS - 1) == [b"none", 0, 0]
    assert client("DEELOG.DUMP", 0)[0] == b"primary"
    client("SET", K, "v")
    client("SET", K, "w")
    assert client("DEELOG.DUMP", number) == [b"primary", served.store.segments[number].epoch, 2, [K.encode(), b"w", -1]]


def test_only_the_keys_of_primaries_are_counted_scanned_and_flushed(client: Client, served: FakeNode) -> None:
    client("SET", K, "v")
    segment = served.store.segments[segment_of(K.encode(), SEGMENTS)]
    assert (client("DBSIZE"), client("SCAN", 0)) == (1, [b"0", [K.encode()]])
    assert client("SCAN", client("CLUSTER", "KEYSLOT", K)) == [b"0", [K.encode()]]
    assert client("SCAN", client("CLUSTER", "KEYSLOT", K) + 1) == [b"0", []]
    segment.role = Role.BACKUP
    assert (client("DBSIZE"), client("SCAN", 0), client("FLUSHDB")) == (0, [b"0", []], b"OK")
    assert len(segment.data) == 1


def test_a_scan_takes_options_in_any_case_and_goes_on_where_it_stopped(client: Client) -> None:
    keys = sorted(f"s{n}" for n in range(40) if segment_of(f"s{n}".encode(), SEGMENTS) != SEGMENTS - 1)
    for key in keys:
        client("SET", key, "v")
    assert len(client("SCAN", 0)[1]) == len(client("SCAN", 0, "count", 10)[1]) == 10
    cursor, found = client("SCAN", 0, "count", 1, "match", "s*", "type", "STRING")
    assert len(found) == 1
    assert int(cursor) > slot_of(found[0])
    rest = client("SCAN", cursor, "COUNT", 1000)
    assert rest[0] == b"0"
    assert sorted(key.decode() for key in found + rest[1]) == keys
    assert client("SCAN", 0, "MATCH", "nothing*", "COUNT", 1)[1] == []


def test_a_scan_that_ends_with_a_segment_goes_on_with_the_next(client: Client) -> None:
    for key in [key for n in range(99) if segment_of((key := f"s{n}").encode(), SEGMENTS) == 0][:2]:
        client("SET", key, "v")
    assert [client("SCAN", 0, "COUNT", count)[0] for count in (2, 3)] == [b"4096", b"0"]


def test_a_flush_that_never_fits_into_the_op_log_is_refused(served: FakeNode, client: Client) -> None:
    """It would be tried for ever else."""
    client("SET", K, "v")
    served.core.budget.max_bytes = 100
    assert client.error("FLUSHALL").startswith("ERR captured, this takes ")
    assert client("GET", K) == b"v"
