"""Meters of a connector besides the counters of its core. For the loop's thread."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from deelog_connector.core.durations import Durations
from deelog_connector.core.effects import Cause
from deelog_connector.kafka_port import REQUEST_SECONDS
from deelog_connector.runtime.encode import Tally

ANSWER_SECONDS: Final = 2 * REQUEST_SECONDS
"""Requests are sent every second; without a response for this long, Kafka counts as unavailable."""


class EventMeter:
    """Sums over committed transactions, and whether Kafka answers."""

    def __init__(self) -> None:
        self.commits = Durations()
        """From a transaction's first record to Kafka's response."""
        self.creates = self.updates = self.deletes = self.rows = 0
        self.piped: Counter[str] = Counter()
        """`filtered`: changes that were left out; `erroneous`: those that failed and were skipped. Those of a retried
        transaction are counted again."""
        self.failed: Counter[Cause] = Counter()
        """Transactions that were not committed."""
        self.behind_us = -1
        """Age of the last encoded change, in microseconds; -1 for none."""
        self.change_us = self.row_us = 0
        """When the last transaction with changes, with rows of a reset, was encoded; Unix microseconds, 0 for never."""
        self.kafka_away = ""
        """Why Kafka is unavailable now, or empty."""
        self._answered = -math.inf

    def committed(self, tally: Tally, seconds: float) -> None:
        """A transaction was committed."""
        self.commits.add(seconds)
        self.creates += tally.creates
        self.updates += tally.updates
        self.deletes += tally.deletes
        self.rows += tally.rows
        if tally.captured_us:
            self.change_us = tally.encoded_us
            self.behind_us = max(0, tally.encoded_us - tally.captured_us)
        if tally.rows:
            self.row_us = tally.encoded_us

    @property
    def changes(self) -> int:
        """Changes written."""
        return self.creates + self.updates + self.deletes

    def kafka_answered(self, now: float) -> None:
        """The brokers answered now; `now` is in seconds of a monotonic clock."""
        self._answered, self.kafka_away = now, ""

    def kafka_problem(self, now: float) -> str | None:
        """What is wrong with Kafka, or None."""
        if self.kafka_away:
            return f"Kafka cannot be used: {self.kafka_away}"
        if now - self._answered > ANSWER_SECONDS:
            since = "yet" if math.isinf(self._answered) else f"for {now - self._answered:.0f} s"
            return f"Kafka has not answered {since}"
        return None
