"""A connector's meters: sums over committed transactions, and the state of its connections to Kafka."""

from __future__ import annotations

from deelog_connector.runtime.encode import Tally
from deelog_connector.runtime.meters import ANSWER_SECONDS, EventMeter


def test_transactions_add_up() -> None:
    meter = EventMeter()
    assert (meter.changes, meter.behind_us, meter.change_us, meter.row_us) == (0, -1, 0, 0)
    meter.committed(Tally(1, 2, 3, 0, captured_us=900, encoded_us=1000), 0.5)
    assert (meter.creates, meter.updates, meter.deletes, meter.changes, meter.rows) == (1, 2, 3, 6, 0)
    assert (meter.behind_us, meter.change_us, meter.row_us) == (100, 1000, 0)
    meter.committed(Tally(rows=4, encoded_us=2000), 0.5)
    assert (meter.changes, meter.rows) == (6, 4)
    assert (meter.behind_us, meter.change_us, meter.row_us) == (100, 1000, 2000)
    meter.committed(Tally(10, 20, 30, 40, captured_us=4000, encoded_us=3000), 0.5)
    assert (meter.creates, meter.updates, meter.deletes, meter.rows) == (11, 22, 33, 44)
    assert (meter.behind_us, meter.change_us, meter.row_us) == (0, 3000, 3000)  # never before it happened
    assert meter.commits.count == 3


def test_kafka_is_a_problem_until_it_has_answered_and_when_it_has_not_for_long() -> None:
    meter = EventMeter()
    assert meter.kafka_problem(0.0) == "Kafka has not answered yet"
    meter.kafka_answered(100.0)
    assert meter.kafka_problem(100.0 + ANSWER_SECONDS) is None
    assert meter.kafka_problem(101.0 + ANSWER_SECONDS) == f"Kafka has not answered for {1 + ANSWER_SECONDS:.0f} s"


def test_a_request_that_failed_is_a_problem_until_the_next_answer() -> None:
    meter = EventMeter()
    meter.kafka_answered(100.0)
    meter.kafka_away = "no broker answers"
    assert meter.kafka_problem(100.0) == "Kafka cannot be used: no broker answers"
    meter.kafka_answered(101.0)
    assert meter.kafka_problem(101.0) is None
