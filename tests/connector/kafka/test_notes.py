"""What becomes of notes when the client has a fatal error, which librdkafka makes on request."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, Producer

from deelog_connector.kafka.notes import Notes
from tests.connector.cache import config_of


def fail(producer: Producer) -> None:
    (path,) = Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka-*.so*")
    call = ctypes.CDLL(str(path)).rd_kafka_test_fatal_error
    call.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    handle = ctypes.c_void_p.from_address(id(producer) + 16)  # behind the object's head
    assert call(handle, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, b"a test") == 0


@pytest.mark.parametrize("looked", [False, True])
def test_after_a_fatal_error_there_is_a_new_producer(looked: bool) -> None:
    async def run(call: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.to_thread(call, *args)

    async def work() -> None:
        notes = Notes(run, config_of("127.0.0.1:1", "p"))
        notes.send("n", b"k", b"v")
        first = notes._producer
        assert first is not None
        fail(first)
        if looked:
            assert notes.dropped == 0  # serves the client's events, with the error
        for _ in range(2):
            notes.send("n", b"k", b"v")
        assert notes._producer is not None
        assert notes._producer is not first
        assert notes.dropped == 1
        await notes.close()

    asyncio.run(work())
