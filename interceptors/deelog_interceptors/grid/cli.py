"""`deelog node`."""

from __future__ import annotations

import asyncio
import logging
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from deelog_connector.metrics.shared_server import page
from deelog_interceptors.hosting.process import restarting, run, signalled
from deelog_schemas.config import Config, Role, load
from deelog_schemas.errors import ConfigError, DeelogError, FieldError

if TYPE_CHECKING:
    from deelog_interceptors.grid.node import Node

log = logging.getLogger(__name__)
RESERVED_FILES: Final = 256
"""Open files beside the clients' connections: Kafka's clients, the other nodes, REST, logs."""


@click.command(short_help="Run one node of the cache grid with its connector.")
@click.option("--config", "path", required=True, type=click.Path(path_type=Path), help=".properties or .json file.")
@click.option(
    "--log-level",
    default="WARNING",
    show_default=True,
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], case_sensitive=False),
    help="Level of the log on stderr.",
)
def node(path: Path, log_level: str) -> None:
    """Run one node of the cache grid, with its connector, until SIGTERM or Ctrl-C.

    With `snapshot.mode=initial_only` it ends by itself, once its segments are sent.

    \b
    Example:
      deelog node --config node1.properties
      redis-cli -c -p 6379
    """
    logging.basicConfig(level=log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        config = load(path, Role.NODE)
        config.resolved()
        if config["connector.class"] == "deelog.RedisConnector":
            raise ConfigError([FieldError("connector.class", "a connector beside a server is run by `deelog run`")])
        asyncio.run(serve(config))
    except DeelogError as error:
        click.echo(f"deelog node: {error}", err=True)
        raise SystemExit(error.exit_code) from None


def most_connections(wanted: int) -> int:
    """As many of the `wanted` connections of clients as the process may have open files for.

    Raises the limit as far as it may, as Redis does.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != soft < wanted + RESERVED_FILES:
        soft = wanted + RESERVED_FILES if hard == resource.RLIM_INFINITY else min(wanted + RESERVED_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(soft // 2, soft - RESERVED_FILES))


async def serve(config: Config) -> None:
    """Serves until a signal, a failure or the connector's end. Raises `DeelogError`."""
    from deelog_interceptors.grid.node import Node

    stopped = signalled()  # once: a signal between two starts counts
    await restarting(lambda after: Node(config, after=after), lambda running: _serve(config, running, stopped))


async def _serve(config: Config, running: Node, stopped: asyncio.Future[None]) -> None:
    wanted = running.clients.max_connections
    running.clients.max_connections = allowed = most_connections(wanted)
    if allowed < wanted:
        log.warning("the limit of open files (ulimit -n) is enough for %d clients, not for %d", allowed, wanted)

    def announce() -> None:
        client, peer = running.addresses
        click.echo(f"deelog node {running.member} serves {client} peers {peer}")

    await run(config, running, page(running.lifecycle.connectors, running.sources), announce, stopped)
