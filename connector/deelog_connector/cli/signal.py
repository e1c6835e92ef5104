"""`deelog signal`: ask the connectors of a prefix for something, over Kafka."""

from __future__ import annotations

import uuid

import click

from deelog_connector.kafka.signal import send
from deelog_schemas import canonical
from deelog_schemas.config import load


@click.command(epilog="Example: deelog signal --config node1.properties --segments 3,17 --reason 'checking'")
@click.argument("kind", type=click.Choice(["reset-segment"]), default="reset-segment")
@click.option(
    "--config", "path", required=True, type=click.Path(exists=True, dir_okay=False), help="A node's configuration."
)
@click.option("--segments", required=True, help="Segments, separated by commas.")
@click.option("--reason", default="signal", show_default=True, help="What to log.")
def signal(kind: str, path: str, segments: str, reason: str) -> None:
    """Send a signal to all nodes of a cache; the owner of a segment acts on it."""
    config = load(path)
    try:
        numbers = [int(s) for s in segments.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"{segments!r} is not a list of numbers", param_hint="--segments") from error
    if bad := [n for n in numbers if not 0 <= n < config["segment.count"]]:
        raise click.BadParameter(f"{bad} are not segments of {config['segment.count']}", param_hint="--segments")
    topics = config.topics
    data = {"cache": topics.cache, "segments": numbers, "reason": reason}
    identity = str(uuid.uuid4())
    send(config, canonical.dumps({"id": identity, "type": kind, "data": data}))
    click.echo(f"signal {identity} ({kind}) sent to {topics.signal}")
