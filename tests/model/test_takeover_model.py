"""The takeover model: with all rules on nothing breaks, and with any rule removed its promise breaks."""

from __future__ import annotations

import pytest

from tests.model.promises import assert_all_sound, assert_needed, assert_sound, assert_still_wrong
from tests.model.takeover.rules import RULES, run
from tests.model.takeover.suite import COVERED, KNOWN, QUICK, Known

pytestmark = pytest.mark.slow
ENOUGH = 50_000
BOUND = 300_000
PER_CONFIG = 7_000
CONTROL = 6_000


@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_is_removed_gives_its_counterexample(name: str) -> None:
    assert_needed(run, RULES, name, BOUND)


@pytest.mark.parametrize("config", sorted({rule.config for rule in RULES.values()}))
def test_with_the_rule_in_place_its_configuration_is_sound(config: str) -> None:
    assert_sound(run, config, CONTROL)


def test_with_all_rules_on_nothing_breaks() -> None:
    assert_all_sound(run, QUICK, PER_CONFIG, ENOUGH, COVERED)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.config)
def test_what_is_known_to_be_wrong_still_is(known: Known) -> None:
    assert_still_wrong(run, known, BOUND)


def test_an_unknown_bound_or_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="NOPE=1"):
        run("NOPE=1", 10)
    with pytest.raises(ValueError, match="nope"):
        run("nope=0", 10)
