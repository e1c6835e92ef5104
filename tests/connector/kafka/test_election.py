"""The controller's group and its producer: who is told of what, and when a commit ends. The clients are doubles."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from deelog_connector.errors import KafkaUnusable, TopologyError
from deelog_connector.kafka import election as module
from deelog_connector.kafka.client import LOOK_SECONDS
from deelog_connector.kafka.election import Election
from deelog_connector.kafka_port import NotController
from deelog_schemas.config import Config
from deelog_schemas.kafka.connections import Connections
from tests.connector.cache import config_of, run

CONFIG = config_of("127.0.0.1:1", "p", cache_failure_timeout_ms=1000)
TOPIC, POSITIONS = CONFIG.topics.topology, CONFIG.topics.positions


def error_of(code: int, words: str = "the broker's words", **flags: bool) -> KafkaException:
    return KafkaException(KafkaError(code, words, **flags))


ABORT = error_of(KafkaError.ILLEGAL_GENERATION, txn_requires_abort=True)


class Producer:
    """Its calls fail as `errors` say, each with the next of its list; `meanwhile` happens at the begin."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.calls: list[Any] = []
        self.errors: dict[str, list[Exception | None]] = {}
        self._meanwhile = meanwhile

    def _call(self, name: str, *given: Any) -> None:
        self.calls.append((name, *given) if given else name)
        errors = self.errors.get(name)
        error = errors.pop(0) if errors else None
        if error is not None:
            raise error

    def begin_transaction(self) -> None:
        self._meanwhile()
        self._call("begin")

    def produce(self, topic: str, value: bytes, key: bytes, partition: int) -> None:
        self._call("produce", topic, key, value, partition)

    def send_offsets_to_transaction(self, offsets: list[Any], metadata: object, seconds: float) -> None:
        ((where),) = offsets
        self._call("offsets", where.topic, where.partition, metadata, seconds)

    def commit_transaction(self, seconds: float) -> None:
        self._call("commit", seconds)

    def __len__(self) -> int:
        return 0

    def abort_transaction(self, seconds: float) -> None:
        self._call("abort")


LEFT = ("unsubscribe", "poll", "close")
"""How a member leaves. That `close` alone does not is seen by `contract/test_brokers.py`."""


class Consumer:
    """A member of the group. `polls` are run in turn; the last one ends the election."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.polls: list[Callable[[], Any]] = []
        self.callbacks: dict[str, Callable[..., None]] = {}

    def subscribe(self, topics: list[str], **callbacks: Callable[..., None]) -> None:
        self.calls.append(("subscribe", topics))
        self.callbacks = callbacks

    def poll(self, seconds: float) -> Any:
        if self.calls[-1] == "unsubscribe":
            self.calls.append("poll")
            return None
        return self.polls.pop(0)()

    def unsubscribe(self) -> None:
        self.calls.append("unsubscribe")

    def incremental_assign(self, partitions: list[Any]) -> None:
        self.calls.append(("assign", [partition.partition for partition in partitions]))

    def pause(self, partitions: list[Any]) -> None:
        self.calls.append(("pause", [partition.partition for partition in partitions]))

    def consumer_group_metadata(self) -> str:
        return "metadata"

    def close(self) -> None:
        self.calls.append("close")


class Desk:
    """An election on the loop that runs, and what it told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
        self.monkeypatch = monkeypatch
        self.told: list[bool] = []
        self.refusals: list[Exception] = []
        self.sleeps: list[float] = []
        self.now = 100.0
        self.config = config_of("127.0.0.1:1", "p", **{"cache_failure_timeout_ms": 1000} | fields)
        self.of = Election(self._run, self.config, "n1", self.told.append, self.refusals.append, 7.0)
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep)
        monkeypatch.setattr(module, "time", clock)

    def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds

    @staticmethod
    async def _run(call: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.to_thread(call, *args)

    def elected(self, producer: Producer) -> Producer:
        """It is controller with this producer."""
        self.of._producer, self.of._metadata = producer, "metadata"
        return producer

    async def refused(self, work: Awaitable[None]) -> str:
        """Why a call raised `NotController`."""
        with pytest.raises(NotController) as raised:
            await work
        await asyncio.sleep(0)
        return str(raised.value)


def with_desk(
    monkeypatch: pytest.MonkeyPatch, test: Callable[[Desk], Coroutine[Any, Any, None]], **fields: Any
) -> None:
    async def work() -> None:
        await test(Desk(monkeypatch, **fields))

    run(work(), 20)


def test_a_node_that_rejoins_while_it_commits_is_no_longer_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        producer = desk.elected(Producer(desk.of.rejoin))
        producer.errors["begin"] = [ABORT]
        assert await desk.refused(desk.of.commit([("k", b"v")])) == "not elected"
        assert producer.calls == ["begin", "abort"]

    with_desk(monkeypatch, test)


def test_a_view_is_committed_with_the_generation_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        producer = desk.elected(Producer())
        await desk.of.commit([("a", b"1"), ("b", b"2")])
        assert producer.calls == [
            "begin",
            ("produce", TOPIC, b"a", b"1", 0),
            ("produce", TOPIC, b"b", b"2", 0),
            ("offsets", TOPIC, 0, "metadata", 7.0),
            ("commit", LOOK_SECONDS),
        ]

    with_desk(monkeypatch, test)


@pytest.mark.parametrize("lacks", ["_producer", "_metadata"])
def test_who_is_not_elected_commits_nothing(monkeypatch: pytest.MonkeyPatch, lacks: str) -> None:
    async def test(desk: Desk) -> None:
        producer = desk.elected(Producer())
        setattr(desk.of, lacks, None)
        assert await desk.refused(desk.of.commit([("a", b"1")])) == "not elected"
        assert producer.calls == []

    with_desk(monkeypatch, test)


def test_a_commit_is_tried_again_while_the_group_has_a_new_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        producer = desk.elected(Producer())
        producer.errors["commit"] = [ABORT, ABORT, None]
        await desk.of.commit([("a", b"1")])
        assert (producer.calls.count("begin"), producer.calls.count("abort")) == (3, 2)
        assert desk.sleeps == [0.1, 0.1]
        producer.errors["commit"] = [ABORT] * 100
        words = await desk.refused(desk.of.commit([("a", b"1")]))
        assert words == "a view cannot be committed: the broker's words"
        assert 6.9 < sum(desk.sleeps[2:]) < 7.2

    with_desk(monkeypatch, test)


@pytest.mark.parametrize(
    ("error", "aborts"),
    [
        (error_of(KafkaError._FENCED), 0),
        (error_of(KafkaError.UNKNOWN_MEMBER_ID, txn_requires_abort=True), 1),
        (error_of(KafkaError.INVALID_TIMESTAMP, txn_requires_abort=True), 1),
    ],
)
def test_a_former_member_does_not_try_again_nor_one_whose_clock_is_wrong(
    monkeypatch: pytest.MonkeyPatch, error: KafkaException, aborts: int
) -> None:
    async def test(desk: Desk) -> None:
        producer = desk.elected(Producer())
        producer.errors["offsets"] = [error]
        assert await desk.refused(desk.of.commit([("a", b"1")])) == "a view cannot be committed: the broker's words"
        assert (producer.calls.count("begin"), producer.calls.count("abort")) == (1, aborts)
        assert desk.refusals == []

    with_desk(monkeypatch, test)


def test_a_transaction_that_cannot_be_aborted_ends_the_term(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(desk: Desk) -> None:
        producer = desk.elected(Producer())
        producer.errors = {"commit": [ABORT], "abort": [error_of(KafkaError._TIMED_OUT, "too slow")]}
        await desk.refused(desk.of.commit([("a", b"1")]))
        assert producer.calls.count("begin") == 1
        assert "a view's transaction cannot be aborted: too slow" in caplog.messages

    with_desk(monkeypatch, test)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Kafka refuses Write on transactional"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, f"Kafka refuses Write on topic {TOPIC}"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "Kafka refuses Read on group"),
    ],
)
def test_a_right_that_is_missing_is_reported(monkeypatch: pytest.MonkeyPatch, code: int, words: str) -> None:
    async def test(desk: Desk) -> None:
        producer = desk.elected(Producer())
        producer.errors["commit"] = [error_of(code)]
        await desk.refused(desk.of.commit([("a", b"1")]))
        (refusal,) = desk.refusals
        assert isinstance(refusal, TopologyError)
        assert str(refusal).startswith(words)

    with_desk(monkeypatch, test)


class Coordinator:
    """A producer's `send_offsets_to_transaction` hangs until `goes_on` or the last of `answers` was asked for."""

    def __init__(self, desk: Desk, answers: list[bool]) -> None:
        self.goes_on = threading.Event()
        self.answers = answers
        desk.of._seconds = 0.19  # so 0.38 in all: after three turns every second 0.05 is for a question
        desk.monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
        desk.monkeypatch.setattr(module, "STALL_SECONDS", 0.15)
        desk.monkeypatch.setattr(module, "coordinator_answers", self._asked)
        self.producer = desk.elected(Producer())
        desk.monkeypatch.setattr(self.producer, "send_offsets_to_transaction", lambda *given: self.goes_on.wait(20))

    def _asked(self, config: Config, group: str) -> bool:
        assert group == config.topics.controller_group
        answer = self.answers.pop(0)
        if not self.answers:
            self.goes_on.set()
        return answer


@pytest.mark.parametrize("answers", [[True], [False, False, False]], ids=["others get one", "nobody gets one"])
def test_an_answer_that_never_comes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, answers: list[bool]) -> None:
    async def test(desk: Desk) -> None:
        coordinator = Coordinator(desk, [*answers, True])
        words = await desk.refused(desk.of.commit([("a", b"1")]))
        assert words == "the group's coordinator has not answered for 0 s"
        assert coordinator.answers == [True]  # not asked any more
        assert not [call for call in coordinator.producer.calls if call[0] == "commit"]
        coordinator.goes_on.set()

    with_desk(monkeypatch, test)


def test_an_answer_that_comes_while_others_are_asked_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        coordinator = Coordinator(desk, [False])
        await desk.of.commit([("a", b"1")])
        assert coordinator.producer.calls[-1][0] == "commit"

    with_desk(monkeypatch, test)


def _next(results: list[Any]) -> Any:
    result = results.pop(0)
    if isinstance(result, Exception):
        raise result
    return result


def test_who_is_elected_takes_the_producer_of_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        begun: list[Any] = []
        monkeypatch.setattr(module, "begin_session", lambda producer, seconds: begun.append((producer, seconds)))
        desk.of._candidate = "candidate"
        assert await desk.refused(desk.of.take()) == "not elected"
        desk.of._sit(object())
        await desk.of.take()
        assert (begun, desk.of._producer) == ([("candidate", 7.0)], "candidate")
        # The seat was lost and is back: a producer that has begun cannot begin again.
        desk.of._sit(object())
        made = [("another", []), KafkaUnusable("a secret is away")]
        monkeypatch.setattr(module, "opened", lambda *given: _next(made))
        await desk.of.take()
        assert (begun[1:], desk.of._producer) == ([("another", 7.0)], "another")
        assert await desk.refused(desk.of.take()) == "cannot become controller: a secret is away"

    with_desk(monkeypatch, test)


def test_a_producer_that_cannot_begin_makes_no_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        def fails(producer: Any, seconds: float) -> None:
            raise error_of(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

        monkeypatch.setattr(module, "begin_session", fails)
        desk.of._candidate, desk.of._seat = "candidate", object()
        assert await desk.refused(desk.of.take()) == "cannot become controller: the broker's words"
        assert desk.of._producer is None
        assert len(desk.refusals) == 1

    with_desk(monkeypatch, test)


def test_what_a_term_began_is_not_done_in_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled calls go on in their threads: a commit that is tried again, and a session that opens slowly."""

    async def test(desk: Desk) -> None:
        old, slow, new = desk.elected(Producer()), Producer(), Producer()
        old.errors["commit"] = [ABORT]
        at_rest, slow_begins, goes_on = threading.Event(), threading.Event(), threading.Event()

        def rests(_: float) -> None:
            at_rest.set()
            assert goes_on.wait(20)

        def begins(producer: Any, _: float) -> None:
            if producer is slow:
                slow_begins.set()
                assert goes_on.wait(20)

        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=rests))
        monkeypatch.setattr(module, "begin_session", begins)
        made: list[Any] = [(slow, []), (new, [])]
        monkeypatch.setattr(module, "opened", lambda *given: made.pop(0))
        view = asyncio.ensure_future(desk.of.commit([("view", b"old")]))
        assert await asyncio.to_thread(at_rest.wait, 20)
        desk.of._sit(object())
        taken = asyncio.ensure_future(desk.of.take())
        assert await asyncio.to_thread(slow_begins.wait, 20)
        desk.of._sit(object())
        await desk.of.take()
        goes_on.set()
        assert await desk.refused(view) == "not elected"
        assert await desk.refused(taken) == "the seat was lost meanwhile"
        await desk.of.commit([("controller", b"new")])
        assert [call[3] for call in new.calls if call[0] == "produce"] == [b"new"]
        assert not slow.calls

    with_desk(monkeypatch, test)


class Group:
    """A desk whose consumer and producers are doubles: `go` runs the member's thread to its end."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.consumer = desk, Consumer()
        self.made: list[tuple[str, dict[str, Any]]] = []
        self.problems: list[Exception] = []
        self.waits: list[float] = []
        desk.monkeypatch.setattr(module, "opened", self._opened)
        desk.monkeypatch.setattr(desk.of._stop, "wait", self.waits.append)

    def _opened(self, make: object, client: str, settings: dict[str, Any]) -> tuple[Any, Connections]:
        if self.problems:
            raise self.problems.pop(0)
        self.made.append((client, settings))
        return (self.consumer if client == "consumer" else "candidate"), Connections(client, {})

    async def go(self, *polls: Callable[[], Any]) -> list[bool]:
        """What was told while these polls came."""
        self.consumer.polls = [*polls, self.desk.of._stop.set]
        self.desk.of.start()
        await asyncio.to_thread(self.desk.of._thread.join)
        await asyncio.sleep(0)
        return self.desk.told

    def assign(self, *partitions: int, topic: str = TOPIC) -> None:
        self.consumer.callbacks["on_assign"](self.consumer, [TopicPartition(topic, number) for number in partitions])


def with_group(
    monkeypatch: pytest.MonkeyPatch, test: Callable[[Group], Coroutine[Any, Any, None]], **fields: Any
) -> None:
    async def work() -> None:
        await test(Group(Desk(monkeypatch, **fields)))

    run(work(), 20)


def test_the_member_to_which_the_partition_is_assigned_is_elected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(group: Group) -> None:
        def assigned() -> None:
            group.assign(0)
            assert (group.desk.of._metadata, group.desk.of._candidate) == ("metadata", "candidate")

        assert await group.go(assigned, group.assign) == [True, False]
        assert group.consumer.calls == [
            ("subscribe", [TOPIC]),
            ("assign", [0]),
            ("pause", [0]),
            ("assign", []),
            ("pause", []),
            *LEFT,
        ]
        assert (group.desk.of._metadata, group.desk.of._candidate) == (None, None)

    with_group(monkeypatch, test)


def test_other_partitions_of_the_topic_are_no_seat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has given it more."""

    async def test(group: Group) -> None:
        assert await group.go(lambda: group.assign(1, 2)) == [False]

    with_group(monkeypatch, test)


def test_what_fails_while_it_leaves_does_not_end_the_member(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(group: Group) -> None:
        def fails() -> None:
            raise KafkaException(KafkaError(KafkaError._FATAL, "fatal"))

        monkeypatch.setattr(group.consumer, "close", fails)
        assert await group.go(lambda: group.assign(0)) == [True, False]

    with_group(monkeypatch, test)


@pytest.mark.parametrize("how", ["on_revoke", "on_lost"])
def test_the_member_that_loses_the_partition_is_told_so(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    async def test(group: Group) -> None:
        told = await group.go(
            lambda: group.assign(0),
            lambda: group.consumer.callbacks[how](group.consumer, []),
            lambda: group.consumer.callbacks[how](group.consumer, [TopicPartition(TOPIC, 0)]),
        )
        assert told == [True, False, False]  # the last one at the end

    with_group(monkeypatch, test)


def test_who_has_lost_the_seat_takes_no_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(group: Group) -> None:
        begun: list[str] = []
        monkeypatch.setattr(module, "begin_session", lambda producer, _: begun.append(producer))

        def take() -> None:
            group.assign(0)
            group.desk.of._take()
            group.consumer.callbacks["on_revoke"](group.consumer, [TopicPartition(TOPIC, 0)])
            group.assign()  # still a member
            for late in group.desk.of._take, lambda: group.desk.of._commit([("a", b"1")]):
                with pytest.raises(NotController, match=r"^not elected$"):
                    late()

        await group.go(take)
        assert begun == ["candidate"]

    with_group(monkeypatch, test)


def test_an_error_out_of_the_group_ends_no_member(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(group: Group) -> None:
        monkeypatch.setattr(module, "_RETRY_SECONDS", 0.0)

        def raises() -> None:
            raise error_of(KafkaError._STATE)

        assert await group.go(lambda: group.assign(0), raises, lambda: group.assign(0)) == [True, False, True, False]
        assert caplog.messages == ["controller group: the broker's words; joining again"]
        assert group.consumer.calls.count("close") == 2

    with_group(monkeypatch, test)


def test_who_rejoins_is_a_new_member(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(group: Group) -> None:
        assert await group.go(group.desk.of.rejoin) == [False, False]
        assert [client for client, _ in group.made] == ["producer", "consumer"] * 2
        assert group.consumer.calls.count("close") == 2

    with_group(monkeypatch, test)


def test_who_stands_aside_subscribes_to_another_topic_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(group: Group) -> None:
        now = [100.0]
        monkeypatch.setattr("deelog_connector.kafka.election.time.monotonic", lambda: now[0])

        def later() -> None:
            assert subscribed() == [TOPIC, POSITIONS]
            group.assign(0, topic=POSITIONS)
            now[0] += 7.5

        def subscribed() -> list[str]:
            return [call[1][0] for call in group.consumer.calls if call[0] == "subscribe"]

        told = await group.go(lambda: group.desk.of.rejoin(aside=7.5), lambda: None, later)
        assert subscribed() == [TOPIC, POSITIONS, TOPIC]
        assert told == [False, False]  # at the end of each membership

    with_group(monkeypatch, test)


def message(error: KafkaException) -> Any:
    return SimpleNamespace(error=lambda: error.args[0])


def test_errors_are_logged_rights_reported_and_a_fatal_one_makes_a_new_member(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(group: Group) -> None:
        await group.go(
            lambda: message(error_of(KafkaError._TRANSPORT, "down")),
            lambda: message(error_of(KafkaError.GROUP_AUTHORIZATION_FAILED)),
            lambda: message(error_of(KafkaError._FATAL, "over", fatal=True)),
        )
        assert [line for line in caplog.messages if line.startswith("controller group")] == [
            "controller group: down",
            "controller group: over",
        ]
        assert len(group.desk.refusals) == 1
        assert group.consumer.calls.count("close") == 2

    with_group(monkeypatch, test)


def test_clients_that_cannot_be_made_are_made_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(group: Group) -> None:
        group.problems = [KafkaUnusable("no secret")]
        await group.go()
        assert (caplog.messages[0], group.waits) == ("controller group: no secret; trying again", [1.0])
        assert [client for client, _ in group.made] == ["producer", "consumer"]

    with_group(monkeypatch, test)


def test_the_clients_have_settings_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(group: Group) -> None:
        await group.go()
        (_, producer), (_, consumer) = group.made
        config = group.desk.config
        assert producer["transactional.id"] == config.topics.transactional_id_controller
        assert (producer["acks"], producer["linger.ms"]) == ("all", "3")
        assert producer["transaction.timeout.ms"] == config["transaction.timeout.ms"]
        assert (consumer["group.id"], consumer["client.id"]) == (config.topics.controller_group, "n1")
        assert (consumer["session.timeout.ms"], consumer["heartbeat.interval.ms"]) == (3000, 750)
        assert consumer["partition.assignment.strategy"] == "cooperative-sticky"
        assert (consumer["enable.auto.commit"], consumer["allow.auto.create.topics"]) == (False, False)
        assert consumer["fetch.wait.max.ms"] == "9"

    with_group(
        monkeypatch,
        test,
        producer_override_linger_ms=3,
        consumer_override_fetch_wait_max_ms=9,
        consumer_override_client_id="x",
    )


def test_members_beat_often_enough_for_a_rebalance_however_long_their_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(group: Group) -> None:
        await group.go()
        consumer = group.made[1][1]
        assert (consumer["session.timeout.ms"], consumer["heartbeat.interval.ms"]) == (60_000, 1000)

    with_group(monkeypatch, test, cache_failure_timeout_ms=20_000)


def test_one_that_never_joined_leaves_at_once_and_tells_a_closed_loop_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    found: list[Desk] = []

    async def test(desk: Desk) -> None:
        found.append(desk)
        await desk.of.stop()
        assert desk.of._thread.daemon

    with_desk(monkeypatch, test)
    found[0].of._tell(True)
    assert found[0].told == []
    assert "the event loop ended before append" in caplog.messages


def test_a_view_that_is_not_answered_is_asked_for_again_and_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    again = KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True))

    async def test(desk: Desk) -> None:
        producer = desk.elected(Producer())
        producer.errors["commit"] = [again, again, None]
        await desk.of.commit([("a", b"1")])
        assert [call for call in producer.calls if call[0] == "commit"] == [("commit", LOOK_SECONDS)] * 3
        clock = iter([0.0, 0.0, 0.0, 6.9, 7.1])
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        producer.errors["commit"] = [again] * 9
        assert "no answer" in await desk.refused(desk.of.commit([("a", b"2")]))
        assert len(producer.errors["commit"]) == 7

    with_desk(monkeypatch, test)
