"""The player: order per key through every trouble, nothing given up, nothing sent for ever."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator

import pytest

from deelog_proof.load.history import merged
from deelog_proof.load.player import Player, PlayError
from deelog_proof.load.sessions import session_store
from deelog_proof.load.traces import Write
from tests.proof.load.cluster_double import FailingCluster
from tests.support.waiting import waiting


def _writes(count: int, keys: int) -> list[Write]:
    return [
        Write(b"k%d" % (n % keys), None if n % 7 == 3 else b"v%d" % n, 60_000 if n % 5 == 0 else None)
        for n in range(count)
    ]


@contextlib.contextmanager
def _playing(player: Player, writes: list[Write]) -> Iterator[None]:
    """Plays in a thread, which must have ended after the block."""
    thread = threading.Thread(target=player.run, args=(writes,))
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()


def _in_order(applied: list[tuple[bytes, bytes | None]], writes: list[Write]) -> None:
    """Repeats of one write aside, every key's writes were applied as they were given."""
    for key in {write.key for write in writes}:
        wanted = [value for k, value, _ in writes if k == key]
        given = [value for value, _ in itertools.groupby(value for k, value in applied if k == key)]
        assert given == [value for value, _ in itertools.groupby(wanted)]


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
def test_order_per_key_survives_redirections_and_lost_connections(seed: int) -> None:
    writes = _writes(1500, 40)
    with FailingCluster(seed, trouble=0.15) as cluster:
        player = Player(cluster.nodes)
        player.run(writes)
    assert cluster.troubles == {"moved", "tryagain", "drop", "lost-answer"}
    assert player.acked == player.operations == len(writes)
    assert player.attempts > len(writes)
    _in_order(cluster.applied, writes)


def test_history_holds_every_write_with_its_times() -> None:
    writes = list(session_store(800, 5))
    begin = time.time_ns() // 1000
    with FailingCluster(1) as cluster:
        player = Player(cluster.nodes)
        player.run(writes)
    history = merged(player.histories())
    sent = [write for of_key in history.writes.values() for write in of_key]
    assert len(sent) == len(writes)
    assert all(begin <= write.sent_us <= write.acked_us <= time.time_ns() // 1000 for write in sent)
    # A delete of a key that was not there captured nothing, and only that.
    present: set[bytes] = set()
    useless = 0
    for key, value, _ in writes:
        useless += value is None and key not in present
        (present.discard if value is None else present.add)(key)
    assert sum(not write.captured for write in sent) == useless > 0


def test_a_refused_write_is_counted_and_holds_nothing_up() -> None:
    with FailingCluster(1, refused=b"k3") as cluster:
        player = Player(cluster.nodes)
        player.run(_writes(100, 10))
    assert (player.refused, player.acked) == (10, 90)
    assert "max.entry.bytes" in player.last_error


@pytest.mark.slow
def test_a_cluster_without_primaries_is_waited_for() -> None:
    with FailingCluster(3, trouble=0.1, headless=3) as cluster:
        player = Player(cluster.nodes)
        player.run(_writes(300, 20))
        assert cluster.asked_for_slots > 3 * 4  # more often than at the start of each worker
    assert player.acked == 300


def test_deadline_names_key_and_last_answer() -> None:
    with FailingCluster(1, down=True) as cluster:
        player = Player(cluster.nodes, deadline=1.0, workers=1)
        with pytest.raises(PlayError, match=r"b'k0' was not acknowledged within 1 s.*nobody is there"):
            player.run(_writes(100, 10))


def test_writes_of_different_keys_are_sent_together() -> None:
    with FailingCluster(1) as cluster:
        player = Player(cluster.nodes, workers=1)
        player.run(_writes(1200, 400))
        assert cluster.reads < 1200 / 4


def test_rate_is_kept_and_may_change() -> None:
    with FailingCluster(1) as cluster:
        player = Player(cluster.nodes, rate=200)
        begin = time.monotonic()
        player.run(_writes(200, 10))
        assert time.monotonic() - begin > 0.8


def test_a_limit_holds_the_rest_back_until_it_is_raised() -> None:
    with FailingCluster(1) as cluster:
        player = Player(cluster.nodes)
        player.limit = 30
        with _playing(player, _writes(100, 10)):
            waiting(lambda: player.acked == 30, 60, "all writes below the limit")
            assert player.operations == 30
            player.limit = None
    assert player.acked == 100


def test_stop_ends_a_run_early() -> None:
    with FailingCluster(1) as cluster:
        player = Player(cluster.nodes, rate=20)
        with _playing(player, _writes(1000, 10)):
            waiting(lambda: player.acked > 0, 60, "a first acknowledgement")
            player.stop()
    assert player.operations < 1000


def test_stop_ends_a_run_that_waits_below_its_limit() -> None:
    with FailingCluster(1) as cluster:
        player = Player(cluster.nodes)
        player.limit = 10
        with _playing(player, _writes(100, 10)):
            waiting(lambda: player.acked == 10, 60, "all writes below the limit")
            player.stop()
    assert player.operations == 10
