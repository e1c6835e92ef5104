"""The command line: commands from entry points, errors as one line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints, entry_points, metadata, packages_distributions, requires
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deelog_connector import cli

COMMANDS = '''
import click
from deelog_connector.errors import KafkaUnusable

@click.command(epilog="Example: fine")
@click.option("--say", default="done")
def fine(say):
    """Does well."""
    click.echo(say)

@click.command()
def known():
    """Fails in a way that deelog knows."""
    raise KafkaUnusable("topic shop.sessions has 4 partitions and needs 8: delete it or configure 4")

@click.command()
def bug():
    """Fails in a way that nobody foresaw."""
    raise RuntimeError("who would have thought")

@click.command()
def interrupted():
    """Gets Ctrl-C."""
    raise KeyboardInterrupt

@click.command()
def late():
    """Imports what is heavy when it runs."""
    import no_such_distribution_of_anybody

@click.command()
def ours():
    """Imports something of ours that is not there."""
    import deelog_connector.no_such_module
'''


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs `deelog` with commands of another package, which it finds by its entry points."""
    (tmp_path / "plugin_ok.py").write_text(COMMANDS)
    (tmp_path / "plugin_lacks.py").write_text("import no_such_distribution_of_anybody\n")
    (tmp_path / "plugin_broken.py").write_text("from plugin_ok import no_such_name\n")
    (tmp_path / "plugin_syntax.py").write_text("import deelog_connector.no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("plugin_ok", "plugin_lacks", "plugin_broken", "plugin_syntax"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    names = ["fine", "known", "bug", "interrupted", "late", "ours"]
    points = [EntryPoint(name, f"plugin_ok:{name}", cli.GROUP) for name in names]
    points += [EntryPoint(name, f"plugin_{name}:command", cli.GROUP) for name in ("lacks", "broken", "syntax")]
    monkeypatch.setattr(cli, "entry_points", lambda **which: EntryPoints(points).select(**which))
    monkeypatch.setattr(cli, "EXTRAS", dict.fromkeys(("lacks", "late", "ours", "broken", "syntax"), "spark"))
    monkeypatch.delenv("DEELOG_DEBUG", raising=False)

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(cli.main, arguments, prog_name="deelog")

    return invoke


def test_help_lists_every_command_and_what_is_missing(run: Callable[..., Result]) -> None:
    result = run("--help")
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.output.splitlines() if line.startswith("  ") and line.split()}
    assert "Does well." in lines["fine"]
    assert "[needs pip install 'deelog[spark]']" in lines["lacks"]
    assert "cannot be loaded" in lines["broken"]
    assert "cannot be loaded" in lines["syntax"]
    assert run("-h").output == result.output


def test_a_command_runs_with_its_options(run: Callable[..., Result]) -> None:
    result = run("fine", "--say", "well")
    assert (result.exit_code, result.stdout) == (0, "well\n")
    assert "Example: fine" in run("fine", "--help").output


@pytest.mark.parametrize("arguments", [("lacks",), ("lacks", "--help"), ("lacks", "-x", "file", "--y=3"), ("late",)])
def test_a_missing_extra_is_named(run: Callable[..., Result], arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"Error: deelog {arguments[0]} needs no_such_distribution_of_anybody, which is not")
    assert "pip install 'deelog[spark]'" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["ours", "broken", "syntax"])
def test_an_import_of_ours_that_fails_is_a_bug_and_no_missing_extra(run: Callable[..., Result], command: str) -> None:
    result = run(command)
    assert isinstance(result.exception, ImportError)
    assert "no_such" in str(result.exception)


def test_a_known_error_is_one_line_and_its_exit_code(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run("known")
    assert (result.exit_code, result.stdout) == (5, "")
    assert result.stderr == "Error: topic shop.sessions has 4 partitions and needs 8: delete it or configure 4\n"
    monkeypatch.setenv("DEELOG_DEBUG", "1")
    debug = run("known")
    assert debug.exit_code == 5
    assert debug.stderr.startswith("Traceback")
    assert "in known" in debug.stderr
    assert debug.stderr.endswith(result.stderr)


def test_a_bug_shows_as_one(run: Callable[..., Result]) -> None:
    assert isinstance(run("bug").exception, RuntimeError)


def test_ctrl_c_ends_with_130(run: Callable[..., Result]) -> None:
    result = run("interrupted")
    assert (result.exit_code, result.stderr) == (130, "Interrupted\n")


def test_a_wrong_command_or_option_ends_with_2(run: Callable[..., Result]) -> None:
    assert run("nonsense").exit_code == 2
    assert run("fine", "--nonsense").exit_code == 2


def test_an_entry_point_that_is_no_command_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints([EntryPoint("odd", "json:dumps", cli.GROUP)])
    monkeypatch.setattr(cli, "entry_points", lambda **which: points.select(**which))
    with pytest.raises(TypeError, match="odd"):
        cli.main.get_command(click.Context(cli.main), "odd")


def test_what_an_extra_lacks_is_read_from_the_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [
        "click==8",
        "no-such-thing[x]>=2; extra == 'spark'",
        'other_missing<3,>=1; extra == "spark"',
        "click==8.5.1; extra == 'spark'",
        "json; extra == 'spark'",  # importable, no distribution: as PySpark in Spark's own archive
        "third-missing; extra == 'sparkle'",
    ]
    monkeypatch.setattr(cli, "requires", lambda name: asked)
    assert cli.missing_for("spark") == ["no-such-thing", "other_missing"]


def test_every_command_of_ours_that_needs_an_extra_names_one_that_exists() -> None:
    ours = {point.name for point in entry_points(group=cli.GROUP)}
    assert cli.EXTRAS.keys() <= ours
    assert set(cli.EXTRAS.values()) <= set(metadata("deelog").get_all("Provides-Extra") or ())


def asked_for(wanted: str, extra: str = "") -> set[str]:
    """A distribution and all that it asks for, with an extra of it."""
    names, waiting = set[str](), [Requirement(f"{wanted}[{extra}]" if extra else wanted)]
    while waiting:
        one = waiting.pop()
        names.add(canonicalize_name(one.name))
        needed = map(Requirement, requires(one.name) or ())
        given = [need for need in needed if need.marker is None or any(map(need.marker.evaluate, _extras(one)))]
        waiting += [need for need in given if canonicalize_name(need.name) not in names]
    return names


def _extras(wanted: Requirement) -> list[dict[str, str]]:
    return [{"extra": extra} for extra in ("", *wanted.extras)]


@pytest.mark.parametrize("extra", ["", "cachetools", "grid", "redis", "rest", "avro", "otel"])
def test_a_cache_node_installs_neither_rich_nor_spark(extra: str) -> None:
    assert not asked_for("deelog", extra) & {"rich", "pyspark", "pandas", "zstandard"}


def test_deelog_play_needs_no_more_than_its_extra(tmp_path: Path) -> None:
    (tmp_path / "trace.tsv").write_text("")
    there = asked_for("deelog", cli.EXTRAS["play"])
    owners = packages_distributions().items()
    lacking = {module for module, names in owners if not there & {canonicalize_name(name) for name in names}}
    assert {"pyspark", "msgspec"} <= lacking
    code = f"""
import sys
for module in {lacking!r}:
    sys.modules[module] = None  # as if it were not installed
from deelog_connector.cli import main
main(["play", {str(tmp_path / "trace.tsv")!r}, "--cluster", "127.0.0.1:1"])"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def deelog(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command as a user does: the installed script, in its own process."""
    script = Path(sys.executable).with_name("deelog")
    env = {**os.environ, **environment}
    return subprocess.run([script, *arguments], capture_output=True, text=True, check=False, env=env)


def test_the_installed_command() -> None:
    assert deelog("--version").stdout == "deelog 0.1.0\n"
    helped = deelog("--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    for command in ("config", "validate"):
        assert f"  {command} " in helped.stdout
        assert "Example:" in deelog(command, "--help").stdout
