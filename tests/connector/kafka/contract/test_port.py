"""The clock, chance, ids and threads."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Iterator

import pytest

from deelog_connector.core.effects import Cause
from deelog_connector.kafka_port import OutRecord, WriteFailed
from deelog_schemas.errors import ConfigError
from tests.connector.kafka.contract.world import IN_TIME, UNRESOLVED, World, eventually


async def test_new_ids_are_uuids_and_differ(world: World) -> None:
    ids = {port.new_id() for port in (world.port, await world.node()) for _ in range(1000)}
    assert len(ids) == 2000
    assert all(str(uuid.UUID(found)) == found for found in ids)


async def test_chance_is_a_port_s_own(world: World) -> None:
    other = await world.node()
    assert other.random is not world.port.random
    assert [world.port.random.random() for _ in range(5)] != [other.random.random() for _ in range(5)]


async def test_clocks_go_forward(world: World) -> None:
    clock = world.port.clock
    monotonic, unix = clock.monotonic(), clock.time_ns()
    await asyncio.sleep(0.05)
    assert clock.monotonic() - monotonic > 0.04
    assert clock.time_ns() - unix > 40_000_000
    assert unix > 1_600_000_000_000_000_000


async def test_work_returns_what_the_call_returns(world: World) -> None:
    assert await world.port.work(divmod, 17, 5) == (3, 2)


async def test_work_raises_what_the_call_raises(world: World) -> None:
    with pytest.raises(ZeroDivisionError):
        await world.port.work(divmod, 1, 0)


@pytest.mark.needs("threads")
async def test_work_does_not_hold_up_the_loop(world: World) -> None:
    begun, go = threading.Event(), threading.Event()

    def call() -> int:
        begun.set()
        assert go.wait(60)
        return threading.get_ident()

    working = asyncio.create_task(world.port.work(call))
    await eventually(begun.is_set, "the call")
    go.set()
    assert await working != threading.get_ident()


@pytest.mark.needs("threads")
async def test_work_that_hangs_holds_up_neither_others_nor_the_close(world: World) -> None:
    port, go = world.another_port(seconds=1.0), threading.Event()
    hanging = [asyncio.create_task(port.work(go.wait)) for _ in range(20)]
    await asyncio.sleep(0)
    assert await port.work(divmod, 17, 5) == (3, 2)
    reader = await port.reader(world.config(), await world.topic())
    await reader.close()
    await asyncio.wait_for(port.close(), 1.0 + IN_TIME)
    assert not any(one.done() for one in hanging)
    go.set()
    await asyncio.gather(*hanging)


async def test_a_port_that_is_closed_does_no_work(world: World) -> None:
    port = world.another_port()
    await port.close()
    with pytest.raises(RuntimeError):
        await port.work(divmod, 17, 5)


@pytest.mark.needs("threads")
async def test_an_iterable_is_consumed_in_another_thread(world: World) -> None:
    session = await world.session()
    threads: list[int] = []

    def records() -> Iterator[OutRecord]:
        threads.append(threading.get_ident())
        yield from ()

    await session.commit(records())
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


async def test_close_waits_for_the_calls_under_way(world: World) -> None:
    port = world.another_port()
    done: list[bool] = []

    def call() -> None:
        time.sleep(0.3)
        done.append(True)

    working = asyncio.create_task(port.work(call))
    await asyncio.sleep(0.1)
    await port.close()
    assert done
    await working


async def test_a_session_whose_secrets_cannot_be_read_is_not_made(world: World) -> None:
    with pytest.raises(ConfigError):
        await world.port.session(world.config(**UNRESOLVED), world.identity(), lambda: 1000)


async def test_a_fence_whose_secrets_cannot_be_read_fails_as_one_that_is_not_answered(world: World) -> None:
    brokers = world.port.brokers(world.config(**UNRESOLVED))
    with pytest.raises(WriteFailed) as failed:
        await brokers.fence(world.identity())
    assert failed.value.cause is Cause.LOST
    await brokers.close()
