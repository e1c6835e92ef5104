"""Clients that write while things break, and write down what they were told.

*Careful* clients send each attempt by themselves, so that they know the answer to each: they send again, or give up,
or wait no longer, and draw which from the seed. *Stock* clients are `RedisCluster` as everybody has it, which sends
again behind the caller's back: whatever it raises leaves the outcome unknown. All write the same keys.
"""

from __future__ import annotations

import bisect
import itertools
import random
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from redis.cluster import ClusterNode, PipelineCommand, RedisCluster
from redis.exceptions import AskError, MovedError, RedisClusterException, RedisError, ResponseError

from deelog_proof.load.player import connect, learn_slots
from tests.system.chaos.history import FAILED, OK, UNKNOWN, Write, now_us

MAX_ENTRY_BYTES: Final = 4096
_GIVE_UP_SECONDS: Final = 30.0
_LONGEST_BACKOFF: Final = 0.25
_HOUR_MS: Final = 3_600_000
_CENTURY_MS: Final = 4_102_444_800_000
_MOST_WRITES: Final = 10_000_000
_REDIRECTIONS: Final = (MovedError, AskError)


class Client:
    """One client in one thread. `history` may be read once `join` returned; `acknowledged` at any time."""

    def __init__(self, number: int, nodes: Sequence[tuple[str, int]], seed: int, keys: int, rate: float) -> None:
        self.name = f"{type(self).__name__}-{number}"
        self._number = number
        self.history: list[Write] = []
        self.failure: BaseException | None = None
        self.acknowledged = 0
        self._nodes, self._rate = nodes, rate
        self._draw = random.Random(f"{seed}/{self.name}")
        self._weights = list(itertools.accumulate(1 / (rank + 10) for rank in range(keys)))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=self.name, daemon=True)
        self._cluster: RedisCluster | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends it after the write that it is at."""
        self._stopped.set()

    def join(self) -> None:
        """Returns when it has ended; raises what it ended by."""
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _guarded(self) -> None:
        try:
            due = time.monotonic()
            while not self._stopped.wait(max(0.0, due - time.monotonic())):
                due = max(due + self._draw.uniform(0, 2) / self._rate, time.monotonic() - 1)
                self._one()
        except BaseException as error:  # noqa: BLE001  # raised again by join()
            self.failure = error
        finally:
            self._close()

    def _one(self) -> None:
        command, write = self._drawn(len(self.history))
        self.history.append(write)
        try:
            self._send(command, write)
        finally:
            write.ended_us = now_us()
        self.acknowledged += write.outcome == OK

    def _drawn(self, number: int) -> tuple[tuple[Any, ...], Write]:
        """The next command, and what it will be known by."""
        draw = self._draw
        rank = bisect.bisect_left(self._weights, draw.random() * self._weights[-1])
        key = b"key:%d" % rank
        kind = draw.random()
        if kind < 0.12:
            return ("DEL", key), Write(self.name, key, None, None, now_us())
        if kind < 0.18:
            at = _CENTURY_MS + self._number * _MOST_WRITES + number  # far away, and no two are the same
            return ("PEXPIREAT", key, at), Write(self.name, key, None, at, now_us())
        padding = "x" * draw.choice((0, 40, 40, 200, 900))
        if kind < 0.19:
            padding = "x" * MAX_ENTRY_BYTES  # refused, for good
        value = f'{{"by":"{self.name}/{number}","pad":"{padding}"}}'.encode()
        options: tuple[Any, ...] = ()
        if kind < 0.35:
            options = ("PX", draw.randint(500, 6000))
        elif kind < 0.55:
            options = ("PX", _HOUR_MS)
        elif kind < 0.62:
            options = ("NX",)
        elif kind < 0.66:
            options = ("XX",)
        return ("SET", key, value, *options), Write(self.name, key, value, None, now_us())

    def _send(self, command: tuple[Any, ...], write: Write) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _acknowledged(self, command: tuple[Any, ...], write: Write, answer: Any) -> None:
        if answer is None and command[0] == "SET":  # NX or XX did not hold: of this attempt, not of an earlier one
            write.outcome = UNKNOWN if write.doubtful else FAILED
            return
        write.outcome = OK
        write.effect = answer != 0


class CarefulClient(Client):
    """Sends one attempt after the other and knows the answer to each."""

    def _send(self, command: tuple[Any, ...], write: Write) -> None:
        begin, pause = time.monotonic(), 0.01
        patience = self._draw.choice((0.5, 5.0, _GIVE_UP_SECONDS, _GIVE_UP_SECONDS))
        while True:
            answer = self._attempt(command)
            if not isinstance(answer, Exception):
                self._acknowledged(command, write, answer)
                return
            write.answers[_name(answer)] += 1
            if isinstance(answer, ResponseError) and getattr(answer, "status_code", None) == "ERR":
                write.outcome = UNKNOWN if write.doubtful else FAILED
                return
            write.doubtful |= not isinstance(answer, _REDIRECTIONS)
            if time.monotonic() - begin > patience or self._stopped.is_set():
                write.outcome = UNKNOWN if write.doubtful else FAILED
                return
            self._stopped.wait(self._draw.uniform(0.5, 1) * pause)
            pause = min(pause * 2, _LONGEST_BACKOFF)

    def _attempt(self, command: tuple[Any, ...]) -> Any:
        try:
            cluster = self._cluster = self._cluster or connect(self._nodes)
            pipeline: Any = cluster.pipeline()  # type: ignore[no-untyped-call]
            make: Any = PipelineCommand
            # Not execute(), which would send again what failed; and no redirection is followed unseen.
            (answer,) = pipeline.send_cluster_commands(
                [make(command, {}, 0)], raise_on_error=False, allow_redirections=False
            )
            if isinstance(answer, Exception):
                learn_slots(cluster)
        except (RedisError, RedisClusterException, OSError) as error:
            self._close()
            return error
        return answer


class StockClient(Client):
    """`RedisCluster` with its defaults, but for a timeout."""

    def _send(self, command: tuple[Any, ...], write: Write) -> None:
        begin = time.monotonic()
        if command[-1] in ("NX", "XX"):
            command = command[:-1]  # whether an earlier attempt was applied is not told
        while not self._stopped.is_set():
            try:
                if self._cluster is None:
                    node: Any = ClusterNode
                    nodes = [node(host, port) for host, port in self._nodes]
                    self._cluster = RedisCluster(startup_nodes=nodes, socket_timeout=2.0)
                answer: Any = self._cluster.execute_command(*command)  # type: ignore[no-untyped-call]
            except ResponseError as error:
                write.answers[_name(error)] += 1
                if getattr(error, "status_code", None) == "ERR":
                    # It may have sent a command more than once, but what is refused now was refused before.
                    write.outcome = FAILED
                    return
            except (RedisError, RedisClusterException, OSError, IndexError) as error:
                # IndexError is redis-py's answer to a cluster that has no primaries at the moment.
                write.answers[_name(error)] += 1
                if self._cluster is not None and not self._cluster.nodes_manager.slots_cache:
                    self._close()
            else:
                self._acknowledged(command, write, answer)
                write.doubtful = True  # how often it was sent nobody knows
                return
            write.doubtful = True
            if time.monotonic() - begin > _GIVE_UP_SECONDS:
                return
            self._stopped.wait(0.05)


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:60]}"
