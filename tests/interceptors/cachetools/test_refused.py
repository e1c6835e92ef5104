"""What Kafka refuses of a captured cache: it is told, tried again, and in the end left out."""

from __future__ import annotations

import json
import math
import random
import threading
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import cachetools
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

import deelog_interceptors.cachetools as deelog
from deelog_connector import topic_audit
from deelog_connector.runtime import Connector
from deelog_interceptors.cachetools import refused
from deelog_interceptors.cachetools.mirror import Mirror
from deelog_interceptors.cachetools.refused import Refused
from deelog_interceptors.cachetools.telling import Skipped
from deelog_schemas.entry_limit import EntryLimit
from deelog_schemas.header import Kind
from deelog_schemas.keys import segment_of
from tests.interceptors.cachetools.support import SEGMENTS, Attached
from tests.interceptors.cachetools.test_capture import SECONDS, config, ready, told
from tests.support.kafka import Broker
from tests.support.memory import LiveMemory
from tests.support.topics import read_topic
from tests.support.waiting import waiting

LARGE = random.Random(1).randbytes(30_000).hex()
"""Half as large once it is compressed, which is what brokers look at."""
LEFT_OUT = "1 entries are larger than the topic takes"


class Refusing:
    """A connector whose segments `stopped` stand, and come to `phase` when they are repaired."""

    def __init__(self) -> None:
        self.max_message_bytes: int | None = None
        self.stats = SimpleNamespace(stopped=dict[int, str]())
        self.phases = ["writing"] * SEGMENTS
        self.sink = SimpleNamespace(phase=lambda segment: self.phases[segment])
        self.repaired: list[list[int]] = []

    def stop(self, segment: int) -> None:
        self.stats.stopped[segment], self.phases[segment] = "it is too large", "stopped"

    def repair(self, segments: Any) -> None:
        self.repaired.append(list(segments))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr(refused, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def refused_of(mirror: Mirror, skipped: Skipped | None = None) -> Refused:
    limit = EntryLimit(1_000_000, 900_000, "string", "string", 3, 1)
    return Refused("sessions", limit, mirror, skipped or Skipped())


def test_a_segment_is_tried_again_after_longer_and_longer_waits(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    made, connector = refused_of(Mirror(SEGMENTS, False, lambda moment: None)), Refusing()
    made.look(cast("Connector", connector))
    assert made.why == ""
    connector.stop(3)
    made.look(cast("Connector", connector))
    assert (made.why, connector.repaired) == ("", [])  # not at each turn of the loop
    times = []
    for _ in range(300):
        clock.now += 1.0
        before = len(connector.repaired)
        made.look(cast("Connector", connector))
        times += [clock.now] * (len(connector.repaired) - before)
    assert made.why == "segment 3 waits: it is too large; tried again within a minute"
    waits = [round(after - before) for before, after in pairwise(times)]
    assert (waits[:6], set(waits[6:])) == ([1, 2, 4, 8, 16, 32], {60})

    connector.stats.stopped, connector.phases[3] = {}, "rows"
    clock.now += 1.0
    made.look(cast("Connector", connector))
    assert made.why
    connector.phases[3] = "writing"
    clock.now += 1.0
    made.look(cast("Connector", connector))
    assert made.why == ""
    assert caplog.messages == ["cache sessions: Kafka takes all of its segments again"]
    connector.stop(4)
    connector.stop(5)
    clock.now += 61.0
    made.look(cast("Connector", connector))
    assert made.why.startswith("segment 4 waits, and 1 others: ")
    clock.now += 1.0
    made.look(cast("Connector", connector))
    assert connector.repaired == [*[[3]] * len(times), [4, 5], [4, 5]]


def test_a_reset_leaves_out_what_the_topic_does_not_take(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    mirror, skipped, attached = Mirror(SEGMENTS, False, int), Skipped(), Attached(cachetools.LRUCache(1))
    made, connector = refused_of(mirror, skipped), Refusing()
    mirror.load("large", LARGE, 5)
    mirror.load("small", "v", 6)
    number = segment_of(b"large", SEGMENTS)
    made.context = attached.context
    connector.max_message_bytes = 1_048_588
    made.look(cast("Connector", connector))
    made.leave_out(number)
    assert (len(mirror), attached.context.limit.room) == (2, 900_000)

    connector.max_message_bytes = 25_000
    clock.now += 1.0
    made.look(cast("Connector", connector))
    assert attached.context.limit.room == 15_000
    made.leave_out(number)
    made.leave_out(segment_of(b"small", SEGMENTS))
    assert (len(mirror), skipped.number, mirror.get(number, b"large")) == (1, 1, None)
    assert [message[16:].partition(",")[0] for message in caplog.messages] == [LEFT_OUT]
    assert caplog.messages[0].endswith(": 'large'")
    made.leave_out(number)
    assert skipped.number == 1

    connector.max_message_bytes = 1_048_588
    clock.now += 1.0
    made.look(cast("Connector", connector))
    assert attached.context.limit.room == 900_000


def test_one_entry_that_is_refused_keeps_no_other_from_kafka(live: LiveMemory, prefix: str) -> None:
    """By a policy of the brokers: nobody knows which entry it is, so its segment waits, and says so."""
    cache: Any = cachetools.LRUCache(50)
    with deelog.capture(cache, config(live, prefix)) as capture:
        ready(capture)
        live.kafka.refused.add(b'{"key":"odd"}')
        cache["odd"] = "1"
        waiting(lambda: capture.failure, SECONDS, "the failure")
        assert f"segment {segment_of(b'odd', SEGMENTS)} waits: the broker refused a record" in str(capture.failure)
        others = [f"k{n}" for n in range(40) if segment_of(b"k%d" % n, SEGMENTS) != segment_of(b"odd", SEGMENTS)]
        for key in others:
            cache[key] = "1"
        waiting(lambda: {*others} <= sent(live, prefix), SECONDS, "the others")
        live.kafka.refused.clear()
        waiting(lambda: capture.failure is None, SECONDS, "the next try")
    assert told(live, prefix).entries == dict(cache)
    assert capture.skipped == 0


def test_who_waits_for_the_stream_hears_what_it_waits_for(live: LiveMemory, prefix: str) -> None:
    cache: Any = cachetools.LRUCache(50)
    cache["odd"] = "1"
    live.kafka.refused.add(b'{"key":"odd"}')
    with deelog.capture(cache, config(live, prefix)) as capture:
        waiting(lambda: capture.failure, SECONDS, "the failure")
        with pytest.raises(TimeoutError, match=r"does not stream after 0 s: segment \d+ waits: "):
            capture.wait_until_streaming(0)
        del cache["odd"]
        capture.wait_until_streaming(SECONDS)
        waiting(lambda: capture.failure is None, SECONDS, "the next look")


def test_what_the_topic_does_not_take_any_more_is_left_out_and_comes_again(
    kafka: Broker, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_audit, "AUDIT_SECONDS", 0.5)
    cache: Any = cachetools.LRUCache(50)
    with deelog.capture(cache, config(kafka, prefix), lock=threading.Lock()) as capture:
        ready(capture)
        cache["old"] = LARGE
        waiting(lambda: "old" in told(kafka, prefix).entries, SECONDS, "the entry")
        looks = capture._runner.refused
        looks._next_look = math.inf  # a writer that knows the limit is refused before
        limit_of(kafka, prefix, 25_000)
        cache["new"] = LARGE
        looks._next_look = 0.0
        for number in range(40):
            cache[f"k{number}"] = "small"
        waits = segment_of(b"new", SEGMENTS)
        small = {f"k{number}" for number in range(40) if segment_of(b"k%d" % number, SEGMENTS) != waits}
        waiting(lambda: small <= sent(kafka, prefix), SECONDS, "the others")
        waiting(lambda: capture.skipped and capture.failure is None, SECONDS, "the reset")
        assert "new" not in sent(kafka, prefix)
        with pytest.raises(deelog.EntryTooLarge, match=r"15000 fit: raise .*max\.message\.bytes"):
            cache["other"] = LARGE

        limit_of(kafka, prefix, 1_048_588)
        cache["old"] = "small again"

        def comes_again() -> bool:
            capture.check()
            return "new" in sent(kafka, prefix)

        waiting(comes_again, SECONDS, "the entry that was left out")
    assert told(kafka, prefix).entries == dict(cache)


def sent(kafka: Broker | LiveMemory, prefix: str) -> set[str]:
    """The keys of all changes and rows. A segment that waits has an open reset, which `told` takes for a fault."""
    name = f"{prefix}.sessions"
    records = kafka.records(name) if isinstance(kafka, LiveMemory) else read_topic(kafka.bootstrap, name)
    return {json.loads(record.key)["key"] for record in records if record.header.kind in (Kind.CHANGE, Kind.READ)}


def limit_of(kafka: Broker, prefix: str, most: int) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    entry = ConfigEntry("max.message.bytes", str(most), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, f"{prefix}.sessions", incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(20)
