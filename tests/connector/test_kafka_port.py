"""What the port itself says: why a transaction failed, and how long a controller may be silent."""

from __future__ import annotations

import pytest

from deelog_connector.core.effects import Cause
from deelog_connector.kafka_port import WriteFailed, session_seconds
from tests.connector.cache import config_of


def test_a_failed_write_says_what_may_be_assumed_and_why() -> None:
    lost, denied = WriteFailed(Cause.LOST, "no answer"), WriteFailed(Cause.REFUSED, "too large", denied=True)
    assert (lost.cause, lost.reason, lost.denied) == (Cause.LOST, "no answer", False)
    assert str(lost) == f"{Cause.LOST}: no answer"
    assert (denied.cause, denied.denied, str(denied)) == (Cause.REFUSED, True, f"{Cause.REFUSED}: too large")


def test_a_session_lasts_three_failure_timeouts() -> None:
    assert session_seconds(config_of("h:1", "p", cache_failure_timeout_ms=700)) == pytest.approx(2.1)
