"""Plays writes through `RedisCluster`: pipelined, in order per key, each write sent until it is acknowledged.

Every worker thread owns the keys of one hash class and a client of its own. A batch holds no key twice: if a segment
moved in the middle of a pipeline, a key's later write could succeed and its earlier one fail. A failed write keeps its
place, and later writes of its key wait for it.

Weighed in docs/decisions.md, "Clients are threads".
"""

from __future__ import annotations

import queue
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tenacity
from redis import exceptions
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, PipelineCommand, RedisCluster
from redis.exceptions import DataError, MovedError, RedisClusterException, RedisError, ResponseError
from redis.retry import Retry

from deelog_proof.load.history import History, Sent, now_us
from deelog_proof.load.traces import Write
from deelog_schemas.errors import DeelogError

WORKERS = 4
WINDOW = 512
"""Writes that a worker looks ahead for keys without a pending write."""
BATCH = 64
DEADLINE_SECONDS = 60.0
_SOCKET_SECONDS = 1.5
_LONGEST_BACKOFF = 0.5
_REPLICATED_MS = 1000
_POLL_SECONDS = 0.2
_BURST_SECONDS = 0.5
_LIMIT_SECONDS = 0.02
_MOVED = (MovedError, exceptions.ConnectionError, exceptions.TimeoutError)
"""Errors after which another node may be primary of the slot."""


class PlayError(DeelogError):
    """A write was not acknowledged within the deadline; the message has the key and the last error."""


@dataclass(slots=True)
class Counters:
    """Counts of one worker. `attempts` counts every sending of a write, `longest_us` is the longest time to an
    acknowledgement."""

    acked: int = 0
    refused: int = 0
    attempts: int = 0
    longest_us: int = 0
    last_error: str = ""


class Player:
    """Plays writes on a cluster. Call `run` once; `stop` from any thread ends it early.

    `nodes` are `(host, port)` of some nodes, `rate` the most writes per second (0: no limit), `deadline` how long one
    write may stay unacknowledged, in seconds. A write is acknowledged once so many `replicas` have it, too (WAIT).
    `history()` and the counts may be read while it runs.
    """

    def __init__(
        self,
        nodes: Sequence[tuple[str, int]],
        *,
        workers: int = WORKERS,
        rate: float = 0.0,
        deadline: float = DEADLINE_SECONDS,
        keep_history: bool = True,
        replicas: int = 0,
    ) -> None:
        self.limit: int | None = None
        """Writes to play; later ones wait until it is raised (None: no limit). May be changed while it runs."""
        self.rate = rate
        """Writes per second from now on, 0 for no limit; may be changed while it runs."""
        self._stopped = threading.Event()
        self._ended = threading.Event()
        self.operations = 0
        self._workers = [_Worker(nodes, deadline, self._ended, keep_history, replicas) for _ in range(workers)]

    @property
    def acked(self) -> int:
        """Writes acknowledged so far."""
        return sum(w.counters.acked for w in self._workers)

    @property
    def refused(self) -> int:
        """Writes that the cache refused with an error that a retry would not change."""
        return sum(w.counters.refused for w in self._workers)

    @property
    def attempts(self) -> int:
        """Sendings so far, first ones included."""
        return sum(w.counters.attempts for w in self._workers)

    @property
    def longest_ms(self) -> float:
        """The longest time from a write's first sending to its acknowledgement, milliseconds."""
        return max(w.counters.longest_us for w in self._workers) / 1000

    @property
    def last_error(self) -> str:
        """The last error reply, or empty."""
        return next((w.counters.last_error for w in self._workers if w.counters.last_error), "")

    def histories(self) -> list[History]:
        """One per worker, of disjoint keys."""
        return [w.history for w in self._workers]

    def stop(self) -> None:
        """Ends `run` soon: writes in flight are given up."""
        self._stopped.set()
        self._ended.set()

    def run(self, writes: Iterable[Write]) -> None:
        """Plays all writes and returns when each is acknowledged or refused. Raises the first error of a worker."""
        for worker in self._workers:
            worker.thread.start()
        try:
            self._feed(writes)
        finally:
            for worker in self._workers:
                worker.close()
            for worker in self._workers:
                worker.thread.join()
        for worker in self._workers:
            if worker.failure is not None:
                raise worker.failure

    def _feed(self, writes: Iterable[Write]) -> None:
        due = time.monotonic()
        for write in writes:
            while self.limit is not None and self.operations >= self.limit and not self._stopped.wait(_LIMIT_SECONDS):
                pass
            if self.rate:
                # Catches up to a bound: a burst would be another load.
                due = max(due, time.monotonic() - _BURST_SECONDS) + 1 / self.rate
                self._stopped.wait(due - time.monotonic())
            worker = self._workers[zlib.crc32(write.key) % len(self._workers)]
            if not worker.put(write) or self._stopped.is_set():
                return
            self.operations += 1


@dataclass(slots=True)
class _Pending:
    write: Write
    sent: Sent | None = None


@dataclass(slots=True)
class _Worker:
    nodes: Sequence[tuple[str, int]]
    deadline: float
    ended: threading.Event
    keep_history: bool
    replicas: int = 0
    counters: Counters = field(default_factory=Counters)
    history: History = field(default_factory=History)
    failure: BaseException | None = None
    incoming: queue.Queue[Write | None] = field(default_factory=lambda: queue.Queue(WINDOW))
    window: list[_Pending] = field(default_factory=list)
    thread: threading.Thread = field(init=False)
    client: RedisCluster | None = None

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._guarded, name="player", daemon=True)

    def put(self, write: Write | None) -> bool:
        """Queues a write; False once the player was stopped."""
        while not self.ended.is_set():
            try:
                self.incoming.put(write, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False

    def close(self) -> None:
        self.put(None)

    def _guarded(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # noqa: BLE001  # handed to the caller of run()
            self.failure = error
            self.ended.set()
        finally:
            if self.client is not None:
                self.client.close()

    def _loop(self) -> None:
        more = True
        while (more or self.window) and not self.ended.is_set():
            more = self._take(more)
            if self.window:
                self._round_with_patience()

    def _take(self, more: bool) -> bool:
        while more and len(self.window) < WINDOW:
            try:
                # While writes are pending, it does not wait for more.
                write = self.incoming.get(block=not self.window, timeout=_POLL_SECONDS)
            except queue.Empty:
                return True
            if write is None:
                return False
            self.window.append(_Pending(write))
        return more

    def _round_with_patience(self) -> None:
        """Sends until a write was acknowledged, with growing pauses, until the deadline."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda progress: not progress),
            wait=tenacity.wait_random_exponential(multiplier=0.02, max=_LONGEST_BACKOFF),
            stop=tenacity.stop_after_delay(self.deadline) | tenacity.stop_when_event_set(self.ended),
            sleep=tenacity.sleep_using_event(self.ended),
        )
        try:
            retrying(self._round)
        except tenacity.RetryError as error:
            if self.ended.is_set():
                return
            raise self._overdue(self.window[0]) from error

    def _overdue(self, pending: _Pending) -> PlayError:
        return PlayError(
            f"the write of key {pending.write.key!r} was not acknowledged within {self.deadline:g} s; the last answer "
            f"was: {self.counters.last_error or 'none'}"
        )

    def _round(self) -> bool:
        """Sends one batch; returns whether a write was settled. The others keep their place in the window."""
        batch = self._batch()
        answers = self._send(batch)
        settled: set[int] = set()
        for pending, answer in zip(batch, answers, strict=True):
            if self._settle(pending, answer):
                settled.add(id(pending))
        self.window = [pending for pending in self.window if id(pending) not in settled]
        oldest = next((p for p in batch if id(p) not in settled and p.sent is not None), None)
        if settled and oldest is not None and oldest.sent is not None:
            # While other writes progress, only this checks the deadline of this one.
            if now_us() - oldest.sent.sent_us > self.deadline * 1e6:
                raise self._overdue(oldest)
            if len(settled) * 4 < len(batch):
                self.ended.wait(0.02)
        return bool(settled)

    def _batch(self) -> list[_Pending]:
        keys: set[bytes] = set()
        batch = []
        for pending in self.window:
            if pending.write.key not in keys:
                keys.add(pending.write.key)
                batch.append(pending)
                if len(batch) == BATCH:
                    break
        return batch

    def _send(self, batch: list[_Pending]) -> list[Any]:
        self.counters.attempts += len(batch)
        for pending in batch:
            if pending.sent is None:
                key, value, _ = pending.write
                pending.sent = self.history.sent(key, value) if self.keep_history else Sent(0, now_us())
        try:
            client: Any = self.client or connect(self.nodes)
            self.client = client
            pipeline = client.pipeline()
            commands = [_command(pending.write, place) for place, pending in enumerate(batch)]
            nodes = [client.get_node_from_key(pending.write.key) for pending in batch] if self.replicas else []
            # Not execute(): it would retry failed commands one by one, each with its own timeout.
            answers = pipeline.send_cluster_commands(commands, raise_on_error=False, allow_redirections=False)
            if any(isinstance(answer, _MOVED) for answer in answers):
                learn_slots(client)
            return self._replicated(client, nodes, list(answers)) if nodes else list(answers)
        except (RedisError, RedisClusterException, OSError) as error:
            if self.client is not None:
                # Its slot map has holes, or no node replied: start over, from all given nodes.
                self.client.close()
                self.client = None
            return [error] * len(batch)

    def _replicated(self, client: Any, nodes: list[ClusterNode | None], answers: list[Any]) -> list[Any]:
        """The answers, of which those count that enough replicas have. By the same connections: each worker has one."""
        done = [node for node, answer in zip(nodes, answers, strict=True) if not isinstance(answer, Exception)]
        lacking: dict[ClusterNode | None, Exception] = {}
        for node in set(done):
            try:
                having = client.execute_command("WAIT", self.replicas, _REPLICATED_MS, target_nodes=node)
                if having < self.replicas:
                    lacking[node] = exceptions.TimeoutError(f"{having} replicas have it")
            except (RedisError, RedisClusterException, OSError) as error:
                lacking[node] = error
        return [
            answer if isinstance(answer, Exception) else lacking.get(node, answer)
            for node, answer in zip(nodes, answers, strict=True)
        ]

    def _settle(self, pending: _Pending, answer: Any) -> bool:
        """Takes the reply of a write; returns whether the write is done."""
        assert pending.sent is not None
        if isinstance(answer, Exception):
            self.counters.last_error = f"{type(answer).__name__}: {answer}"
            if _is_final(answer):
                self.counters.refused += 1
                return True
            return False
        now = now_us()
        pending.sent.acked_us = now
        pending.sent.captured = pending.write.value is not None or answer != 0
        self.counters.acked += 1
        self.counters.longest_us = max(self.counters.longest_us, now - pending.sent.sent_us)
        return True


def _command(write: Write, place: int) -> PipelineCommand:
    key, value, ttl_ms = write
    make: Callable[..., PipelineCommand] = PipelineCommand  # its constructor is untyped
    if value is None:
        return make(("DEL", key), {}, place)
    return make(("SET", key, value) if ttl_ms is None else ("SET", key, value, "PX", ttl_ms), {}, place)


def connect(nodes: Sequence[tuple[str, int]]) -> RedisCluster:
    """A cluster client that returns errors at once instead of retrying."""
    node: Callable[[str, int], ClusterNode] = ClusterNode  # its constructor is untyped
    try:
        return RedisCluster(
            startup_nodes=[node(host, port) for host, port in nodes],
            dynamic_startup_nodes=False,
            require_full_coverage=False,
            reinitialize_steps=1,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=_SOCKET_SECONDS,
            socket_connect_timeout=_SOCKET_SECONDS,
        )
    except IndexError as error:  # redis-py's answer to a cluster that has no primaries at the moment
        raise RedisClusterException("no slot has a primary") from error


def learn_slots(client: RedisCluster) -> None:
    """Reads the slot map. `RedisClusterException` where no slot has a primary or no node replies."""
    try:
        client.nodes_manager.initialize()
    except IndexError as error:  # redis-py's answer to a cluster that has no primaries at the moment
        raise RedisClusterException("no slot has a primary") from error


def _is_final(error: Exception) -> bool:
    """Whether the cache refused the command itself: `ERR …` and wrong arguments, not a redirection or a pause."""
    if isinstance(error, DataError):
        return True
    return type(error) is ResponseError and getattr(error, "status_code", None) == "ERR"
