"""Every field of the configuration, declared once, in the order in which the documentation shows them.

Words and shapes are Debezium's and Kafka Connect's where the meaning is the same. A field is here only when
something obeys it; `PLANNED` names those that a later version brings, so that the error can say so.
"""

from __future__ import annotations

from typing import Final

from deelog_schemas.config.field import Field, words
from deelog_schemas.config.fields.capture import CAPTURE, FAILURE, QUEUE, SNAPSHOT, TRANSFORMS
from deelog_schemas.config.fields.diff import DIFF
from deelog_schemas.config.fields.node import GRID, METRICS, OBSERVE, REST
from deelog_schemas.config.fields.shapes import CLIENT_MESSAGE_MAX_BYTES, RECORD_MARGIN_BYTES, split_address
from deelog_schemas.config.fields.topics import FORMAT, IDENTITY, KAFKA

GROUPS: Final = {
    "identity": "Names",
    "kafka": "Kafka",
    "queue": "Op log and transactions",
    "capture": "Capture",
    "snapshot": "Snapshot and reset",
    "format": "Format of records",
    "transforms": "Transforms and filters",
    "failure": "Failure",
    "grid": "Node and grid",
    "observe": "Heartbeat, signals and notifications",
    "metrics": "Metrics and tracing",
    "rest": "REST API",
    "diff": "Spark job",
}

FIELDS: Final[dict[str, Field]] = {
    field.name: field
    for group in (
        *(IDENTITY, KAFKA, QUEUE, CAPTURE, SNAPSHOT, FORMAT, TRANSFORMS, FAILURE),
        *(GRID, OBSERVE, METRICS, REST, DIFF),
    )
    for field in group
}

# Known, and nothing obeys them yet: an error says so instead of guessing at a misspelling.
PLANNED: Final = words(
    """
    read.max.wait.ms
    """
)

__all__ = ["CLIENT_MESSAGE_MAX_BYTES", "FIELDS", "GROUPS", "PLANNED", "RECORD_MARGIN_BYTES", "split_address"]
