"""The connector at work: threads and sockets around the core."""

from deelog_connector.runtime.connector import CacheSide, Connector, MapError, Stats, SupersededError

__all__ = ["CacheSide", "Connector", "MapError", "Stats", "SupersededError"]
