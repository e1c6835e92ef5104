"""docker-compose.yml as a project of the test's own, on free ports of this host."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import RedisError
from redis.retry import Retry

from deelog_connector.devkafka.ports import HOST, free_ports
from deelog_schemas.operation import Entry
from tests.support.paths import ROOT
from tests.support.waiting import waiting

NODES = ("node1", "node2", "node3")
CONTAINERS = ("address", "kafka", "registry", *NODES, "diff", "prometheus")
_OTHERS = ("kafka", "registry", "prometheus", "grafana")
HEALTH_SECONDS = 180.0
_BUILD_SECONDS = 1200.0
_COMMAND_SECONDS = 120.0

log = logging.getLogger("compose")


class Stack:
    """All containers but Grafana's. `up()` first, `down()` always."""

    def __init__(self) -> None:
        self._project = f"deelog-test-{os.getpid()}"
        self._compose = _compose_command()
        names = (*NODES, *_OTHERS)
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.bootstrap = f"{HOST}:{self.ports['kafka']}"
        ports = {f"DEELOG_{name.upper()}_PORT": str(port) for name, port in self.ports.items()}
        self._environment = os.environ | ports

    def up(self) -> None:
        """Builds, starts, and returns once every container with a health check is healthy."""
        begin = time.monotonic()
        self._run("build", seconds=_BUILD_SECONDS)
        built = time.monotonic()
        self._run("up", "-d", seconds=HEALTH_SECONDS)
        self.wait_until_healthy()
        log.info("built in %.0f s, healthy after %.0f s more", built - begin, time.monotonic() - built)

    def down(self) -> None:
        """Removes everything but the images."""
        begin = time.monotonic()
        self._run("down", "--volumes", "--remove-orphans")
        log.info("down in %.0f s", time.monotonic() - begin)

    def container(self, service: str) -> str:
        """The id of its container, running or not."""
        if self._compose[0] == "docker":
            return self._run("ps", "--all", "--quiet", service).strip()
        return self._run("ps", "--quiet", service).strip()

    def kill(self, service: str) -> None:
        """`docker kill -s KILL`; returns once it is gone."""
        container = self.container(service)
        _docker("kill", "--signal", "KILL", container)
        assert _docker("wait", container).strip() == "137"

    def start(self, service: str) -> None:
        """Starts a killed one again; `wait_until_healthy()` waits for it."""
        _docker("start", self.container(service))

    def wait_until_healthy(self, seconds: float = HEALTH_SECONDS) -> None:
        """Every container runs and none is without a good answer of its health check; fails with the logs else."""
        ids = {service: self.container(service) for service in CONTAINERS}

        def states() -> dict[str, str]:
            form = "{{.State.Status}} {{if .State.Health}}{{.State.Health.Status}}{{end}}"
            return {service: _docker("inspect", "--format", form, found) for service, found in ids.items()}

        def healthy() -> bool:
            return all(
                found.split() == (["running"] if name == "address" else ["running", "healthy"])
                for name, found in states().items()
            )

        try:
            eventually(healthy, seconds, "all containers healthy")
        except AssertionError as error:
            raise AssertionError(f"{error}: {states()}\n{self.logs()}") from error

    def inside(self, service: str, *command: str) -> str:
        """What a command inside a container prints; `CalledProcessError` where it fails."""
        return _docker("exec", self.container(service), *command)

    def user_and_mounts(self, service: str) -> tuple[str, bool]:
        """User id of the container's processes, and whether its file system is read-only."""
        host: Any = json.loads(_docker("inspect", self.container(service)))[0]["HostConfig"]
        return self.inside(service, "id", "-u").strip(), host["ReadonlyRootfs"]

    def logs(self) -> str:
        """The last lines of every container."""
        return self._run("logs", "--no-color", "--tail", "15")

    def client(self) -> RedisCluster:
        """redis-py's cluster client, from this host."""
        nodes = [ClusterNode(HOST, self.ports[node]) for node in NODES]  # type: ignore[no-untyped-call]
        return RedisCluster(startup_nodes=nodes, socket_timeout=2)

    def unwritten(self) -> int:
        """Operations that no Kafka transaction holds yet, of all nodes."""
        return sum(json.loads(self._ask(node, [("DEELOG.STATS",)])[0])["unwritten"] for node in NODES)

    def caches(self, segments: int) -> dict[bytes, Entry]:
        """What the primaries of all segments hold; AssertionError where a segment has none or two."""
        dumps = [self._ask(node, [("DEELOG.DUMP", segment) for segment in range(segments)]) for node in NODES]
        found: dict[bytes, Entry] = {}
        for segment, copies in enumerate(zip(*dumps, strict=True)):
            primaries = [copy for copy in copies if copy[0] == b"primary"]
            assert len(primaries) == 1, f"segment {segment} has {len(primaries)} primaries"
            for key, value, expires_at in primaries[0][3:]:
                found[key] = Entry(key, value, None if expires_at < 0 else expires_at)
        return found

    def diff_has_read(self) -> dict[str, int]:
        """By partition of the change topic: up to where the diff job has read."""
        told: Any = json.loads(self.inside("diff", "cat", "/var/lib/deelog/checkpoint/progress.json"))
        offsets: dict[str, int] = told["input_offsets"]
        return offsets

    def answer(self, service: str, path: str) -> Any:
        """JSON that a service's published port answers with."""
        with urllib.request.urlopen(f"http://{HOST}:{self.ports[service]}{path}", timeout=10) as response:
            return json.load(response)

    def _ask(self, node: str, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        with Redis(host=HOST, port=self.ports[node], socket_timeout=10, retry=Retry(NoBackoff(), 0)) as client:
            pipeline = client.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            answers: list[Any] = pipeline.execute()
        return answers

    def _run(self, *arguments: str, seconds: float = _COMMAND_SECONDS) -> str:
        return _checked([*self._compose, "-p", self._project, *arguments], seconds, self._environment)


def eventually(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """`waiting`, where what a client is refused is no answer yet."""

    def answer() -> bool:
        try:
            return condition()
        except (RedisError, OSError, AssertionError):
            return False

    waiting(answer, seconds, what)


def _compose_command() -> list[str]:
    """Compose as Docker's plugin, or the program of its own."""
    for command in (["docker", "compose"], ["docker-compose"]):
        try:
            done = subprocess.run([*command, "version"], capture_output=True, check=False)
        except FileNotFoundError:
            continue
        if done.returncode == 0:
            return command
    raise RuntimeError("docker compose was not found: install Docker's compose plugin or docker-compose")


def _docker(*arguments: str) -> str:
    return _checked(["docker", *arguments], _COMMAND_SECONDS)


def _checked(command: list[str], seconds: float, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    tail = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
    assert done.returncode == 0, f"{' '.join(command)} failed with {done.returncode}:\n{tail}"
    return done.stdout
