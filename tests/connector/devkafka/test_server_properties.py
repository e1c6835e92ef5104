"""The configuration of a broker for development: on this machine alone, one node, quick to start."""

from __future__ import annotations

from pathlib import Path

from deelog_connector.devkafka.server_properties import JVM, settings


def test_it_listens_on_this_machine_alone() -> None:
    made = settings(9092, 9093, Path("/data"))
    assert made["listeners"] == "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"
    assert made["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9092"
    assert made["controller.quorum.voters"] == "1@127.0.0.1:9093"
    assert made["log.dirs"] == "/data"


def test_one_node_is_enough_and_topics_are_not_made_by_accident() -> None:
    made = settings(1, 2, Path("/data"))
    assert (made["process.roles"], made["node.id"]) == ("broker,controller", "1")
    factors = {name: value for name, value in made.items() if name.endswith((".replication.factor", ".min.isr"))}
    assert set(factors.values()) == {"1"}
    assert len(factors) == 5
    assert made["auto.create.topics.enable"] == "false"


def test_all_of_it_is_text_and_a_killed_jvm_leaves_no_file() -> None:
    assert all(isinstance(value, str) for value in settings(1, 2, Path("/data")).values())
    assert "-XX:-UsePerfData" in JVM
