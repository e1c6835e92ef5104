"""Tasks: the first error ends the connector, nothing outlives it. Retries: what is asked again, and when not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from deelog_connector.core.effects import Cause
from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable, RetriesExhausted
from deelog_connector.kafka.librdkafka import Librdkafka
from deelog_connector.kafka_port import REQUEST_SECONDS, WriteFailed
from deelog_connector.runtime.tasks import START_SECONDS, Retries, Tasks
from deelog_schemas.config import Config
from deelog_schemas.errors import ConfigError, FieldError
from tests.connector.cache import config_of, run
from tests.support.memory import Memory

LOST = WriteFailed(Cause.LOST, "gone")


def config(**fields: str) -> Config:
    return config_of("h:1", "p", **{"retriable.restart.connector.wait.ms": "1", **fields})


def retries(started: bool = True, errors: int = -1) -> Retries:
    return Retries(config(**{"errors.max.retries": str(errors)}), Librdkafka(), proven=started)


class Failing:
    """Raises the errors in turn, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), 0

    async def __call__(self, answer: str = "done") -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return answer


# -- tasks ----------------------------------------------------------------------------------------------------------


def with_tasks(test: Callable[[Tasks], Awaitable[None]]) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        made, problems = Tasks(loop.create_future()), list[object]()
        loop.set_exception_handler(lambda _, context: problems.append(context))
        try:
            await test(made)
            assert problems == []
        finally:
            made.stopping = True
            await made.cancel()
            if not made.failure.done():
                made.failure.cancel()

    run(work(), 20)


async def fails(error: Exception) -> None:
    raise error


def test_the_first_error_of_a_task_is_the_failure() -> None:
    async def test(tasks: Tasks) -> None:
        first = tasks.spawn(fails(ValueError("first")))
        await asyncio.wait([first])
        await asyncio.wait([tasks.spawn(fails(ValueError("second")))])
        with pytest.raises(ValueError, match="first"):
            tasks.failure.result()

    with_tasks(test)


def test_what_ends_well_or_is_cancelled_is_no_failure() -> None:
    async def test(tasks: Tasks) -> None:
        await asyncio.wait([tasks.spawn(asyncio.sleep(0))])
        forever = tasks.spawn(asyncio.sleep(3600))
        await tasks.cancel()
        assert forever.cancelled()
        assert not tasks.failure.done()

    with_tasks(test)


def test_an_error_during_the_end_is_none_of_the_connectors() -> None:
    async def test(tasks: Tasks) -> None:
        tasks.stopping = True
        await asyncio.wait([tasks.spawn(fails(ValueError("late")))])
        assert not tasks.failure.done()

    with_tasks(test)


# -- retries --------------------------------------------------------------------------------------------------------


def test_what_cannot_be_written_is_tried_again() -> None:
    call = Failing(LOST, LOST, LOST)
    run(retries().writing(call), 20)
    assert call.calls == 4


def test_an_error_that_is_none_of_kafkas_is_raised_at_once() -> None:
    call = Failing(ValueError("ours"))
    for ask in (retries().writing, retries().reading):
        call.errors[:] = [ValueError("ours")]
        with pytest.raises(ValueError, match="ours"):
            run(_nothing(ask(call)), 20)
    assert call.calls == 2


async def _nothing(work: Awaitable[object]) -> None:
    await work


def test_writing_stops_where_it_is_told_to() -> None:
    call, going_on = Failing(*[LOST] * 10), [True, True, False]
    with pytest.raises(WriteFailed, match="gone"):
        run(retries().writing(call, stop=lambda: not going_on.pop(0)), 20)
    assert call.calls == 3


def test_one_error_more_in_a_row_than_allowed_ends_it() -> None:
    some = retries(errors=2)
    some.count(LOST)
    some.count(LOST)
    some.committed()
    some.count(LOST)
    some.count(LOST)
    with pytest.raises(
        RetriesExhausted, match=r"^3 errors in a row, errors\.max\.retries=2 allows no more: lost: gone"
    ):
        some.count(LOST)


def test_retries_of_a_call_count_too() -> None:
    call = Failing(*[LOST] * 3)
    with pytest.raises(RetriesExhausted):
        run(retries(errors=2).writing(call), 20)
    assert call.calls == 3


@pytest.mark.parametrize("cause", [Cause.FENCED, Cause.REFUSED])
def test_only_what_was_lost_counts(cause: Cause) -> None:
    some = retries(errors=0)
    for _ in range(3):
        some.count(WriteFailed(cause, "how a takeover works"))
    with pytest.raises(RetriesExhausted):
        some.count(LOST)


def test_by_default_nothing_is_counted_out() -> None:
    some = retries()
    for _ in range(1000):
        some.count(LOST)


def test_a_connector_that_runs_asks_until_kafka_answers() -> None:
    problem = ConfigError([FieldError("sasl.password", "the file is just being written")])
    call = Failing(KafkaUnavailable("away"), KafkaUnauthorized("denied"), KafkaUnusable("odd"), problem)
    run(_nothing(retries().reading(call, "answer")), 20)
    assert call.calls == 5


@pytest.mark.parametrize("error", [KafkaUnauthorized("denied"), KafkaUnusable("odd")])
def test_what_a_start_is_refused_ends_it(error: Exception) -> None:
    call = Failing(error)
    with pytest.raises(type(error)):
        run(_nothing(retries(started=False).reading(call)), 20)
    assert call.calls == 1


def test_a_start_asks_again_though_a_request_took_all_of_its_time_and_ends_after_a_minute(memory: Memory) -> None:
    calls: list[float] = []

    async def silent(answered: int) -> None:
        calls.append(memory.loop.time())
        await asyncio.sleep(REQUEST_SECONDS)
        if len(calls) != answered:
            raise KafkaUnavailable("away")

    some = Retries(config(), memory.port())
    memory.run(some.reading(silent, 4))
    assert len(calls) == 4
    calls.clear()
    with pytest.raises(KafkaUnavailable, match="away"):
        memory.run(some.reading(silent, 0))
    assert len(calls) == START_SECONDS / REQUEST_SECONDS


def test_waits_grow_and_a_connector_that_runs_waits_for_ever(memory: Memory) -> None:
    asked: list[float] = []

    async def ask() -> None:
        asked.append(memory.loop.time())
        if len(asked) < 12:
            raise KafkaUnavailable("away")

    some = Retries(config(**{"retriable.restart.connector.wait.ms": "10000"}), memory.port())
    some.proven = True
    memory.run(some.reading(ask))
    assert asked[-1] - asked[0] > REQUEST_SECONDS
    waits = [later - earlier for earlier, later in pairwise(asked)]
    chance = [wait - 0.1 * 2**number for number, wait in enumerate(waits[:6])]
    assert all(0.0 <= seconds <= 1.0 for seconds in chance)
    assert len(set(chance)) == 6
    assert waits[7:] == pytest.approx([10.0] * 4)
