"""The REST API of one connector process: Kafka Connect's routes, bodies, states, codes and errors.

    rest = await served(config, lifecycle)     # None where rest.port is 0
    ...
    if rest is not None:
        await rest.stop()

`routes` says once what there is; the application (`app`) and the OpenAPI document (`openapi`) are made from it. The
handlers know nothing of HTTP's frame, and what may be asked by whom is decided in `access`.

Weighed in docs/decisions.md, "The REST framework".

Server: uvicorn with h11 on the connector's own loop; from a thread every look at the core would cross to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from deelog_connector.errors import MissingExtraError
from deelog_connector.runtime.lifecycle import Lifecycle
from deelog_schemas.config import Config

if TYPE_CHECKING:
    from deelog_connector.rest.server import RestServer


async def served(
    config: Config, lifecycle: Lifecycle, metrics: Callable[[], tuple[bytes, str]] | None = None
) -> RestServer | None:
    """The API, started, where `rest.port` is set; `metrics` gives the page of `/metrics` and its content type.

    Raises `ConfigError` where it cannot be served as configured, `MissingExtraError` without the extra.
    """
    if not config["rest.port"]:
        return None
    try:
        from deelog_connector.rest.server import RestServer
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("deelog_"):
            raise
        raise MissingExtraError("rest.port", "rest", str(error.name)) from error
    server = RestServer(config, lifecycle, metrics)
    await server.start()
    return server
