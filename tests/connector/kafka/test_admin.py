"""Requests about topics: what is asked, and what is made of an answer, an error, or none. The client is a double."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType

from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable
from deelog_connector.kafka import admin as module
from deelog_connector.kafka import client as clients
from deelog_connector.kafka.admin import KafkaAdmin
from deelog_connector.kafka_port import PartitionEnd, TopicState
from deelog_schemas.kafka.connections import Connections
from deelog_schemas.kafka.progress import STALL_SECONDS
from tests.connector.cache import config_of

SECONDS = 7.0
TIMED_OUT = KafkaException(KafkaError(KafkaError._TIMED_OUT))
DENIED = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
UNKNOWN = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))


class Client:
    """An admin client, and what it answers: a value or an exception for each request, in turn; the last one stays."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {name: list(given) for name, given in answers.items()}
        self.asked: list[tuple[str, Any]] = []
        self.polled = 0

    def _answer(self, name: str) -> Any:
        given = self.answers[name]
        return given.pop(0) if len(given) > 1 else given[0]

    def _future(self, name: str) -> Future[Any]:
        future: Future[Any] = Future()
        answer = self._answer(name)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif answer is not None:
            future.set_result(answer)
        return future

    def list_topics(self, timeout: float) -> Any:
        self.asked.append(("list_topics", timeout))
        answer = self._answer("list_topics")
        if isinstance(answer, Exception):
            raise answer
        topics = {name: SimpleNamespace(partitions=range(n), error=error) for name, (n, error) in answer.items()}
        return SimpleNamespace(topics=topics, cluster_id="C")

    def create_topics(self, topics: list[NewTopic], request_timeout: float) -> Mapping[str, Future[Any]]:
        self.asked.append(("create_topics", (topics, request_timeout)))
        return {topics[0].topic: self._future("create_topics")}

    def describe_topics(self, topics: Any, request_timeout: float) -> Mapping[str, Future[Any]]:
        self.asked.append(("describe_topics", request_timeout))
        return {"t": self._future("describe_topics")}

    def describe_configs(
        self, resources: list[ConfigResource], request_timeout: float
    ) -> Mapping[ConfigResource, Future[Any]]:
        self.asked.append(("describe_configs", request_timeout))
        return {resources[0]: self._future("describe_configs")}

    def list_offsets(self, asked: Any, isolation_level: Any, request_timeout: float) -> Mapping[Any, Future[Any]]:
        self.asked.append(("list_offsets", (asked, isolation_level, request_timeout)))
        if "list_offsets" not in self.answers:
            self.answers["list_offsets"] = [SimpleNamespace(offset=0, leader_epoch=0)]
        return {where: self._future("list_offsets") for where in asked}

    def poll(self, seconds: float) -> None:
        self.polled += 1


class Opened:
    """Makes admins, and counts their clients."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings: list[dict[str, Any]] = []
        self.connections = Connections("admin", {})
        self.client: Client
        self.now = 100.0
        self.sleeps: list[float] = []
        monkeypatch.setattr(clients, "opened", self._opened)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=self._monotonic, sleep=self._sleep))
        monkeypatch.setattr(module, "hear", lambda client, connections: client.poll(0))

    def _monotonic(self) -> float:
        self.now += 0.5
        return self.now

    def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)

    def _opened(self, make: object, client: str, settings: dict[str, Any]) -> tuple[Client, Connections]:
        assert client == "admin"
        self.settings.append(settings)
        return self.client, self.connections

    def __call__(self, **answers: Any) -> KafkaAdmin:
        self.client = Client(**answers)
        fields = {"admin_override_socket_timeout_ms": 9000, "topic_creation_default_replication_factor": 3}
        return KafkaAdmin(config_of("h:1", "p", **fields), SECONDS)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    return Opened(monkeypatch)


def test_a_client_is_made_at_the_first_request_and_again_after_it_was_closed(opened: Opened) -> None:
    admin = opened(list_topics=[{"t": (3, None)}])
    assert opened.settings == []
    assert [admin.partitions("t"), admin.partitions("t"), admin.cluster_id()] == [3, 3, "C"]
    (settings,) = opened.settings
    assert (settings["bootstrap.servers"], settings["socket.timeout.ms"]) == ("h:1", "9000")
    admin.close()
    admin.partitions("t")
    assert len(opened.settings) == 2
    assert [seconds for _, seconds in opened.client.asked] == [1.0, 1.0, SECONDS, 1.0]


def test_a_topic_that_is_not_there_or_hidden_has_no_partitions(opened: Opened) -> None:
    admin = opened(list_topics=[{"hidden": (3, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))}])
    assert [admin.partitions(name) for name in ("hidden", "none")] == [0, 0]


def test_brokers_that_do_not_answer_are_asked_for_a_while(opened: Opened) -> None:
    admin = opened(list_topics=[TIMED_OUT, TIMED_OUT, {"t": (3, None)}])
    assert admin.partitions("t") == 3
    assert opened.client.polled == 2
    opened.now = 100.0
    admin = opened(list_topics=[TIMED_OUT])
    with pytest.raises(KafkaUnavailable, match=r"^no broker answers at bootstrap.servers=h:1: ") as raised:
        admin.partitions("t")
    assert raised.value.exit_code == 9
    assert SECONDS <= opened.now - 100.0 <= SECONDS + 1.5
    asked = len(opened.client.asked)
    assert asked > 10
    opened.connections(KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error: Authentication failed"))
    with pytest.raises(KafkaUnavailable, match=r"correct sasl\.mechanism"):
        admin.partitions("t")  # waiting is hopeless
    assert len(opened.client.asked) == asked + 1
    assert len(opened.settings) == 3


def test_a_topic_that_exists_must_have_as_many_partitions_as_are_configured(opened: Opened) -> None:
    admin = opened(list_topics=[{"t": (3, None), "p.c": (3, None), "p.c.positions": (5, None)}])
    admin.ensure("t", 3, {})
    admin.ensure("t", None, {})
    for topic, has, remedy in (
        ("t", 3, "delete it, and it is made again"),
        ("p.c", 3, "the map of segments is fixed when the topics are created; set topic.creation.default.partitions"),
        ("p.c.positions", 5, "the map of segments is fixed"),
    ):
        with pytest.raises(KafkaUnusable, match=f"^topic {topic} has {has} partitions, and must have 4: {remedy}"):
            admin.ensure(topic, 4, {})


@pytest.mark.parametrize(("partitions", "made"), [(4, 4), (None, 1)])
def test_a_topic_that_is_missing_is_created_and_waited_for(opened: Opened, partitions: int | None, made: int) -> None:
    there: dict[str, Any] = {"t": (made, None)}
    admin = opened(list_topics=[{}, {}, {}, there], describe_topics=[UNKNOWN], create_topics=[SimpleNamespace()])
    admin.ensure("t", partitions, {"cleanup.policy": "compact"})
    ((topics, seconds),) = [given for name, given in opened.client.asked if name == "create_topics"]
    (new,) = topics
    assert (new.topic, new.num_partitions, new.replication_factor) == ("t", made, 3)
    assert (new.config, seconds) == ({"cleanup.policy": "compact"}, STALL_SECONDS)
    assert opened.sleeps == [0.05, 0.05]


def test_a_topic_that_another_one_created_meanwhile_is_taken(opened: Opened) -> None:
    exists = KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS))
    asked: list[Any] = [{}, {"t": (4, None)}, {}]  # the last broker has not heard of it yet
    admin = opened(list_topics=asked, describe_topics=[UNKNOWN], create_topics=[exists])
    admin.ensure("t", 4, {})


def test_settings_are_asked_again_where_a_broker_has_not_heard_of_the_topic_yet(opened: Opened) -> None:
    admin = opened(describe_configs=[UNKNOWN, UNKNOWN, {"x": SimpleNamespace(value="7")}])
    assert admin.settings("t") == {"x": "7"}
    assert opened.sleeps == [0.05, 0.05]
    admin = opened(describe_configs=[UNKNOWN])
    opened.now = 100.0
    with pytest.raises(KafkaUnavailable, match="cannot read the settings of topic t: "):
        admin.settings("t")
    assert SECONDS <= opened.now - 100.0 <= SECONDS + 1.5


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, "3 > 1"),
            "topic t does not exist and cannot be created: 3",
        ),
        (KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "cannot be created: Kafka refuses Create on topic t"),
    ],
)
def test_a_topic_that_cannot_be_created_says_why(opened: Opened, error: KafkaError, words: str) -> None:
    admin = opened(list_topics=[{}], describe_topics=[UNKNOWN], create_topics=[KafkaException(error)])
    with pytest.raises(KafkaUnusable, match=words) as raised:
        admin.ensure("t", 4, {})
    assert type(raised.value) is KafkaUnusable


def test_a_topic_that_is_hidden_is_not_created(opened: Opened) -> None:
    admin = opened(list_topics=[{}], describe_topics=[DENIED])
    with pytest.raises(KafkaUnauthorized, match="Kafka refuses Describe on topic t"):
        admin.ensure("t", 4, {})


def test_a_created_topic_that_does_not_appear_is_an_error(opened: Opened) -> None:
    admin = opened(list_topics=[{}], describe_topics=[UNKNOWN], create_topics=[SimpleNamespace()])
    with pytest.raises(KafkaUnusable, match="topic t was created but does not appear"):
        admin.ensure("t", 4, {})
    assert opened.now - 100.0 >= SECONDS


def test_the_id_and_the_settings_of_a_topic_are_text(opened: Opened) -> None:
    settings = {"retention.ms": SimpleNamespace(value="7"), "cleanup.policy": SimpleNamespace(value="compact")}
    admin = opened(describe_topics=[described((1, 1, 1))], describe_configs=[settings])
    assert admin.state("t") == TopicState("5", frozenset())
    assert admin.settings("t") == {"retention.ms": "7", "cleanup.policy": "compact"}
    assert [name for name, _ in opened.client.asked] == ["describe_topics", "list_offsets", "describe_configs"]


def described(*partitions: tuple[int, int, int]) -> SimpleNamespace:
    """Of a topic, by partition: whether it has a leader, its replicas in sync, all of its replicas."""
    found = [
        SimpleNamespace(id=n, leader=object() if leader else None, isr=[1] * in_sync, replicas=[1] * replicas)
        for n, (leader, in_sync, replicas) in enumerate(partitions)
    ]
    return SimpleNamespace(topic_id=5, partitions=found)


@pytest.mark.parametrize(
    ("partitions", "least", "unwritable"),
    [
        ([(1, 3, 3), (1, 2, 3), (1, 1, 3)], 1, set()),
        ([(1, 3, 3), (1, 2, 3), (1, 1, 3)], 2, {2}),
        ([(1, 3, 3), (1, 2, 3), (1, 1, 3)], 3, {1, 2}),
        ([(1, 1, 1), (0, 1, 1), (0, 0, 3), (0, 3, 3)], 1, {1, 2, 3}),
        ([(1, 1, 1), (1, 1, 2)], 2, {1}),  # a broker asks for no more replicas than there are
    ],
)
def test_a_partition_without_leader_or_replicas_in_sync_takes_no_records(
    opened: Opened, partitions: list[tuple[int, int, int]], least: int, unwritable: set[int]
) -> None:
    settings = {"min.insync.replicas": SimpleNamespace(value=str(least))}
    admin = opened(describe_topics=[described(*partitions)], describe_configs=[settings])
    assert admin.state("t").unwritable == unwritable


def test_of_a_topic_with_all_replicas_in_sync_the_settings_are_not_asked(opened: Opened) -> None:
    assert opened(describe_topics=[described((1, 3, 3), (1, 1, 1))]).state("t").unwritable == set()
    assert [name for name, _ in opened.client.asked] == ["describe_topics", "list_offsets"]


END, SILENT = SimpleNamespace(offset=7, leader_epoch=3), SimpleNamespace(offset=-1001, leader_epoch=None)


@pytest.mark.parametrize("silent", [SILENT, TIMED_OUT])
def test_a_leader_that_does_not_answer_while_others_do_takes_no_records(opened: Opened, silent: Any) -> None:
    """Those without a leader are not asked. A new client asks again, and longer: the old one may have lost it, or the
    broker is slow."""
    topic = described((1, 1, 1), (0, 0, 1), (1, 1, 1), (1, 1, 1))
    settings = {"min.insync.replicas": SimpleNamespace(value="1")}
    admin = opened(
        describe_topics=[topic], describe_configs=[settings], list_offsets=[END, silent, DENIED, silent, END]
    )
    assert admin.state("t").unwritable == {1, 2}
    (asked, isolation, seconds), (again, _, more) = [
        given for name, given in opened.client.asked if name == "list_offsets"
    ]
    assert [where.partition for where in asked] == [0, 2, 3]
    assert [where.partition for where in again] == [2]
    assert (isolation, seconds, more) == (IsolationLevel.READ_COMMITTED, STALL_SECONDS, SECONDS)
    assert admin.state("t").unwritable == {1}
    assert len(opened.settings) == 2
    opened.client.answers["list_offsets"] = [END, silent, END]
    assert admin.state("t").unwritable == {1}  # it was the client


def test_a_leader_that_is_known_to_be_silent_is_asked_once(opened: Opened) -> None:
    admin = opened(describe_topics=[described((1, 1, 1), (1, 1, 1))], list_offsets=[END, SILENT, SILENT, END, SILENT])
    assert admin.state("t").unwritable == {1}
    assert admin.state("t").unwritable == {1}
    asked = [len(given[0]) for name, given in opened.client.asked if name == "list_offsets"]
    assert asked == [2, 1, 2]
    opened.client.answers["list_offsets"] = [END, END, END, SILENT, END]
    assert admin.state("t").unwritable == set()
    assert admin.state("t").unwritable == set()
    assert [len(given[0]) for name, given in opened.client.asked if name == "list_offsets"] == [*asked, 2, 2, 1]


def test_a_leader_that_is_back_and_slow_for_who_has_to_connect_is_heard(opened: Opened) -> None:
    """Of a topic whose leader was silent every other look is by the client of the one before."""
    admin = opened(describe_topics=[described((1, 1, 1), (1, 1, 1))])
    asked_before: set[int] = set()
    is_back = False

    def list_offsets(asked: Any, isolation_level: Any, request_timeout: float) -> Mapping[Any, Future[Any]]:
        client, found = len(opened.settings), {}
        for where in asked:
            takes = 0.0 if where.partition == 0 else 1.0 if client in asked_before else STALL_SECONDS + 1
            found[where] = future = Future[Any]()
            future.set_result(END if where.partition == 0 or (is_back and takes <= request_timeout) else SILENT)
        if is_back:
            asked_before.add(client)
        return found

    opened.client.list_offsets = list_offsets  # type: ignore[method-assign]
    assert admin.state("t").unwritable == {1}
    clients = len(opened.settings)
    for _ in range(4):
        assert admin.state("t").unwritable == {1}
    assert len(opened.settings) == clients + 2, "a client may have lost the leader"
    is_back = True
    assert set() in [admin.state("t").unwritable for _ in range(3)]


def test_where_no_leader_answers_kafka_is_away(opened: Opened) -> None:
    admin = opened(describe_topics=[described((1, 1, 1), (1, 1, 1))], list_offsets=[SILENT, TIMED_OUT] * 2 + [END])
    with pytest.raises(KafkaUnavailable, match=r"^topic t: the leaders of its partitions did not answer in time$"):
        admin.state("t")
    assert admin.state("t").unwritable == set()


def test_where_nobody_leads_nobody_is_asked(opened: Opened) -> None:
    settings = {"min.insync.replicas": SimpleNamespace(value="1")}
    admin = opened(describe_topics=[described((0, 0, 1))], describe_configs=[settings])
    assert admin.state("t").unwritable == {0}
    assert "list_offsets" not in [name for name, _ in opened.client.asked]


def test_another_broker_is_asked_where_one_does_not_answer(opened: Opened) -> None:
    """By a new client, and longer: it may be the brokers that are slow."""
    admin = opened(describe_topics=[TIMED_OUT, described((1, 1, 1))])
    assert admin.state("t").unwritable == set()
    assert [seconds for name, seconds in opened.client.asked if name == "describe_topics"] == [
        STALL_SECONDS,
        SECONDS - STALL_SECONDS,
    ]
    assert len(opened.settings) == 2
    opened.client.asked = []
    opened.client.answers["describe_topics"] = [TIMED_OUT]
    with pytest.raises(KafkaUnavailable, match="no broker answers in time"):
        admin.state("t")
    assert [seconds for _, seconds in opened.client.asked] == [STALL_SECONDS, SECONDS - STALL_SECONDS]


CALLS: list[tuple[str, Callable[[KafkaAdmin], Any], str, str]] = [
    ("describe_topics", lambda admin: admin.state("t"), "topic t: ", "Describe on topic t"),
    (
        "describe_configs",
        lambda admin: admin.settings("t"),
        "cannot read the settings of topic t: ",
        "DescribeConfigs on topic t",
    ),
    ("list_offsets", lambda admin: admin.ends("t", [2]), r"no end of t\[2\]: ", "Describe on topic t"),
]


@pytest.mark.parametrize(("request_", "call", "what", "right"), CALLS)
def test_a_request_that_fails_says_what_was_asked_and_takes_a_new_client(
    opened: Opened, request_: str, call: Callable[[KafkaAdmin], Any], what: str, right: str
) -> None:
    refused = KafkaException(KafkaError(KafkaError.UNSUPPORTED_VERSION))
    admin = opened(**{request_: [refused, DENIED, KafkaException(KafkaError(KafkaError._TIMED_OUT))]})
    with pytest.raises(KafkaUnavailable, match=f"^{what}{refused.args[0].str()}") as raised:
        call(admin)
    assert type(raised.value) is KafkaUnavailable
    with pytest.raises(KafkaUnauthorized, match=f"^{what}Kafka refuses {right}"):
        call(admin)
    with pytest.raises(KafkaUnavailable, match=f"^{what}no broker answers in time"):
        call(admin)
    assert len(opened.settings) >= 3


def test_brokers_that_never_answer_are_given_up_and_their_client_too(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def wait(futures: Any, timeout: float) -> Any:
        waited.append(timeout)
        return SimpleNamespace(not_done=[future for future in futures if not future.done()])

    monkeypatch.setattr(concurrent.futures, "wait", wait)
    admin = opened(describe_topics=[None])
    with pytest.raises(KafkaUnavailable, match="the brokers did not answer in time"):
        admin.state("t")
    assert waited == [2 * SECONDS]
    with pytest.raises(KafkaUnavailable):
        admin.state("t")
    assert len(opened.settings) == 2


def test_no_cluster_id_without_brokers(opened: Opened) -> None:
    with pytest.raises(KafkaUnavailable, match="no broker answers: "):
        opened(list_topics=[TIMED_OUT]).cluster_id()


def test_ends_are_of_what_is_committed(opened: Opened) -> None:
    answers = [SimpleNamespace(offset=5, leader_epoch=3), SimpleNamespace(offset=0, leader_epoch=None)]
    admin = opened(list_offsets=answers)
    assert admin.ends("t", iter([2, 0])) == [PartitionEnd(2, 5, 3), PartitionEnd(0, 0, -1)]
    ((asked, isolation, seconds),) = [given for _, given in opened.client.asked]
    assert [(where.topic, where.partition) for where in asked] == [("t", 2), ("t", 0)]
    assert {type(spec).__name__ for spec in asked.values()} == {"LatestSpec"}
    assert (isolation, seconds) == (IsolationLevel.READ_COMMITTED, SECONDS)


def test_an_end_that_was_not_answered_is_none(opened: Opened) -> None:
    admin = opened(list_offsets=[SimpleNamespace(offset=-1001, leader_epoch=None)])
    with pytest.raises(KafkaUnavailable, match=r"^no end of t\[1\]: the brokers did not answer in time$"):
        admin.ends("t", [1])


def test_a_setting_is_asked_of_the_topic(opened: Opened) -> None:
    asked: list[ConfigResource] = []
    admin = opened(describe_configs=[{"x": SimpleNamespace(value=None)}])
    real = opened.client.describe_configs

    def describe_configs(resources: list[ConfigResource], request_timeout: float) -> Mapping[Any, Future[Any]]:
        asked.extend(resources)
        return real(resources, request_timeout)

    opened.client.describe_configs = describe_configs  # type: ignore[method-assign]
    assert admin.settings("t") == {"x": "None"}
    assert [(resource.restype, resource.name) for resource in asked] == [(ResourceType.TOPIC, "t")]
