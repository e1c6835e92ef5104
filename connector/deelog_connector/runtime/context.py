"""What the shells of one connector have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from deelog_connector.cache_side import CacheSide, StreamSide
from deelog_connector.core import ConnectorCore
from deelog_connector.kafka_port import KafkaPort
from deelog_connector.kept_topic import ReadTopic
from deelog_connector.runtime.meters import EventMeter
from deelog_connector.signals.incremental_snapshots import Snapshots
from deelog_connector.signals.processor import Signals
from deelog_schemas.errors import DeelogError


@dataclass(frozen=True, slots=True)
class Context:
    """It outlasts a restart. All of it is the connector's."""

    connector_name: str
    core: ConnectorCore
    cache_side: CacheSide | StreamSide
    signals: Signals
    snapshots: Snapshots
    meter: EventMeter
    port: KafkaPort
    failure: asyncio.Future[None]
    """Gets the exception after which the connector cannot go on."""
    wake: Callable[[], None]
    """Polls the core soon."""
    positions: ReadTopic
    """The positions topic as it was last seen."""
    pruned: Callable[[], None]
    """Called after each state read."""
    halt: Callable[[DeelogError], None]
    """Stops writing, because of a failed transform."""
    closed: Callable[[], bool]
    """Whether no session is wanted."""
