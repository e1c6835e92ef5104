"""The two producers of a node: which one writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from deelog_connector.core.effects import Cause
from deelog_connector.kafka_port import OutRecord, WriteFailed
from deelog_connector.runtime.producers import Producers
from tests.connector.cache import run

RECORD = OutRecord("t", 0, b"k", b"v", [])
HELD_UP = WriteFailed(Cause.LOST, "the last transaction does not end", held_up=True)
AWAY = WriteFailed(Cause.LOST, "no answer")


class Session:
    """Raises `error`, if there is one."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name, self._calls = name, calls
        self.error: WriteFailed | None = None

    def _called(self, call: str) -> None:
        self._calls.append(f"{self._name} {call}")
        if self.error is not None:
            raise self.error

    async def open(self) -> None:
        self._called("open")

    async def commit(self, records: Iterable[OutRecord]) -> None:
        self._called(f"commit {len(list(records))}")

    async def abort(self, left_open: Sequence[tuple[str, int]]) -> None:
        self._called(f"abort {list(left_open)}")

    async def discard(self) -> None:
        self._called("discard")

    def give_up(self) -> None:
        self._called("give up")


def made(calls: list[str]) -> tuple[Session, Session, Producers]:
    async def fence(spare: bool, left_open: Sequence[tuple[str, int]]) -> None:
        calls.append(f"{1 + spare} fence {list(left_open)}")

    first, second = Session("1", calls), Session("2", calls)
    return first, second, Producers(first, second, fence)


def test_the_spare_one_goes_on_where_the_other_is_held_up_and_back() -> None:
    calls: list[str] = []
    first, second, producers = made(calls)

    async def work() -> None:
        await producers.open()
        await producers.commit([RECORD])
        first.error = AWAY
        with pytest.raises(WriteFailed, match="no answer"):
            await producers.open()
        assert not producers.spare
        first.error = HELD_UP
        with pytest.raises(WriteFailed, match="does not end"):
            await producers.open()
        assert producers.spare
        await producers.open()
        await producers.commit([RECORD, RECORD])
        producers.give_up()
        await producers.discard()
        first.error, second.error = None, HELD_UP
        with pytest.raises(WriteFailed):
            await producers.open()
        await producers.open()
        assert not producers.spare

    run(work(), 20)
    assert calls == [
        "1 open", "1 commit 1", "1 open", "1 open",
        "2 open", "2 commit 2", "2 give up", "2 discard", "2 open",
        "1 open",
    ]  # fmt: skip


def test_what_each_has_left_open_is_aborted_once_by_the_one_in_use_or_by_a_fence() -> None:
    calls: list[str] = []
    first, second, producers = made(calls)
    first.error = HELD_UP

    def places(partition: int) -> list[tuple[str, int]]:
        return [("t", partition), ("u", partition)]

    async def work() -> None:
        assert await producers.abort(places, {1, 2, 3})  # nothing
        producers.failed_on({1, 2})
        with pytest.raises(WriteFailed):
            await producers.open()
        producers.failed_on({2, 3})
        assert producers.left_open_on({1, 3, 9}) == {1, 3}
        await producers.abort(places, {2, 9})
        assert producers.left_open_on({1, 2, 3}) == {1, 3}
        second.error = AWAY
        assert not await producers.abort(places, {3})
        assert producers.left_open_on({3}) == {3}  # tried again
        second.error = None
        assert await producers.abort(places, {3})
        assert producers.left_open_on({3}) == set()

    run(work(), 20)
    assert calls == [
        "1 open",
        "1 fence [('t', 2), ('u', 2)]",
        "2 abort [('t', 2), ('u', 2)]",
        "2 abort [('t', 3), ('u', 3)]",
        "2 abort [('t', 3), ('u', 3)]",
    ]


def test_a_fence_that_fails_does_not_end_the_session() -> None:
    calls: list[str] = []
    first, second = Session("1", calls), Session("2", calls)

    async def fence(spare: bool, left_open: Sequence[tuple[str, int]]) -> None:
        raise HELD_UP

    producers = Producers(first, second, fence)
    first.error = HELD_UP

    async def work() -> None:
        producers.failed_on({1})
        with pytest.raises(WriteFailed):
            await producers.open()
        producers.failed_on({2})
        assert await producers.abort(lambda partition: [("t", partition)], {1, 2})
        assert producers.left_open_on({1, 2}) == {1}

    run(work(), 20)
    assert calls == ["1 open", "2 abort [('t', 2)]"]


def test_a_spare_one_that_is_refused_is_left_again() -> None:
    calls: list[str] = []
    first, second, producers = made(calls)
    first.error, second.error = HELD_UP, WriteFailed(Cause.LOST, "no right", denied=True)

    async def work() -> None:
        for spare in (True, False, True):
            with pytest.raises(WriteFailed):
                await producers.open()
            assert producers.spare is spare
        first.error = WriteFailed(Cause.LOST, "no right", denied=True)
        for _ in range(2):
            with pytest.raises(WriteFailed):
                await producers.open()
            assert not producers.spare

    run(work(), 20)
