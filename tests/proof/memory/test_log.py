"""One partition: what is stable, what is read, what a marker ends, and whose leader epoch an offset is of."""

from __future__ import annotations

import pytest

from deelog_connector.kafka_port import OutRecord
from deelog_proof.memory.log import Log, Transaction, headers_of


def record(value: bytes) -> OutRecord:
    return OutRecord("t", 2, b"k", value, [])


def written(log: Log, transaction: Transaction, *values: bytes) -> None:
    for value in values:
        transaction.first.setdefault(log, log.end)
        log.append(record(value), transaction)


def ended(log: Log, transaction: Transaction, state: str = "committed") -> list[tuple[str, list[bytes | None]]]:
    """Ends it; the transactions that its marker has ended as well, by state, with their values."""
    transaction.state = state
    return [(former.state, [r.value for r in records]) for former, records in log.end_transaction(transaction)]


def read(log: Log, start: int = 0, limit: int = 100) -> tuple[list[bytes | None], int]:
    records, following = log.read(start, limit)
    return [found.value for found in records], following


@pytest.fixture
def log() -> Log:
    return Log("t", 2)


def test_nothing_is_read_from_the_first_offset_of_an_open_transaction_on(log: Log) -> None:
    first, second = Transaction("a"), Transaction("b")
    log.append(record(b"0"), None)
    written(log, first, b"1")
    written(log, second, b"2")
    assert (log.end, log.stable, read(log)) == (3, 1, ([b"0"], 1))
    assert ended(log, second) == []
    assert (log.end, log.stable) == (4, 1)
    assert ended(log, first, "aborted") == []
    assert (log.end, log.stable, read(log)) == (5, 5, ([b"0", b"2"], 5))
    assert read(log, 1, 2) == ([b"2"], 3)
    assert read(log, 5) == ([], 5)
    log.first, log.slots = 2, log.slots[2:]
    assert (log.end, read(log)) == (5, ([b"2"], 5))


def test_a_record_has_its_place_and_headers_in_bytes(log: Log) -> None:
    log.append(OutRecord("t", 2, b"k", None, [("a", "text"), ("b", b"bytes"), ("c", None)]), None)
    ((found,), _) = log.read(0, 1)
    assert (found.topic, found.partition, found.offset, found.key, found.value) == ("t", 2, 0, b"k", None)
    assert found.headers == [("a", b"text"), ("b", b"bytes"), ("c", None)]
    assert headers_of(record(b"")) == []


@pytest.mark.parametrize("state", ["committed", "aborted"])
def test_a_marker_ends_what_earlier_transactions_of_its_id_have_left_open(log: Log, state: str) -> None:
    left, other, last = Transaction("a", "aborted"), Transaction("b"), Transaction("a")
    written(log, left, b"0", b"1")
    written(log, other, b"2")
    ended(log, other)
    assert log.stable == 0
    written(log, last, b"3")
    assert ended(log, last, state) == [("aborted", [b"0", b"1"])]
    assert log.stable == log.end == 6
    assert read(log)[0] == ([b"0", b"1", b"2", b"3"] if state == "committed" else [b"2"])
    # What ends alike is known as two transactions still: a later marker may end other parts of the first one otherwise.
    of_left = [b"0", b"1"] if state == "aborted" else []
    assert [found.value for found in log.records_of(left)] == of_left
    assert [found.value for found in log.records_of(last)] == ([b"3"] if of_left else [b"0", b"1", b"3"])


def test_a_marker_alone_ends_it_too(log: Log) -> None:
    left, last = Transaction("a", "aborted"), Transaction("a")
    written(log, left, b"0")
    assert ended(log, last) == [("aborted", [b"0"])]
    assert (log.stable, log.end) == (2, 2)


def test_an_offset_is_of_the_leader_epoch_under_which_it_was_written(log: Log) -> None:
    for value in b"0", b"1", b"2":
        log.append(record(value), None)
    log.elect()
    log.append(record(b"3"), None)
    log.elect()
    assert (log.epoch, [log.epoch_of(offset) for offset in range(5)]) == (2, [0, 0, 0, 1, 2])
    assert log.holds(3, 0)
    assert not log.holds(4, 0)
    assert log.holds(4, 1)
    assert log.holds(4, 2)
    assert not log.holds(5, 2)
    del log.slots[2:]
    log.elect()  # an unclean one
    assert not log.holds(3, 0)
    assert log.holds(2, 0)
    assert (log.epoch, log.epoch_of(2)) == (3, 3)
