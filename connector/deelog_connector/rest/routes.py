"""Every route, once: the application and the OpenAPI document are made from this table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version as version_of
from typing import Any, Final

from deelog_connector.rest import entities as e
from deelog_connector.rest.connectors import Connectors
from deelog_connector.rest.loggers import Loggers
from deelog_connector.rest.plugins import Plugins
from deelog_connector.runtime.lifecycle import Lifecycle, State

Handler = Callable[[e.Call], Awaitable[e.Answer]]


@dataclass(frozen=True, slots=True)
class Route:
    """`answers` by status: the type of the body, None for none. `body`: the type of the request's, None for none."""

    method: str
    path: str
    handler: Handler
    summary: str
    answers: dict[int, Any]
    body: Any = None
    query: tuple[str, ...] = ()
    open: bool = False
    """Answered without a token: says no more than that the process is there."""

    @property
    def changes(self) -> bool:
        """Whether who may only look may not call it. Validating changes nothing."""
        return self.method != "GET" and not self.path.endswith("/validate")


_ONE_CONNECTOR: Final = (
    "A process has one connector, which its file names and which lives as long as the cache. Stop it to end writing; "
    "end the process to end capture"
)
REFUSED: Final = {
    ("POST", "/connectors"): _ONE_CONNECTOR,
    ("DELETE", "/connectors/{connector}"): _ONE_CONNECTOR,
    ("PUT", "/connectors/{connector}/topics/reset"): "The topics of a connector are two for each cache, and fixed",
}
"""Routes of Kafka Connect that are answered with 405 and this reason."""


def routes(
    lifecycle: Lifecycle,
    worker: str,
    cluster_id: Callable[[], Awaitable[str]],
    metrics: Callable[[], tuple[bytes, str]] | None = None,
) -> list[Route]:
    """The table. `metrics`, where given, is the page of `/metrics` with its content type."""
    version = version_of("deelog")
    connectors, plugins = Connectors(lifecycle, worker, version), Plugins(lifecycle, version)
    root, loggers = _Root(lifecycle, version, cluster_id), Loggers()
    one, task = "/connectors/{connector}", "/connectors/{connector}/tasks/{task}"
    table = [
        Route("GET", "/", root.info, "Versions of the process and id of its Kafka", {200: e.ServerInfo}),
        Route(
            "GET", "/health", root.health, "Whether it serves", {200: e.WorkerStatus, 503: e.WorkerStatus}, open=True
        ),
        Route(
            "GET",
            "/connectors",
            connectors.listed,
            "Names; with expand=status and expand=info what they are",
            {200: list[str] | dict[str, e.Expanded]},
            query=("expand",),
        ),
        Route("GET", one, connectors.info, "Configuration and tasks", {200: e.ConnectorInfo}),
        Route("GET", f"{one}/config", connectors.config, "Configuration, secrets masked", {200: dict[str, str]}),
        Route(
            "PUT", f"{one}/config", connectors.put_config, "Configure and restart", {200: e.ConnectorInfo}, e.ConfigMap
        ),
        Route(
            "PATCH",
            f"{one}/config",
            connectors.patch_config,
            "Configure some fields and restart",
            {200: e.ConnectorInfo},
            e.PatchMap,
        ),
        Route("GET", f"{one}/status", connectors.status, "States", {200: e.ConnectorStateInfo}),
        Route("PUT", f"{one}/pause", connectors.pause, "Write nothing", {202: None}),
        Route("PUT", f"{one}/resume", connectors.resume, "Write again", {202: None}),
        Route("PUT", f"{one}/stop", connectors.stop, "Write out, then close the producer", {204: None}),
        Route(
            "POST",
            f"{one}/restart",
            connectors.restart,
            "New clients",
            {202: e.ConnectorStateInfo, 204: None},
            query=("includeTasks", "onlyFailed"),
        ),
        Route("GET", f"{one}/tasks", connectors.tasks, "Which segments each task has", {200: list[e.TaskInfo]}),
        Route("GET", f"{task}/status", connectors.task_status, "State of a task", {200: e.TaskState}),
        Route("POST", f"{task}/restart", connectors.restart_task, "Reset what is stopped in it", {204: None}),
        Route("GET", f"{one}/topics", connectors.topics, "Topics written to", {200: dict[str, e.ActiveTopics]}),
        Route("GET", f"{one}/offsets", connectors.offsets, "What Kafka holds", {200: e.ConnectorOffsets}),
        Route(
            "PATCH",
            f"{one}/offsets",
            connectors.alter_offsets,
            "Have segments reset",
            {200: e.Message},
            e.ConnectorOffsets,
        ),
        Route("DELETE", f"{one}/offsets", connectors.reset_offsets, "Have all segments reset", {200: e.Message}),
        Route("GET", "/connector-plugins", plugins.listed, "Plugins", {200: list[e.Plugin]}, query=("connectorsOnly",)),
        Route("GET", "/connector-plugins/{plugin}/config", plugins.config, "Fields", {200: list[e.ConfigKeyInfo]}),
        Route(
            "PUT",
            "/connector-plugins/{plugin}/config/validate",
            plugins.validate,
            "Judge a configuration",
            {200: e.ConfigInfos},
            e.ConfigMap,
        ),
        Route("GET", "/admin/loggers", loggers.listed, "Levels", {200: dict[str, e.LoggerLevel]}),
        Route("GET", "/admin/loggers/{logger}", loggers.get, "Level", {200: e.LoggerLevel}),
        Route(
            "PUT",
            "/admin/loggers/{logger}",
            loggers.put,
            "Set a level",
            {200: list[str], 204: None},
            e.NewLevel,
            query=("scope",),
        ),
    ]
    if metrics is not None:
        page = _Page(metrics)
        table.append(Route("GET", "/metrics", page.get, "Metrics for Prometheus", {200: str}))
    return table


class _Root:
    def __init__(self, lifecycle: Lifecycle, version: str, cluster_id: Callable[[], Awaitable[str]]) -> None:
        self._lifecycle, self._version, self._cluster_id = lifecycle, version, cluster_id

    async def info(self, _: e.Call) -> e.Answer:
        return e.Answer(e.ServerInfo(self._version, "Unknown", await self._cluster_id()))

    async def health(self, _: e.Call) -> e.Answer:
        if self._lifecycle.state is State.FAILED:
            return e.Answer(e.WorkerStatus("unhealthy", "The connector cannot go on."), 503)
        if not self._lifecycle.started:
            return e.Answer(e.WorkerStatus("starting", "Worker is still starting up."), 503)
        message = "Worker has completed startup and is ready to handle requests."
        return e.Answer(e.WorkerStatus("healthy", message))


class _Page:
    def __init__(self, page: Callable[[], tuple[bytes, str]]) -> None:
        self._page = page

    async def get(self, _: e.Call) -> e.Answer:
        content, kind = self._page()
        return e.Answer(content, headers={"Content-Type": kind})
