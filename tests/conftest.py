"""Fixtures that every test may use; tests that take one of Kafka's or Spark's carry the marker of that name."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from deelog_connector.devkafka.jars import fetch
from deelog_schemas.java import use_java
from tests.support.kafka import Broker, running_broker
from tests.support.registry import Apicurio
from tests.support.secure import SecureKafka, secure_kafka

# Generated examples are counted, not timed: the machine may be busy with brokers of other tests.
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
"""Each of these starts a dozen processes: two of them at once would be a test of the machine."""


def _group(nodeid: str) -> str:
    """What one worker runs: a file, or all that is crowded."""
    name = nodeid.split("::")[0].removeprefix("tests/")
    return "crowded" if name in _CROWDED else name


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs Kafka or Spark by the fixtures that it takes."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in _MARKERS:
                item.add_marker(_MARKERS[fixture])


class _Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist carries no types
    """By `_group`.

    Not by `--dist loadgroup`: pytest-xdist 3.8 writes the group into what pytest 9.2 no longer reads.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """See `_Scheduling`."""
    return _Scheduling(config, log)


class _LongestFirst:
    """What takes longest begins first, whatever order the files were shuffled into."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: _group(item.nodeid) != "crowded")


def pytest_configure(config: pytest.Config) -> None:
    """See `_LongestFirst` and `_configure_jvms`."""
    config.pluginmanager.register(_LongestFirst())
    if not hasattr(config, "workerinput"):
        _configure_jvms(config)


def _configure_jvms(config: pytest.Config) -> None:
    """Set what every JVM of the run gets, in the environment, which workers and their processes inherit.

    A JVM lives for minutes here: its optimizing compiler would take half of the CPU. Its temporary files go with the
    run, also after `kill -9` of the JVM.
    """
    temporary = tempfile.mkdtemp(prefix="deelog-tests-", dir="/tmp")  # short: Unix sockets are made in it
    config.add_cleanup(lambda: shutil.rmtree(temporary, ignore_errors=True))
    given = os.environ.get("JAVA_TOOL_OPTIONS", "")
    os.environ["JAVA_TOOL_OPTIONS"] = f"{given} -XX:TieredStopAtLevel=1 -Djava.io.tmpdir={temporary}".strip()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One real Kafka for the whole run. Leave it running: take `own_kafka` to stop, kill or pause it."""
    with running_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[Broker]:
    """A real Kafka of this test's own, to stop, kill, pause and restart."""
    with running_broker(tmp_path / "kafka") as broker:
        yield broker


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
    """A real schema registry of this test's own."""
    with Apicurio(tmp_path) as found:
        yield found


@pytest.fixture(scope="session")
def spark_jars() -> str:
    """The jars of Spark's Kafka source, fetched once: paths separated by commas, as `spark.jars` takes them.

    Spark's own scripts run on the Java that is found.
    """
    use_java()
    return ",".join(map(str, fetch("spark-kafka")))


@pytest.fixture
def prefix() -> str:
    """A topic prefix that no other test uses."""
    return f"t{uuid.uuid4().hex[:12]}"
