"""A client's way to the brokers: answers, silence, and the order in which calls begin and end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from deelog_connector.core.effects import Cause
from deelog_connector.kafka_port import WriteFailed
from deelog_proof.memory.broker import Denied, Kafka, Unanswered, UnknownTopic
from deelog_proof.memory.engine import Engine
from deelog_proof.memory.loop import NodeLoop
from deelog_proof.memory.wire import RETRY_SECONDS, Turn, Way, Wire, denial, open_session
from tests.proof.memory.nodes import T, config

SECONDS = 2.0


class Client:
    """One client with its way."""

    def __init__(self, seed: int = 1) -> None:
        self.engine = Engine(seed)
        self.kafka = Kafka(self.engine)
        self.kafka.create(T, 1)
        self.loop = NodeLoop(self.engine, "n")
        self.way = Way(SECONDS, lambda moment: None)
        self.wire = Wire(self.loop, self.kafka, "client", self.way)

    def run(self, case: Any) -> Any:
        return self.loop.run_until_complete(case)

    def ask(self, **more: Any) -> Any:
        return self.run(self.wire.ask(self.kafka.described, T, **more))


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client()
    yield client
    assert not client.loop.errors
    client.loop.bury()


# -- requests -----------------------------------------------------------------------------------------------------


def test_an_answer_takes_two_ways(client: Client) -> None:
    assert client.ask().partitions == 1
    assert 0.0005 < client.engine.now < 0.1


def test_a_delay_is_drawn_from_the_stream_of_the_clients_name(client: Client) -> None:
    delays = [client.wire.delay() for _ in range(1000)]
    assert min(delays) >= 0.00025
    assert sum(delays) / 1000 == pytest.approx(0.00025 + 1 / 1600, rel=0.1)
    other = Client()
    of_another = other.wire.of("more")
    assert of_another.way is other.way
    assert [other.wire.delay() for _ in range(1000)] == delays != [of_another.delay() for _ in range(1000)]


def test_what_the_brokers_refuse_is_raised_at_once(client: Client) -> None:
    with pytest.raises(UnknownTopic):
        client.run(client.wire.ask(client.kafka.described, "other"))
    assert client.engine.now < RETRY_SECONDS


def test_who_does_not_answer_is_asked_again_until_the_time_is_over(client: Client) -> None:
    client.kafka.up = False
    with pytest.raises(Unanswered):
        client.ask()
    assert SECONDS <= client.engine.now < SECONDS + 0.1
    begin = client.engine.now
    with pytest.raises(Unanswered):
        client.ask(until=begin)
    assert client.engine.now < begin + RETRY_SECONDS, "asked once"
    begin = client.engine.now
    with pytest.raises(Unanswered):
        client.ask(until=begin + 10)
    assert begin + 10 <= client.engine.now < begin + 10.1


def test_the_next_attempt_waits(client: Client) -> None:
    asked: list[float] = []

    def silent() -> None:
        asked.append(client.engine.now)
        raise Unanswered

    with pytest.raises(Unanswered):
        client.run(client.wire.ask(silent))
    gaps = [after - before for before, after in pairwise(asked)]
    assert len(gaps) > 10
    assert min(gaps[:-1]) > RETRY_SECONDS
    assert max(gaps) < RETRY_SECONDS + 0.05


def test_an_answer_comes_when_the_brokers_are_back(client: Client) -> None:
    client.kafka.up = False
    client.engine.after(1.0, setattr, client.kafka, "up", True)
    assert client.ask().partitions == 1
    assert 1.0 < client.engine.now < 1.0 + 2 * RETRY_SECONDS


@pytest.mark.parametrize("way_back", [False, True])
def test_a_client_that_is_cut_off_hears_nothing(client: Client, way_back: bool) -> None:
    """On the way back, the brokers have done it all the same."""
    done: list[int] = []

    def call() -> None:
        done.append(1)
        if way_back:
            client.way.connected = False

    client.way.connected = way_back
    with pytest.raises(Unanswered):
        client.run(client.wire.ask(call))
    assert len(done) == way_back
    client.way.connected = True
    client.run(client.wire.ask(done.clear))
    assert done == []


def test_an_answer_is_lost_when_the_brokers_go_away_before_it_arrives(client: Client) -> None:
    def call() -> None:
        client.kafka.up = False

    with pytest.raises(Unanswered):
        client.run(client.wire.ask(call, until=0.0))


@pytest.mark.parametrize("refused", [False, True])
def test_an_answer_that_nobody_waits_for_any_more_is_dropped(client: Client, refused: bool) -> None:
    arrived: list[int] = []

    def call() -> None:
        arrived.append(1)
        if refused:
            raise UnknownTopic

    task = client.loop.create_task(client.wire.ask(call))
    client.engine.run(lambda: arrived)
    client.loop.within(task.cancel)
    client.engine.run(seconds=1)
    assert task.cancelled()


# -- calls --------------------------------------------------------------------------------------------------------


class Calls:
    """Calls that last a second, and what became of them."""

    def __init__(self, client: Client) -> None:
        self.client, self.turn = client, Turn()
        self.seen: list[str] = []

    async def _call(self, name: str) -> str:
        self.seen.append(f"{name} begins")
        await asyncio.sleep(1)
        self.seen.append(f"{name} ends")
        return name

    def start(self, name: str, **more: Any) -> asyncio.Task[str]:
        return self.client.loop.create_task(self.client.wire.run(self.turn, self._call, name, **more))

    def cancel(self, task: asyncio.Task[str]) -> None:
        self.client.loop.within(task.cancel)


@pytest.fixture
def calls(client: Client) -> Calls:
    return Calls(client)


def test_calls_of_one_turn_come_one_after_the_other(client: Client, calls: Calls) -> None:
    tasks = [calls.start(name) for name in "ab"]
    client.engine.run(seconds=5)
    assert [task.result() for task in tasks] == ["a", "b"]
    assert calls.seen == ["a begins", "a ends", "b begins", "b ends"]
    assert (calls.turn.calls, client.way.under_way, client.way.waiting) == (0, {}, {})


def test_calls_without_a_turn_do_not_wait_for_others(client: Client, calls: Calls) -> None:
    calls.turn = None  # type: ignore[assignment]
    for name in "ab":
        calls.start(name)
    client.engine.run(seconds=5)
    assert calls.seen == ["a begins", "b begins", "a ends", "b ends"]


def test_a_call_that_has_begun_ends_though_nobody_waits_for_it(client: Client, calls: Calls) -> None:
    task = calls.start("a")
    client.engine.run(seconds=0.5)
    calls.cancel(task)
    client.engine.run(seconds=5)
    assert task.cancelled()
    assert calls.seen == ["a begins", "a ends"]


@pytest.mark.parametrize("of_session", [False, True])
def test_a_call_that_is_cancelled_before_its_turn_does_not_begin(
    client: Client, calls: Calls, of_session: bool
) -> None:
    calls.start("a")
    second, third = calls.start("b", of_session=of_session), calls.start("c")
    client.engine.run(seconds=0.5)
    assert len(client.way.waiting) == of_session
    calls.cancel(second)
    client.engine.run(seconds=5)
    assert second.cancelled()
    assert third.result() == "c"
    assert calls.seen == ["a begins", "a ends", "c begins", "c ends"]
    assert (calls.turn.calls, client.way.waiting) == (0, {})


def test_closing_waits_for_all_calls_but_those_of_sessions_whose_turn_has_not_come(
    client: Client, calls: Calls
) -> None:
    tasks = [calls.start("a", of_session=True), calls.start("b", of_session=True), calls.start("c")]
    client.engine.run(seconds=0.5)
    client.run(client.wire.close())
    assert client.engine.now == pytest.approx(2.0)
    assert calls.seen == ["a begins", "a ends", "c begins", "c ends"]
    client.engine.run(seconds=0.1)
    assert [task.cancelled() for task in tasks] == [False, True, False]
    with pytest.raises(RuntimeError, match="the port is closed"):
        client.run(client.wire.run(None, calls._call, "d"))
    client.run(client.wire.close())  # with nothing under way


# -- sessions -----------------------------------------------------------------------------------------------------


def opened(client: Client, **fields: str) -> Any:
    return client.run(open_session(client.wire, config(**fields), "id", "n"))


def test_each_session_is_a_newer_one(client: Client) -> None:
    assert opened(client) < opened(client)


def test_its_transactions_have_the_timeout_of_the_configuration(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(client.kafka, "open_session", lambda *args: asked.append(args))
    opened(client, transaction_timeout_ms="7500")
    assert asked == [("id", "n", 7.5)]


def test_no_session_without_an_answer_a_right_or_its_secret(client: Client) -> None:
    with pytest.raises(WriteFailed, match="NOT_SET is not set") as failed:
        opened(client, producer_override_sasl_password="${env:NOT_SET}")
    assert (failed.value.cause, failed.value.denied) == (Cause.LOST, True)
    client.kafka.denied.add(("Write", "id"))
    with pytest.raises(
        WriteFailed, match="Kafka refuses Write on transactional id id to the user of producer"
    ) as failed:
        opened(client)
    assert (failed.value.cause, failed.value.denied) == (Cause.LOST, True)
    client.kafka.up = False
    with pytest.raises(WriteFailed, match="the brokers do not answer") as failed:
        opened(client)
    assert (failed.value.cause, failed.value.denied) == (Cause.LOST, False)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Denied("Read", "topic", "t"), "Kafka refuses Read on topic t to the user of admin.override.*"),
        (Denied("Write", "transactional_id", "id"), "Kafka refuses Write on transactional id id to the user of admin"),
        (Denied("Write", "moon", "x"), "Write on moon x"),
    ],
)
def test_a_denial_is_told_as_the_client_would(error: Denied, said: str) -> None:
    assert denial(error, "admin").startswith(said)
