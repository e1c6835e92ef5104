"""`/connectors`: what is shown of the one connector, what is asked of it, and what is refused. Without HTTP."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from deelog_connector.errors import KafkaTooSlowError, KafkaUnavailable
from deelog_connector.rest.connectors import Connectors
from deelog_connector.rest.entities import ConnectorOffset, ConnectorOffsets, Partition, Position
from deelog_connector.runtime.lifecycle import State
from deelog_schemas.config import MASK, ConfigError, FieldError
from tests.connector.rest.fakes import GIVEN, FakeLifecycle, asked, refused

ME = {"connector": "shop"}
STARTING = (503, "Worker is still starting up.")


class Desk:
    """The handlers over a lifecycle that is none."""

    def __init__(self, **fields: str) -> None:
        self.lifecycle = FakeLifecycle(**fields)
        self.of = Connectors(self.lifecycle.real, "h:8083", "1.2")

    @property
    def calls(self) -> list[Any]:
        return self.lifecycle.calls


def shown(answer: Any) -> Any:
    """A body as JSON's values."""
    return msgspec.to_builtins(answer.body)


TASKS = [
    {"id": 0, "state": "RUNNING", "worker_id": "h:8083", "version": "1.2"},
    {"id": 4, "state": "FAILED", "worker_id": "h:8083", "trace": "segment 5 is stopped", "version": "1.2"},
]
STATUS = {
    "name": "shop",
    "connector": {"state": "RUNNING", "worker_id": "h:8083", "version": "1.2"},
    "tasks": TASKS,
    "type": "source",
}
INFO = {
    "name": "shop",
    "config": GIVEN,
    "tasks": [{"connector": "shop", "task": 0}, {"connector": "shop", "task": 4}],
    "type": "source",
}


def test_the_list_is_its_name_or_what_is_asked_to_be_expanded() -> None:
    desk = Desk()
    assert asked(desk.of.listed).body == ["shop"]
    assert shown(asked(desk.of.listed, query="expand=status")) == {"shop": {"status": STATUS}}
    assert shown(asked(desk.of.listed, query="expand=info")) == {"shop": {"info": INFO}}
    assert shown(asked(desk.of.listed, query="expand=status&expand=info")) == {"shop": {"status": STATUS, "info": INFO}}


def test_a_connector_is_shown_with_its_tasks_and_without_its_secrets() -> None:
    desk = Desk(producer_override_sasl_password="hunter2")
    secret = {"producer.override.sasl.password": MASK}
    assert shown(asked(desk.of.info, **ME)) == {**INFO, "config": GIVEN | secret}
    assert asked(desk.of.config, **ME).body == GIVEN | secret
    assert shown(asked(desk.of.status, **ME)) == STATUS
    desk.lifecycle.trace, desk.lifecycle.state = "why", State.FAILED
    assert shown(asked(desk.of.status, **ME))["connector"] == {
        "state": "FAILED",
        "worker_id": "h:8083",
        "trace": "why",
        "version": "1.2",
    }


def test_a_task_is_the_segments_of_a_partition() -> None:
    desk = Desk()
    first, second = ({"cache.name": "c", "partition": p, "segments": s} for p, s in (("3", "1-2"), ("7", "5")))
    assert shown(asked(desk.of.tasks, **ME)) == [
        {"id": {"connector": "shop", "task": 0}, "config": first},
        {"id": {"connector": "shop", "task": 4}, "config": second},
    ]
    assert shown(asked(desk.of.task_status, **ME, task="4")) == TASKS[1]


@pytest.mark.parametrize("task", ["", "x", "-1", "1.0", "٣", "1234567890"])
def test_what_is_no_number_is_no_task(task: str) -> None:
    desk = Desk()
    assert refused(desk.of.task_status, **ME, task=task) == (404, "HTTP 404 Not Found")


def test_a_task_that_is_not_there_is_named() -> None:
    desk = Desk()
    assert refused(desk.of.task_status, **ME, task="007") == (404, "No status found for task shop-7")
    assert refused(desk.of.task_status, connector="x", task="0") == (404, "No status found for task x-0")
    assert refused(desk.of.restart_task, **ME, task="1") == (404, "Task shop-1 not found")


def test_topics_and_offsets_are_what_the_lifecycle_says() -> None:
    desk = Desk()
    assert shown(asked(desk.of.topics, **ME)) == {"shop": {"topics": ["p.c", "p.c.positions"]}}
    assert shown(asked(desk.of.topics, connector="x")) == {"x": {"topics": []}}
    assert shown(asked(desk.of.offsets, **ME)) == {
        "offsets": [
            {"partition": {"cache": "c", "segment": 1}, "offset": {"epoch": 3, "seq": 17}},
            {"partition": {"cache": "c", "segment": 2}, "offset": {"epoch": 4, "seq": 1}},
        ]
    }


ACTIONS = ["pause", "resume", "stop", "restart"]


@pytest.mark.parametrize(("action", "status"), [("pause", 202), ("resume", 202), ("stop", 204), ("restart", 204)])
def test_an_action_is_done_before_it_is_answered(action: str, status: int) -> None:
    desk = Desk()
    answer = asked(getattr(desk.of, action), **ME)
    assert (answer.status, answer.body, desk.calls) == (status, None, [action])


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    ("error", "words"),
    [(KafkaTooSlowError("try again"), "Request timed out. try again"), (KafkaUnavailable("no broker"), "no broker")],
)
def test_an_action_that_fails_says_why(action: str, error: Exception, words: str) -> None:
    desk = Desk()
    desk.lifecycle.fails = error
    assert refused(getattr(desk.of, action), **ME) == (500, words)


@pytest.mark.parametrize(
    ("query", "calls"),
    [
        ("includeTasks=true", ["restart_soon"]),
        ("onlyFailed=true", []),
        ("includeTasks=true&onlyFailed=true", [("restart_task", 0), ("restart_task", 4)]),
    ],
)
def test_a_restart_of_tasks_is_answered_with_the_status(query: str, calls: list[Any]) -> None:
    desk = Desk()
    answer = asked(desk.of.restart, query=query, **ME)
    assert (answer.status, shown(answer), desk.calls) == (202, STATUS, calls)


def test_a_task_is_restarted_alone() -> None:
    desk = Desk()
    assert asked(desk.of.restart_task, **ME, task="4").status == 204
    assert desk.calls == [("restart_task", 4)]


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        ("info", "Connector x not found"),
        ("config", "Connector x not found"),
        ("status", "No status found for connector x"),
        ("tasks", "Connector x not found"),
        ("offsets", "Connector x not found"),
        ("pause", "Unknown connector x"),
        ("resume", "Unknown connector x"),
        ("stop", "Connector x not found"),
        ("restart", "Connector x not found"),
        ("restart_task", "Connector x not found"),
        ("patch_config", "Connector x not found"),
        ("alter_offsets", "Connector x not found"),
        ("reset_offsets", "Connector x not found"),
    ],
)
def test_of_another_connector_nothing_is_known(handler: str, words: str) -> None:
    desk = Desk()
    assert refused(getattr(desk.of, handler), connector="x") == (404, words)
    assert desk.calls == []


def test_a_restart_with_tasks_has_words_of_its_own() -> None:
    assert refused(Desk().of.restart, query="includeTasks=true", connector="x") == (404, "Unknown connector: x")


@pytest.mark.parametrize("handler", [*ACTIONS, "restart_task", "patch_config", "alter_offsets", "reset_offsets"])
def test_before_it_has_started_nothing_is_changed(handler: str) -> None:
    desk = Desk()
    desk.lifecycle.started = False
    assert refused(getattr(desk.of, handler), {}, task="0", **ME) == STARTING
    assert refused(desk.of.put_config, {}, **ME) == STARTING
    assert asked(desk.of.info, **ME).status == 200


# -- configuration ------------------------------------------------------------------------------------------------


def test_a_configuration_is_checked_applied_and_shown() -> None:
    desk = Desk(producer_override_sasl_password="hunter2")
    given = {"producer.override.sasl.password": MASK, "max.batch.size": 777, "tracing.headers.enabled": False}
    answer = asked(desk.of.put_config, {**GIVEN, **given}, **ME)
    assert desk.calls == ["check", "configure", "check"]
    config = desk.lifecycle.config
    assert (config["max.batch.size"], config.raw["producer.override.sasl.password"]) == (777, "hunter2")
    assert answer.body.config["max.batch.size"] == "777"
    assert answer.body.config["producer.override.sasl.password"] == MASK


def test_some_fields_are_set_and_those_given_as_null_taken_out() -> None:
    desk = Desk(max_batch_size="5", commit_interval_ms="100")
    asked(desk.of.patch_config, {"max.batch.size": None, "commit.interval.ms": 50}, **ME)
    config = desk.lifecycle.config
    assert (config["max.batch.size"], config["commit.interval.ms"], config["cache.name"]) == (8192, 50, "c")
    assert "max.batch.size" not in config.raw


def test_a_name_may_be_left_out_but_not_be_another() -> None:
    desk = Desk()
    without = {name: text for name, text in GIVEN.items() if name != "name"}
    asked(desk.of.put_config, without, **ME)
    assert desk.lifecycle.config["name"] == "shop"
    assert refused(desk.of.put_config, {**GIVEN, "name": "x"}, **ME) == (
        400,
        "Connector name configuration (x) doesn't match connector name in the URL (shop)",
    )
    assert refused(desk.of.put_config, {"name": "shop", "b": "1"}, **ME) == (
        400,
        "Connector config {b, name} contains no connector type",
    )


def test_all_that_is_wrong_with_a_configuration_is_said_and_nothing_applied() -> None:
    desk = Desk()
    status, words = refused(desk.of.put_config, {**GIVEN, "max.batch.size": 0, "rest.token": MASK}, **ME)
    lines = words.splitlines()
    assert (status, lines[0]) == (
        400,
        "Connector configuration is invalid and contains the following 2 error(s):",
    )
    assert lines[1].startswith("rest.token: is ")
    assert lines[2].startswith("max.batch.size = ")
    assert lines[3].startswith("You can also find the above list of errors at the endpoint")
    assert desk.calls == []


def test_what_only_the_lifecycle_or_the_attempt_shows_is_said_too() -> None:
    error = ConfigError([FieldError("topic.prefix", "may not change")])
    desk = Desk()
    desk.lifecycle.refuses = error
    status, words = refused(desk.of.put_config, dict(GIVEN), **ME)
    assert (status, "topic.prefix: may not change" in words, desk.calls) == (400, True, ["check"])
    desk = Desk()
    desk.lifecycle.fails = error
    status, words = refused(desk.of.patch_config, {}, **ME)
    assert (status, "topic.prefix: may not change" in words, desk.calls) == (400, True, ["check", "configure"])
    desk.lifecycle.fails = KafkaTooSlowError("try again")
    assert refused(desk.of.patch_config, {}, **ME) == (500, "Request timed out. try again")


# -- offsets ------------------------------------------------------------------------------------------------------


def offsets(*entries: tuple[str, int, tuple[int, int] | None]) -> ConnectorOffsets:
    return ConnectorOffsets(
        [ConnectorOffset(Partition(c, s), None if at is None else Position(*at)) for c, s, at in entries]
    )


def stopped() -> Desk:
    desk = Desk()
    desk.lifecycle.state = State.STOPPED
    return desk


def test_a_stopped_connectors_segments_are_reset_where_no_offset_is_given() -> None:
    desk = stopped()
    answer = asked(desk.of.alter_offsets, offsets(("c", 1, None), ("c", 2, (4, 1)), ("c", 5, None)), **ME)
    assert shown(answer) == {"message": "The offsets for this connector have been altered successfully"}
    assert desk.calls == [("reset", [("c", 1), ("c", 5)])]


def test_all_segments_of_the_node_are_reset_together() -> None:
    desk = stopped()
    answer = asked(desk.of.reset_offsets, **ME)
    assert shown(answer) == {"message": "The offsets for this connector have been reset successfully"}
    assert desk.calls == [("reset", [("c", 1), ("c", 2), ("c", 5)])]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (ConnectorOffsets(), "Partitions / offsets need to be provided"),
        (ConnectorOffsets([]), "Partitions / offsets need to be provided"),
        (offsets(("c", 3, None)), "Segment 3 of cache c is none that this node writes"),
        (offsets(("d", 1, None)), "Segment 1 of cache d is none that this node writes"),
        (offsets(("c", 1, (3, 16))), "The offset of segment 1 of cache c is what Kafka was read to hold"),
        (offsets(("c", 1, (2, 17))), "The offset of segment 1 of cache c is what Kafka was read to hold"),
        (offsets(("c", 5, (1, 1))), "The offset of segment 5 of cache c is what Kafka was read to hold"),
    ],
)
def test_offsets_that_cannot_be_set_are_refused(given: ConnectorOffsets, words: str) -> None:
    desk = stopped()
    status, told = refused(desk.of.alter_offsets, given, **ME)
    assert (status, told.startswith(words), desk.calls) == (400, True, [])


def test_offsets_are_those_of_a_stopped_connector() -> None:
    desk = Desk()
    for handler in (desk.of.alter_offsets, desk.of.reset_offsets):
        status, words = refused(handler, offsets(("c", 1, None)), **ME)
        assert (status, "issuing a 'PUT' request to the '/connectors/shop/stop' endpoint" in words) == (400, True)
    assert desk.calls == []


@pytest.mark.parametrize("query", ["onlyFailed=true", "includeTasks=true&onlyFailed=true"])
def test_what_has_failed_and_is_restarted_alone_may_be_the_connector(query: str) -> None:
    desk = Desk()
    desk.lifecycle.state = State.FAILED
    assert asked(desk.of.restart, query=query, **ME).status == 202
    assert desk.calls == ["restart_soon"]
