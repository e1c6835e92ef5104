"""The order of the calls of one object, whichever threads they run in; and what becomes of work that hangs."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from typing import Any

import pytest

from deelog_connector.kafka.threads import READERS, Threads, begun


@pytest.mark.parametrize("cancelled", [False, True])
def test_calls_in_turn_begin_when_the_one_before_has_ended(cancelled: bool) -> None:
    begun, go_on, seen = threading.Event(), threading.Event(), list[int]()

    def call(number: int) -> None:
        if number == 0:
            begun.set()
            assert go_on.wait(60)
        seen.append(number)

    async def work() -> None:
        threads = Threads(60)
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
        threads = Threads(60)
        one, other = threads.in_turn(), threads.in_turn()
        held = asyncio.create_task(one(go_on.wait, 60))
        assert await other(divmod, 17, 5) == (3, 2)
        go_on.set()
        assert await held
        await threads.close()

    asyncio.run(work())


def test_the_interpreter_s_end_does_not_wait_for_work_that_hangs() -> None:
    program = """
import asyncio, threading
from deelog_connector.kafka.threads import Threads

async def work():
    threads, begun = Threads(0.1), threading.Event()
    asyncio.create_task(threads.work(lambda: (begun.set(), threading.Event().wait())))
    await threads.run(begun.wait)
    await threads.close()

asyncio.run(work())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr == "1 calls have not ended within 0.1 s: they are left alone\n"


def test_what_is_raised_while_it_is_closed_is_nobody_s() -> None:
    heard: list[dict[str, Any]] = []

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
        threads, go_on = Threads(60), threading.Event()

        def call() -> None:
            assert go_on.wait(60)
            raise ZeroDivisionError

        calls = [asyncio.create_task(run(call)) for run in (threads.work, threads.run)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(threads.close())
        await asyncio.sleep(0)
        for one in calls:
            one.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        go_on.set()
        await closing

    asyncio.run(work())
    gc.collect()
    assert heard == []


def test_producers_share_one_thread_work_has_one_each_and_other_calls_a_pool() -> None:
    def name() -> tuple[str, bool]:
        return threading.current_thread().name, threading.current_thread().daemon

    async def work() -> None:
        threads = Threads(60)
        assert {await threads.write(name) for _ in range(3)} == {("deelog-writer_0", False)}
        assert await threads.work(name) == ("deelog-work", True)
        pooled, _ = await threads.run(name)
        assert pooled.startswith("deelog_")
        assert (await threads.in_turn()(name))[0].startswith("deelog_")
        await threads.close()

    asyncio.run(work())


def test_a_close_waits_for_calls_and_work_under_way_and_cancels_what_has_not_begun() -> None:
    all_begun, go_on, ended = threading.Barrier(3), threading.Event(), list[str]()

    def call(name: str) -> None:
        all_begun.wait(60)
        assert go_on.wait(60)
        ended.append(name)

    async def work() -> None:
        threads = Threads(60)
        calls = [asyncio.create_task(threads.write(call, "call")), asyncio.create_task(threads.work(call, "work"))]
        late = asyncio.create_task(threads.write(ended.append, "late"))
        await asyncio.to_thread(all_begun.wait, 60)
        closing = asyncio.create_task(threads.close())
        await asyncio.wait([late])
        assert late.cancelled()
        assert not closing.done()
        go_on.set()
        await closing
        assert sorted(ended) == ["call", "work"]
        await asyncio.gather(*calls)

    asyncio.run(work())


def test_after_the_close_nothing_begins() -> None:
    async def work() -> None:
        threads = Threads(60)
        await threads.close()
        with pytest.raises(RuntimeError, match="the port is closed"):
            await threads.work(int)
        for run in (threads.run, threads.write, threads.in_turn()):
            with pytest.raises(RuntimeError, match="shutdown"):
                await run(int)

    asyncio.run(work())


def test_what_a_call_raises_comes_to_who_waits_for_it() -> None:
    async def work() -> None:
        threads = Threads(60)
        for run in (threads.run, threads.write, threads.work, threads.in_turn()):
            with pytest.raises(ZeroDivisionError):
                await run(divmod, 1, 0)
        assert (threads._work, threads._under_way) == (set(), set())  # nothing is kept of what has ended
        await threads.close()

    asyncio.run(work())


def test_what_is_begun_cannot_be_cancelled() -> None:
    go_on = threading.Event()
    future = begun("mine", go_on.wait, 60)
    assert future.cancel() is False
    go_on.set()
    assert future.result(60) is True
