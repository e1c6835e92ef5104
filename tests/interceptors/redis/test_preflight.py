"""`deelog validate --connect`, beside real servers.

Bad input: nobody there, what is no server, an old release, a user without one right each, or without any, one of some
keys alone, commands that were renamed away, segments that do not fit, a small backlog, no replica, a replica that has
lost its primary.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hiredis
import pytest
from click.testing import CliRunner

from deelog_connector.cli import main
from deelog_connector.devkafka.ports import free_ports
from deelog_interceptors.redis import preflight
from deelog_interceptors.redis.link import LinkError, LinkLost
from deelog_schemas.config import Config
from deelog_schemas.keys import SLOTS
from tests.interceptors.redis.servers import AS_DEELOG, NAMES, RIGHTS, Server, least_rights, running
from tests.interceptors.redis.test_address import config
from tests.support.waiting import waiting

BACKLOG = ("--repl-backlog-size", "64mb")
ASKED = (*preflight._ASKED, *preflight._ASKED_OF_A_CLUSTER)


def config_of(port: int, **more: str) -> Config:
    return config(redis_url=f"redis://127.0.0.1:{port}", **more)


@pytest.fixture(scope="module", params=NAMES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with running(request.param, tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture(scope="module")
def slots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A node of a cluster, at which all rights are needed."""
    (bus,) = free_ports(1)
    cluster = ("--cluster-enabled", "yes", "--cluster-port", str(bus))
    with running("valkey", tmp_path_factory.mktemp("slots"), *cluster) as node:
        yield node


def test_a_server_with_advice(server: Server) -> None:
    first, *advice = preflight.lines(config_of(server.port))
    assert first.startswith(f"127.0.0.1:{server.port}: ")
    assert first.endswith(", alone, primary, replicas: 0")
    assert len(advice) == 2
    assert "repl-backlog-size is 1024 kB" in advice[0] or "repl-backlog-size is 10240 kB" in advice[0]
    assert "no replica" in advice[1]
    before = server.client.info("stats")
    preflight.lines(config_of(server.port))
    after = server.client.info("stats")
    assert after["sync_full"] == before["sync_full"] == 1, "no snapshot, once there is a backlog"
    assert after["sync_partial_ok"] == before["sync_partial_ok"] + 1


def test_a_primary_and_its_replica(tmp_path: Path) -> None:
    with running("valkey", tmp_path / "a", *BACKLOG) as primary:
        following = ("--replicaof", f"127.0.0.1 {primary.port}")
        with running("valkey", tmp_path / "b", *BACKLOG, *following) as replica:
            info = replica.client.info
            waiting(lambda: info("replication")["master_link_status"] == "up", 20, "the replica to have its primary")
            (line,) = preflight.lines(config_of(primary.port))
            assert "Valkey " in line
            assert line.endswith(", alone, primary, replicas: 1")
            (line,) = preflight.lines(config_of(replica.port))
            assert line.endswith(", alone, replica")
            replica.ask("CONFIG", "SET", "replica-read-only", "no")
            _, advice = preflight.lines(config_of(replica.port))
            assert "it takes writes of its own" in advice
            primary.ask("CONFIG", "SET", "min-replicas-to-write", "1")
            _, advice = preflight.lines(config_of(primary.port))
            assert "min-replicas-to-write is set" in advice
            primary.stop()
            with pytest.raises(LinkLost):
                preflight.lines(config_of(primary.port))
            with pytest.raises(LinkLost, match="NOMASTERLINK"):
                preflight.lines(config_of(replica.port))


@pytest.mark.parametrize("right", sorted({right for right, _ in preflight._ASKED}))
def test_a_right_that_is_missing(server: Server, right: str) -> None:
    server.ask("ACL", "SETUSER", "some", "reset", "on", ">word", "~*", "+@all", f"-{right}")
    with pytest.raises(LinkError, match="the user some") as refused:
        preflight.lines(config_of(server.port, redis_username="some", redis_password="word"))
    text, _, remedy = str(refused.value).partition(": ACL SETUSER some ")
    assert text == f"the user some may not {right}"
    server.ask("ACL", "SETUSER", "some", "-@all", *remedy.split())
    assert preflight.lines(config_of(server.port, redis_username="some", redis_password="word"))


def explained() -> set[str]:
    """The rights that the page of the docs explains, but that to keys."""
    rows = [line.split(" | ")[0] for line in RIGHTS.read_text().splitlines() if line.startswith("| `")]
    return {right.replace("\\|", "|") for row in rows for right in re.findall(r"`\+([^`]+)`", row)}


def test_the_page_explains_each_right_that_it_gives() -> None:
    given = {word[1:] for word in least_rights() if word[0] == "+"}
    assert explained() == given | {"select"}
    assert given == {right.strip("+") for right in (*(right for right, _ in ASKED), *preflight._UNTRIED)}


@pytest.mark.parametrize("right", sorted(explained() - {"select"}))
def test_each_right_of_the_page_is_needed(right: str, slots: Server) -> None:
    given = config_of(slots.port, **AS_DEELOG, segment_count=str(SLOTS))
    slots.ask(*least_rights())
    assert preflight.lines(given)
    slots.ask("ACL", "SETUSER", "deelog", f"-{right}")
    with pytest.raises(LinkError, match=rf"(?i)the user deelog may not {re.escape(right)}"):
        preflight.lines(given)


@pytest.mark.parametrize("rights", ["", "+info", "+@all ~deelog:*", "+@all -scan -psync ~other"])
def test_who_has_too_few_rights_is_given_all(server: Server, rights: str) -> None:
    server.ask("ACL", "SETUSER", "some", "reset", "on", ">word", *rights.split())
    given = config_of(server.port, redis_username="some", redis_password="word")
    with pytest.raises(LinkError, match=r"the user some may not .*: ACL SETUSER some ") as refused:
        preflight.lines(given)
    server.ask(*str(refused.value).split(": ", 1)[1].split())
    assert preflight.lines(given)


def test_no_right_to_the_stream(server: Server) -> None:
    server.ask("ACL", "SETUSER", "some", "reset", "on", ">word", "~*", "+@all", "-psync")
    with pytest.raises(LinkError, match=r"the user some may not PSYNC: .*\+psync"):
        preflight.lines(config_of(server.port, redis_username="some", redis_password="word"))


@pytest.mark.parametrize("command", ["ROLE", "SCAN", "MULTI", "PSYNC"])
def test_a_command_that_is_not_there(tmp_path: Path, command: str) -> None:
    with running("valkey", tmp_path, "--rename-command", command, "") as managed, pytest.raises(LinkError) as refused:
        preflight.lines(config_of(managed.port))
    assert command in str(refused.value).upper()


@pytest.mark.parametrize("answer", [b"+OK", b":5", b"$-1", b"*0", b"$4\r\na:b\n", b"rubbish", b""])
def test_what_is_no_server(answer: bytes) -> None:
    async def work() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(40 * (answer + b"\r\n"))
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            with pytest.raises((LinkError, LinkLost)):
                await asyncio.to_thread(preflight.lines, config_of(port))

    asyncio.run(work())


def test_segments_that_do_not_fit(server: Server) -> None:
    with pytest.raises(LinkError, match=r"no node of a cluster.*set segment\.count below 16384"):
        preflight.lines(config_of(server.port, segment_count="16384"))


def test_a_node_of_a_cluster(slots: Server) -> None:
    first, *_ = preflight.lines(config_of(slots.port, segment_count="16384"))
    assert first.endswith(", in a cluster, primary, replicas: 0")
    slots.ask("ACL", "SETUSER", "some", "reset", "on", ">word", "~*", "+@all", "-cluster|getkeysinslot")
    given = config_of(slots.port, segment_count="16384", redis_username="some", redis_password="word")
    with pytest.raises(LinkError, match=r"the user some may not cluster\|getkeysinslot: ACL SETUSER some "):
        preflight.lines(given)
    with pytest.raises(LinkError, match=r"a node of a cluster.*set segment\.count=16384"):
        preflight.lines(config_of(slots.port))


def test_an_old_release(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    assert preflight.version_of({"redis_version": "7.2.4", "valkey_version": "9.1.2"}) == ("Valkey", "9.1.2")
    assert preflight.version_of({"redis_version": "6.2.4"}) == ("Redis", "6.2.4")
    monkeypatch.setattr(preflight, "version_of", lambda _: ("Redis", "6.2.4"))
    with pytest.raises(LinkError, match=r"is Redis 6\.2\.4: 7\.0 or newer is needed"):
        preflight.lines(config_of(server.port))


def test_what_is_no_refusal() -> None:
    asked = [("type", (b"TYPE", b"k")), ("scan", (b"SCAN", b"0"))]
    preflight.must_have("some", asked, [hiredis.ReplyError("MOVED 1 h:1"), b"none"])


def test_as_a_user_asks(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "node.properties"
    fields = {
        "topic.prefix": "p",
        "bootstrap.servers": "b:1",
        "node.id": "n",
        "cache.name": "c",
        "connector.class": "deelog.RedisConnector",
        "cache.value.format": "json",
        "redis.url": f"redis://127.0.0.1:{server.port}",
    }
    file.write_text("".join(f"{name}={value}\n" for name, value in fields.items()))
    done = CliRunner().invoke(main, ["validate", "--connect", str(file)])
    assert done.exit_code == 0, done.output
    right, first, *_ = done.output.splitlines()
    assert right == f"{file}: right for a node, 7 fields set"
    assert first.endswith(", alone, primary, replicas: 0")
    (nobody,) = free_ports(1)
    file.write_text(file.read_text().replace(str(server.port), str(nobody)))
    done = CliRunner().invoke(main, ["validate", "--connect", str(file)])
    assert done.exit_code == 1
    assert f"127.0.0.1:{nobody} does not answer" in done.output
