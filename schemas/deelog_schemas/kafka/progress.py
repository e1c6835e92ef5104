"""Notices a producer that its library has lost: it never sends again, though the brokers answer everybody else.

After a restart of a broker a partition may stay without a leader in one client of librdkafka 2.16, whatever later
answers say: https://github.com/confluentinc/librdkafka/issues/5430, and the races of its pull requests 5401 and 5593.
The client itself cannot tell that from brokers that are away, so another client asks. Connector and Spark job both need
it, and neither may import the other.
Weighed in docs/decisions.md, "A producer that its library has lost".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

LOOK_SECONDS: Final = 1.0
"""The most that one request of a commit waits, so that its progress is seen."""
STALL_SECONDS: Final = 3.0
"""A queue that has not got shorter for so long, while brokers answered, is that of a lost producer.

A process that was stopped meanwhile has not waited: each request counts for its own time at most.
"""
MAX_STALL_SECONDS: Final = 60.0


class ProducerLost(KafkaException):
    """Only a new producer goes on."""


class Progress:
    """The progress of the transactions of one producer after another: `begin`, then `commit`. For one thread."""

    def __init__(self, answered: Callable[[], bool], seconds: float = LOOK_SECONDS) -> None:
        """`answered` asks with a new client whether brokers answer. `seconds`: the most that one request waits."""
        self._answered, self._seconds = answered, min(seconds, LOOK_SECONDS)
        self._left, self._stood, self._checked = -1, 0.0, 0.0
        self._patience, self._replaces = STALL_SECONDS, False

    def begin(self, patience: float = 0.0) -> None:
        """`patience`: the least number of seconds for which it may stand from now on."""
        self._left, self._patience = -1, max(self._patience, patience)

    def commit(self, producer: Any, again: Callable[[], bool]) -> None:
        """Commits, and repeats that as long as nobody answers and `again()`: it takes effect once.

        Raises `KafkaException`.
        """
        while True:
            try:
                producer.commit_transaction(self._seconds)
                self._replaces = False
                return
            except KafkaException as error:
                if not (error.args[0].retriable() and again()):
                    raise
            self.check(producer)

    def check(self, producer: Any) -> None:
        """Call it while records wait. Raises `ProducerLost`.

        Where the new one stands too, the client was not the cause (quotas, a partition without its minimum of
        replicas), and patience doubles, so that slow brokers get on.
        """
        left, now = len(producer), time.monotonic()
        waited, self._checked = min(now - self._checked, self._seconds), now
        if left != self._left:
            self._left, self._stood = left, 0.0
            return
        self._stood += waited
        if left and self._stood >= self._patience:
            if not self._answered():
                self._stood = 0.0
                return
            if self._replaces:
                self._patience = min(2 * self._patience, MAX_STALL_SECONDS)
            self._replaces = True
            why = f"the client has sent none of {left} records for {self._stood:.0f} s, and brokers answer others"
            raise ProducerLost(KafkaError(KafkaError._TIMED_OUT, why))
