"""`deelog run`."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from deelog_connector.metrics.shared_server import page
from deelog_interceptors.hosting.process import restarting, signalled
from deelog_interceptors.hosting.process import run as host
from deelog_interceptors.redis.commands import page as page_of_commands
from deelog_schemas.config import Config, Role, load
from deelog_schemas.errors import ConfigError, DeelogError, FieldError

if TYPE_CHECKING:
    from deelog_interceptors.redis.databases import Databases

_CLASS: Final = "deelog.RedisConnector"


def _commands(context: click.Context, _: click.Parameter, given: bool) -> None:
    if given:
        click.echo(page_of_commands(), nl=False)
        context.exit()


@click.command(short_help="Run a connector beside a server of Redis or Valkey.")
@click.option("--config", "path", required=True, type=click.Path(path_type=Path), help=".properties or .json file.")
@click.option(
    "--commands", is_eager=True, is_flag=True, expose_value=False, callback=_commands, help="Print what comes of each."
)
@click.option(
    "--log-level",
    default="WARNING",
    show_default=True,
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], case_sensitive=False),
    help="Level of the log on stderr.",
)
def run(path: Path, log_level: str) -> None:
    """Run a connector beside a server of Redis or Valkey, until SIGTERM or Ctrl-C.

    \b
    Example:
      deelog run --config sessions-redis-1.properties
    """
    logging.basicConfig(level=log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        config = load(path, Role.NODE)
        config.resolved()
        check(config)
        asyncio.run(serve(config))
    except DeelogError as error:
        click.echo(f"deelog run: {error}", err=True)
        raise SystemExit(error.exit_code) from None


def check(config: Config) -> None:
    """Raises `ConfigError` where the file is another connector's."""
    if config["connector.class"] != _CLASS:
        problem = f"`deelog run` is for {_CLASS}; others run in their own process"
        raise ConfigError([FieldError("connector.class", problem)])


async def serve(config: Config) -> None:
    """Runs until a signal, a failure or the connector's end. Raises `DeelogError`."""
    from deelog_interceptors.redis.databases import Databases

    stopped = signalled()  # once: a signal between two starts counts
    await restarting(lambda after: Databases(config, after=after), lambda running: _serve(config, running, stopped))


async def _serve(config: Config, running: Databases, stopped: asyncio.Future[None]) -> None:
    def announce() -> None:
        for node in running.nodes:
            where = f"{node.address}/{node.address.database}"
            click.echo(f"deelog run {node.member} captures {where} as {node.cache}")

    await host(config, running, page(running.lifecycle.connectors, running.sources), announce, stopped)
