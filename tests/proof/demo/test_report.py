"""The report: what it calls a problem, and what it prints."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from deelog_connector.metrics.families import _RESETS
from deelog_proof.demo.report import problems, show, shown, write

GOOD: dict[str, Any] = {
    "operations": 1234,
    "acked": 1234,
    "unacked": 0,
    "lost_acked": 0,
    "covered_by_reset": 7,
    "phantoms": 0,
    "written": 1300,
    "duplicates": 0,
    "diff_duplicates": 0,
    "takeovers": 42,
    "takeover_ms": {"p50": 1500, "max": 2600},
    "resets": {"overflow": 2, "initial": 3, "strange": 1},
    "open_resets": 0,
    "reset_rows": 5000,
    "fenced": 4,
    "zombie_commits_refused": 1,
    "diff": {"changes": {"c": 1000, "u": 200, "d": 30}, "resets": {"c": 1, "u": 2, "d": 3}},
    "diff_restarts": 0,
    "keys": 900,
    "differing_keys": 0,
    "final": None,
    "faults": [{"fault": "kill"}, {"fault": "zombie"}],
    "seconds": {"setup": 10.4, "run": 20.4},
    "seed": 5,
    "examples": [],
}


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ("unacked", "1,000 writes were not acknowledged"),
        ("lost_acked", "1,000 acknowledged operations are missing from the topic, and nothing covers them"),
        ("duplicates", "1,000 operations are in the change topic twice"),
        ("diff_duplicates", "1,000 records are in the diff topic twice"),
        ("phantoms", "1,000 records of the change topic were written by no client"),
        ("open_resets", "1,000 resets are open: begun and never ended"),
        ("differing_keys", "1,000 keys are not the same in the caches, the change topic and the Spark job's diff"),
    ],
)
def test_each_check_that_fails_is_a_problem(field: str, problem: str) -> None:
    assert problems(GOOD | {field: 1000}) == [problem]


def test_an_end_that_is_not_the_historys_is_a_problem() -> None:
    assert problems(GOOD) == []
    assert problems(GOOD | {"final": {"differing_keys": 0}}) == []
    found = problems(GOOD | {"final": {"differing_keys": 2}, "unacked": 1})
    assert found == ["1 writes were not acknowledged", "2 keys are not what the history itself ends at"]


def test_it_is_written_as_json(tmp_path: Path) -> None:
    write({"b": 1, "a": [1]}, tmp_path / "r.json")
    text = (tmp_path / "r.json").read_bytes()
    assert text.endswith(b"\n")
    assert b'\n  "b": 1' in text
    assert orjson.loads(text) == {"b": 1, "a": [1]}


def test_ten_keys_of_a_list_are_shown() -> None:
    assert shown([b"a\xff", "b", (b"k", 1)]) == ["a\\xff", "b", "(b'k', 1)"]
    assert shown(list(range(11))) == [str(number) for number in range(10)]


def printed(report: dict[str, Any], width: int = 80) -> list[str]:
    out = io.StringIO()
    show(report, Console(file=out, width=width, highlight=False))
    return out.getvalue().splitlines()


def text_of(report: dict[str, Any]) -> str:
    return " ".join(" ".join(printed(report)).split())


def test_it_is_printed_within_the_width() -> None:
    lines = printed(GOOD)
    assert max(map(len, lines)) <= 80
    assert lines[:2] == ["", "   1,234  writes by clients, 1,234 of them acknowledged; seed 5"]
    rows = lines[1 : lines.index("", 1)]
    assert all(line[8:10] == "  " and line[10] != " " for line in rows)
    for width in (60, 80):
        assert width - 10 < max(map(len, printed(GOOD, width))) <= width


@pytest.mark.parametrize(
    "row",
    [
        "2 faults: kill, zombie",
        "1,300 changes in Kafka: writes, evictions and expiries; 0 twice",
        "42 segments taken over by another process; half of them within 1,500 ms of the kill, all within 2,600",
        "4 former primaries fenced: Kafka refuses what they still write; 1 commits of such zombies were refused",
        "6 resets: the whole state of a segment is written again, here in 5,000 rows",
        "3 · initial: Kafka had no record of the segment yet 2 · overflow: an op log was full",
        "1 · strange: see docs/protocol.md",
        "7 acknowledged operations that a reset had to cover",
        "0 acknowledged operations lost",
        "1,230 diffs of the Spark job from changes: 1,000 creates, 200 updates, 30 deletes",
        "6 diffs of the Spark job from resets: 1 creates, 2 updates, 3 deletes",
        "0 of 900 keys differ 31 s setup 10, run 20",
        "✓ All 900 keys are equal in the caches, in the change topic and in the Spark job's diff.",
    ],
)
def test_each_row_says_what_its_number_counts(row: str) -> None:
    assert row in text_of(GOOD)


def test_every_reason_of_a_reset_is_explained() -> None:
    lines = printed(GOOD | {"resets": dict.fromkeys(_RESETS, 12_345)})
    for reason in _RESETS:
        (line,) = (line for line in lines if f"· {reason}: " in line)
        assert line.startswith("  12,345  ·")
    assert not any("docs/protocol.md" in line for line in lines), "a reason without a clause of its own"


def test_what_did_not_happen_is_left_out() -> None:
    quiet = GOOD | {"faults": [], "takeover_ms": {"p50": None, "max": None}, "diff_restarts": 0}
    text = text_of(quiet)
    assert "0 faults: none" in text
    assert "within" not in text
    assert "restarts" not in text
    assert "2 restarts of the Spark job, each from its checkpoint" in text_of(GOOD | {"diff_restarts": 2})


def test_the_verdict_names_the_list_that_the_history_ends_at() -> None:
    final = {"file": "t.final.tsv", "keys": 1000, "differing_keys": 0}
    assert "This is exactly what t.final.tsv lists (1,000 keys)." in text_of(GOOD | {"final": final})
    assert "lists" not in text_of(GOOD)


def test_problems_are_printed_with_examples_instead_of_a_verdict() -> None:
    broken = GOOD | {"lost_acked": 1, "phantoms": 2, "examples": ["lost: [bold] k"]}
    lines = printed(broken)
    begin = next(number for number, line in enumerate(lines) if line.startswith("✗ "))
    assert lines[begin].startswith("✗ 1 acknowledged operations are missing")
    assert any(line.startswith("✗ 2 records of the change topic") for line in lines)
    assert lines[-1] == "    lost: [bold] k"
    assert not any(line.startswith("✓") for line in lines)
