"""What the author of an interceptor implements: how to use a cache that it captures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping


class Driver(ABC):
    """One life of a cache; a check makes a new driver for each.

    The cache must hold 1,000 entries without evicting one, and let none expire. Keys and values are text. A method
    returns once the cache has done it. Writes come from several threads, those of one key from one thread.
    """

    @abstractmethod
    def start(self, fields: Mapping[str, str], entries: Mapping[str, str]) -> None:
        """Starts a cache that holds `entries`, and its capture. `fields` is the connector's whole configuration."""

    @abstractmethod
    def write(self, key: str, value: str) -> None:
        """Creates or updates an entry."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Removes an existing entry."""

    @abstractmethod
    def clear(self) -> None:
        """Removes all entries."""

    @abstractmethod
    def content(self) -> Mapping[str, str]:
        """All entries of the cache."""

    @abstractmethod
    def stop(self) -> None:
        """Ends the capture in order: what was captured is in Kafka afterwards. Must raise where it is not."""
