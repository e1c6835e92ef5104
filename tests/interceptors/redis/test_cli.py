"""`deelog run`, and as its users start it: a process beside a real server, with a real Kafka.

Bad input: another connector's class, formats and options that cannot be, an address that is none, a file that is not
there, a user who may not.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from deelog_interceptors.redis.cli import check, run
from deelog_schemas.errors import ConfigError
from tests.interceptors.redis.clusters import SOME, cluster_of
from tests.interceptors.redis.clusters import load as load_cluster
from tests.interceptors.redis.servers import Server, least_rights, running
from tests.interceptors.redis.test_address import config
from tests.interceptors.redis.test_node import content, load
from tests.support.kafka import Broker
from tests.support.paths import ROOT
from tests.support.programs import Program
from tests.support.topics import derived, read_topic
from tests.support.waiting import waiting

DEELOG = str(Path(sys.executable).parent / "deelog")


def properties(folder: Path, bootstrap: str, server: Server, **more: str) -> Path:
    """A connector's file."""
    given = {
        "connector.class": "deelog.RedisConnector",
        "topic.prefix": f"p{server.port}",
        "cache.name": "sessions",
        "bootstrap.servers": bootstrap,
        "node.id": "redis-1",
        "redis.url": f"redis://127.0.0.1:{server.port}",
        "cache.value.format": "json",
        "segment.count": "8",
        "topic.creation.default.partitions": "2",
        "topic.creation.default.replication.factor": "1",
    }
    given |= {name.replace("_", "."): value for name, value in more.items()}
    path = folder / f"{given['node.id']}.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    return path


@contextmanager
def connector(folder: Path, number: int, path: Path) -> Iterator[Program]:
    home = folder / f"process-{number}"
    home.mkdir()
    program = Program(home, [DEELOG, "run", "--config", str(path)])
    try:
        waiting(lambda: program.said("captures 127.0.0.1:"), 30, "the connector")
        yield program
    finally:
        program.end()


def is_caught_up(kafka: Broker, server: Server) -> bool:
    entries, readers = derived(read_topic(kafka.bootstrap, f"p{server.port}.sessions"))
    if any(reader.open for reader in readers.values()):
        return False
    assert not any(reader.repeats for reader in readers.values())
    found = {key.decode(): value.decode() for key, value in entries.items()}
    return found == asyncio.run(content(server))


def test_a_process_that_is_killed_and_one_that_is_stopped(kafka: Broker, tmp_path: Path) -> None:
    with running("valkey", tmp_path / "server") as server:
        server.ask(*least_rights())
        path = properties(tmp_path, kafka.bootstrap, server, redis_username="deelog", redis_password="secret")
        load(server, 1)
        for number in range(3):
            with connector(tmp_path, number, path) as program:
                load(server, 10 + number, 100)
                waiting(lambda: is_caught_up(kafka, server), 30, "Kafka has what the server has")
                load(server, 20 + number, 100)
                if number == 1:
                    program.process.send_signal(signal.SIGTERM)
                    assert program.ended() == 0, program.output.read_text()
                    assert is_caught_up(kafka, server), "what was read is written before the end"
            load(server, 30 + number, 50)
        with connector(tmp_path, 9, path):
            waiting(lambda: is_caught_up(kafka, server), 30, "Kafka has what the server has")
        _, readers = derived(read_topic(kafka.bootstrap, f"p{server.port}.sessions"))
        assert [reader.resets for reader in readers.values()] == [["initial"]] * 8


def test_one_process_for_several_databases(kafka: Broker, tmp_path: Path) -> None:
    with running("valkey", tmp_path / "server") as server:
        path = properties(tmp_path, kafka.bootstrap, server, redis_databases="0:sessions,3:carts")
        path.write_text(path.read_text().replace("cache.name=sessions\n", ""))
        load(server, 1)
        with connector(tmp_path, 0, path) as program:
            waiting(lambda: program.said(f"captures 127.0.0.1:{server.port}/3 as carts"), 30, "the second")
            waiting(lambda: is_caught_up(kafka, server), 30, "Kafka has what the server has")
            server.ask("SELECT", "3")
            server.ask("SET", "a", "1")
            expected = {b"a": b'{"type":"string","value":"1"}'}
            carts = f"p{server.port}.carts"
            waiting(lambda: derived(read_topic(kafka.bootstrap, carts))[0] == expected, 30, "the second is in Kafka")
            program.process.send_signal(signal.SIGTERM)
            assert program.ended() == 0, program.output.read_text()


@pytest.mark.slow
def test_processes_beside_the_nodes_of_a_cluster(kafka: Broker, tmp_path: Path) -> None:
    """With the rights that the page gives; a primary is killed, slots move, a process is killed."""
    with cluster_of("valkey", tmp_path / "servers", 3, SOME) as cluster, ExitStack() as stack:
        more = {"redis_username": "deelog", "redis_password": "secret", "segment_count": "16384"}
        more |= {"topic_prefix": f"c{cluster.servers[0].port}"}
        programs, paths = [], []
        for number, server in enumerate(cluster.servers):
            server.ask(*least_rights())
            paths.append(properties(tmp_path, kafka.bootstrap, server, node_id=f"redis-{number}", **more))
            programs.append(stack.enter_context(connector(tmp_path, number, paths[-1])))

        def caught_up() -> bool:
            entries, readers = derived(read_topic(kafka.bootstrap, f"{more['topic_prefix']}.sessions"))
            expected: dict[str, str] = {}
            for server in cluster.primaries():
                expected.update(asyncio.run(content(server)))
            found = {key.decode(): value.decode() for key, value in entries.items()}
            return found == expected and not any(reader.open or reader.repeats for reader in readers.values())

        load_cluster(cluster, 1)
        waiting(caught_up, 60, "Kafka has what the cluster has")
        cluster.servers[0].process.kill()
        cluster.servers[0].process.wait(10)
        waiting(cluster.is_settled, 30, "the failover")
        load_cluster(cluster, 2)
        waiting(caught_up, 60, "Kafka has what the cluster has")
        programs[1].process.kill()
        slot = next(slot for slot in SOME if cluster.owner(slot) is cluster.servers[1])
        cluster.move_at_once(slot, cluster.other(slot))
        programs.append(stack.enter_context(connector(tmp_path, 9, paths[1])))
        load_cluster(cluster, 3)
        waiting(caught_up, 60, "Kafka has what the cluster has")


def test_who_may_not_read_the_stream(kafka: Broker, tmp_path: Path) -> None:
    with running("valkey", tmp_path / "server") as server:
        server.ask("ACL", "SETUSER", "some", "reset", "on", ">word", "~*", "+@all", "-psync")
        path = properties(tmp_path, kafka.bootstrap, server, redis_username="some", redis_password="word")
        ended = subprocess.run([DEELOG, "run", "--config", str(path)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "deelog run: the user some may not PSYNC: ACL SETUSER some +psync" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_what_comes_of_each_command_is_the_page_of_the_docs() -> None:
    """Made by `deelog run --commands > docs/redis-commands.md`."""
    shown = CliRunner().invoke(run, ["--commands"])
    assert shown.exit_code == 0
    assert shown.output == (ROOT / "docs" / "redis-commands.md").read_text()
    assert "| MSET | its value, of each key |" in shown.output


def test_it_is_for_connectors_beside_servers_alone() -> None:
    check(config(connector_class="deelog.RedisConnector", cache_value_format="json"))
    with pytest.raises(ConfigError, match=r"connector\.class: `deelog run` is for deelog\.RedisConnector"):
        check(config())


def test_a_file_that_is_wrong_ends_it_with_a_line(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text(json.dumps({"topic.prefix": "p", "bootstrap.servers": "b:1", "node.id": "n", "cache.name": "c"}))
    shown = CliRunner().invoke(run, ["--config", str(file)])
    assert shown.exit_code == 2
    assert "deelog run: " in shown.stderr
    assert "connector.class: `deelog run` is for deelog.RedisConnector" in shown.stderr
    shown = CliRunner().invoke(run, ["--config", str(tmp_path / "none")])
    assert shown.exit_code == 2
    assert "none" in shown.stderr
