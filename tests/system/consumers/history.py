"""A topic as a cache leaves it behind that had a hard life, for consumers that know nothing of deelog.

Real nodes write it: creates, updates, deletes, expiry, values that are hard to quote, a clear, a takeover after
`kill -9`, resets of every segment whose rows repeat what is there, and the loss of both owners of segments, one of them
killed within a transaction. Each run makes it again, since bytes recorded once would
be those of a version that is no more.
"""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from redis.cluster import RedisCluster
from redis.exceptions import RedisError

from deelog_schemas.config.fields import FIELDS
from deelog_schemas.keys import partition_of, segment_of
from tests.interceptors.grid.cluster import Grid, GridNode, eventually
from tests.support.topics import messages

STRATEGIES: tuple[str, ...] = FIELDS["reset.strategy"].allowed
"""Every value of `reset.strategy`: what is allowed later is tried without a change here."""
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
PARTITIONS = 2
SEGMENTS = 32
HARD = {
    "": "the empty key",
    "empty": "",
    "ключ-鍵-🔑": "значение-値-🍐",
    'quo"te\\back/slash': 'quo"te\\back/slash',
    "new\nline\ttab\r": "new\nline\ttab\r",
    "control\x01\x1f\x7f": "control\x01\x1f\x7f",
    "separators\u2028\u2029": "separators\u2028\u2029\ufeff",
    "semi;colon's": "it's; -- a 'comment' /* here */",
    "nothing": "null",
    "json": '{"payload":{"op":"d","after":null}}',
    "long": "0123456789abcdef" * 2000,
}
"""Keys and values that somebody has to quote or to escape."""
_SECONDS = 60.0


@dataclass(frozen=True)
class History:
    """A topic and what its readers should end with."""

    topic: str
    strategy: str
    content: dict[str, str]
    """What the cache held at the end."""
    stale: dict[str, str]
    """Beside that: what the last record of each other key says, where it is no delete. Resets removed these keys."""
    phantoms: dict[str, str]
    """What stands in aborted transactions alone: the cache never acknowledged it to Kafka."""
    ends: frozenset[str]
    """Keys of the content, one in each partition, behind whose records there are control records at most."""


def make(folder: Path, bootstrap: str, prefix: str, strategy: str) -> History:
    """Writes it; the nodes have ended when this returns."""
    config = {
        "reset.strategy": strategy,
        "key.converter.schemas.enable": "true",
        "value.converter.schemas.enable": "true",
    }
    grid = Grid(folder, bootstrap, prefix, **config)
    try:
        grid.start(3)
        with _client(grid) as client:
            _ordinary(grid, client)
        _takeover(grid)
        _resets(grid, bootstrap, prefix)
        with _client(grid) as client:
            lost = _deletes_and_what_will_be_lost(grid, client)
        _both_owners_lost(grid, bootstrap, f"{prefix}.c")
        with _client(grid) as client:
            ends = _the_end(grid, client)
        content = _content(grid)
    finally:
        grid.end()
    held, phantoms = _folded(_records(bootstrap, f"{prefix}.c", COMMITTED)), _phantoms(bootstrap, f"{prefix}.c")
    stale = {key: value for key, value in held.items() if key not in content}
    assert set(ends) <= set(content)
    assert {key: held.get(key) for key in content} == content, "the topic lacks what the cache has"
    assert strategy != "marker" or lost.items() & stale.items(), "nothing was lost"
    return History(f"{prefix}.c", strategy, content, stale, phantoms, ends)


class Short(NamedTuple):
    """A topic of one node that lived in peace."""

    topic: str
    content: dict[bytes, bytes]
    deleted: frozenset[bytes]
    ends: frozenset[bytes]


def short(folder: Path, bootstrap: str, prefix: str, entries: dict[bytes, bytes], config: dict[str, str]) -> Short:
    """Puts all entries twice, deletes some others, and resets all segments in between."""
    grid = Grid(folder, bootstrap, prefix, **config)
    gone = frozenset(b"gone %d" % number for number in range(5))
    try:
        grid.start(1)
        with _client(grid) as client:
            for key, value in entries.items():
                client.set(key, b"first")
                client.set(key, value)
            for key in gone:
                client.set(key, b"here")
        _written(grid)
        _resets(grid, bootstrap, prefix)
        with _client(grid) as client:
            for key in gone:
                client.delete(key)
        _written(grid)
        with _client(grid) as client:
            ends = _ends()
            for end in ends:
                client.set(end, b"the end")
        _written(grid)
    finally:
        grid.end()
    content = entries | dict.fromkeys(map(str.encode, ends), b"the end")
    return Short(f"{prefix}.c", content, gone, frozenset(map(str.encode, ends)))


@contextmanager
def _client(grid: Grid) -> Iterator[RedisCluster]:
    client = grid.client()
    try:
        yield client
    finally:
        client.close()


def _written(grid: Grid) -> None:
    eventually(lambda: all(node.stats()["unwritten"] == 0 for node in grid.live()), _SECONDS, "everything written")


def _ordinary(grid: Grid, client: RedisCluster) -> None:
    """Creates, a clear, creates again, updates, deletes, expiry."""
    for number in range(40):
        client.set(f"cleared:{number}", "before")
    client.flushall(target_nodes=RedisCluster.PRIMARIES)
    for number in range(0, 40, 4):
        client.set(f"cleared:{number}", "after")
    for number in range(120):
        client.set(f"k{number}", "created")
    for number in range(0, 120, 2):
        client.set(f"k{number}", f"updated {number}")
    for number in range(0, 120, 3):
        client.delete(f"k{number}")
    for number in range(0, 120, 6):
        client.set(f"k{number}", "created again")
    for key, value in HARD.items():
        client.set(key, "first")
        client.set(key, value)
    client.set("expires", "soon", px=50)
    client.set("expires later", "much", ex=100_000)
    node = grid.primary_of(segment_of(b"expires", SEGMENTS))
    eventually(lambda: b"expires" not in node.dump(segment_of(b"expires", SEGMENTS))[2], what="expiry")


def _takeover(grid: Grid) -> None:
    """A node dies and comes back: the others take over what it had, and give a share of it back."""
    _written(grid)
    grid.nodes["n3"].kill()
    grid.complete(2)
    _back(grid, "n3")


def _back(grid: Grid, *names: str) -> None:
    for name in names:
        grid.nodes[name].start()
    for name in names:
        grid.nodes[name].wait()
    grid.complete(3)


def _resets(grid: Grid, bootstrap: str, prefix: str) -> None:
    """Every segment is reset: rows (op r) of keys that are there already."""
    producer = Producer({"bootstrap.servers": bootstrap})
    data = {"cache": "c", "segments": list(range(SEGMENTS)), "reason": "test"}
    producer.produce(f"{prefix}-signal", json.dumps({"type": "reset-segment", "data": data}), prefix)
    assert producer.flush(_SECONDS) == 0
    eventually(lambda: sum(n.stats()["resets"].get("signal", 0) for n in grid.live()) == SEGMENTS, _SECONDS, "resets")


def _deletes_and_what_will_be_lost(grid: Grid, client: RedisCluster) -> dict[str, str]:
    for number in range(1, 120, 10):
        client.delete(f"k{number}")
    lost = {f"lost:{number}": f"value {number}" for number in range(100)}
    for key, value in lost.items():
        client.set(key, value)
    _written(grid)
    return lost


def _both_owners_lost(grid: Grid, bootstrap: str, topic: str) -> None:
    """Kills n1 within a transaction and n2 with it: what only they held is gone, in the cache and half in Kafka."""
    victim, witness = grid.nodes["n1"], grid.nodes["n2"]
    for attempt in range(6):
        # Anew each time: who was stopped for too long, by a slow machine, lost its segments to others.
        shared = [s for s in range(SEGMENTS) if victim.dump(s)[0] == "primary" and witness.dump(s)[0] == "backup"]
        writer = _Phantoms(victim, shared[0], attempt)
        writer.start()
        try:
            stopped = _stop_in_a_transaction(victim, bootstrap, topic, partition_of(shared[0], PARTITIONS, SEGMENTS))
            if stopped:
                victim.kill()
                witness.kill()
        finally:
            writer.end()
        if stopped:
            grid.complete(1)
            _back(grid, "n1", "n2")
        # What was open may have been on its way to be committed.
        if _phantoms(bootstrap, topic):
            return
        grid.complete(len(grid.nodes))
    raise AssertionError(f"{victim.node_id} was never killed within a transaction")


class _Phantoms(threading.Thread):
    """Writes ever new keys of one segment to its primary, many at a time; those of an earlier attempt are not new."""

    def __init__(self, node: GridNode, segment: int, attempt: int) -> None:
        super().__init__(name="phantoms")
        self._node, self._attempt = node, attempt
        tags = (str(number) for number in range(10_000))
        self._tag = next(tag for tag in tags if segment_of(tag.encode(), SEGMENTS) == segment)
        self._ended = threading.Event()

    def run(self) -> None:
        number = 0
        with self._node.redis as redis:
            while not self._ended.is_set():
                pipeline = redis.pipeline(transaction=False)
                for _ in range(200):
                    number += 1
                    # Large, so that a transaction is open for longer than a blink.
                    key = f"phantom:{{{self._tag}}}:{self._attempt}:{number}"
                    pipeline.set(key, f"phantom {number} " + "x" * 2000)
                try:
                    pipeline.execute()
                except RedisError:
                    return  # it was killed, which is what this is for

    def end(self) -> None:
        self._ended.set()
        self.join(_SECONDS)
        assert not self.is_alive()


def _stop_in_a_transaction(node: GridNode, bootstrap: str, topic: str, partition: int) -> bool:
    """SIGSTOP at a moment when the node has records of an open transaction in the partition; False where none comes."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    place = TopicPartition(topic, partition)

    def end(level: IsolationLevel) -> int:
        latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = admin.list_offsets({place: latest}, isolation_level=level, request_timeout=_SECONDS)
        return int(asked[place].result().offset)

    def is_open() -> bool:
        return end(IsolationLevel.READ_COMMITTED) < end(IsolationLevel.READ_UNCOMMITTED)

    def holds_a_phantom() -> bool:
        stable, last = end(IsolationLevel.READ_COMMITTED), end(IsolationLevel.READ_UNCOMMITTED)
        settings = {"bootstrap.servers": bootstrap, "group.id": "phantoms", "isolation.level": "read_uncommitted"}
        consumer = Consumer({**settings, "enable.partition.eof": True})
        try:
            consumer.assign([TopicPartition(topic, partition, stable)])
            while (message := consumer.poll(_SECONDS)) is not None and message.error() is None:
                if b"phantom:" in (message.key() or b""):
                    return True
                if int(message.offset() or 0) >= last - 1:
                    break
        finally:
            consumer.close()
        return False

    deadline = time.monotonic() + _SECONDS / 2  # a transaction is open for a few milliseconds, of some fifty
    while time.monotonic() < deadline:
        node.signal(signal.SIGSTOP)
        # Asked again after the reading: by then a commit that the broker had begun is over.
        if is_open() and holds_a_phantom() and is_open():
            return True
        node.signal(signal.SIGCONT)
        time.sleep(random.uniform(0, 0.05))  # not in step with the commit interval
    return False


def _the_end(grid: Grid, client: RedisCluster) -> frozenset[str]:
    """Some of what was lost is written again; then, with all else in Kafka, one key in each partition."""
    for number in range(0, 100, 5):
        client.set(f"lost:{number}", "found again")
    for number in range(60, 120, 5):
        client.set(f"k{number}", "late")
    _written(grid)
    ends = _ends()
    for key in ends:
        client.set(key, "the end")
    _written(grid)
    return ends


def _ends() -> frozenset[str]:
    """A key of each partition."""
    found: dict[int, str] = {}
    for number in range(1000):
        key = f"end:{number}"
        found.setdefault(partition_of(segment_of(key.encode(), SEGMENTS), PARTITIONS, SEGMENTS), key)
    assert len(found) == PARTITIONS
    return frozenset(found.values())


def _content(grid: Grid) -> dict[str, str]:
    found = {}
    for segment in range(SEGMENTS):
        for key, (value, _) in grid.primary_of(segment).dump(segment)[2].items():
            found[key.decode()] = value.decode()
    return found


def _records(bootstrap: str, topic: str, level: str) -> dict[tuple[int, int], tuple[bytes, bytes | None]]:
    """Key and value of all records, by partition and offset."""
    found = messages(bootstrap, topic, isolation_level=level)
    return {(m.partition(), m.offset()): (m.key(), m.value()) for m in found}


def _phantoms(bootstrap: str, topic: str) -> dict[str, str]:
    """Keys that stand in aborted transactions alone, with their last values."""
    held, every = (_folded(_records(bootstrap, topic, level)) for level in (COMMITTED, UNCOMMITTED))
    return {key: value for key, value in every.items() if key not in held}


def _folded(records: dict[tuple[int, int], tuple[bytes, bytes | None]]) -> dict[str, str]:
    """What the last record of each key says, the deleted ones left out."""
    held: dict[str, str] = {}
    for _, (raw_key, raw_value) in sorted(records.items()):
        key = json.loads(raw_key)["payload"]["key"]
        after = None if raw_value is None else json.loads(raw_value)["payload"]["after"]
        if after is None:
            held.pop(key, None)
        else:
            held[key] = after["value"]
    return held
