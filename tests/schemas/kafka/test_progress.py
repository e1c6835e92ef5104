"""When a producer is taken for one that its library has lost. The producer is a double; brokers and clock, too."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from deelog_schemas.kafka import progress as module
from deelog_schemas.kafka.progress import MAX_STALL_SECONDS, STALL_SECONDS, ProducerLost, Progress

UNANSWERED = KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True)


class Desk:
    """A producer whose commit takes a second and is answered once nothing is left; `lefts`: its queue, each second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.lefts, self.answered, self.asked = 0.0, [0], True, 0
        self.stopped: list[float] = []  # seconds for which the process is stopped in each request
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.progress = Progress(self._ask, 7.0)

    def _ask(self) -> bool:
        self.asked += 1
        return self.answered

    def __len__(self) -> int:
        return self.lefts[0]

    def commit_transaction(self, seconds: float) -> None:
        assert seconds == 1.0
        if self.lefts != [0]:
            self.now += 1 + (self.stopped.pop(0) if self.stopped else 0)
            assert self.now < 10_000, "it is asked for ever"
            if len(self.lefts) > 1:
                self.lefts.pop(0)
            raise KafkaException(UNANSWERED)

    def commit(self, *lefts: int) -> float:
        """The seconds that it took."""
        self.lefts = list(lefts)
        begin = self.now
        self.progress.begin()
        self.progress.commit(self, lambda: True)
        return self.now - begin

    def stands(self, left: int = 1) -> float:
        """The seconds after which the producer counts as lost."""
        begin = self.now
        with pytest.raises(ProducerLost, match=f"none of {left} records") as failed:
            self.commit(left)
        assert failed.value.args[0].code() == KafkaError._TIMED_OUT
        return self.now - begin


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch)


def test_a_queue_that_gets_shorter_is_waited_for(desk: Desk) -> None:
    assert desk.commit(9, 9, 9, 8, 8, 8, 7, 7, 7, 0) == 9
    assert desk.asked == 0


def test_a_queue_that_stands_while_brokers_answer_is_lost(desk: Desk) -> None:
    assert desk.stands(3) == 1 + STALL_SECONDS
    assert desk.asked == 1


def test_an_empty_queue_waits_for_the_coordinator(desk: Desk) -> None:
    assert desk.commit(*[0] * 50) == 49
    assert desk.asked == 0


def test_while_no_broker_answers_nothing_is_lost_and_time_does_not_count(desk: Desk) -> None:
    desk.answered = False
    assert desk.commit(*[5] * 20, 0) == 20
    assert desk.asked == 6


def test_each_transaction_has_its_own_time(desk: Desk) -> None:
    desk.commit(2, 2, 2, 0)
    desk.now += 100
    assert desk.stands(2) == 1 + STALL_SECONDS


def test_a_process_that_was_stopped_meanwhile_has_waited_for_one_request(desk: Desk) -> None:
    desk.stopped = [60, 60, 60]
    assert desk.commit(5, 5, 5, 0) == 183
    assert desk.asked == 0
    desk.stopped = [0, 60]
    assert desk.stands(5) == 61 + STALL_SECONDS


def test_where_the_next_producer_stands_too_patience_doubles_up_to_a_minute_and_stays(desk: Desk) -> None:
    waits = [desk.stands() for _ in range(8)]
    assert waits == [1 + min(STALL_SECONDS * 2**i, MAX_STALL_SECONDS) for i in (0, 0, 1, 2, 3, 4, 5, 6)]
    desk.commit(0)
    assert desk.stands() == 1 + MAX_STALL_SECONDS


def test_patience_may_begin_higher_and_never_sinks(desk: Desk) -> None:
    for seconds in (12.0, 6.0):
        desk.progress.begin(seconds)
        desk.commit(0)
    assert desk.stands() == 13


def test_a_producer_that_committed_in_between_leaves_patience_as_it_is(desk: Desk) -> None:
    for _ in range(3):
        assert desk.stands() == 1 + STALL_SECONDS
        desk.commit(0)


def test_a_commit_ends_with_what_is_no_silence_or_when_it_is_not_asked_for_again(desk: Desk) -> None:
    desk.lefts = [1]
    with pytest.raises(KafkaException, match="no answer"):
        desk.progress.commit(desk, lambda: False)
    assert (desk.now, desk.asked) == (1, 0)


def test_what_cannot_be_repeated_is_raised(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fenced(_: float) -> None:
        raise KafkaException(KafkaError(KafkaError._FENCED))

    monkeypatch.setattr(desk, "commit_transaction", fenced)
    with pytest.raises(KafkaException):
        desk.progress.commit(desk, lambda: True)
