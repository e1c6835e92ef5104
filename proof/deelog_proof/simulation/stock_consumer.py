"""A consumer that knows only Debezium's envelope: no header, no positions, no begin and end of a reset.

It keeps the last value of each key, as stock consumers do: `r`, `c` and `u` upsert, `d` and a null value delete.
It reads committed records. With `reset.strategy=tombstones` it ends with the cache's content.
"""

from __future__ import annotations

from typing import Any

import orjson


class StockConsumer:
    """`entries` by key text: the envelope's `after`. `deletes` counts deletes of existing keys."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Any]] = {}
        self.deletes = 0

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """The next record of a partition."""
        assert key is not None
        name = orjson.loads(key)["key"]
        envelope = None if value is None else orjson.loads(value)
        if envelope is None or envelope["op"] == "d":
            self.deletes += self.entries.pop(name, None) is not None
        else:
            assert envelope["op"] in ("r", "c", "u"), envelope
            self.entries[name] = envelope["after"]

    @property
    def content(self) -> dict[bytes, tuple[bytes, int | None]]:
        """Value and expiry by key, of text keys and values."""
        return {k.encode(): (v["value"].encode(), v["expires_at"]) for k, v in self.entries.items()}
