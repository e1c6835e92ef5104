"""The protocol core: it decides, and does no I/O, reads no clock and draws no randomness."""

from deelog_connector.core.connector_core import ConnectorCore
from deelog_connector.core.settings import Settings
from deelog_connector.core.state import Counts

__all__ = ["ConnectorCore", "Counts", "Settings"]
