"""Bodies of requests and answers, as Kafka Connect 4.3 has them; and the error that every route may answer with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct

Scalar = str | int | float | bool
ConfigMap = dict[str, Scalar]
"""Connect takes numbers and booleans as text."""
PatchMap = dict[str, Scalar | None]
"""null takes a name out."""


class RestError(Exception):
    """Becomes `{"error_code": …, "message": …}`."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


class ErrorMessage(Struct):
    error_code: int
    message: str


class ServerInfo(Struct):
    version: str
    commit: str
    kafka_cluster_id: str


class WorkerStatus(Struct):
    status: Literal["healthy", "starting", "unhealthy"]
    message: str


class TaskId(Struct):
    connector: str
    task: int


class ConnectorInfo(Struct):
    name: str
    config: dict[str, str]
    tasks: list[TaskId]
    type: Literal["source"] = "source"


class ConnectorState(Struct, omit_defaults=True):
    state: str
    worker_id: str
    trace: str | None = None
    version: str | None = None


class TaskState(Struct, omit_defaults=True):
    id: int
    state: str
    worker_id: str
    trace: str | None = None
    version: str | None = None


class ConnectorStateInfo(Struct):
    name: str
    connector: ConnectorState
    tasks: list[TaskState]
    type: Literal["source"] = "source"


class Expanded(Struct, omit_defaults=True):
    status: ConnectorStateInfo | None = None
    info: ConnectorInfo | None = None


class TaskInfo(Struct):
    id: TaskId
    config: dict[str, str]


class ActiveTopics(Struct):
    topics: list[str]


class Partition(Struct, forbid_unknown_fields=True):
    cache: str
    segment: int


class Position(Struct, forbid_unknown_fields=True):
    epoch: int
    seq: int


class ConnectorOffset(Struct, forbid_unknown_fields=True):
    partition: Partition
    offset: Position | None


class ConnectorOffsets(Struct, forbid_unknown_fields=True):
    offsets: list[ConnectorOffset] | None = None


class Message(Struct):
    message: str


class Plugin(Struct, rename={"class_": "class"}):
    class_: str
    type: Literal["source"]
    version: str


class ConfigKeyInfo(Struct):
    name: str
    type: str
    required: bool
    default_value: str | None
    importance: str
    documentation: str
    group: str
    order_in_group: int
    width: str
    display_name: str
    dependents: list[str]


class ConfigValueInfo(Struct):
    name: str
    value: str | None
    recommended_values: list[str]
    errors: list[str]
    visible: bool


class ConfigInfo(Struct):
    definition: ConfigKeyInfo | None
    value: ConfigValueInfo


class ConfigInfos(Struct):
    name: str
    error_count: int
    groups: list[str]
    configs: list[ConfigInfo]


class LoggerLevel(Struct):
    level: str | None
    last_modified: int | None


class NewLevel(Struct):
    level: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One request: what stood in the path, the query and the body, decoded as the route says."""

    path: dict[str, str]
    query: list[tuple[str, str]]
    body: Any = None

    def asked(self, name: str) -> bool:
        """A boolean of the query; anything but `true` is false, as in Connect."""
        return any(given == name and value.lower() == "true" for given, value in self.query)

    def values(self, name: str) -> list[str]:
        """All values of one name in the query."""
        return [value for given, value in self.query if given == name]


@dataclass(frozen=True, slots=True)
class Answer:
    """`body` is encoded as JSON, unless it is bytes; None is no body."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
