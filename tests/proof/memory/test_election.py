"""The election of the grid's controller in memory: one of the members is elected, and only the last one commits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deelog_connector.errors import TopologyError
from deelog_connector.kafka_port import REQUEST_SECONDS, Election, NotController
from deelog_proof.memory.broker import Kafka
from deelog_proof.memory.engine import Engine
from tests.proof.memory.nodes import Node, config, content

CONFIG = config(cache_failure_timeout_ms="2000")
TOPIC = CONFIG.topics.topology
GROUP, ID = CONFIG.topics.controller_group, CONFIG.topics.transactional_id_controller
SESSION_SECONDS = 6.0


class Member:
    """A node that stands for election."""

    def __init__(self, kafka: Kafka, name: str) -> None:
        self.node = Node(kafka.engine, kafka, name)
        self.elected = False
        self.told: list[bool] = []
        self.refused: list[Exception] = []
        self.election: Election = self.node.loop.within(self._made)

    def _made(self) -> Election:
        return self.node.port.election(CONFIG, self.node.name, self._elected, self.refused.append)

    def _elected(self, elected: bool) -> None:
        self.elected = elected
        self.told.append(elected)

    def take(self) -> None:
        self.node.run(self.election.take())

    def commit(self, value: bytes) -> None:
        self.node.run(self.election.commit([("view", value)]))


@pytest.fixture
def kafka() -> Kafka:
    kafka = Kafka(Engine(1))
    kafka.create(TOPIC, 1)
    return kafka


@pytest.fixture
def members(kafka: Kafka) -> Iterator[list[Member]]:
    members = [Member(kafka, name) for name in ("n1", "n2", "n3")]
    for member in members:
        member.election.start()
    kafka.engine.run(seconds=1)
    yield sorted(members, key=lambda member: not member.elected)  # the elected one comes first
    for member in members:
        assert not member.node.loop.errors
        member.node.loop.bury()


def elected(members: list[Member]) -> list[str]:
    return [member.node.name for member in members if member.elected]


def test_one_is_elected_and_stays(kafka: Kafka, members: list[Member]) -> None:
    assert len(elected(members)) == 1
    kafka.engine.run(seconds=100)
    assert members[0].told == [True]
    another = Member(kafka, "n4")
    another.election.start()
    kafka.engine.run(seconds=100)
    assert (members[0].told, another.told) == ([True], [])
    another.node.loop.bury()


def test_the_elected_one_commits(kafka: Kafka, members: list[Member]) -> None:
    members[0].take()
    members[0].commit(b"1")
    members[0].commit(b"2")
    assert content(kafka, topic=TOPIC) == [b"1", b"2"]


def test_who_is_not_elected_does_not_commit(kafka: Kafka, members: list[Member]) -> None:
    with pytest.raises(NotController, match="not elected"):
        members[1].commit(b"1")


def test_one_that_has_not_joined_cannot_take(kafka: Kafka) -> None:
    member = Member(kafka, "n1")
    with pytest.raises(NotController, match="not elected"):
        member.take()
    member.node.loop.bury()


def test_who_takes_fences_the_last_one(kafka: Kafka, members: list[Member]) -> None:
    members[0].take()
    members[1].take()
    with pytest.raises(NotController, match="fenced"):
        members[0].commit(b"1")
    assert content(kafka, topic=TOPIC) == []


def test_one_that_stops_is_followed_at_once(kafka: Kafka, members: list[Member]) -> None:
    members[0].take()
    members[0].node.run(members[0].election.stop())
    kafka.engine.run(seconds=SESSION_SECONDS / 3)
    assert not members[0].elected
    assert len(elected(members)) == 1


def test_one_that_has_stopped_has_left(kafka: Kafka, members: list[Member]) -> None:
    group = kafka.groups[GROUP]
    (holder,) = (member for member in (group.holder,) if member is not None)
    members[0].node.run(members[0].election.stop())
    assert holder not in group
    kafka.engine.run(seconds=2 * SESSION_SECONDS)
    assert group.generation == 4, "three joined and one left"
    assert members[0].told == [True, False]
    idle = Member(kafka, "n4")
    idle.node.run(idle.election.stop())
    idle.node.loop.bury()


def test_one_that_is_killed_is_followed_after_its_session(kafka: Kafka, members: list[Member]) -> None:
    members[0].node.loop.kill()
    kafka.engine.run(seconds=SESSION_SECONDS / 2)
    assert elected(members[1:]) == []
    kafka.engine.run(seconds=SESSION_SECONDS)
    assert len(elected(members[1:])) == 1


def test_one_that_was_paused_commits_no_view(kafka: Kafka, members: list[Member]) -> None:
    first = members[0]
    first.take()
    first.node.loop.pause()
    kafka.engine.run(seconds=2 * SESSION_SECONDS)
    assert first.elected
    (successor,) = (member for member in members[1:] if member.elected)
    committing = first.node.loop.create_task(first.election.commit([("view", b"ghost")]))
    first.node.loop.resume()
    kafka.engine.run(committing.done)
    assert isinstance(committing.exception(), NotController)
    successor.take()
    successor.commit(b"1")
    kafka.engine.run(seconds=SESSION_SECONDS)
    assert elected(members) == [successor.node.name]
    assert content(kafka, topic=TOPIC) == [b"1"]


def test_a_view_of_a_former_member_is_refused_though_nobody_took_over(kafka: Kafka, members: list[Member]) -> None:
    first = members[0]
    first.take()
    group = kafka.groups[GROUP]
    committing = first.node.loop.create_task(first.election.commit([("view", b"ghost")]))
    kafka.engine.run(lambda: kafka.transactions)
    group.leave(group.holder or "")
    kafka.engine.run(committing.done)
    assert isinstance(committing.exception(), NotController)
    assert kafka.sessions[ID] == 1
    assert not kafka.transactions
    assert content(kafka, topic=TOPIC) == []


def test_a_view_is_committed_though_another_member_joins(kafka: Kafka, members: list[Member]) -> None:
    members[0].take()
    another = Member(kafka, "n4")
    another.election.start()
    kafka.engine.run(lambda: kafka.groups[GROUP].generation == 4)
    members[0].commit(b"1")
    assert content(kafka, topic=TOPIC) == [b"1"]
    assert kafka.counts["aborts"] >= 1
    another.node.loop.bury()


def test_one_that_rejoins_is_not_elected_while_there_are_others(kafka: Kafka, members: list[Member]) -> None:
    members[0].take()
    members[0].election.rejoin()
    kafka.engine.run(seconds=SESSION_SECONDS / 2)
    assert not members[0].elected
    assert len(elected(members)) == 1
    with pytest.raises(NotController):
        members[0].commit(b"1")
    kafka.engine.run(seconds=SESSION_SECONDS)
    assert kafka.groups[GROUP].generation == 5, "it left and joined, once"


def test_one_that_stands_aside_is_a_member_and_is_not_elected_for_a_while(kafka: Kafka, members: list[Member]) -> None:
    began, group = kafka.engine.now, kafka.groups[GROUP]
    members[0].election.rejoin(aside=2 * SESSION_SECONDS)
    kafka.engine.run(seconds=SESSION_SECONDS)
    assert (len(group.clients), members[0].elected, len(elected(members))) == (3, False, 1)
    for other in members[1:]:
        stopped = other.node.loop.create_task(other.election.stop())
        kafka.engine.run(stopped.done)
    assert (len(group.clients), group.holder) == (1, None)
    kafka.engine.run(lambda: members[0].elected)
    assert 2 * SESSION_SECONDS <= kafka.engine.now - began < 2.5 * SESSION_SECONDS


def test_one_that_is_cut_off_knows_it_by_itself(kafka: Kafka, members: list[Member]) -> None:
    members[0].node.port.way.connected = False
    kafka.engine.run(seconds=2 * SESSION_SECONDS)
    assert not members[0].elected
    assert len(elected(members)) == 1
    members[0].node.port.way.connected = True
    kafka.engine.run(seconds=2 * SESSION_SECONDS)
    assert len(elected(members)) == 1


def test_an_outage_of_the_brokers_elects_nobody_else(kafka: Kafka, members: list[Member]) -> None:
    kafka.up = False
    kafka.engine.run(seconds=SESSION_SECONDS / 2)
    kafka.up = True
    kafka.engine.run(seconds=2 * SESSION_SECONDS)
    assert members[0].told == [True]


def test_while_brokers_are_away_nobody_takes_or_commits(kafka: Kafka, members: list[Member]) -> None:
    members[0].take()
    kafka.up = False
    before = kafka.engine.now
    with pytest.raises(NotController, match="a view cannot be committed: the brokers do not answer"):
        members[0].commit(b"1")
    with pytest.raises(NotController, match="cannot become controller: the brokers do not answer"):
        members[0].take()
    assert kafka.engine.now - before < 2 * REQUEST_SECONDS + 1
    kafka.engine.run(seconds=1)
    assert members[0].refused == [], "no right is missing"


@pytest.mark.parametrize(
    ("operation", "name", "message"),
    [
        ("Read", GROUP, "Read on group"),
        ("Write", ID, "Write on transactional id"),
        ("Write", TOPIC, "Write on topic"),
    ],
)
def test_a_missing_right_is_told(kafka: Kafka, members: list[Member], operation: str, name: str, message: str) -> None:
    first = members[0]
    first.take()
    kafka.denied.add((operation, name))
    kafka.engine.run(seconds=SESSION_SECONDS / 2)
    with pytest.raises(NotController):
        first.commit(b"1")
    kafka.engine.run(seconds=1)
    assert any(isinstance(error, TopologyError) and message in str(error) for error in first.refused)


def test_a_missing_right_is_told_to_who_waits_and_to_who_takes(kafka: Kafka, members: list[Member]) -> None:
    kafka.denied.add(("Write", ID))
    with pytest.raises(NotController, match="cannot become controller: Kafka refuses Write on transactional id"):
        members[0].take()
    kafka.engine.run(seconds=0.1)
    (error,) = members[0].refused
    assert "producer.override" in str(error)
    kafka.denied = {("Read", GROUP)}
    kafka.engine.run(seconds=SESSION_SECONDS / 2)
    assert members[1].refused
    assert {type(error) for error in members[1].refused} == {TopologyError}
    assert "consumer.override" in str(members[1].refused[0])


def test_a_commit_that_is_refused_is_not_tried_again(kafka: Kafka, members: list[Member]) -> None:
    members[0].take()
    kafka.denied.add(("Write", TOPIC))
    before = kafka.engine.now
    with pytest.raises(NotController, match="a view cannot be committed"):
        members[0].commit(b"1")
    assert kafka.engine.now - before < 0.1
