"""When a job's reader reports that Kafka is silent, by the clock of a scripted consumer; without Kafka."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deelog_spark.errors import DiffError
from deelog_spark.kafka import HOPELESS_SECONDS, SILENCE_SECONDS, Reader
from tests.support.changes import config_of

LATER = 2 * SILENCE_SECONDS


class Consumer:
    """Gives `polls`: after so many seconds of its clock, so many messages. Then nothing, second by second."""

    def __init__(self, *polls: tuple[float, int]) -> None:
        self._polls = iter(polls)
        self._offset = 0
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def assign(self, _: object) -> None:
        """All polls are of one partition."""

    def unassign(self) -> None:
        """See `assign`."""

    incremental_unassign = assign

    def consume(self, *_: object) -> list[Any]:
        seconds, count = next(self._polls, (1.0, 0))
        self.now += seconds
        begin, self._offset = self._offset, self._offset + count
        return [SimpleNamespace(error=lambda: None, offset=lambda n=n: n) for n in range(begin, self._offset)]


def reading(consumer: Consumer, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """A reader that has this consumer."""
    reader = Reader(config_of("127.0.0.1:1", prefix, str(tmp_path)), consumer.clock)
    monkeypatch.setattr(reader, "_consumer", lambda _: consumer)
    return reader


def offsets(reader: Reader, end: int) -> list[int | None]:
    return [message.offset() for message in reader.read("t", 0, 0, end)]


def test_time_taken_over_records_is_no_silence(prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes the records may be busy for minutes: the next ones need not be there at once when it comes back."""
    quiet = int(SILENCE_SECONDS * 2 / 3)
    consumer = Consumer((0.01, 1), *[(1.0, 0)] * quiet, (0.01, 1), *[(1.0, 0)] * quiet, (0.01, 1))
    read = reading(consumer, prefix, tmp_path, monkeypatch).read("t", 0, 0, 3)
    assert next(read).offset() == 0
    consumer.now += LATER
    assert [message.offset() for message in read] == [1, 2]


def test_a_partition_that_falls_silent_is_told(prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reading(Consumer((0.01, 1)), prefix, tmp_path, monkeypatch)
    with pytest.raises(DiffError, match=r"^t\[0\] gave nothing for 60 s before offset 9"):
        offsets(reader, 9)


def test_a_process_that_stood_still_asks_again(prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was frozen inside a poll, which then gives nothing; and before, a broker's restart looked like no way in."""
    reader = reading(Consumer((LATER, 0), (0.01, 1)), prefix, tmp_path, monkeypatch)
    refused = "ssl://k:9092/0: Disconnected: connecting to a PLAINTEXT broker listener?"
    reader._connections(SimpleNamespace(name=lambda: "_SSL", str=lambda: refused))
    assert reader._connections.hopeless
    assert offsets(reader, 1) == [0]
    assert not reader._connections.hopeless


def test_who_is_let_in_nowhere_is_told_before_the_silence_is_long(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = Consumer()
    reader = reading(consumer, prefix, tmp_path, monkeypatch)
    reader._connections(SimpleNamespace(name=lambda: "_AUTHENTICATION", str=lambda: "Authentication failed"))
    with pytest.raises(DiffError, match=r"cannot be read: .*correct sasl\.mechanism"):
        offsets(reader, 9)
    assert HOPELESS_SECONDS < consumer.now < SILENCE_SECONDS


class Sized(SimpleNamespace):
    """A message, with the length of its value."""

    def __len__(self) -> int:
        return 1


class Busy(Consumer):
    """Partition 0 goes on for ever, and partition 1 gives nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped: list[int] = []

    def incremental_unassign(self, places: Any) -> None:
        self.dropped += [place.partition for place in places]

    def poll(self, seconds: float) -> Any:
        self.now += 0.05
        if self.dropped:
            return None
        self._offset += 1
        return Sized(error=lambda: None, partition=lambda: 0, offset=lambda: self._offset - 1, key=lambda: b"")


def test_a_silent_partition_beside_a_busy_one_is_told(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = Busy()
    reader = reading(consumer, prefix, tmp_path, monkeypatch)
    with pytest.raises(DiffError, match=r"^t\[1\] gave nothing for 60 s before offset 5"):
        reader.together("t", {0: 0, 1: 0}, {0: 5, 1: 5}, 1 << 20)
    assert consumer.dropped == [0]
