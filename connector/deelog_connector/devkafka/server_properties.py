"""The configuration of a broker for development: one node, only on this machine, transactions on, quick to start."""

from __future__ import annotations

from pathlib import Path

from deelog_connector.devkafka.ports import HOST

# A quiet log (slf4j-simple writes to stderr) and no second one by log4j, which only carries the level settings.
JVM = (
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",  # else a killed JVM leaves a file in /tmp
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dlog4j2.level=OFF",
    "-Dlog4j2.StatusLogger.level=OFF",
)


def settings(port: int, controller_port: int, log_dirs: Path) -> dict[str, str]:
    """server.properties: the settings of one node that differ from Kafka's defaults."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "log.dirs": str(log_dirs),
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        # Few partitions: each is a directory to create at the first group and the first transaction.
        "offsets.topic.num.partitions": "8",
        "transaction.state.log.num.partitions": "8",
        # Members may leave and join quickly here: a node's death is to be noticed within a second.
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "600",
        # After a `kill -9` the same broker may register anew only when its former session has ended (9 s else).
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        # No record twice a second that says nothing: a third of what an idle broker does.
        "metadata.max.idle.interval.ms": "0",
    }
