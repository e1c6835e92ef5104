"""The connector's shell: threads and Kafka clients around the core."""

from deelog_connector.runtime.connector import Connector
from deelog_connector.runtime.lifecycle import Lifecycle
from deelog_connector.runtime.stats import Stats

__all__ = ["Connector", "Lifecycle", "Stats"]
