"""The connector that ships, killed, paused, restarted, stopped and fenced at any await: topic and caches are equal.

`python -m tests.connector.seeds 1..1000` runs more.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import pytest

from tests.connector.seeds.run import FAULTS, OPERATIONS, Run, problems_of

AT_ONCE = 10
outcome_of = lru_cache(problems_of)


@pytest.mark.parametrize(
    "first",
    [*range(0, 20, AT_ONCE), *(pytest.param(n, marks=pytest.mark.slow) for n in range(20, 80, AT_ONCE))],
)
def test_topic_and_caches_are_equal_whatever_happens(first: int) -> None:
    wrong = {seed: problems for seed in range(first, first + AT_ONCE) if (problems := outcome_of(seed)[0])}
    assert wrong == {}


@pytest.mark.slow
def test_everything_happens_in_a_few_seeds() -> None:
    happened: Counter[str] = Counter()
    for seed in range(40):
        happened += outcome_of(seed)[1]
    assert {*FAULTS, *OPERATIONS} <= happened.keys()


def test_a_seed_is_the_same_again() -> None:
    first, second = (orders_of(7) for _ in range(2))
    assert first == second


def orders_of(seed: int) -> tuple[int, list[bytes | None]]:
    run = Run(seed)
    run.run()
    run.cluster.bury()
    return run.cluster.engine.order, [record.value for record in run.cluster.records()]
