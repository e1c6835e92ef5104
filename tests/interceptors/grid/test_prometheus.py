"""A real Prometheus scrapes real nodes: our board, our alert rules, and the queries of Debezium's published boards.

Each expression is evaluated as in its file, with Grafana's variables filled in, and must have a result.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deelog_connector.devkafka.ports import HOST, free_ports
from tests.interceptors.grid.cluster import Grid, eventually
from tests.support.paths import ROOT
from tests.support.prometheus import Prometheus, program, running_prometheus

MONITORING = ROOT / "monitoring"
BOARD = MONITORING / "grafana" / "dashboards" / "deelog.json"
RULES = MONITORING / "prometheus" / "alerts.yml"

# https://github.com/debezium/debezium-examples, monitoring/debezium-grafana/debezium-dashboard.json, all expressions
# and the queries of the two variables, except those of the JVM and of Kafka Connect's workers.
DEBEZIUM = """
debezium_metrics_MilliSecondsSinceLastEvent{plugin="$connector_type",name="$connector_name",context="streaming"}
debezium_metrics_TotalNumberOfEventsSeen{plugin="$connector_type",name="$connector_name",context="streaming"}
debezium_metrics_NumberOfEventsSkipped{plugin="$connector_type",name="$connector_name",context="streaming"}
debezium_metrics_Connected{plugin="$connector_type",name="$connector_name",context="streaming"}
debezium_metrics_TotalTableCount{plugin="$connector_type",name="$connector_name",context="snapshot"}
debezium_metrics_RemainingTableCount{plugin="$connector_type",name="$connector_name",context="snapshot"}
debezium_metrics_SnapshotRunning{plugin="$connector_type",name="$connector_name",context="snapshot"}
debezium_metrics_SnapshotCompleted{plugin="$connector_type",name="$connector_name",context="snapshot"}
debezium_metrics_SnapshotAborted{plugin="$connector_type",name="$connector_name",context="snapshot"}
debezium_metrics_TotalNumberOfEventsSeen{plugin="$connector_type",name="$connector_name",context="snapshot"}
debezium_metrics_NumberOfEventsSkipped{plugin="$connector_type",name="$connector_name",context="snapshot"}
debezium_metrics_RowsScanned{plugin="$connector_type",name="$connector_name"}
debezium_metrics_TotalNumberOfEventsSeen
debezium_metrics_TotalNumberOfEventsSeen{plugin="$connector_type"}
""".strip().splitlines()


def expressions(board: dict[str, Any]) -> Iterator[str]:
    """The expressions of all panels, also of those within rows."""
    for panel in board.get("panels", ()):
        yield from (target["expr"] for target in panel.get("targets", ()))
        yield from expressions(panel)


def filled(expression: str, prefix: str) -> str:
    """The expression with values for Grafana's variables."""
    for variable, value in {
        "$connector_type": "deelog",
        "$connector_name": prefix,
        "$__rate_interval": "5s",
        "$__range": "1m",
        "$name": prefix,
        "$cache": "c",
    }.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression
    return expression


@pytest.fixture
def ports() -> list[int]:
    return free_ports(2)


@pytest.fixture
def watched(grid: Grid, ports: list[int]) -> Grid:
    """Two nodes, each with its `/metrics`, that have written something."""
    for number, port in enumerate(ports, 1):
        node = grid.nodes[f"n{number}"] = grid.node(f"n{number}", metrics_port=str(port))
        node.start()
    for node in grid.nodes.values():
        node.wait()
    grid.complete(2)
    written(grid)  # writes from here on are not part of a reset
    with grid.client() as client:
        for i in range(500):
            client.set(f"key:{i}", b"v" * 50)
        for i in range(100):
            client.delete(f"key:{i}")
    written(grid)
    return grid


def written(grid: Grid) -> None:
    eventually(lambda: all(node.stats()["unwritten"] == 0 for node in grid.live()), 60, "everything written")


@pytest.fixture
def prometheus(watched: Grid, ports: list[int], tmp_path: Path) -> Iterator[Prometheus]:
    """Scrapes both, as the job `deelog`."""
    with running_prometheus(
        tmp_path / "prometheus", {"deelog": [f"{HOST}:{port}" for port in ports]}, [RULES]
    ) as found:
        yield found


@pytest.mark.slow
def test_boards_and_alerts_on_a_real_prometheus(watched: Grid, prometheus: Prometheus) -> None:
    prefix = watched.config["topic.prefix"]
    board = json.loads(BOARD.read_text("utf-8"))
    asked = [*expressions(board), *DEBEZIUM]
    assert len(asked) > 45
    for expression in asked:
        finds(prometheus, filled(expression, prefix))
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            metric = variable["definition"].removeprefix("label_values(").rpartition(",")[0]
            assert prometheus.query(filled(metric, prefix))
    figures_are_those_of_the_nodes(watched, prometheus)
    a_lost_node_shows(watched, prometheus)


def figures_are_those_of_the_nodes(grid: Grid, prometheus: Prometheus) -> None:
    stats = [node.stats() for node in grid.live()]
    for expression, value in (
        ("sum(deelog_operations_written_total)", 600),
        ("sum(debezium_metrics_TotalNumberOfCreateEventsSeen)", 500),
        ("sum(debezium_metrics_TotalNumberOfDeleteEventsSeen)", 100),
        ('sum(deelog_segments{role="primary",phase="writing"})', 32),
        ('sum(deelog_segments{role="backup"})', 32),
        ('sum(deelog_entries{role="primary"})', 400),
        ('sum(deelog_entries{role="backup"})', 400),
        ('sum(deelog_resets_total{reason="initial"})', sum(s["resets"].get("initial", 0) for s in stats)),
        ("sum(deelog_takeover_seconds_count)", sum(s["takeovers"] for s in stats)),
        ("sum(deelog_backup_lag_operations)", 0),
        ('sum(deelog_backup_streams{stage="streaming"})', 32),
        ("sum(deelog_grid_controller)", 1),
        ("min(deelog_grid_members)", 2),
        ("max(deelog_grid_under_replicated_segments)", 0),
        ("max(deelog_grid_offline_segments)", 0),
        ("max(deelog_oldest_unverified_change_seconds)", 0),
    ):
        becomes(prometheus, expression, value)
    assert sum(s["resets"].get("initial", 0) for s in stats) >= 32
    states = prometheus.alerts()
    assert len(states) >= 15
    # Initial resets are no loss. All other alerts are inactive, too.
    assert {name for name, state in states.items() if state != "inactive"} == set()


def a_lost_node_shows(grid: Grid, prometheus: Prometheus) -> None:
    """A pending alert would fire after the rule's `for`."""
    grid.nodes["n1"].kill()
    for alert in ("DeelogDown", "DeelogUnderReplicated"):
        becomes_pending(prometheus, alert)
    left = "and on (instance) up == 1"
    becomes(prometheus, f'sum(deelog_segments{{role="primary",phase="writing"}} {left})', 32)
    becomes(prometheus, f"sum(deelog_fences_total {left} and on () (deelog_fences_total > 0)) > bool 0", 1)


def finds(prometheus: Prometheus, expression: str) -> None:
    eventually(lambda: prometheus.query(expression), 60, expression)


def becomes(prometheus: Prometheus, expression: str, value: float) -> None:
    eventually(lambda: prometheus.value(expression) == value, 60, f"{expression} == {value}")


def becomes_pending(prometheus: Prometheus, alert: str) -> None:
    eventually(lambda: prometheus.alerts()[alert] == "pending", 60, alert)


def test_each_alert_fires(tmp_path: Path) -> None:
    """On the series of a failing node; `promtool` evaluates the rules as the server does."""
    where = 'name="shop",cache="c",instance="n1:9401"'
    debezium = f'plugin="deelog",context="streaming",{where}'
    series = {
        "DeelogDown": {'up{job="deelog",instance="n1:9401"}': "0x120"},
        "DeelogUnverifiedChange": {f'deelog_oldest_unverified_change_seconds{{{where},role="primary"}}': "31x120"},
        "DeelogNotConnected": {f"debezium_metrics_Connected{{{debezium}}}": "0x120"},
        "DeelogKafkaAway": {f"deelog_kafka_up{{{where}}}": "0x120"},
        "DeelogPartitionWithheld": {f"deelog_withheld_partitions{{{where}}}": "1x120"},
        "DeelogSegmentStopped": {f'deelog_segments{{{where},role="primary",phase="stopped"}}': "1x120"},
        "DeelogTakeoverHangs": {f'deelog_segments{{{where},role="primary",phase="look"}}': "3x120"},
        "DeelogReset": {f'deelog_resets_total{{{where},reason="hole"}}': "0x10 1x110"},
        "DeelogOpLogFilling": {
            f"debezium_metrics_CurrentQueueSizeInBytes{{{debezium}}}": "90x120",
            f"debezium_metrics_MaxQueueSizeInBytes{{{debezium}}}": "100x120",
        },
        "DeelogOpLogFull": {f'deelog_oplog_overflows_total{{{where},policy="block"}}': "0x10 5x110"},
        "DeelogTransactionsFail": {f'deelog_transactions_failed_total{{{where},cause="lost"}}': "0+1x120"},
        "DeelogTruncated": {f"deelog_truncations_total{{{where}}}": "0x10 1x110"},
        "DeelogOffline": {f"deelog_grid_offline_segments{{{where}}}": "1x120"},
        "DeelogUnderReplicated": {f"deelog_grid_under_replicated_segments{{{where}}}": "2x120"},
        "DeelogBackupLags": {f'deelog_backup_lag_seconds{{{where},backup="n2"}}': "6x120"},
        "DeelogPaused": {f"deelog_paused{{{where}}}": "1x720"},
    }
    tests = []
    for name, wounded in series.items():
        at = "70m" if name == "DeelogPaused" else "9m"
        expression = f'count(ALERTS{{alertname="{name}",alertstate="firing"}})'
        tests.append(
            {
                "interval": "6s",
                "input_series": [{"series": key, "values": values} for key, values in wounded.items()],
                "promql_expr_test": [
                    {"expr": expression, "eval_time": at, "exp_samples": [{"labels": "{}", "value": 1}]},
                    {
                        "expr": 'count(ALERTS{alertstate="firing"})',
                        "eval_time": at,
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    },
                ],
            }
        )
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "6s", "tests": tests}))
    done = subprocess.run([program("promtool"), "test", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rules = RULES.read_text("utf-8")
    assert rules.count("- alert: ") == len(series)
