"""`deelog simulate` as people use it: what they get wrong, what they interrupt, what is left behind."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from deelog_proof.harness.child import deelog_command
from deelog_proof.simulation.cli import simulate
from tests.support.programs import Program
from tests.support.waiting import waiting

LONG = ("simulate", "--seeds", "1..500000", "--faults", "clock", "--jobs", "2")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give one of --seeds A..B, --replay SEED and --script FILE"),
        (("--seeds", "1..2", "--replay", "3"), "give one of --seeds A..B, --replay SEED and --script FILE"),
        (("--seeds", "9..3"), "--seeds: 9..3 ends before it begins: write --seeds 3..9"),
        (("--seeds", "one..two"), "--seeds: 'one..two' is no range of seeds: write --seeds 1..200"),
        (("--seeds", "1..2..3"), "--seeds: '1..2..3' is no range"),
        (("--seeds", "-1..3"), "--seeds: '-1..3' is no range"),
        (("--replay", "-1"), "--replay"),
        (("--seeds", "1", "--steps", "0"), "'--steps': 0 is not in the range"),
        (("--seeds", "1", "--steps", "-5"), "'--steps': -5 is not in the range"),
        (("--seeds", "1", "--steps", "many"), "'--steps': 'many' is not a valid integer"),
        (("--seeds", "1", "--jobs", "0"), "'--jobs': 0 is not in the range"),
        (
            ("--seeds", "1", "--faults", "crash,fire,flood"),
            "--faults: 'fire', 'flood' is no kind of fault",
        ),
        (("--seeds", "1", "--faults", ""), "--faults: '' is no kind of fault"),
        (("--script", "no-such-file"), "'--script': File 'no-such-file' does not exist"),
    ],
)
def test_wrong_usage_is_one_clear_line(arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(simulate, arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0.3 fly n1", "fly is none of put, "),
        ("0.3 cut_back 0 BEGIN", "BEGIN is none of CHANGE, "),
        ("0.3 put x v1", "x is no key: s0k1 is a key of segment 0, the last segment is 3"),
        ("0.3 put s9k1 v1", "s9k1 is no key"),
        ("0.3 clear 4", "4 is no segment: they are 0 to 3"),
        ("0.3 truncate 2 1", "2 is no partition: they are 0 to 1"),
        ("0.3 away topology 1 leader", "the topology topic has one partition, 0"),
        ("0.3 slow n1 fast", "fast is no whole number"),
        ("0.3 kafka maybe", "maybe is neither on nor off"),
        ("0.3 at n0 commit clear 9", "9 is no segment"),
        ("0.3 crash", "crash takes 1 to 1 arguments"),
        ("0.3", "a line is `set NAME NUMBER`"),
        ("set seed", "a line is `set NAME NUMBER`"),
        ("set nodes 0", "nodes is 1 at least"),
        ("set knots 3", "knots is none of nodes, "),
        ("soon crash n1", "could not convert string to float"),
        ("nan crash n1", "it happens at 0 to 1,000,000 seconds"),
    ],
)
def test_a_wrong_line_of_a_script_is_named(line: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "script.txt"
    file.write_text(f"# why\n{line}\n")
    result = CliRunner().invoke(simulate, ["--script", str(file)])
    assert result.exit_code == 2
    assert f"{file}: line 2: {line!r}: " in result.stderr
    assert said in result.stderr


def test_a_script_that_is_no_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "script.txt"
    file.write_bytes(b"\xff\xfe\x00")
    result = CliRunner().invoke(simulate, ["--script", str(file)])
    assert result.exit_code == 2
    assert str(file) in result.stderr


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """A long campaign that has begun."""
    found = Program(tmp_path, deelog_command(*LONG, "--report", str(tmp_path / "report.json")))
    try:
        waiting(lambda: found.said("of 500,000 seeds"), 60, "its first seeds")
        yield found
    finally:
        found.end()


def workers(program: Program) -> list[psutil.Process]:
    """The processes that run seeds."""
    return [p for p in psutil.Process(program.process.pid).children() if "spawn_main" in " ".join(p.cmdline())]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_campaign_that_is_stopped_says_what_was_done(program: Program, number: signal.Signals, code: int) -> None:
    for worker in workers(program):
        worker.send_signal(number)  # a terminal sends Ctrl-C to everybody; workers leave it to the campaign
    done = program.output.read_text().count("of 500,000 seeds")
    waiting(lambda: program.output.read_text().count("of 500,000 seeds") > done + 1, 240, "seeds after the signal")
    program.process.send_signal(number)
    assert program.ended() == code
    output = program.output.read_text()
    assert "steps per second of a core" in output
    assert "of 500,000 seeds; nothing was violated up to here" in output
    assert "Traceback" not in output
    told = json.loads((program.output.parent / "report.json").read_bytes())
    assert 0 < told["seeds"] < 500_000
    assert told["stopped"] is True


def test_nothing_outlives_a_campaign_that_is_killed(program: Program) -> None:
    assert len(workers(program)) == 2
    program.end()


def test_a_worker_that_is_killed_ends_the_campaign_with_the_remedy(program: Program) -> None:
    workers(program)[0].kill()
    assert program.ended() == 4
    output = program.output.read_text()
    assert "a process of the campaign was killed" in output
    assert "--jobs" in output
    assert "Traceback" not in output
