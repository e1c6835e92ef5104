"""`/connectors`: the one connector of this process, as Kafka Connect would show it, and what may be done to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from deelog_connector.errors import KafkaTooSlowError
from deelog_connector.rest.entities import (
    ActiveTopics,
    Answer,
    Call,
    ConnectorInfo,
    ConnectorOffset,
    ConnectorOffsets,
    ConnectorState,
    ConnectorStateInfo,
    Expanded,
    Message,
    Partition,
    Position,
    RestError,
    TaskId,
    TaskInfo,
    TaskState,
)
from deelog_connector.rest.remote import as_text, without_masks
from deelog_connector.runtime.lifecycle import Lifecycle, State, Task
from deelog_connector.signals.notifications import ranges
from deelog_schemas.config import Config, ConfigError, FieldError, parse
from deelog_schemas.config.validation import judge
from deelog_schemas.errors import DeelogError

_STARTING = "Worker is still starting up."
_NOT_STOPPED = (
    "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the specified "
    "connector by issuing a 'PUT' request to the '/connectors/{}/stop' endpoint"
)


class Connectors:
    """See the module. `worker` is `host:port` of this API, `version` the product's."""

    def __init__(self, lifecycle: Lifecycle, worker: str, version: str) -> None:
        self._lifecycle, self._worker, self._version = lifecycle, worker, version

    # -- looking --------------------------------------------------------------------------------------------------

    async def listed(self, call: Call) -> Answer:
        names = [self._lifecycle.name]
        wanted = call.values("expand")
        if not wanted:
            return Answer(names)
        return Answer(
            {
                name: Expanded(
                    self._status() if "status" in wanted else None, self._info() if "info" in wanted else None
                )
                for name in names
            }
        )

    async def info(self, call: Call) -> Answer:
        self._known(call)
        return Answer(self._info())

    async def config(self, call: Call) -> Answer:
        self._known(call)
        return Answer(self._shown())

    async def status(self, call: Call) -> Answer:
        self._known(call, "No status found for connector {}")
        return Answer(self._status())

    async def tasks(self, call: Call) -> Answer:
        self._known(call)
        return Answer([TaskInfo(TaskId(self._lifecycle.name, t.number), _task(t)) for t in self._lifecycle.tasks()])

    async def task_status(self, call: Call) -> Answer:
        return Answer(self._task_state(self._task(call, "No status found for task {}-{}")))

    async def topics(self, call: Call) -> Answer:
        """Of a connector that nobody knows: none, as Connect says."""
        name = call.path["connector"]
        return Answer({name: ActiveTopics(self._lifecycle.topics() if self._is(name) else [])})

    async def offsets(self, call: Call) -> Answer:
        self._known(call)
        offsets = self._lifecycle.offsets()
        return Answer(
            ConnectorOffsets(
                [ConnectorOffset(Partition(o.cache, o.segment), Position(o.epoch, o.sequence)) for o in offsets]
            )
        )

    # -- acting ---------------------------------------------------------------------------------------------------

    async def pause(self, call: Call) -> Answer:
        self._acting(call, "Unknown connector {}")
        await _done(self._lifecycle.pause())
        return Answer(status=202)

    async def resume(self, call: Call) -> Answer:
        self._acting(call, "Unknown connector {}")
        await _done(self._lifecycle.resume())
        return Answer(status=202)

    async def stop(self, call: Call) -> Answer:
        self._acting(call)
        await _done(self._lifecycle.stop())
        return Answer(status=204)

    async def restart(self, call: Call) -> Answer:
        """Connect's three kinds: the connector (204), with its tasks (202, done after the answer), what has failed."""
        self._acting(call, "Unknown connector: {}" if call.asked("includeTasks") else None)
        if call.asked("onlyFailed"):
            if self._lifecycle.state is State.FAILED:
                self._lifecycle.restart_soon()
            elif call.asked("includeTasks"):
                for task in self._lifecycle.tasks():
                    self._lifecycle.restart_task(task)
            return Answer(self._status(), 202)
        if call.asked("includeTasks"):
            self._lifecycle.restart_soon()
            return Answer(self._status(), 202)
        await _done(self._lifecycle.restart())
        return Answer(status=204)

    async def restart_task(self, call: Call) -> Answer:
        self._acting(call)
        self._lifecycle.restart_task(self._task(call, "Task {}-{} not found"))
        return Answer(status=204)

    async def put_config(self, call: Call) -> Answer:
        def config() -> Config:
            return self._accepted(call.path["connector"], as_text(call.body))

        return await self._configured(config)

    async def patch_config(self, call: Call) -> Answer:
        """Names given are set, those given as null taken out."""
        self._acting(call)
        given = as_text({name: value for name, value in call.body.items() if value is not None})

        def config() -> Config:
            merged = {**self._shown(), **given}
            return self._accepted(
                call.path["connector"], {n: t for n, t in merged.items() if call.body.get(n, t) is not None}
            )

        return await self._configured(config)

    async def alter_offsets(self, call: Call) -> Answer:
        """null: the segment is reset at the resume. Any other value must be the present one."""
        self._stopped(call)
        request: ConnectorOffsets = call.body
        if not request.offsets:
            raise RestError(400, "Partitions / offsets need to be provided for an alter offsets request")
        present = {(o.cache, o.segment): (o.epoch, o.sequence) for o in self._lifecycle.offsets()}
        mine = self._segments()
        for entry in request.offsets:
            place = entry.partition.cache, entry.partition.segment
            if place not in mine:
                raise RestError(400, f"Segment {place[1]} of cache {place[0]} is none that this node writes")
            if entry.offset is not None and (entry.offset.epoch, entry.offset.seq) != present.get(place):
                raise RestError(
                    400,
                    f"The offset of segment {place[1]} of cache {place[0]} is what Kafka was read to hold; it "
                    "cannot be set to another. Give null to have the segment reset",
                )
        self._lifecycle.reset([(e.partition.cache, e.partition.segment) for e in request.offsets if e.offset is None])
        return Answer(Message("The offsets for this connector have been altered successfully"))

    async def reset_offsets(self, call: Call) -> Answer:
        """Every segment is reset at the resume."""
        self._stopped(call)
        self._lifecycle.reset(sorted(self._segments()))
        return Answer(Message("The offsets for this connector have been reset successfully"))

    # -- inside ---------------------------------------------------------------------------------------------------

    def _is(self, name: str) -> bool:
        return name == self._lifecycle.name

    def _known(self, call: Call, unknown: str | None = None) -> None:
        name = call.path["connector"]
        if not self._is(name):
            raise RestError(404, (unknown or "Connector {} not found").format(name))

    def _acting(self, call: Call, unknown: str | None = None) -> None:
        self._known(call, unknown)
        self._ready()

    def _ready(self) -> None:
        if not self._lifecycle.started:
            raise RestError(503, _STARTING)

    def _stopped(self, call: Call) -> None:
        self._acting(call)
        if self._lifecycle.state is not State.STOPPED:
            raise RestError(400, _NOT_STOPPED.format(self._lifecycle.name))

    def _segments(self) -> set[tuple[str, int]]:
        return {(cache, s.number) for cache, c in self._lifecycle.connectors.items() for s in c.core.primaries()}

    def _task(self, call: Call, unknown: str) -> Task:
        name, text = call.path["connector"], call.path["task"]
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise RestError(404, "HTTP 404 Not Found")
        tasks = {task.number: task for task in self._lifecycle.tasks()} if self._is(name) else {}
        if int(text) not in tasks:
            raise RestError(404, unknown.format(name, int(text)))
        return tasks[int(text)]

    def _shown(self) -> dict[str, str]:
        config = self._lifecycle.config
        # Whatever Connect's tools expect to be there, and a file may leave to the defaults.
        return {"connector.class": config["connector.class"], **config.masked(), "name": self._lifecycle.name}

    def _info(self) -> ConnectorInfo:
        name = self._lifecycle.name
        return ConnectorInfo(name, self._shown(), [TaskId(name, task.number) for task in self._lifecycle.tasks()])

    def _status(self) -> ConnectorStateInfo:
        lifecycle = self._lifecycle
        connector = ConnectorState(str(lifecycle.state), self._worker, lifecycle.trace, self._version)
        return ConnectorStateInfo(lifecycle.name, connector, [self._task_state(t) for t in lifecycle.tasks()])

    def _task_state(self, task: Task) -> TaskState:
        return TaskState(task.number, str(task.state), self._worker, task.trace, self._version)

    def _accepted(self, name: str, given: dict[str, str]) -> Config:
        """The configuration, once everything about it is right; else 400 with all that is wrong."""
        self._ready()
        if given.setdefault("name", name) != name:
            raise RestError(
                400, f"Connector name configuration ({given['name']}) doesn't match connector name in the URL ({name})"
            )
        if "connector.class" not in given:
            raise RestError(400, f"Connector config {{{', '.join(sorted(given))}}} contains no connector type")
        whole, errors = without_masks(given, self._lifecycle.config, self._lifecycle.file)
        verdict = judge(whole, self._lifecycle.config.role, errors)
        if verdict.errors:
            raise _invalid(list(verdict.errors))
        config = parse(whole, self._lifecycle.config.role)
        try:
            self._lifecycle.check(config)
        except ConfigError as error:
            raise _invalid(error.errors) from None
        return config

    async def _configured(self, config: Callable[[], Config]) -> Answer:
        config()  # what is wrong with it is said at once, not when its turn has come
        await _done(self._configuring(config))
        return Answer(self._info())

    async def _configuring(self, config: Callable[[], Config]) -> None:
        try:
            await self._lifecycle.configure(config)
        except ConfigError as error:  # what only the attempt shows: a transform that cannot be made
            raise _invalid(error.errors) from error


async def _done(work: Awaitable[None]) -> None:
    try:
        await work
    except KafkaTooSlowError as error:
        raise RestError(500, f"Request timed out. {error}") from error
    except DeelogError as error:
        raise RestError(500, str(error)) from error


def _invalid(errors: list[FieldError]) -> RestError:
    lines = "\n".join(map(str, errors))
    return RestError(
        400,
        f"Connector configuration is invalid and contains the following {len(errors)} error(s):\n{lines}\n"
        "You can also find the above list of errors at the endpoint "
        "`/connector-plugins/{connectorType}/config/validate`",
    )


def _task(task: Task) -> dict[str, str]:
    return {"cache.name": task.cache, "partition": str(task.partition), "segments": ranges(task.segments)}
