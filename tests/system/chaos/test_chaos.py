"""Chaos on real parts, as a user runs it: a minute of it in CI, and how it ends."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from deelog_proof.harness.child import until
from tests.support.paths import ROOT
from tests.support.programs import Program
from tests.system.chaos.faults import KINDS, group, plan

# Restarts of all nodes, and of brokers, take a third of the minute each: the long runs have them.
MINUTE = "kill,kill-owners,pause,kafka-pause,part,part-one-way,part-cut,part-kafka,part-kafka-cut,diff-kill"
needs_parts = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    programs: list[Program] = []

    def started(*arguments: str) -> Program:
        programs.append(Program(tmp_path, [sys.executable, "-m", "tests.system.chaos", *arguments], ROOT))
        return programs[-1]

    yield started
    for program in programs:
        program.end()


@pytest.mark.parametrize("seed", [9])
class TestMinute:
    pytestmark = needs_parts

    def test_a_minute_of_faults_and_every_promise(
        self, start: Callable[..., Program], tmp_path: Path, seed: int
    ) -> None:
        report = tmp_path / "report.json"
        program = start("--duration", "60", "--seed", str(seed), "--faults", MINUTE, "--report", str(report))
        code = program.ended()
        output = program.output.read_text()
        assert code == 0, output
        told: dict[str, Any] = orjson.loads(report.read_bytes())
        assert told["violations"] == {}
        # All that was promised would hold of a run in which nothing happened, too.
        assert sum(told["faults"].values()) >= 4, told["faults"]
        assert told["outcomes"]["ok"] > 1000
        assert told["outcomes"]["failed"] > 10
        assert told["in_topic"] > 1000
        assert told["changes"] >= told["in_topic"]
        assert told["diffs"] > 100
        assert told["takeovers"] > 64
        assert told["resets"]["initial"] == 64
        assert all(fault["recovered_ms"] >= fault["healed_ms"] > fault["from_ms"] for fault in told["timeline"])
        assert told["recovery_ms"].keys() == told["faults"].keys()
        assert list(program.temporary.iterdir()) == []

    def test_nothing_is_left_when_it_is_interrupted(self, start: Callable[..., Program], seed: int) -> None:
        program = start("--duration", "60", "--seed", str(seed), "--faults", "pause,kafka-pause")
        until(lambda: program.said("recovered after"), 200, "the first fault", 0.2)
        program.process.send_signal(signal.SIGTERM)
        assert program.ended() == 128 + signal.SIGTERM
        assert list(program.temporary.iterdir()) == []


def test_the_same_seed_is_the_same_plan_and_every_kind_has_its_turn() -> None:
    def planned(seed: int) -> list[list[Any]]:
        groups = group(plan(seed, 300, list(KINDS)))
        return [next(groups) for _ in range(3 * len(KINDS))]

    assert planned(7) == planned(7) != planned(8)
    kinds = [one.kind for together in planned(7) for one in together]
    assert sorted(kinds[: len(KINDS)]) == sorted(KINDS)
    assert {len(together) for together in planned(7)} == {1, 2}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--nodes", "2"], "not in the range"),
        (["--faults", "kill,flood"], "flood is no kind of kill"),
        (["--files", "tests"], "is not empty"),
    ],
)
def test_wrong_use_is_told_before_anything_starts(
    start: Callable[..., Program], arguments: list[str], problem: str
) -> None:
    program = start(*arguments)
    assert program.ended() == 2
    assert problem in program.output.read_text()


def test_the_help_has_an_example(start: Callable[..., Program]) -> None:
    program = start("--help")
    assert program.ended() == 0
    assert "python -m tests.system.chaos --duration 300" in program.output.read_text()
