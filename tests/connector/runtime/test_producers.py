"""The two producers of a node: which one writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import pytest

from deelog_connector.core.effects import Cause
from deelog_connector.kafka_port import OutRecord, WriteFailed
from deelog_connector.runtime.producers import Producers
from tests.connector.cache import run

RECORD = OutRecord("t", 0, b"k", b"v", [])
HELD_UP = WriteFailed(Cause.LOST, "the last transaction does not end", held_up=True)
AWAY = WriteFailed(Cause.LOST, "no answer")
UNCOORDINATED = WriteFailed(Cause.LOST, "no answer of its coordinator", uncoordinated=True)


class Session:
    """Raises `error`, if there is one; a commit raises `failure` where it is answered."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name, self._calls = name, calls
        self.error: WriteFailed | None = None
        self.failure: WriteFailed | None = None
        self.answers = asyncio.Event()
        self.answers.set()

    def _called(self, call: str) -> None:
        self._calls.append(f"{self._name} {call}")
        if self.error is not None:
            raise self.error

    async def open(self) -> None:
        self._called("open")

    async def commit(self, records: Iterable[OutRecord]) -> None:
        self._called(f"commit {len(list(records))}")
        await self.answers.wait()
        if self.failure is not None:
            raise self.failure

    async def abort(self, left_open: Sequence[tuple[str, int]]) -> None:
        self._called(f"abort {list(left_open)}")

    async def discard(self) -> None:
        self._called("discard")

    def give_up(self) -> None:
        self._called("give up")


async def failing(producers: Producers, session: Session, *partitions: int) -> None:
    """A transaction with records for these partitions fails."""
    before, session.error = session.error, AWAY
    with pytest.raises(WriteFailed, match="no answer"):
        await producers.commit([RECORD], partitions)
    session.error = before


async def switched(producers: Producers, session: Session) -> None:
    """The session in use is held up: the other one goes on."""
    producers.unwritable, session.error = frozenset({9}), HELD_UP
    with pytest.raises(WriteFailed, match="does not end"):
        await producers.open()


async def nothing_hidden(places: Sequence[tuple[str, int]]) -> set[int]:
    return set()


async def everything_hidden(places: Sequence[tuple[str, int]]) -> set[int]:
    return {partition for _, partition in places}


def made(calls: list[str]) -> tuple[Session, Session, Producers]:
    async def fence(spare: bool, left_open: Sequence[tuple[str, int]]) -> None:
        calls.append(f"{1 + spare} fence {list(left_open)}")

    first, second = Session("1", calls), Session("2", calls)
    return first, second, Producers(first, second, fence, nothing_hidden)


def test_the_spare_one_goes_on_where_the_other_is_held_up_and_back() -> None:
    calls: list[str] = []
    first, second, producers = made(calls)

    async def work() -> None:
        await producers.open()
        await producers.commit([RECORD], {0})
        first.error = AWAY
        producers.unwritable = frozenset({1})
        with pytest.raises(WriteFailed, match="no answer"):
            await producers.open()
        assert not producers.spare
        first.error = HELD_UP
        producers.unwritable = frozenset()  # nobody knows why: the spare one would be held up as well
        with pytest.raises(WriteFailed, match="does not end"):
            await producers.open()
        assert not producers.spare
        producers.unwritable = frozenset({1})
        with pytest.raises(WriteFailed, match="does not end"):
            await producers.open()
        assert producers.spare
        await producers.open()
        await producers.commit([RECORD, RECORD], {0})
        producers.give_up()
        await producers.discard()
        first.error, second.error = None, UNCOORDINATED
        producers.unwritable = frozenset()
        with pytest.raises(WriteFailed):
            await producers.open()
        await producers.open()
        assert not producers.spare

    run(work(), 20)
    assert calls == [
        "1 open", "1 commit 1", "1 open", "1 open", "1 open",
        "2 open", "2 commit 2", "2 give up", "2 discard", "2 open",
        "1 open",
    ]  # fmt: skip


def test_what_each_has_left_open_is_aborted_once_by_the_one_in_use_or_by_a_fence() -> None:
    calls: list[str] = []
    first, second, producers = made(calls)

    def places(partition: int) -> list[tuple[str, int]]:
        return [("t", partition), ("u", partition)]

    async def work() -> None:
        assert await producers.abort(places, {1, 2, 3})  # nothing
        await failing(producers, first, 1, 2)
        await switched(producers, first)
        await failing(producers, second, 2, 3)
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
        "1 commit 1",
        "1 open",
        "2 commit 1",
        "1 fence [('t', 2), ('u', 2)]",
        "2 abort [('t', 2), ('u', 2)]",
        "2 abort [('t', 3), ('u', 3)]",
        "2 abort [('t', 3), ('u', 3)]",
    ]


def test_what_one_is_found_to_have_left_open_is_aborted_though_nothing_failed() -> None:
    calls: list[str] = []
    first, _, producers = made(calls)

    async def work() -> None:
        assert await producers.end_hanging(False, lambda partition: [("t", partition)], 3)
        assert await producers.end_hanging(True, lambda partition: [("t", partition)], 2)
        assert producers.left_open_on({2, 3}) == set()
        first.error = AWAY
        assert not await producers.end_hanging(False, lambda partition: [("t", partition)], 4)
        assert producers.left_open_on({4}) == {4}

    run(work(), 20)
    assert calls == ["1 abort [('t', 3)]", "2 fence [('t', 2)]", "1 abort [('t', 4)]"]


def test_what_stays_open_behind_an_abort_is_left_open() -> None:
    """A marker is lost with the leader, that of an abort, too. The next commit would commit all of it."""
    calls: list[str] = []
    sick = {2}

    async def fence(spare: bool, left_open: Sequence[tuple[str, int]]) -> None:
        calls.append(f"fence {list(left_open)}")

    async def hidden(places: Sequence[tuple[str, int]]) -> set[int]:
        return sick.intersection(partition for _, partition in places)

    producers = Producers(Session("1", calls), Session("2", calls), fence, hidden)

    def places(partition: int) -> list[tuple[str, int]]:
        return [("t", partition)]

    async def work() -> None:
        producers.begin(range(3))
        assert await producers.abort(places, {1, 2})
        assert producers.left_open_on({0, 1, 2}) == {0, 2}
        assert await producers.end_hanging(True, places, 2)
        sick.clear()
        assert await producers.abort(places, {1, 2})
        assert producers.left_open_on({0, 1, 2}) == {0}

    run(work(), 20)
    of_both = ["1 abort [('t', 2)]", "fence [('t', 2)]"]
    assert calls == ["1 abort [('t', 1), ('t', 2)]", *of_both, *of_both]


def test_a_transaction_that_fails_behind_an_abort_may_be_left_open() -> None:
    looks = asyncio.Event()

    async def hidden(places: Sequence[tuple[str, int]]) -> set[int]:
        await looks.wait()
        return set()

    async def fence(spare: bool, left_open: Sequence[tuple[str, int]]) -> None:
        raise HELD_UP

    first = Session("1", [])
    producers = Producers(first, Session("2", []), fence, hidden)

    async def work() -> None:
        abort = asyncio.ensure_future(producers.end_hanging(False, lambda partition: [("t", partition)], 3))
        first.answers.clear()
        await asyncio.sleep(0)
        commit = asyncio.ensure_future(producers.commit([RECORD], {3}))
        await asyncio.sleep(0)
        looks.set()
        assert await abort
        first.failure = AWAY
        first.answers.set()
        with pytest.raises(WriteFailed, match="no answer"):
            await commit
        assert producers.left_open_on({3}) == {3}

    run(work(), 20)


def test_a_producer_that_may_not_write_has_left_nothing_open() -> None:
    denials = [WriteFailed(Cause.LOST, "no answer"), WriteFailed(Cause.LOST, "Write is missing", denied=True)]

    async def fence(spare: bool, left_open: Sequence[tuple[str, int]]) -> None:
        raise denials.pop(0)

    producers = Producers(Session("1", []), Session("2", []), fence, everything_hidden)

    async def work() -> None:
        for left in ({3}, set[int]()):
            assert await producers.end_hanging(True, lambda partition: [("t", partition)], 3)
            assert producers.left_open_on({3}) == left

    run(work(), 20)


def test_a_producer_without_coordinator_has_left_nothing_open_where_nothing_is_open() -> None:
    async def fence(spare: bool, left_open: Sequence[tuple[str, int]]) -> None:
        raise AWAY

    hidden = {4}

    async def some(places: Sequence[tuple[str, int]]) -> set[int]:
        return hidden.intersection(partition for _, partition in places)

    producers = Producers(Session("1", []), Session("2", []), fence, some)

    async def work() -> None:
        for partition, left in ((3, set[int]()), (4, {4})):
            assert await producers.end_hanging(True, lambda p: [("t", p)], partition)
            assert producers.left_open_on({partition}) == left

    run(work(), 20)


def test_what_was_committed_since_is_not_left_open() -> None:
    """The marker of the same id has decided it: to abort it would take away what is committed."""
    first, _, producers = made([])

    async def work() -> None:
        await failing(producers, first, 1, 2, 3)
        await producers.commit([RECORD], {2})
        assert producers.left_open_on({1, 2, 3}) == {1, 3}

    run(work(), 20)


def test_one_that_is_under_way_may_be_left_open() -> None:
    first, _, producers = made([])

    async def work() -> None:
        first.answers.clear()
        commit = asyncio.ensure_future(producers.commit([RECORD], {1}))
        await asyncio.sleep(0)
        assert producers.left_open_on({1}) == {1}
        first.answers.set()
        await commit
        assert producers.left_open_on({1}) == set()

    run(work(), 20)


def test_an_earlier_process_may_have_left_any_of_them_open() -> None:
    _, _, producers = made([])

    async def work() -> None:
        producers.begin(range(3))
        await producers.commit([RECORD], {0})
        assert producers.left_open_on({0, 1}) == {1}

    run(work(), 20)


def test_the_one_that_was_left_has_left_nothing_open_where_the_other_one_was_read() -> None:
    first, second, producers = made([])

    async def work() -> None:
        await failing(producers, first, 0, 1)
        producers.settled({0, 1})  # by the one in use: nothing was read of the other
        assert producers.left_open_on({0, 1}) == {0, 1}
        await switched(producers, first)
        await failing(producers, second, 2)
        producers.settled({0, 2})
        assert producers.left_open_on({0, 1, 2}) == {1, 2}

    run(work(), 20)


def test_a_fence_that_fails_does_not_end_the_session() -> None:
    calls: list[str] = []
    first, second = Session("1", calls), Session("2", calls)

    async def fence(spare: bool, left_open: Sequence[tuple[str, int]]) -> None:
        raise HELD_UP

    async def one_hidden(places: Sequence[tuple[str, int]]) -> set[int]:
        return {partition for _, partition in places if partition == 1}

    producers = Producers(first, second, fence, one_hidden)

    async def work() -> None:
        await failing(producers, first, 1)
        await switched(producers, first)
        await failing(producers, second, 2)
        assert await producers.abort(lambda partition: [("t", partition)], {1, 2})
        assert producers.left_open_on({1, 2}) == {1}

    run(work(), 20)
    assert calls == ["1 commit 1", "1 open", "2 commit 1", "2 abort [('t', 2)]"]


def test_a_spare_one_that_is_refused_is_left_again() -> None:
    calls: list[str] = []
    first, second, producers = made(calls)
    first.error, second.error = HELD_UP, WriteFailed(Cause.LOST, "no right", denied=True)
    producers.unwritable = frozenset({1})

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
