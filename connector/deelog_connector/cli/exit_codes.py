"""`deelog exit-codes`: what a command ends with, made from the classes of errors.

The Spark job's errors are imported by name: the connector does not know the job.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Final

import click

from deelog_schemas.errors import DeelogError

_INTRODUCTION: Final = """\
<!-- Made by `deelog exit-codes`. Change the classes of errors, not this page. -->

# Exit codes

A command that fails prints one line, which ends with the remedy, and ends with the code of its error. 0 says that what
the command promises holds; `deelog node`, `deelog kafka` and `deelog diff` end with 0 on SIGTERM and Ctrl-C too, other
commands with 130 on Ctrl-C. 2 is also the code for a wrong option and for an extra that is not installed, 1 for every
error that has no row here, and for `deelog demo` and `deelog play` where their comparison or a write failed.
`deelog kafka status` ends with 3 where no broker runs; `deelog simulate --help` lists the codes of that command.
"""

_OF_ALL: Final = ("deelog_schemas.errors", "deelog_schemas.java")
_PROGRAMS: Final = {
    "Every command but `deelog diff`": (*_OF_ALL, "deelog_connector.errors", "deelog_connector.devkafka.errors"),
    "`deelog diff`": (*_OF_ALL, "deelog_spark.errors"),
}


@click.command(name="exit-codes", epilog="Example:  deelog exit-codes > docs/reference/exit-codes.md")
def exit_codes() -> None:
    """Show what each exit code means, as Markdown."""
    click.echo(markdown(), nl=False)


def markdown() -> str:
    """The documentation page."""
    parts = [_INTRODUCTION]
    for title, modules in _PROGRAMS.items():
        errors = {error for module in modules for error in _errors_in(module)}
        parts.append(f"\n## {title}\n\n| code | error | |\n|---|---|---|\n")
        parts += [_row(error) for error in sorted(errors, key=lambda error: (error.exit_code, error.__name__))]
    return "".join(parts)


def _errors_in(module: str) -> list[type[DeelogError]]:
    members = vars(import_module(module)).values()
    return [one for one in members if isinstance(one, type) and issubclass(one, DeelogError) and one.exit_code != 1]


def _row(error: type[DeelogError]) -> str:
    doc = " ".join((inspect.getdoc(error) or "").split())
    return f"| {error.exit_code} | `{error.__name__}` | {doc.replace('|', '&#124;')} |\n"
