"""The contract suite of `deelog_connector.kafka_port`: each case runs on every implementation of the port.

A case is a coroutine that takes `world`. What it needs beside topics and clients its marker `needs` names; where an
implementation lacks it, the case is skipped, and the reason says why.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deelog_connector.devkafka.broker import EmbeddedKafka
from deelog_connector.devkafka.ports import HOST, free_ports
from tests.connector.kafka.contract.gate import INSIDE, OUTSIDE, Gate
from tests.connector.kafka.contract.librdkafka import RealKafka, Stranger
from tests.connector.kafka.contract.memory import MemoryKafka
from tests.connector.kafka.contract.world import World
from tests.support.two_brokers import Gates, two_brokers

GATED = {"lose_answer", "lose_clients"}
PAIR = {"lose_broker", "lose_sight"}
OWN = {"away", "expire", *GATED}
"""What is done only to a broker of this suite's own."""


def _librdkafka(request: pytest.FixtureRequest, prefix: str, needed: set[str]) -> World:
    if needed & PAIR:
        first, second = request.getfixturevalue("pair")
        return RealKafka(prefix, first, second=second, gates=request.getfixturevalue("gates"))
    if needed & OWN:
        return RealKafka(prefix, *request.getfixturevalue("restless"), gated=bool(needed & GATED))
    return RealKafka(prefix, request.getfixturevalue("kafka"))


WORLDS: dict[str, tuple[type[World], Callable[[pytest.FixtureRequest, str, set[str]], World]]] = {
    "librdkafka": (RealKafka, _librdkafka),
    "memory": (MemoryKafka, lambda request, prefix, needed: MemoryKafka(prefix)),
}


@pytest.fixture(scope="session")
def restless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedKafka, Gate]]:
    """A broker to pause, with a second listener behind a gate.

    It looks at once for transactions that have timed out (Kafka's default: every 10 s).
    """
    port, controller, gated = free_ports(3)
    overrides = {
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller},GATED://{INSIDE}:{gated}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port},GATED://{OUTSIDE}:{gated}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,GATED:PLAINTEXT",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "broker.session.timeout.ms": "60000",  # a pause is not the end of the broker
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    }
    with (
        Gate(gated).serving() as gate,
        EmbeddedKafka(tmp_path_factory.mktemp("restless"), port, overrides=overrides) as broker,
    ):
        Stranger(broker.bootstrap, "first")  # the coordinator of transactions takes its time to load
        yield broker, gate


@pytest.fixture(scope="session")
def gates() -> Iterator[Gates]:
    with Gates().serving() as gates:
        yield gates


@pytest.fixture(scope="session")
def pair(gates: Gates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedKafka, EmbeddedKafka]]:
    with two_brokers(tmp_path_factory.mktemp("pair"), gates=gates) as both:
        yield both


@pytest.fixture(params=[pytest.param("librdkafka", marks=pytest.mark.kafka), "memory"])
def world(request: pytest.FixtureRequest, prefix: str) -> World:
    """One implementation of the port, and its Kafka."""
    kind, make = WORLDS[request.param]
    needed = {name for marker in request.node.iter_markers("needs") for name in marker.args}
    for name in sorted(needed & kind.lacks.keys()):
        pytest.skip(f"{name}: {kind.lacks[name]}")
    return make(request, prefix, needed)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(name...): what a case of the contract suite asks of its `world`")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a case on the loop of its world."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    found: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    found["world"].run(pyfuncitem.obj(**found))
    return True
