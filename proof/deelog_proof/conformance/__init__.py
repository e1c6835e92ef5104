"""Checks that every interceptor must pass, with a real Kafka.

The author gives a `Driver`, which starts, uses and stops a cache of theirs, and runs every check:

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_my_cache(check, kafka):
        check(MyDriver, kafka)

A check records its writes to the cache, and reads the change topic with a plain consumer. Both must agree:
`history.py` defines how, `checks.py` has the checks. `docs/howto/interceptor.md` uses them.
"""

from deelog_proof.conformance.checks import CHECKS, Check, Kafka, NotConformant
from deelog_proof.conformance.driver import Driver

__all__ = ["CHECKS", "Check", "Driver", "Kafka", "NotConformant"]
