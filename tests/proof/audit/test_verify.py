"""The comparison, the takeovers told from the topic, and what makes a report fail."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from deelog_connector.metrics.families import _RESETS
from deelog_proof.audit.topics import ChangeTopic, DiffTopic, Ownership
from deelog_proof.audit.verify import differences, takeovers, verify
from deelog_proof.demo import report as reports
from deelog_proof.demo.faults import Happened
from deelog_proof.load.history import Captured, History, Sent, content_of
from deelog_schemas.keys import segment_of
from deelog_schemas.operation import Entry


def _entries(**values: str) -> dict[bytes, Entry]:
    return {key.encode(): Entry(key.encode(), value.encode(), None) for key, value in values.items()}


@pytest.mark.parametrize(
    ("held", "topic", "diff", "found"),
    [
        ({"a": "1"}, {"a": "1"}, {"a": "1"}, {}),
        ({"a": "1"}, {"a": "2"}, {"a": "1"}, {b"a": "change topic: another value"}),
        ({"a": "1"}, {"a": "1"}, {}, {b"a": "diff: lacks the key"}),
        ({}, {}, {"a": "1"}, {b"a": "diff: has a key that the caches do not hold"}),
    ],
)
def test_differences_by_key(
    held: dict[str, str], topic: dict[str, str], diff: dict[str, str], found: dict[bytes, str]
) -> None:
    assert differences(_entries(**held), _entries(**topic), _entries(**diff)) == found


def test_another_expiry_is_a_difference() -> None:
    held = {b"a": Entry(b"a", b"1", 5)}
    assert differences(held, held, {b"a": Entry(b"a", b"1", 6)}) == {b"a": "diff: expires at 6, not 5"}


def test_resets_count_for_keys_of_their_segment() -> None:
    """A lost write is covered by a reset of its own segment, not by that of another."""
    history = History({b"k": [Sent(content_of(b"1"), 100, 110)]})
    segment = segment_of(b"k", 256)
    for ended, lost in ((segment, 0), (segment + 1, 1)):
        changes = ChangeTopic(reset_ends={ended: [500]})
        verdict = verify(history, {}, changes, DiffTopic(), segments=256, happened=[], final=None)
        assert len(verdict.audit.lost) == lost


def test_the_list_of_a_history_is_compared_with_caches_and_diff() -> None:
    good, bad = _entries(a="x" * 16), _entries(a="y" * 16)
    final = {b"a": b"x" * 16}
    for caches, diff, wrong in ((good, good, []), (bad, good, [b"a"]), (good, bad, [b"a"])):
        changes = ChangeTopic(entries=caches)
        verdict = verify(History(), caches, changes, DiffTopic(entries=diff), segments=256, happened=[], final=final)
        assert verdict.final == wrong


def test_takeovers_are_told_from_active_records() -> None:
    owners = [
        Ownership(1, 1, "n1@1", 100),
        Ownership(2, 1, "n2@1", 100),
        Ownership(1, 1, "n1@1", 150),  # again, after a fence
        Ownership(1, 2, "n2@1", 2500),  # n1 was killed at 1000
        Ownership(2, 3, "n1@2", 4000),  # handed over, nobody died
    ]
    assert takeovers(owners, [Happened("kill", 1000, ["n1"])]) == (2, [1500])
    assert takeovers(owners, []) == (2, [])


def _report(**changed: Any) -> dict[str, Any]:
    diff = {"changes": {"c": 1, "u": 2, "d": 3}, "resets": {"c": 0, "u": 0, "d": 1}}
    good = {
        "operations": 10, "acked": 10, "unacked": 0, "lost_acked": 0, "duplicates": 0, "diff_duplicates": 0,
        "phantoms": 0, "open_resets": 0, "differing_keys": 0, "equal": True, "final": None, "keys": 4, "written": 10,
        "takeovers": 1, "takeover_ms": {"p50": 10, "max": 20}, "fenced": 1, "zombie_commits_refused": 1,
        "resets": {"overflow": 2}, "reset_rows": 3, "covered_by_reset": 0, "diff": diff, "faults": [{"fault": "kill"}],
        "seed": 1, "examples": [], "diff_restarts": 0,
        "seconds": {"setup": 1.0, "run": 2.0, "drain": 3.0, "verify": 4.0},
    }  # fmt: skip
    return {**good, **changed}


def test_a_good_report_holds_and_says_so(tmp_path: Path) -> None:
    report = _report(final={"file": "t.final.tsv", "keys": 4, "differing_keys": 0, "equal": True})
    assert reports.problems(report) == []
    out = io.StringIO()
    reports.show(report, Console(file=out, width=200))
    assert "All 4 keys are equal" in out.getvalue()
    assert "exactly what t.final.tsv lists" in out.getvalue()
    reports.write(report, tmp_path / "r.json")
    assert orjson.loads((tmp_path / "r.json").read_bytes()) == report


def test_it_reads_well_at_80_columns_and_explains_every_reason() -> None:
    out = io.StringIO()
    reports.show(_report(resets=dict.fromkeys(_RESETS, 12_345)), Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    for reason in _RESETS:
        (line,) = (line for line in lines if f"· {reason}: " in line)
        assert line.startswith("  12,345  ·")
    assert "docs/protocol.md" not in out.getvalue(), "a reason without a clause of its own"


@pytest.mark.parametrize(
    "field", ["unacked", "lost_acked", "duplicates", "diff_duplicates", "phantoms", "open_resets", "differing_keys"]
)
def test_each_broken_promise_is_a_problem(field: str) -> None:
    report = _report(**{field: 2})
    assert len(reports.problems(report)) == 1
    out = io.StringIO()
    reports.show(report, Console(file=out, width=200))
    assert "✗ 2 " in out.getvalue()
    assert "✓" not in out.getvalue()


def test_not_ending_as_the_history_is_a_problem() -> None:
    final = {"file": "t.final.tsv", "keys": 4, "differing_keys": 1, "equal": False}
    assert len(reports.problems(_report(final=final))) == 1


def test_captured_records_are_compared_with_the_history() -> None:
    history = History({b"k": [Sent(content_of(b"1"), 100, 110), Sent(content_of(b"2"), 200, 210)]})
    changes = ChangeTopic(captured={b"k": [Captured(content_of(b"1"), 105, "put")]}, resets=Counter())
    verdict = verify(history, {}, changes, DiffTopic(), segments=256, happened=[], final=None)
    assert verdict.audit.lost == [(b"k", 1)]
