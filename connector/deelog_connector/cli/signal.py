"""`deelog signal`: ask the connectors of a prefix for something, over Kafka."""

from __future__ import annotations

import re
import uuid
from typing import Any

import click

from deelog_connector.kafka.publish import publish
from deelog_schemas import canonical
from deelog_schemas.config import Config, ConfigError, FieldError, load
from deelog_schemas.errors import RecordError
from deelog_schemas.signals import KINDS, decode_signal

_EPILOG = """
\b
Examples:
  deelog signal execute-snapshot --config node1.properties
  deelog signal execute-snapshot --config node1.properties --segments 0-63
  deelog signal stop-snapshot --config node1.properties
  deelog signal pause-writing --config node1.properties
  deelog signal resume-writing --config node1.properties
  deelog signal reset-segment --config node1.properties --segments 3,17 --reason checking
  deelog signal log --config node1.properties --message 'now at {}'
"""


@click.command(epilog=_EPILOG)
@click.argument("kind", type=click.Choice(KINDS), default="reset-segment")
@click.option(
    "--config", "path", required=True, type=click.Path(exists=True, dir_okay=False), help="A node's configuration."
)
@click.option("--segments", help="Segments, separated by commas: 3,17,20-30. For a snapshot: all by default.")
@click.option(
    "--collections",
    multiple=True,
    metavar="REGEX",
    help="Caches by name, may come again; the one of --config by default.",
)
@click.option("--reason", help="What to log with a reset.")
@click.option("--message", help="What `log` logs; {} becomes where the connector is.")
@click.option("--id", "identity", help="The id that its notifications carry; a random one by default.")
def signal(
    kind: str,
    path: str,
    segments: str | None,
    collections: tuple[str, ...],
    reason: str | None,
    message: str | None,
    identity: str | None,
) -> None:
    """Send a signal to all nodes of a topic.prefix; those that it concerns act on it.

    KIND: reset-segment, execute-snapshot, stop-snapshot, pause-writing, resume-writing or log.
    """
    config = load(path)
    if not config.topics.signal:
        raise ConfigError([FieldError("signal.kafka.topic", "is empty: nobody would read the signal")], path)
    given = {"--segments": segments, "--collections": collections, "--reason": reason, "--message": message}
    for option, argument in given.items():
        if argument and option not in _TAKES[kind]:
            raise click.UsageError(f"{option} says nothing to {kind}")
    data = _data(kind, config, collections)
    if segments is not None:
        data["segments"] = _numbers(segments, config["segment.count"])
    elif kind == "reset-segment":
        raise click.UsageError("Missing option '--segments'.")
    if reason is not None:
        data["reason"] = reason
    if message is not None:
        data["message"] = message
    identity = str(uuid.uuid4()) if identity is None else identity
    value = canonical.dumps({"id": identity, "type": kind, "data": data})
    try:
        decode_signal(value)
    except RecordError as error:
        raise click.UsageError(str(error)) from error
    publish(config, config.topics.signal, config["topic.prefix"], value)
    click.echo(f"signal {identity} ({kind}) sent to {config.topics.signal}")


_TAKES = {
    "reset-segment": ("--segments", "--reason"),
    "execute-snapshot": ("--segments", "--collections"),
    "stop-snapshot": ("--collections",),
    "pause-writing": ("--collections",),
    "resume-writing": ("--collections",),
    "log": ("--message",),
}


def _data(kind: str, config: Config, collections: tuple[str, ...]) -> dict[str, Any]:
    cache = config.topics.cache
    if kind == "reset-segment":
        return {"cache": cache}
    if kind == "log":
        return {}
    data: dict[str, Any] = {"data-collections": list(collections) or [re.escape(cache)]}
    return data | {"type": "incremental"} if kind.endswith("-snapshot") else data


def _numbers(text: str, count: int) -> list[int]:
    """`3,17,20-30` as numbers of segments."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if match is None:
            raise click.BadParameter(f"{text!r} is not a list of numbers", param_hint="--segments")
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    if bad := sorted(n for n in numbers if n >= count):
        raise click.BadParameter(f"{bad[:10]} are not segments of {count}", param_hint="--segments")
    if not numbers:
        raise click.BadParameter(f"{text!r} names no segment", param_hint="--segments")
    return sorted(numbers)
