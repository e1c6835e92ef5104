"""The tests' Kafka, as one object that can be stopped, paused and restarted.

DEELOG_TEST_BOOTSTRAP names your own broker. Otherwise it is a container, if a Docker engine answers and has Apache's
image or can pull it, or else the embedded broker. All three are Apache Kafka. DEELOG_TEST_KAFKA=embedded|docker forces
one.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, Protocol

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from deelog_connector.devkafka.broker import EmbeddedKafka
from deelog_connector.devkafka.ports import HOST, free_port, wait_until_it_serves
from deelog_connector.devkafka.server_properties import settings

IMAGE = "apache/kafka:4.3.1"
_ENGINE_SECONDS = 2
_PULL_SECONDS = 300
_DOCKER_SOCKET = "/var/run/docker.sock"
_START_SECONDS = 90.0


class Broker(Protocol):
    """A test's Kafka. Start, stop and restart keep address and data."""

    @property
    def bootstrap(self) -> str:
        """`host:port` for `bootstrap.servers`."""

    def start(self) -> None:
        """Start it again after `stop()` or `kill()`; returns once it serves."""

    def stop(self) -> None:
        """Stop it cleanly."""

    def kill(self) -> None:
        """`kill -9`."""

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""

    def resume(self) -> None:
        """SIGCONT."""

    def restart(self) -> None:
        """`stop()`, `start()`."""


def is_silent(admin: AdminClient, seconds: float) -> bool:
    """Whether no broker answers within `seconds`. One just paused may answer once more: its threads stop later."""
    try:
        admin.list_topics(timeout=seconds)
    except KafkaException:
        return True
    return False


class SharedBroker:
    """A broker that other tests use at the same time, and none may stop."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def _refuse(self) -> NoReturn:
        raise AssertionError("this broker is shared: take `own_kafka` to stop, kill or pause one")

    def start(self) -> None:
        self._refuse()

    def stop(self) -> None:
        self._refuse()

    def kill(self) -> None:
        self._refuse()

    def pause(self) -> None:
        self._refuse()

    def resume(self) -> None:
        self._refuse()

    def restart(self) -> None:
        self._refuse()


class ForeignBroker(SharedBroker):
    """The broker of DEELOG_TEST_BOOTSTRAP. A test that would stop it is skipped."""

    def _refuse(self) -> NoReturn:
        pytest.skip("the broker of DEELOG_TEST_BOOTSTRAP is not stopped or paused by tests")


class ContainerBroker:
    """Apache's image in a container, with the same settings as the embedded broker, on a fixed port of this host."""

    def __init__(self, overrides: Mapping[str, str] = {}) -> None:
        from testcontainers.core.config import testcontainers_config
        from testcontainers.core.container import DockerContainer

        # Ryuk removes the container after a `kill -9` of the tests. It is used if its image is available.
        if not _to_be_had(testcontainers_config.ryuk_image):
            testcontainers_config.ryuk_disabled = True
        self._port = free_port()
        inside = {**settings(self._port, 9093, Path("/tmp/kraft")), **overrides}
        inside["listeners"] = f"PLAINTEXT://:{self._port},CONTROLLER://:9093"
        self._container = DockerContainer(IMAGE)
        # Binds one interface, in Docker's own form: `with_bind_ports` always binds all of them.
        ports: Any = self._container.ports
        ports[str(self._port)] = (HOST, self._port)
        for name, value in inside.items():
            self._container.with_env("KAFKA_" + name.upper().replace(".", "_"), value)
        self._container.start()
        wait_until_it_serves(self.bootstrap, _START_SECONDS)

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self._port}"

    @property
    def _docker(self) -> Any:
        return self._container.get_wrapped_container()

    def start(self) -> None:
        self._docker.start()
        wait_until_it_serves(self.bootstrap, _START_SECONDS)

    def stop(self) -> None:
        self._docker.stop(timeout=30)

    def kill(self) -> None:
        self._docker.kill()

    def pause(self) -> None:
        self._docker.pause()

    def resume(self) -> None:
        self._docker.unpause()

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        """Removes the container and its data."""
        self._container.stop()


@cache
def _to_be_had(image: str) -> bool:
    """Whether a Docker engine answers within two seconds and has the image or can pull it."""
    if not os.environ.get("DOCKER_HOST"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_ENGINE_SECONDS)
            try:
                probe.connect(_DOCKER_SOCKET)
            except OSError:
                return False
    import docker
    from docker.errors import DockerException, ImageNotFound
    from requests.exceptions import RequestException

    try:
        with closing(docker.from_env(timeout=_ENGINE_SECONDS)) as quick:
            quick.ping()
        with closing(docker.from_env(timeout=_PULL_SECONDS)) as client:
            try:
                client.images.get(image)
            except ImageNotFound:
                client.images.pull(image)
    except (DockerException, RequestException):
        return False
    return True


@contextmanager
def running_broker(data_dir: Path, overrides: Mapping[str, str] = {}) -> Iterator[Broker]:
    """A broker that runs during the block. `data_dir` is the embedded broker's folder, `overrides` broker settings."""
    bootstrap, forced = os.environ.get("DEELOG_TEST_BOOTSTRAP"), os.environ.get("DEELOG_TEST_KAFKA")
    if bootstrap:
        yield ForeignBroker(bootstrap)
    elif forced == "docker" or (forced is None and _to_be_had(IMAGE)):
        broker = ContainerBroker(overrides)
        try:
            yield broker
        finally:
            broker.remove()
    else:
        with EmbeddedKafka(data_dir, overrides=overrides) as embedded:
            yield embedded
