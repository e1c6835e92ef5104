"""The models' rules are the product's: each rule marked CHECK in the code has a counterexample."""

from __future__ import annotations

import re

from tests.model.takeover.rules import RULES
from tests.support.paths import ROOT

CHECK = re.compile(r"CHECK ([a-z-]+(?:, [a-z-]+)*)")


def test_every_rule_marked_check_can_be_removed_in_the_model() -> None:
    sources = [p for folder in ("connector", "interceptors") for p in (ROOT / folder).rglob("*.py")]
    marked = {
        name.replace("-", "_")
        for source in sources
        for names in CHECK.findall(source.read_text(encoding="utf-8"))
        for name in names.split(", ")
    }
    assert len(marked) > 20
    assert not marked - RULES.keys()
