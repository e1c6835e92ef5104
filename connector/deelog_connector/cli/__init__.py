"""`deelog`: a command line whose commands come from whatever parts of deelog are installed.

Commands come from the entry points `deelog.commands`, which each package registers and which are imported one by one
(docs/decisions.md, "Commands are entry points"). A command whose extra is not installed stays in the list and
says what to install.

Errors that deelog knows become one clear line on stderr and the exit code of their class; `DEELOG_DEBUG=1` adds the
traceback. Anything else is a bug, and shows as one.
"""

from __future__ import annotations

import os
import re
import traceback
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, requires, version
from importlib.util import find_spec
from typing import Any, Final, NoReturn

import click

from deelog_connector.errors import MissingExtraError
from deelog_schemas.errors import DeelogError

GROUP: Final = "deelog.commands"
INTERRUPTED: Final = 130

# Which extra a deelog command needs. An entry point could name it, but packaging tools have begun to refuse that.
EXTRAS: Final = {"node": "grid", "run": "redis", "play": "play", "demo": "demo", "simulate": "demo", "diff": "spark"}


class LazyGroup(click.Group):
    """A group that imports a command when it is called, or when its help is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *(point.name for point in entry_points(group=GROUP))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for point in entry_points(group=GROUP, name=cmd_name):
            return _load(point)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands; those that lack something say what to install."""
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is None or command.hidden:
                continue
            text = command.get_short_help_str(limit=100)
            extra = EXTRAS.get(name)
            if extra is not None and not isinstance(command, _Unavailable) and missing_for(extra):
                text = f"{text}  {_needs(extra)}"
            rows.append((name, text))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            try:
                return super().invoke(ctx)
            except ModuleNotFoundError as error:
                # Commands import what is heavy when they run, so this is where a missing extra shows.
                _raise_missing(ctx.invoked_subcommand or "", error)
        except DeelogError as error:
            if os.environ.get("DEELOG_DEBUG") == "1":
                click.echo(traceback.format_exc(), err=True, nl=False)
            click.echo(f"Error: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("Interrupted", err=True)
            ctx.exit(INTERRUPTED)


class _Unavailable(click.Command):
    """Stands for a command that cannot be imported. Takes any arguments, `--help` too, and says why it cannot run."""

    def __init__(self, name: str, error: ImportError) -> None:
        extra = EXTRAS.get(name)
        super().__init__(
            name,
            short_help=_needs(extra) if extra is not None and not _is_ours(error) else f"cannot be loaded: {error}",
            params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
            callback=self._explain,
            add_help_option=False,
            context_settings={"ignore_unknown_options": True},
        )
        self._error = error

    def _explain(self, arguments: tuple[str, ...]) -> NoReturn:
        raise self._error


def missing_for(extra: str) -> list[str]:
    """The distributions that an extra of deelog asks for and that are not there, by name."""
    asked = [r for r in requires("deelog") or () if re.search(rf"""extra == ['"]{re.escape(extra)}['"]""", r)]
    names = sorted({re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0] for requirement in asked})
    return [name for name in names if not _installed(name)]


def _installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        # Spark's own archive brings PySpark as a folder on the path, without metadata.
        return find_spec(distribution.replace("-", "_")) is not None
    return True


def _load(point: EntryPoint) -> click.Command:
    try:
        command = point.load()
    except ImportError as error:
        return _Unavailable(point.name, error)
    if not isinstance(command, click.Command):
        raise TypeError(f"the entry point {point.name} of {GROUP} is no click command but {type(command).__name__}")
    return command


def _is_ours(error: ImportError) -> bool:
    """True where the import failed for a reason that no extra cures: a bug, and shown as one."""
    return not isinstance(error, ModuleNotFoundError) or (error.name or "").startswith("deelog_")


def _raise_missing(command: str, error: ModuleNotFoundError) -> NoReturn:
    extra = EXTRAS.get(command)
    if extra is None or _is_ours(error):
        raise error
    missing = ", ".join(missing_for(extra)) or str(error.name)
    raise MissingExtraError(command, extra, missing) from error


def _needs(extra: str) -> str:
    return f"[needs pip install 'deelog[{extra}]']"


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example:  deelog validate node1.properties && deelog node --config node1.properties",
)
@click.version_option(package_name="deelog", message="deelog %(version)s")
def main() -> None:
    """Change data capture for caches: every change of an in-memory cache in Kafka."""
