"""`deelog config` and `deelog validate`: what can be configured, and whether a file is right.

Everything is made from the declarations of the fields; the documentation page is `deelog config --format md`.
"""

from __future__ import annotations

import json
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import click

from deelog_connector.errors import MissingExtraError
from deelog_connector.kafka.client import refused_settings
from deelog_connector.transforms.loading import steps_of
from deelog_schemas.config import FIELDS, GROUPS, Config, ConfigError, Field, Role, Type, load
from deelog_schemas.config.field import EVERY_ROLE, REQUIRED
from deelog_schemas.config.overrides import ALLOWED, CLIENTS, REFUSED
from deelog_schemas.config.sources import read_config
from deelog_schemas.config.validation import definitions, judge

PREFLIGHT = "deelog.preflight"
"""Entry points by `connector.class`: they take a `Config`, and give lines."""
_EXTRAS = {"deelog.RedisConnector": "redis"}
"""What to install for that."""
_INTRODUCTION = """\
<!-- Made by `deelog config --format md`. Change the declarations, not this page. -->

# Configuration

One flat map in a `.properties` file (UTF-8) or a JSON file, as `{"name": …, "config": {…}}` or flat. The same file
may serve every node's connector, the interceptors and the Spark job; `node.id` differs from node to node. Check a
file with `deelog validate FILE`. An unknown name is an error, and so is a name that is there twice.

**References.** `${env:NAME}` is an environment variable, `${file:/path/of.properties:key}` a key of a properties
file, `${dir:/path:key}` the content of the file `key` in a directory. They are looked up when the value is used, and
what they point at is never kept, logged or shown. Values of names that end like a secret's (`password`, `secret`,
`token`, `.pem`, …) print as `********`.

**Lists** are separated by commas; a comma inside an entry is written `\\,` (`\\\\,` in a `.properties` file, where a
backslash is written twice).
"""


@click.command(epilog="Example:  deelog config --format properties > node1.properties")
@click.option(
    "--format",
    "form",
    type=click.Choice(["md", "json", "properties"]),
    default="md",
    show_default=True,
    help="md: the documentation; json: Kafka Connect's definitions; properties: a file to begin with.",
)
def config(form: str) -> None:
    """Show every field that can be configured."""
    match form:
        case "md":
            click.echo(markdown(), nl=False)
        case "json":
            click.echo(json.dumps(definitions(), indent=2, ensure_ascii=False))
        case _:
            click.echo(template(), nl=False)


@click.command(epilog="Example:  deelog validate --resolve node1.properties")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    default=Role.NODE.value,
    show_default=True,
    help="Which program will read the file: some fields are required by some only.",
)
@click.option(
    "--resolve",
    is_flag=True,
    help="Also look up the references, and check what they point at, and what is handed to the clients of Kafka.",
)
@click.option("--connect", is_flag=True, help="Also ask the cache's server whether all is there that is needed.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: the answer of the REST API's validate.",
)
def validate(file: Path, role: str, resolve: bool, connect: bool, form: str) -> None:
    """Check a configuration file, and report everything that is wrong with it.

    Exit code 0 if the file is right, 2 if it is not, 1 if the server cannot be used.
    """
    if connect and form == "json":
        raise click.UsageError("--connect is for --format text")
    if form == "json":
        verdict = judge(read_config(file), role)
        click.echo(json.dumps(verdict.body, indent=2, ensure_ascii=False))
        if verdict.errors:
            raise SystemExit(ConfigError.exit_code)
    checked = load(file, role)
    if resolve or connect:
        checked.resolved()
    if checked.role in (Role.NODE, Role.CACHE):  # the others have none of the classes, and need none
        steps_of(checked)
        if (resolve or connect) and (errors := refused_settings(checked)):
            raise ConfigError(errors)
    if form == "json":
        return
    count = len(checked.raw)
    click.echo(f"{file}: right for a {role}, {count} field{'' if count == 1 else 's'} set")
    if connect:
        _connect(checked)


def _connect(checked: Config) -> None:
    kind = checked["connector.class"]
    point = next(iter(entry_points(group=PREFLIGHT, name=kind)), None)
    if point is None:
        raise click.UsageError(f"--connect: a cache with connector.class={kind} is in the process itself")
    try:
        lines = point.load()
    except ModuleNotFoundError as error:
        raise MissingExtraError("validate --connect", _EXTRAS[kind], str(error.name)) from error
    for line in lines(checked):
        click.echo(line)


def markdown() -> str:
    """The documentation page."""
    parts = [_INTRODUCTION]
    for group, title in GROUPS.items():
        parts.append(f"\n## {title}\n\n| field | takes | default | |\n|---|---|---|---|\n")
        parts += [_row(field) for field in FIELDS.values() if field.group == group]
    parts.append(_overrides())
    return "".join(parts)


def _row(field: Field) -> str:
    cells = [f"`{field.name}`", _takes(field), _default(field), field.doc]
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"


def _takes(field: Field) -> str:
    kind = str(field.type.value)
    if field.allowed:
        return f"{kind}: {', '.join(f'`{value}`' for value in field.allowed)}"
    if field.pattern is not None:
        return f"{kind}: `{field.pattern.pattern}`"
    if field.type in (Type.INT, Type.LONG):
        return f"{kind}: {field.takes.removeprefix('a whole number ').removeprefix('of ')}"
    return kind


def _default(field: Field) -> str:
    if field.default is REQUIRED:
        some = "" if field.roles == EVERY_ROLE else f" ({', '.join(sorted(r.value for r in field.roles))})"
        return f"**required**{some}"
    if field.derived is not None:
        return field.derived
    return f"`{field.default_text}`" if field.default_text else "none"


def _overrides() -> str:
    common = frozenset.intersection(*ALLOWED.values())
    lists = [("all three", common), *((client, ALLOWED[client] - common) for client in CLIENTS)]
    allowed = "".join(f"- {who}: {', '.join(f'`{name}`' for name in sorted(names))}\n" for who, names in lists if names)
    refused = "".join(f"| `{name}` | {REFUSED[name]} |\n" for name in sorted(REFUSED))
    return f"""
## Settings of the Kafka clients

`producer.override.*`, `consumer.override.*` and `admin.override.*` hand a setting of
[librdkafka](https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md) on, for example
`producer.override.sasl.password=${{env:KAFKA_PASSWORD}}`. Those that may be set:

{allowed}
All others are refused; of these, the reason is:

| setting | why not |
|---|---|
{refused}"""


def template() -> str:
    """A `.properties` file with every field: required ones open to be filled in, the others as comments."""
    lines = ["# deelog configuration. Fill in what is required; a line that begins with #: shows a default."]
    for group, title in GROUPS.items():
        lines += ["", f"# ---- {title}"]
        for field in FIELDS.values():
            if field.group != group:
                continue
            lines += ["", *(f"# {line}" for line in textwrap.wrap(field.doc, 110))]
            if field.default is REQUIRED:
                lines += [f"# Required ({', '.join(sorted(role.value for role in field.roles))}).", f"{field.name}="]
            else:
                lines.append(f"#:{field.name}={field.default_text or ''}")
    return "\n".join(lines) + "\n"
