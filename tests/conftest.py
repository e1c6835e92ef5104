"""Fixtures for all tests. A test that uses a fixture of Kafka, Spark or the registry gets the marker of that name."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from deelog_connector.devkafka.jars import fetch
from deelog_schemas.java import use_java
from tests.support.java import quick_jvms
from tests.support.kafka import Broker, SharedBroker, running_broker
from tests.support.memory import LiveMemory, Memory
from tests.support.registry import Apicurio
from tests.support.secure import SecureKafka, secure_kafka
from tests.support.shared import shared_address, sharing

# Generated examples have no deadline: the machine may be busy with brokers of other tests.
settings.register_profile("deelog", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("deelog")

_MARKERS = {
    "kafka": "kafka",
    "own_kafka": "kafka",
    "secure": "kafka",
    "spark": "spark",
    "registry": "registry",
    "own_registry": "registry",
}
_CROWDED = (
    "system/chaos/test_chaos.py",
    "proof/demo/test_demo.py",
    "spark/test_cluster.py",
    "spark/test_diff_process.py",
)
"""Each of these starts a dozen processes. Two of them at once would only test the machine."""

_LONG = {"crowded": 0} | dict.fromkeys(
    (f"spark/{name}.py" for name in ("test_dead_letters", "test_diff_job", "test_examples", "sinks/test_jdbc")), 1
)
"""Groups of five minutes and more; the lowest begin first."""

_HOMES = {"spark/": ("gw0", "gw1"), "connector/kafka/contract/": ("gw2",)}
"""The workers that run a room's tests, as long as they have any: what the room starts once in each worker is dear."""


def _group(nodeid: str) -> str:
    """The tests that one worker runs: those of a file, or all that are in `_CROWDED`."""
    name = nodeid.split("::")[0].removeprefix("tests/")
    return "crowded" if name in _CROWDED else name


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need Kafka, Spark or the registry, by their fixtures."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in _MARKERS:
                item.add_marker(_MARKERS[fixture])


class _Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist carries no types
    """Distributes tests by `_group`, and those of a room in `_HOMES` to its workers first.

    `--dist loadgroup` does not work: pytest 9.2 no longer reads the group where pytest-xdist 3.8 writes it.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        worker = node.gateway.id
        wanted = (scope for scope in self.workqueue if worker in _homes(scope))
        free = (scope for scope in self.workqueue if not _homes(scope))
        chosen = next(chain(wanted, free), None)
        if chosen is not None:  # else it helps another room
            self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)


def _homes(group: str) -> tuple[str, ...]:
    return next((workers for room, workers in _HOMES.items() if group.startswith(room)), ())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """See `_Scheduling`."""
    return _Scheduling(config, log)


class _LongestFirst:
    """Puts the longest tests first, in whatever order the files were shuffled: what begins last ends alone."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: _LONG.get(_group(item.nodeid), 2))


def pytest_configure(config: pytest.Config) -> None:
    """See `_LongestFirst` and `_set_up`."""
    config.pluginmanager.register(_LongestFirst())
    if not hasattr(config, "workerinput"):
        _set_up(config)


def _set_up(config: pytest.Config) -> None:
    """Set the options of every JVM of the run, and the place of the shared Kafka, in the environment that workers and
    their processes inherit.

    Temporary files of JVMs are deleted at the end of the run, also after `kill -9` of the JVM; after `kill -9` of the
    run, by the next run.
    """
    for left in Path("/tmp").glob("deelog-tests-*-*"):
        if not psutil.pid_exists(int(left.name.split("-")[2])):
            shutil.rmtree(left, ignore_errors=True)
    # Short: Unix sockets are made in it.
    temporary = tempfile.mkdtemp(prefix=f"deelog-tests-{os.getpid()}-", dir="/tmp")
    config.add_cleanup(lambda: shutil.rmtree(temporary, ignore_errors=True))
    os.environ |= quick_jvms(Path(temporary))
    server = partial(_shared_kafka, Path(temporary) / "kafka")
    shared = ExitStack()
    shared.enter_context(sharing(Path(temporary) / "shared", server))
    config.add_cleanup(shared.close)


@contextmanager
def _shared_kafka(folder: Path) -> Iterator[str]:
    # On a busy machine it is not to be taken for dead, which takes away the leaders of all partitions.
    with running_broker(folder, {"broker.session.timeout.ms": "60000"}) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="session")
def kafka() -> Broker:
    """One real Kafka for the whole run and all of its workers: take `own_kafka` to stop, kill or pause one."""
    return SharedBroker(shared_address())


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[Broker]:
    """A real Kafka for this test alone, to stop, kill, pause and restart."""
    with running_broker(tmp_path / "kafka") as broker:
        yield broker


@pytest.fixture
def memory() -> Iterator[Memory]:
    """A Kafka in memory, and the loop of virtual time on which the test runs."""
    made = Memory()
    yield made
    made.loop.bury()


@pytest.fixture
def live() -> LiveMemory:
    """A Kafka in memory, in real time: for a test with threads."""
    return LiveMemory()


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    """A Kafka with users, certificates and an authorizer, for the tests of one file."""
    with secure_kafka(tmp_path_factory.mktemp("secure")) as found:
        yield found


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apicurio]:
    """One real schema registry for the whole run. Leave it running: take `own_registry` to stop it."""
    with Apicurio(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture
def own_registry(tmp_path: Path) -> Iterator[Apicurio]:
    """A real schema registry for this test alone."""
    with Apicurio(tmp_path) as found:
        yield found


@pytest.fixture(scope="session")
def spark_jars() -> str:
    """The jars of Spark's Kafka source, fetched once: paths separated by commas, for `spark.jars`.

    Also sets JAVA_HOME, so that Spark's scripts find Java.
    """
    use_java()
    return ",".join(map(str, fetch("spark-kafka")))


@pytest.fixture
def prefix() -> str:
    """A topic prefix that no other test uses."""
    return f"t{uuid.uuid4().hex[:12]}"
