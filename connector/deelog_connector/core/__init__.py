"""The protocol core: it decides, and does no I/O, reads no clock and draws no randomness."""

from deelog_connector.core.batch import CacheState, Settings
from deelog_connector.core.connector_core import ConnectorCore, Counts
from deelog_connector.core.history import History

__all__ = ["CacheState", "ConnectorCore", "Counts", "History", "Settings"]
