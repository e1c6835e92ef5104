"""Filters, transforms and their failures, and how often the producer is created again.

Bad input: a transform that raises, in each mode, on a change and on a row of a reset; one that raises again after
`resume()`; a slow one; a halt during a stop; a dead-letter topic that does not exist yet, and one with more partitions;
values that hex has to write; brokers that are down for longer than `errors.max.retries` allows.
"""

from __future__ import annotations

import base64
import logging
import threading

import pytest

from deelog_connector.errors import RetriesExhausted, TransformFailed
from deelog_connector.runtime import Lifecycle
from deelog_connector.runtime.lifecycle import State
from deelog_schemas.config import Config
from deelog_schemas.envelope import JsonCodec
from deelog_schemas.header import Kind, unpack
from deelog_schemas.keys import segment_of
from deelog_schemas.records import Record
from tests.connector.cache import Cache, cache, config_of, run, started
from tests.connector.transforms.transforms_for_tests import BOMB, Bomb, Slow
from tests.support.kafka import Broker
from tests.support.memory import Memory
from tests.support.topics import derived, read_topic

MINE = "tests.connector.transforms.transforms_for_tests"
OURS = "deelog_connector.transforms"
FILTER = {
    "transforms": "f,s",
    "transforms.f.type": f"{OURS}.Filter",
    "transforms.f.predicate": "private",
    "predicates": "private",
    "predicates.private.type": f"{OURS}.KeyMatches",
    "predicates.private.pattern": "private:.*",
    "transforms.s.type": f"{MINE}.Suffix",
}
BOMBS = {"transforms": "b", "transforms.b.type": f"{MINE}.Bomb"}
CODEC = JsonCodec("", "test", "", "")


def told(held: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """What `FILTER` makes of a cache."""
    return {key: value + b"!" for key, value in held.items() if not key.startswith(b"private:")}


def positions(records: list[Record]) -> dict[int, list[int]]:
    """By segment, the sequences that stand in the topic, told or skipped, in order."""
    found: dict[int, list[int]] = {}
    for record in records:
        header = record.header
        if header.kind in (Kind.CHANGE, Kind.SKIPPED):
            first = record.control["first"] if header.kind is Kind.SKIPPED else header.sequence
            found.setdefault(header.segment, []).extend(range(first, header.sequence + 1))
    return found


def test_what_is_derived_is_the_filtered_and_rewritten_cache(memory: Memory, prefix: str) -> None:
    async def work() -> None:
        config = config_of(memory.bootstrap, prefix, **FILTER)
        async with cache(config, 1, release=True, port=memory.port()) as found:
            await started(found)
            for i in range(2000):
                key = b"%s%d" % (b"private:" if i % 3 else b"k", i % 200)
                await found.put(key, None if i % 7 == 0 else b"v%d" % i)
            await found.drained()
            assert found.connector.stats.written == 2000
            assert found.connector.stats.filtered == 2000 - 667
            assert found.connector.observed.piped["filtered"] == 2000 - 667, "as the metrics tell it"
            for segment in range(8):
                found.core.request_reset(segment, "signal")
            await found.drained()
        records = memory.records(config.topics.changes)
        content, readers = derived(records)
        assert content == told(found.entries_of)
        assert [r.resets for r in readers.values()] == [["start", "signal"]] * 8
        assert sum(r.repeats for r in readers.values()) == 0
        assert all(sequences == list(range(1, len(sequences) + 1)) for sequences in positions(records).values())
        assert sum(map(len, positions(records).values())) == 2000
        assert b"private:" not in b"".join(r.key + (r.value or b"") for r in records)
        entries = [
            h for _, _, _, _, _, h in memory.messages(config.topics.changes) if h and (h[0][1] or b"")[1] <= Kind.READ
        ]
        assert {tuple(n for n, _ in headers) for headers in entries} == {("deelog", "seen")}

    memory.run(work())


def test_operations_that_are_skipped_are_no_loss_to_the_next_owner(memory: Memory, prefix: str) -> None:
    """The last operations of every segment are skipped ones, then the owner claims anew: nothing is reset."""

    async def work() -> None:
        config = config_of(memory.bootstrap, prefix, **{"skipped.operations": "u,d"})
        async with cache(config, port=memory.port()) as found:
            await started(found)
            for i in range(200):
                await found.put(b"k%d" % i, b"created")
            for i in range(200):
                await found.put(b"k%d" % i, b"updated" if i % 2 else None)
            await found.drained()
            epoch = found.core.highest_claim() + 1
            for segment in range(8):
                found.core.promote(segment, epoch)
                found.core.acked(segment, found.core.last_sequence(segment))
            found.connector.wake()
            await found.drained()
            await found.put(b"k0", b"created again")
            await found.drained()
            assert found.connector.stats.takeovers == 16
            assert found.connector.stats.resets == {"start": 8}
        content, _ = derived(memory.records(config.topics.changes))
        assert content == {b"k%d" % i: b"created" for i in range(1, 200)} | {b"k0": b"created again"}

    memory.run(work())


async def bombed(found: Cache) -> int:
    """A cache with one value that the transform fails on, and good ones before and behind; its segment."""
    await started(found)
    for i in range(100):
        await found.put(b"k%d" % i, b"before")
    await found.drained()
    await found.put(b"k5", BOMB.encode())
    for i in range(100, 120):
        await found.put(b"k%d" % i, b"behind")
    return segment_of(b"k5", found.core.segments)


def test_fail_stops_writing_with_the_op_log_intact(
    memory: Memory, prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Bomb, "armed", True)

    async def work() -> None:
        config = config_of(memory.bootstrap, prefix, **BOMBS)
        async with cache(config, release=True, port=memory.port()) as found:
            segment = await bombed(found)
            await found.until(lambda: found.connector.halted is not None)
            position = next(o.sequence for o in found.core._segments[segment].log if o.value == BOMB.encode())
            halted = found.connector.stats.halted
            where = f"cache c, segment {segment}, position 1.{position}: RuntimeError: boom"
            assert f"transform b ({MINE}.Bomb) failed on {where}" in halted
            assert sum("the connector stops writing: transform b" in line for line in caplog.messages) == 1
            for i in range(50):  # the cache lives on
                await found.put(b"later%d" % i, b"1")
            assert found.connector.state.paused
            assert not found.connector.failure.done()
            content, _ = derived(memory.records(config.topics.changes))
            assert BOMB.encode() not in content.values()
            assert content == {b"k%d" % i: b"before" for i in range(100)} | {
                k: v
                for k, v in content.items()
                if v == b"behind"  # of a transaction before
            }
            found.connector.resume()  # it fails again: nothing was mended
            await found.until(lambda: found.connector.halted is not None)
            lifecycle = Lifecycle(config, {"c": found.connector})
            assert [lifecycle.state] == [State.FAILED]
            assert "transform b" in (lifecycle.trace or "")
            Bomb.armed = False
            await lifecycle.restart()
            assert [lifecycle.state] == [State.RUNNING]
            await found.drained()
            assert found.connector.stats.resets == {"start": 8}
        records = memory.records(config.topics.changes)
        content, readers = derived(records)
        assert content == found.entries_of
        assert content[b"k5"] == BOMB.encode()
        assert sum(r.repeats for r in readers.values()) == 0
        assert sum(r.header.kind is Kind.CHANGE for r in records) == 171

    memory.run(work())


def test_a_halted_connector_stops_at_once_and_does_not_release_what_failed(
    memory: Memory, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bomb, "armed", True)

    async def work() -> None:
        # What can be released is waited for twice as long as a transaction may last.
        config = config_of(memory.bootstrap, prefix, **BOMBS, transaction_timeout_ms=60_000)
        async with cache(config, 1, release=True, port=memory.port()) as found:
            segment = await bombed(found)
            await found.until(lambda: found.connector.halted is not None)
            began = memory.loop.time()
        assert memory.loop.time() - began < 60
        # Of the others some may be: a stop tries again, and what is written by then is released.
        releases = [r for r in memory.records(config.topics.changes) if r.header.kind is Kind.RELEASE]
        assert segment not in {r.header.segment for r in releases}

    memory.run(work())


def test_a_stop_that_a_transform_halts_says_so_at_once(
    memory: Memory, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bomb, "armed", True)

    async def work() -> None:
        config = config_of(memory.bootstrap, prefix, **BOMBS)
        async with cache(config, release=True, port=memory.port()) as found:
            await started(found)
            lifecycle, began = Lifecycle(config, {"c": found.connector}), memory.loop.time()
            await found.put(b"k5", BOMB.encode())
            with pytest.raises(TransformFailed, match="boom"):
                await lifecycle.stop()
            assert memory.loop.time() - began < 5
            assert lifecycle.state is State.FAILED
            await lifecycle.stop()  # it is known now: there is nothing that can be written
            await lifecycle.resume()
            Bomb.armed = False
            await lifecycle.restart()
            await found.drained()
            assert [lifecycle.state] == [State.RUNNING]

    memory.run(work())


@pytest.mark.parametrize("mode", ["skip", "warn", "dead-letter"])
def test_what_a_transform_fails_on_is_left_out(
    memory: Memory,
    prefix: str,
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Bomb, "armed", True)
    letters = f"{prefix}-letters"
    more = {"event.processing.failure.handling.mode": mode}
    if mode == "dead-letter":
        more["errors.deadletterqueue.topic.name"] = letters

    async def work() -> Config:
        config = config_of(memory.bootstrap, prefix, **BOMBS, **more)
        async with cache(config, release=True, port=memory.port()) as found:
            segment = await bombed(found)
            await found.drained()
            content, _ = derived(memory.records(config.topics.changes))
            assert content == {**found.entries_of, b"k5": b"before"}  # the last that was told
            assert found.connector.stats.erroneous == 1
            found.core.request_reset(segment, "signal")
            await found.drained()
        content, readers = derived(memory.records(config.topics.changes))
        assert content == {k: v for k, v in found.entries_of.items() if k != b"k5"}  # a row that failed is not there
        assert readers[segment].resets == ["start", "signal"]
        return config

    caplog.set_level(logging.WARNING)
    found: list[Config] = []

    async def noted() -> None:
        found.append(await work())

    memory.run(noted())
    logged = [line for line in caplog.messages if "the change is left out" in line]
    assert bool(logged) == (mode != "skip")
    if mode == "dead-letter":
        of_change, of_row = memory.messages(letters)
        for message, kind, op in ((of_change, Kind.CHANGE, "u"), (of_row, Kind.READ, "r")):
            envelope = CODEC.decode_value(message.value or b"")
            assert (CODEC.decode_key(message.key or b""), envelope.op) == (b"k5", op)
            assert envelope.after is not None
            assert envelope.after.value == BOMB.encode()
            headers = {name: value or b"" for name, value in message.headers or ()}
            assert unpack(headers.pop("deelog")).kind is kind
            assert {k.removeprefix("__connect.errors."): v.decode() for k, v in headers.items()}.items() >= {
                "topic": found[0].topics.changes,
                "connector.name": "test",
                "stage": "TRANSFORMATION",
                "class.name": f"{MINE}.Bomb",
                "exception.class.name": "builtins.RuntimeError",
            }.items()
            assert b"RuntimeError: boom" in headers["__connect.errors.exception.message"]


def test_a_dead_letter_topic_of_any_width_is_taken(
    memory: Memory, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bomb, "armed", True)
    letters = f"{prefix}-letters"
    memory.kafka.create(letters, 3)

    async def work() -> None:
        more = {
            "event.processing.failure.handling.mode": "dead-letter",
            "errors.deadletterqueue.topic.name": letters,
        }
        async with cache(config_of(memory.bootstrap, prefix, **BOMBS, **more), port=memory.port()) as found:
            await bombed(found)
            await found.drained()
        (letter,) = memory.messages(letters)
        assert letter.headers
        assert letter.headers[0][0] == "deelog"

    memory.run(work())


def test_a_slow_transform_holds_up_the_writer_alone(
    kafka: Broker, prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a real Kafka: in memory there are no threads, so the transform would hold up everything."""
    monkeypatch.setattr("deelog_connector.runtime.executor.SLOW_SECONDS", 0.1)
    goes_on = threading.Event()
    monkeypatch.setattr(Slow, "goes_on", goes_on)

    async def work() -> None:
        config = config_of(kafka.bootstrap, prefix, **{"transforms": "s", "transforms.s.type": f"{MINE}.Slow"})
        async with cache(config, release=True) as found:
            await started(found)
            await found.put(b"a", BOMB.encode())
            await found.until(lambda: any(" on one record" in line for line in caplog.messages))
            for number in range(100):
                await found.put(b"b", b"%d" % number)
            assert found.core.unwritten() == 101
            goes_on.set()
            await found.drained()
        content, _ = derived(read_topic(kafka.bootstrap, config.topics.changes))
        assert content == found.entries_of

    run(work())
    assert any(line.startswith("transform s: ") and "s on one record" in line for line in caplog.messages)


@pytest.mark.parametrize("mode", ["bytes", "base64-url-safe", "hex"])
def test_bytes_are_written_as_the_mode_says(memory: Memory, prefix: str, mode: str) -> None:
    raw = b"\xfb\xff\0 not UTF-8"
    written = {
        "bytes": base64.b64encode(raw).decode(),
        "base64-url-safe": base64.urlsafe_b64encode(raw).decode(),
        "hex": raw.hex(),
    }[mode]

    async def work() -> None:
        more = {"cache.value.format": "bytes", "binary.handling.mode": mode, "value.converter.schemas.enable": "true"}
        config = config_of(memory.bootstrap, prefix, **more)
        async with cache(config, release=True, port=memory.port()) as found:
            await started(found)
            await found.put(b"k", raw)
            await found.drained()
        records = memory.records(config.topics.changes)
        (change,) = [r for r in records if r.header.kind is Kind.CHANGE]
        assert change.value is not None
        kind = "bytes" if mode == "bytes" else "string"
        assert f'"value":"{written}"'.encode() in change.value
        assert f'{{"type":"{kind}","optional":true,"field":"value"}}'.encode() in change.value
        codec = JsonCodec("", "test", "", "", value_format="bytes", binary=mode)
        after = codec.decode_value(change.value).after
        assert after is not None
        assert after.value == raw

    memory.run(work())


def test_the_connector_fails_after_errors_max_retries(memory: Memory, prefix: str) -> None:
    async def work() -> None:
        config = config_of(
            memory.bootstrap, prefix, **{"errors.max.retries": "2", "retriable.restart.connector.wait.ms": "100"}
        )
        async with cache(config, port=memory.port()) as found:
            await started(found)
            await found.put(b"a", b"1")
            await found.drained()
            await found.connector._shell.clients.session.discard()  # as after an error of the session
            topics = config.topics
            memory.kafka.uncoordinated |= {topics.transactional_id_node("n1"), topics.transactional_id_spare("n1")}
            await found.put(b"a", b"2")
            with pytest.raises(RetriesExhausted, match=r"3 errors in a row, errors\.max\.retries=2 allows no more"):
                await found.until(lambda: False, 600)

    memory.run(work())
