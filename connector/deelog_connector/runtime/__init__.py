"""The connector at work: threads and sockets around the core."""

from deelog_connector.runtime.connector import Connector, MapError, RetriesExhausted, Stats, SupersededError
from deelog_connector.runtime.lifecycle import Lifecycle
from deelog_connector.transforms.pipeline import TransformFailed

__all__ = [
    "Connector",
    "Lifecycle",
    "MapError",
    "RetriesExhausted",
    "Stats",
    "SupersededError",
    "TransformFailed",
]
