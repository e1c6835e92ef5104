"""Clients of a grid under test, and what must hold of its copies."""

from __future__ import annotations

import threading
import time

from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException, RedisError

from tests.interceptors.grid.cluster import Grid, eventually

SEGMENTS = 32


class Writer(threading.Thread):
    """Counts up in its own keys and remembers what was acknowledged; an unacknowledged write is sent again.

    `pause`: seconds between two writes.
    """

    def __init__(self, grid: Grid, name: str, keys: int = 50, pause: float = 0.0) -> None:
        super().__init__(name=name)
        self.acked: dict[str, int] = {}
        self.sent: dict[str, int] = {}
        self.errors = 0
        self._grid, self._keys, self._pause = grid, keys, pause
        self._stop_flag = threading.Event()

    def run(self) -> None:
        client = self._grid.client()
        number = 0
        while not self._stop_flag.is_set():
            number += 1
            key = f"{self.name}:{number % self._keys}"
            self.sent[key] = number
            while not self._stop_flag.is_set():
                try:
                    client.set(key, str(number))
                except (RedisError, RedisClusterException, OSError):
                    self.errors += 1
                    time.sleep(0.01)
                else:
                    self.acked[key] = number
                    break
            time.sleep(self._pause)
        client.close()

    def end(self) -> None:
        self._stop_flag.set()
        self.join(60)
        assert not self.is_alive()


def size(client: RedisCluster) -> int:
    """Entries on all nodes; without a target redis-py asks any one of them."""
    found = client.dbsize(target_nodes=RedisCluster.PRIMARIES)
    assert isinstance(found, int)
    return found


def assert_nothing_lost(client: RedisCluster, writer: Writer) -> None:
    assert len(writer.acked) > 10
    for key, number in writer.acked.items():
        found = client.get(key)
        assert found is not None, key
        assert number <= int(found) <= writer.sent[key], key


def assert_copies_equal(grid: Grid) -> None:
    """Every segment has a primary, and its backups hold the same entries at the same position."""

    def different() -> list[str]:
        found = []
        for segment in range(SEGMENTS):
            held = {n.node_id: dump for n in grid.live() if (dump := n.dump(segment))[0] != "none"}
            first = next(iter(held.values()))
            primaries = sum(dump[0] == "primary" for dump in held.values())
            if primaries != 1 or any(dump[1:] != first[1:] for dump in held.values()):
                found.append(f"{segment}: {held}")
        return found

    seen: list[str] = []

    def equal() -> bool:
        seen[:] = different()
        return not seen

    try:
        eventually(equal, 60, "equal copies")
    except TimeoutError:
        raise AssertionError(seen[:3], [n.stats()["grid"] for n in grid.live()]) from None
