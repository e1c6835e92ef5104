"""Whatever is cut away where nobody has looked, and whoever owns the segment then: a reader has what the cache has.

`python -m tests.connector.seeds --cuts 1..10000` runs more: some hundred a second.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.connector.seeds.cuts import Cuts, problems_of

AT_ONCE = 100


@pytest.mark.parametrize(
    "first",
    [1, 101, *(pytest.param(n, marks=pytest.mark.slow) for n in range(201, 1201, AT_ONCE))],
)
def test_a_reader_has_what_the_cache_has(first: int) -> None:
    wrong = {seed: problems for seed in range(first, first + AT_ONCE) if (problems := problems_of(seed)[0])}
    assert wrong == {}


def test_everything_happens_in_a_few_seeds() -> None:
    happened: Counter[str] = Counter()
    for seed in range(1, 60):
        happened += problems_of(seed)[1]
    acts = {name for name, act in vars(Cuts).items() if callable(act) and name[0] != "_"} - {"run"}
    assert {*acts, "old owner dies", "old owner hears", "old owner does not hear", "reset truncated"} <= happened.keys()


def test_a_seed_is_the_same_again() -> None:
    assert problems_of(7) == problems_of(7)
