"""Campaigns: many seeds hold, each in the same way every time; what fails is noticed, told and made short."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from deelog_connector.core.oplog import OpLog
from deelog_proof.simulation import campaign, cli, vacuity
from deelog_proof.simulation import run as runs
from deelog_proof.simulation.campaign import Plan, Shortening, Tally, outcomes, run
from deelog_proof.simulation.checker import Checker
from deelog_proof.simulation.cli import simulate
from deelog_proof.simulation.event import Event
from deelog_proof.simulation.generate import FAULTS, generate
from deelog_proof.simulation.script import Script, parse
from deelog_proof.simulation.shrink import shrink
from deelog_proof.simulation.vacuity import GUARD, LEAST_SEEDS, LEAST_STEPS, REQUIRED
from deelog_proof.simulation.verbs import SETTINGS, VERBS

Simulate = Callable[..., Result]


@pytest.fixture
def call() -> Simulate:
    """`deelog simulate` in this process."""
    return lambda *arguments: CliRunner().invoke(simulate, [str(a) for a in arguments])


@pytest.fixture
def prunes_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule that an op log forgets only what is written is off."""
    prune = OpLog.prune
    monkeypatch.setattr(OpLog, "prune", lambda self, sequence: prune(self, sequence + 1))
    monkeypatch.setattr(runs, "PEACE", 3.0)  # what never comes to rest shall not take long


# -- what holds -------------------------------------------------------------------------------------------------------


def test_seeds_hold_and_see_what_they_are_there_to_see(
    call: Simulate, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seeds = 12 if "not slow" in request.config.option.markexpr else 100
    report = tmp_path / "report.json"
    result = call("--seeds", f"1..{seeds}", "--jobs", 1, "--report", report)
    assert result.exit_code == 0, result.output
    told = json.loads(report.read_bytes())
    assert told["seeds"] == seeds
    assert told["violations"] == told["missing"] == []
    assert sum(told["faults"].values()) >= seeds * 7
    assert f"all held in {seeds} seeds" in result.output


def test_the_same_seeds_give_the_same_traces_in_every_process(tmp_path: Path) -> None:
    digests = set()
    for number, jobs in (("1", "1"), ("2", "2")):
        report = tmp_path / f"{number}.json"
        command = ["-c", "from deelog_connector.cli import main; main()", "simulate", "--seeds", "1..4"]
        done = subprocess.run(
            [sys.executable, *command, "--jobs", jobs, "--report", str(report)],
            env=os.environ | {"PYTHONHASHSEED": number},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        digests.add(json.loads(report.read_bytes())["digest"])
    assert len(digests) == 1


def test_another_seed_and_other_faults_are_another_run() -> None:
    plan = Plan(1, 2, steps=300)
    found = [run(plan.script(1)), run(plan.script(2)), run(replace(plan, kinds=("clock",)).script(1))]
    assert len({outcome.digest for outcome in found}) == 3


def test_a_replay_prints_the_trace_and_the_digest(call: Simulate) -> None:
    outcome = run(Plan(7, 7, steps=300).script(7), trace=True)
    result = call("--replay", 7, "--steps", 300)
    assert result.exit_code == 0, result.output
    assert len(outcome.trace) > 50
    assert result.output.startswith("\n".join(outcome.trace) + f"\ndigest {outcome.digest}\n")


def test_a_script_runs_as_its_seed_does(call: Simulate, tmp_path: Path) -> None:
    file = tmp_path / "script.txt"
    file.write_text(str(Plan(7, 7, steps=300).script(7)))
    assert call("--script", file).output == call("--replay", 7, "--steps", 300).output


def test_a_run_leaves_logging_as_it_was_and_says_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = logging.root.manager.disable
    monkeypatch.setattr(Checker, "sample", lambda self: logging.getLogger("deelog").error("what a node would log"))
    with caplog.at_level(logging.DEBUG):
        run(generate(1, 300, ["crash"]))
    assert logging.root.manager.disable == before
    assert not caplog.records


# -- what fails -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("prunes_too_much")
def test_a_violation_ends_in_1_and_in_a_short_script_that_fails_again(call: Simulate, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    result = call("--seeds", "1..6", "--jobs", 1, "--report", report)
    assert result.exit_code == 1, result.output
    told = json.loads(report.read_bytes())
    first = told["violations"][0]
    assert first["part"] == "gap"
    assert first["script"] is not None
    assert len(parse(first["script"]).events) <= 4
    printed = result.output[result.output.index(f"# seed {first['seed']}, shortened") :].partition("\n\n")[0] + "\n"
    assert parse(printed).events == parse(first["script"]).events
    file = tmp_path / "script.txt"
    file.write_text(printed)
    again = call("--script", file)
    assert again.exit_code == 1
    assert "✗ gap: " in again.output.splitlines()[-1]


@pytest.mark.slow
def test_the_short_script_holds_once_the_rule_is_on_again(call: Simulate, tmp_path: Path) -> None:
    file = tmp_path / "script.txt"
    with pytest.MonkeyPatch.context() as patched:
        prune = OpLog.prune
        patched.setattr(OpLog, "prune", lambda self, sequence: prune(self, sequence + 1))
        patched.setattr(runs, "PEACE", 3.0)
        script = Plan(1, 1).script(1)
        shortening = Shortening(script, run(script), math.inf)
        shortening.run(lambda left, runs: None)
        assert shortening.complete
        file.write_text(str(shortening.best))
        assert call("--script", file).exit_code == 1
    assert call("--script", file).exit_code == 0


@pytest.mark.slow
@pytest.mark.usefixtures("prunes_too_much")
def test_shrinking_is_a_choice(call: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "SHRINK_SECONDS", 1.0)
    few = ("--steps", 1000, "--jobs", 1)
    assert "shortened" not in call("--seeds", "1..3", *few, "--no-shrink").output
    output = call("--seeds", "1..3", *few, "--shrink").output
    shortened = re.findall(r"^# seed (\d+), shortened\.", output, re.MULTILINE)
    assert len(shortened) > 1
    assert call("--replay", shortened[0], *few, "--shrink").output.count(", shortened.") == 1


@pytest.mark.usefixtures("prunes_too_much")
def test_a_campaign_ends_after_so_many_failures(call: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "MAX_FAILURES", 3)
    result = call("--seeds", "1..100", "--jobs", 1, "--no-shrink")
    assert result.exit_code == 1
    assert "3 seeds failed: that is enough" in result.output


def test_shortening_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    script = generate(1, 300)
    failing = replace(run(script), part="gap")
    shortening = Shortening(script, failing, 0)
    shortening.run(lambda left, runs: None)
    assert not shortening.complete
    assert shortening.best is script


def test_what_goes_round_in_circles_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def for_ever(self: OpLog, sequence: int) -> int:
        while True:
            sequence += 1

    monkeypatch.setattr(OpLog, "prune", for_ever)
    outcome = run(generate(1, 300), stuck_seconds=0.3)
    assert outcome.part == "broken"
    assert "StuckError" in outcome.text


def test_what_the_judge_raises_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(self: Checker) -> None:
        raise ZeroDivisionError("who would have thought")

    monkeypatch.setattr(Checker, "sample", raises)
    outcome = run(generate(1, 300))
    assert outcome.part == "broken"
    assert "who would have thought" in outcome.text


# -- the guard --------------------------------------------------------------------------------------------------------


def everything() -> dict[str, int]:
    """What a campaign counts that has seen all."""
    return dict.fromkeys([name for name, _, _ in REQUIRED] + [f"fault {verb}" for verb in VERBS], 1)


@pytest.mark.parametrize("name", [name for name, _, _ in REQUIRED])
def test_each_counter_that_stays_zero_is_named(name: str) -> None:
    kinds = tuple(FAULTS)
    counts = everything()
    assert GUARD.missing(counts, kinds, 1_000_000, 3000) == []
    assert GUARD.missing(counts | {name: 0}, kinds, 1_000_000, 3000) == [name]
    assert GUARD.missing(counts | {name: 0}, kinds, LEAST_SEEDS - 1, 3000) == []
    assert GUARD.missing(counts | {name: 0}, kinds, 1_000_000, LEAST_STEPS - 1) == []


@pytest.mark.parametrize("kind", FAULTS)
def test_what_is_asked_for_follows_the_faults(kind: str) -> None:
    asked = set(GUARD.missing({}, (kind,), 10_000, 3000))
    assert {name for name in asked if name.startswith("fault ")} <= {f"fault {verb}" for verb in VERBS}
    assert f"fault {FAULTS[kind][0]}" in asked
    others = {f"fault {FAULTS[other][0]}" for other in FAULTS if other != kind}
    assert not asked & others


def test_a_campaign_that_proves_nothing_ends_in_3(call: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuity, "LEAST_SEEDS", 4)
    monkeypatch.setitem(VERBS, "crash", VERBS["crash"]._replace(handler=lambda cluster, node_id: False))
    result = call("--seeds", "1..4", "--steps", LEAST_STEPS, "--faults", "crash,leave", "--jobs", 1)
    assert result.exit_code == 3, result.output
    assert "fault crash" in result.stderr
    assert "fault leave" not in result.stderr


# -- its parts --------------------------------------------------------------------------------------------------------


def test_shrink_finds_the_least() -> None:
    events = tuple(Event(float(n), "put", (f"s0k{n}", "v")) for n in range(50))
    needed = {events[3], events[4], events[31]}
    told: list[int] = []
    script = Script(dict(SETTINGS) | {"nodes": 7, "copies": 3, "seed": 9}, events)
    short = shrink(script, lambda s: needed <= set(s.events) and s.settings["copies"] == 3, told.append)
    assert set(short.events) == needed
    assert short.settings == dict(SETTINGS) | {"copies": 3, "seed": 9}
    assert told == sorted(told, reverse=True)
    assert told[-1] == 3


def test_shrink_leaves_nothing_where_nothing_is_needed() -> None:
    assert shrink(generate(1, 300), lambda script: True).events == ()


def test_a_tally_does_not_depend_on_the_order() -> None:
    plan = Plan(1, 3, steps=200)
    found = list(outcomes(plan, 1))
    tallies = [Tally(plan), Tally(plan)]
    for outcome in found:
        tallies[0].add(outcome)
    for outcome in reversed(found):
        tallies[1].add(outcome)
    assert tallies[0] == tallies[1]
    assert tallies[0].simulated == pytest.approx(tallies[1].simulated)
    assert tallies[0].digest == tallies[1].digest
    assert tallies[0].steps == sum(o.steps for o in found)


def test_an_owner_that_hears_late_of_its_last_rows_completes_no_snapshot_of_the_next() -> None:
    """Seed 156: the owner is paused behind its commit, and the next one has begun the snapshot again."""
    outcome = run(generate(156, faults=[kind for kind in FAULTS if kind != "truncation"]))
    assert outcome.text == ""
    assert outcome.counts["snapshots begun again"] >= 1
