"""The deterministic loop: order, time, pauses, kills, and what it forbids."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest

from deelog_proof.memory.engine import Engine
from deelog_proof.memory.loop import Forbidden, NodeLoop
from tests.support.paths import ROOT


@pytest.fixture
def engine() -> Engine:
    return Engine(1)


@pytest.fixture
def loop(engine: Engine) -> Iterator[NodeLoop]:
    loop = NodeLoop(engine, "n1")
    yield loop
    loop.bury()


# -- asyncio ----------------------------------------------------------------------------------------------------------


def test_time_is_virtual(loop: NodeLoop) -> None:
    async def main() -> float:
        before = asyncio.get_running_loop().time()
        await asyncio.sleep(1000)
        return asyncio.get_running_loop().time() - before

    assert loop.run_until_complete(main()) == 1000


def test_turns_of_a_node_are_first_in_first_out(engine: Engine, loop: NodeLoop) -> None:
    seen: list[int] = []
    for number in range(5):
        loop.call_soon(seen.append, number)
    loop.call_soon(loop.call_soon, seen.append, 6)
    loop.call_soon(seen.append, 5)
    engine.run()
    assert seen == [0, 1, 2, 3, 4, 5, 6]


def test_tasks_timeouts_and_locks_work(loop: NodeLoop) -> None:
    async def main() -> list[object]:
        lock, seen = asyncio.Lock(), list[object]()

        async def hold(name: str) -> str:
            async with lock:
                await asyncio.sleep(1)
                return name

        seen += await asyncio.gather(hold("a"), hold("b"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hold("c"), 0.5)
        async with asyncio.timeout(2):
            seen.append(await hold("d"))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(hold("e"))
        return [*seen, task.result(), asyncio.get_running_loop().time()]

    assert loop.run_until_complete(main()) == ["a", "b", "d", "e", 4.5]


def test_a_cancelled_timer_does_nothing(engine: Engine, loop: NodeLoop) -> None:
    seen: list[int] = []
    loop.call_later(1, seen.append, 1).cancel()
    engine.run()
    assert not seen


def test_a_cancelled_turn_is_none(engine: Engine, loop: NodeLoop) -> None:
    seen: list[int] = []
    loop.call_soon(seen.append, 1).cancel()
    loop.call_soon_threadsafe(seen.append, 2).cancel()
    loop.call_soon_threadsafe(seen.append, 3)
    engine.run()
    assert (seen, loop.turns, loop.errors) == ([3], 1, [])


def test_all_turns_of_a_moment_are_one_event(engine: Engine, loop: NodeLoop) -> None:
    for _ in range(3):
        loop.call_soon(int)
    engine.run()
    assert (engine.steps, loop.turns) == (1, 3)
    loop.pause()
    loop.call_soon(int)
    assert not engine.step(), "a paused node has none"


def test_the_order_of_a_run_is_that_of_its_nodes() -> None:
    orders: list[int] = []
    for names in (("a", "b"), ("a", "b"), ("b", "a")):
        one = Engine(1)
        for name in names:
            NodeLoop(one, name).call_soon(int)
        one.run()
        orders.append(one.order)
    assert orders[0] == orders[1] != orders[2]


def test_turns_that_never_end(engine: Engine, loop: NodeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deelog_proof.memory.loop.MOST_TURNS", 100)
    turns: list[int] = []

    def again(last: int) -> None:
        turns.append(1)
        if len(turns) < last:
            loop.call_soon(again, last)

    loop.call_soon(again, 100)
    engine.run()
    assert len(turns) == 100
    loop.call_soon(again, 1000)
    with pytest.raises(RuntimeError, match="n1: 100 turns without time passing"):
        engine.run()
    assert len(turns) == 201


def test_no_loop_runs_after_a_run(engine: Engine, loop: NodeLoop) -> None:
    loop.call_soon(int)
    engine.run()
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


def test_the_nodes_run_by_time(engine: Engine) -> None:
    seen: list[str] = []

    async def ticks(name: str, every: float) -> None:
        for number in range(3):
            await asyncio.sleep(every)
            seen.append(f"{name}{number}")

    one, two = NodeLoop(engine, "n1"), NodeLoop(engine, "n2")
    one.create_task(ticks("a", 2))
    two.create_task(ticks("b", 3))
    engine.run()
    assert seen == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert engine.now == 3600


def test_a_wait_without_end_ends(loop: NodeLoop) -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match="nothing is left to happen"):
        loop.run_until_complete(main())


def test_there_is_no_loop_outside(loop: NodeLoop) -> None:
    async def main() -> None:
        def inside() -> None:
            asyncio.get_running_loop()

        with pytest.raises(RuntimeError, match="no running event loop"):
            loop.outside(inside)
        inside()

    loop.run_until_complete(main())


def test_what_nobody_hears_is_kept(engine: Engine, loop: NodeLoop) -> None:
    async def fail() -> None:
        raise ValueError("a task")

    def fail_now() -> None:
        raise ValueError("a callback")

    loop.call_soon(fail_now)
    loop.create_task(fail())
    engine.run()
    assert sorted(str(error["exception"]) for error in loop.errors) == ["a callback", "a task"]


# -- pause, kill ------------------------------------------------------------------------------------------------------


def test_a_pause_holds_all_turns_back_in_their_order(engine: Engine, loop: NodeLoop) -> None:
    seen: list[str] = []
    other = NodeLoop(engine, "n2")
    loop.call_later(1, seen.append, "timer")
    other.call_later(3, seen.append, "other")
    loop.pause()
    loop.call_soon(seen.append, "soon")
    loop.call_soon(loop.call_soon, seen.append, "soon after")
    engine.run(seconds=5)
    assert seen == ["other"]
    loop.call_soon(seen.append, "last")
    loop.resume()
    loop.call_soon(seen.append, "very last")
    engine.run(seconds=5)
    assert seen == ["other", "soon", "timer", "last", "very last", "soon after"]


@pytest.mark.parametrize("paused", [False, True])
def test_a_turn_that_takes_long_holds_back_the_next_ones(engine: Engine, loop: NodeLoop, paused: bool) -> None:
    seen: list[tuple[str, float]] = []

    def turn(name: str, *takes: float) -> None:
        seen.append((name, engine.now))
        for seconds in takes:
            loop.busy(seconds)

    loop.call_soon(turn, "long", 1.0, 0.5)
    loop.call_soon(turn, "next")
    loop.call_later(1, turn, "timer", 1.0)
    loop.call_later(4, turn, "late")
    NodeLoop(engine, "n2").call_later(0.5, turn, "other")
    if paused:
        loop.pause()
        engine.run(seconds=2)
        loop.resume()
    engine.run(seconds=10)
    begin = 2.0 if paused else 0.0
    assert [entry for entry in seen if entry[0] != "other"] == [
        ("long", begin),
        ("next", begin + 1.5),
        ("timer", begin + 1.5),
        ("late", max(4.0, begin + 2.5)),
    ]
    assert ("other", 0.5) in seen


def test_a_node_paused_again_while_it_catches_up(engine: Engine, loop: NodeLoop) -> None:
    seen: list[int] = []

    def turn(number: int) -> None:
        seen.append(number)
        if number == 1:
            loop.pause()

    loop.pause()
    for number in range(4):
        loop.call_soon(turn, number)
    engine.run(seconds=1)
    loop.resume()
    engine.run(seconds=1)
    assert seen == [0, 1]
    loop.resume()
    loop.resume()
    engine.run(seconds=1)
    assert seen == [0, 1, 2, 3]


def test_nothing_of_a_killed_node_happens(engine: Engine, loop: NodeLoop) -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            seen.append("begun")
            await asyncio.sleep(2)
            seen.append("done")
        finally:
            seen.append("finally")

    loop.create_task(work())
    engine.after(1, loop.kill)
    engine.run()
    assert seen == ["begun"]
    loop.bury()
    assert seen == ["begun", "finally"]


def test_what_a_killed_node_sent_arrives(engine: Engine, loop: NodeLoop) -> None:
    seen: list[str] = []
    loop.call_soon(engine.after, 1, seen.append, "arrived")
    loop.call_later(0.5, loop.kill)
    engine.run()
    assert seen == ["arrived"]


def test_a_node_is_killed_before_any_of_its_turns(engine: Engine, loop: NodeLoop) -> None:
    seen: list[int] = []

    async def work() -> None:
        for number in range(10):
            seen.append(number)
            await asyncio.sleep(0)

    loop.before = lambda: loop.kill() if loop.turns == 4 else None
    loop.create_task(work())
    engine.run()
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize("catches_up", [False, True])
def test_a_node_is_paused_before_any_of_its_turns(engine: Engine, loop: NodeLoop, catches_up: bool) -> None:
    seen: list[int] = []
    for number in range(4):
        loop.call_soon(seen.append, number)
    if catches_up:
        loop.pause()
        engine.run(seconds=1)
        loop.resume()
    loop.before = lambda: loop.pause() if loop.turns == 2 else None
    engine.run(seconds=1)
    assert seen == [0, 1]
    loop.before = None
    loop.resume()
    engine.run(seconds=1)
    assert seen == [0, 1, 2, 3]


class Wired:
    """A network that notes what is asked of it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    async def listen(self, loop: NodeLoop, factory: object, host: object, port: object) -> str:
        self.calls.append(("listen", port))
        return "server"

    async def connect(self, loop: NodeLoop, factory: object, host: object, port: object) -> str:
        self.calls.append(("connect", port))
        return "connection"

    def killed(self, loop: NodeLoop) -> None:
        self.calls.append(("killed", loop.name))


def test_its_network_hears_once_that_it_was_killed(engine: Engine) -> None:
    network = Wired()
    loop = NodeLoop(engine, "n1", network)
    loop.kill()
    loop.bury()
    assert network.calls == [("killed", "n1")]


def test_servers_and_connections_are_its_networks(engine: Engine) -> None:
    network = Wired()
    loop = NodeLoop(engine, "n1", network)
    assert loop.run_until_complete(loop.create_server(None, "h", 1)) == "server"
    assert loop.run_until_complete(loop.create_connection(None, "h", 2)) == "connection"
    for call in (loop.create_server, loop.create_connection):
        with pytest.raises(Forbidden):
            loop.run_until_complete(call(None, "h", 3, ssl=True))
    assert network.calls == [("listen", 1), ("connect", 2)]
    loop.bury()


def test_what_is_buried_is_not_missed(engine: Engine) -> None:
    """asyncio tells of tasks that are freed before they are done."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # what other tests have left is not this one's
    loop = NodeLoop(engine, "n1")
    loop.create_task(asyncio.sleep(10))
    engine.run(seconds=1)
    loop.bury()
    gc.collect()
    assert loop.errors == []


def test_a_coroutine_that_does_not_end_is_told(engine: Engine) -> None:
    loop = NodeLoop(engine, "n1")

    async def stubborn() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            await asyncio.sleep(1)

    task = loop.create_task(stubborn(), name="stubborn")
    engine.run(seconds=0.5)
    loop.bury()
    assert [error["message"] for error in loop.errors] == ["stubborn did not end"]
    assert not task.done()


# -- what it forbids --------------------------------------------------------------------------------------------------


def test_threads_are_forbidden(loop: NodeLoop) -> None:
    async def main() -> None:
        with pytest.raises(Forbidden, match="a thread for"):
            await asyncio.to_thread(print)

    loop.run_until_complete(main())


def test_signals_and_sockets_are_forbidden(loop: NodeLoop) -> None:
    async def main() -> None:
        with pytest.raises(Forbidden):
            loop.add_signal_handler(signal.SIGTERM, print)
        with pytest.raises(Forbidden):
            await asyncio.start_server(print, "127.0.0.1", 0)
        with pytest.raises(Forbidden):
            await asyncio.open_connection("127.0.0.1", 1)

    loop.run_until_complete(main())


def test_other_threads_are_forbidden(loop: NodeLoop) -> None:
    errors: list[BaseException] = []

    def call() -> None:
        try:
            loop.call_soon_threadsafe(print)
        except Forbidden as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert len(errors) == 1


# -- the same order in every process ----------------------------------------------------------------------------------


def _run(seed: int, hash_seed: str) -> str:
    program = [sys.executable, "-m", "tests.proof.memory.scenario", str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(
        program, cwd=ROOT, env=environment, check=True, capture_output=True, text=True, timeout=120
    ).stdout


def test_a_seed_gives_one_order_whatever_the_hash_seed() -> None:
    runs = {_run(1, hash_seed) for hash_seed in ("0", "1", "2")}
    assert len(runs) == 1
    assert _run(2, "0") not in runs
