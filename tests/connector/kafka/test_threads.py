"""The order of the calls of one object, whichever threads they run in."""

from __future__ import annotations

import asyncio
import threading

import pytest

from deelog_connector.kafka.threads import READERS, Threads


@pytest.mark.parametrize("cancelled", [False, True])
def test_calls_in_turn_begin_when_the_one_before_has_ended(cancelled: bool) -> None:
    begun, go_on, seen = threading.Event(), threading.Event(), list[int]()

    def call(number: int) -> None:
        if number == 0:
            begun.set()
            assert go_on.wait(60)
        seen.append(number)

    async def work() -> None:
        threads = Threads()
        run = threads.in_turn()
        calls = [asyncio.create_task(run(call, number)) for number in range(2 * READERS)]
        await threads.write(begun.wait, 60)
        if cancelled:
            calls[0].cancel()  # it goes on all the same
            calls[-1].cancel()  # it has not begun
        await asyncio.sleep(0)
        assert seen == []
        go_on.set()
        await asyncio.gather(*calls, return_exceptions=True)
        await threads.close()
        assert seen == list(range(2 * READERS - cancelled))

    asyncio.run(work())


def test_others_are_not_held_up() -> None:
    go_on = threading.Event()

    async def work() -> None:
        threads = Threads()
        one, other = threads.in_turn(), threads.in_turn()
        held = asyncio.create_task(one(go_on.wait, 60))
        assert await other(divmod, 17, 5) == (3, 2)
        go_on.set()
        assert await held
        await threads.close()

    asyncio.run(work())
