"""`deelog node`."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deelog_connector.metrics.shared_server import page
from deelog_connector.rest import served
from deelog_schemas.config import Config, Role, load
from deelog_schemas.errors import DeelogError

if TYPE_CHECKING:
    from deelog_connector.rest.server import RestServer
    from deelog_interceptors.grid.node import Node


@click.command(short_help="Run one node of the cache grid with its connector.")
@click.option("--config", "path", required=True, type=click.Path(path_type=Path), help=".properties or .json file")
@click.option("--log-level", default="WARNING", show_default=True, help="level of the log on stderr")
def node(path: Path, log_level: str) -> None:
    """Run one node of the cache grid, with its connector, until SIGTERM or Ctrl-C.

    With `snapshot.mode=initial_only` it ends by itself, once its segments are sent.

    \b
    Example:
      deelog node --config node1.properties
      redis-cli -c -p 6379
    """
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        config = load(path, Role.NODE)
        config.resolved()
        config.must_capture()
        code = asyncio.run(serve(config))
    except DeelogError as error:
        click.echo(f"deelog node: {error}", err=True)
        code = error.exit_code
    raise SystemExit(code)


async def serve(config: Config) -> int:
    """Serves until a signal or a failure; the exit code. Raises `DeelogError` where the node cannot start or go on."""
    from deelog_interceptors.grid.node import Node

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    running = Node(config)
    loop.set_exception_handler(
        lambda _loop, context: running.failed(context.get("exception") or RuntimeError(context["message"]))
    )
    rest = await served(config, running.lifecycle, page(running.lifecycle.connectors, [running.watched]))
    try:
        return await _until_the_end(running, rest, stop)
    finally:
        if rest is not None:
            await rest.stop()


async def _until_the_end(running: Node, rest: RestServer | None, stop: asyncio.Event) -> int:
    stopped = asyncio.ensure_future(stop.wait())
    start = asyncio.ensure_future(running.start())
    await asyncio.wait({start, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not start.done() or start.exception() is not None:
        start.cancel()
        await asyncio.wait({start})
        await running.abort()
        if start.cancelled():
            return 0
        start.result()
    client, peer = running.addresses
    click.echo(f"deelog node {running.member} serves {client} peers {peer}")
    either: list[asyncio.Future[Any]] = [stopped, running.failure, running.connector.finished]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if rest is not None:
        await rest.stop()  # nobody pauses what is to write its last
    await running.stop()
    if running.failure.done():
        running.failure.result()
    return 0
